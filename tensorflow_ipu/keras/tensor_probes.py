"""Watches the layers of a Keras model while it is called: what they compute, in a precision of the caller's choice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from tensorflow_ipu._base.tensors import tf_variable
from tensorflow_ipu._tensorflow import autograph
from tensorflow_ipu.keras._keras import internals, keras

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from tensorflow_ipu._base.types import Nested
    from tensorflow_ipu.strategy import IPUStrategyV1

__all__ = [
    "ProbedStep",
    "ProbedTensor",
    "build",
    "has_own_step",
    "is_model",
    "probed_step",
    "strategy_of_model",
    "update",
    "variables_of",
    "weights_of",
]


class ProbedTensor(NamedTuple):
    """A tensor that a layer made."""

    layer: str
    name: str
    tensor: tf.Tensor


class ProbedStep(NamedTuple):
    """What a step of training computed."""

    loss: tf.Tensor
    activations: Sequence[ProbedTensor]
    gradients: Sequence[tf.Tensor | None]
    weights: Sequence[ProbedTensor]
    weight_gradients: Sequence[tf.Tensor | None]


def is_model(value: object) -> TypeIs[keras.Model]:
    return isinstance(value, keras.Model)


def has_own_step(model: keras.Model) -> bool:
    return type(model).train_step is not keras.Model.train_step


def variables_of(model: keras.Model) -> list[Any]:
    optimizer: Any = model.optimizer
    return [*model.variables, *([] if optimizer is None else internals.variables_of(optimizer))]


def strategy_of_model(model: keras.Model) -> IPUStrategyV1 | None:
    """The strategy in whose scope a model was made; None where it was made in none of an IPU's."""
    extension = vars(model).get("_ipu_extension")
    return None if extension is None else extension.strategy


def probed_step(
    model: keras.Model, batch: Nested, half: bool, scale: float = 1.0, single: Sequence[str] = ()
) -> ProbedStep:
    """A step of training in float32 or float16, without its update. It is called where a function is traced."""
    x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
    policy = "mixed_float16" if half else "float32"

    def compute() -> tf.Tensor:
        return internals.total_loss(model, y, model(x, training=True), weights, training=True)

    with _turn_of(model), tf.GradientTape() as tape, _computing_in(model, policy, single):
        with _watched(model) as found:
            loss = internals.converting(compute)()
        scaled = loss * tf.cast(scale, loss.dtype)
        activations = list(found)
        variables = [tf_variable(weight) for weight in model.trainable_variables]
        # Here, as some layers compute again.
        made = tape.gradient(scaled, [*(one.tensor for one in activations), *variables])
    gradients = [None if one is None else tf.convert_to_tensor(one) for one in made]
    return ProbedStep(
        loss, activations, gradients[: len(activations)], weights_of(model), gradients[len(activations) :]
    )


def _turn_of(model: keras.Model) -> contextlib.AbstractContextManager[None]:
    """A block in which no other thread traces the model."""
    extension = vars(model).get("_ipu_extension")
    return contextlib.nullcontext() if extension is None else extension.calls.turn()


def build(model: keras.Model, batch: Nested) -> None:
    internals.check_compiled(model, "precision_report")
    strategy = strategy_of_model(model)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        internals.build_for_training(model, tf.nest.map_structure(tf.TensorSpec.from_tensor, batch))


def update(model: keras.Model, gradients: Sequence[tf.Tensor | None]) -> None:
    factor = internals.scaled_loss(model.optimizer, tf.constant(1.0))
    scaled = [None if one is None else one * tf.cast(factor, one.dtype) for one in gradients]
    internals.update_with(model.optimizer, scaled, model.trainable_variables)


def weights_of(model: keras.Model) -> list[ProbedTensor]:
    """The trainable weights in Keras's order, each with the layer that made it."""
    names = _names(model)
    layer_of = {}
    for layer in reversed(internals.all_layers(model)):  # The innermost wins.
        for weight in layer.trainable_variables:
            layer_of.setdefault(id(weight), names.get(id(layer), layer.name))
    return [
        ProbedTensor(layer_of.get(id(weight), model.name), weight.name, tf_variable(weight))
        for weight in model.trainable_variables
    ]


def _names(model: keras.Model) -> dict[int, str]:
    """What each layer is called: its name, with a number where several have it."""
    names: dict[int, str] = {}
    seen: dict[str, int] = {}
    for layer in internals.all_layers(model):
        count = seen[layer.name] = seen.get(layer.name, 0) + 1
        names[id(layer)] = layer.name if count == 1 else f"{layer.name}#{count}"
    return names


@contextlib.contextmanager
def _computing_in(model: keras.Model, policy: str, single: Sequence[str]) -> Iterator[None]:
    """A block in which layers compute by this policy, and those that are named in float32."""
    names = _names(model)
    layers = internals.all_layers(model)
    before = [layer.dtype_policy for layer in layers]
    try:
        for layer in layers:
            # An inner layer is as the layer around that is named.
            inside = {id(inner) for inner in internals.all_layers(layer)}
            if layer is not model and names[id(layer)] in single:
                single = [*single, *(names[each] for each in inside)]
        for layer in layers:
            kept = layer is not model and names[id(layer)] in single
            internals.set_policy(layer, "float32" if kept else policy)
        with internals.casting(layers):
            yield
    finally:
        for layer, own in zip(layers, before, strict=True):
            internals.set_policy(layer, own)


@contextlib.contextmanager
def _watched(model: keras.Model) -> Iterator[list[ProbedTensor]]:
    """A block that notes the floating results of the model's layers. What is computed in a loop of a layer is the layer's."""
    found: list[ProbedTensor] = []
    seen: set[int] = set()
    graph = tf.compat.v1.get_default_graph()
    names = _names(model)
    layers = [layer for layer in internals.all_layers(model) if layer is not model]

    def probing(layer: keras.layers.Layer, call: Callable[..., Nested]) -> Callable[..., Nested]:
        def watched(*args: Any, **kwargs: Any) -> Nested:
            result = autograph.user_code(call)(*args, **kwargs)
            tensors = [one for one in tf.nest.flatten(result) if tf.is_tensor(one) and one.dtype.is_floating]
            for at, tensor in enumerate(tensors):
                if getattr(tensor, "graph", graph) is graph and id(tensor) not in seen:
                    seen.add(id(tensor))
                    count = sum(one.layer == names[id(layer)] for one in found)
                    found.append(ProbedTensor(names[id(layer)], str(count) if count or at else "", tensor))
            return result

        return watched

    for layer in layers:
        # Past Keras's own attributes, which it tracks.
        layer.__dict__["call"] = probing(layer, layer.call)
    try:
        yield found
    finally:
        for layer in layers:
            del layer.__dict__["call"]
