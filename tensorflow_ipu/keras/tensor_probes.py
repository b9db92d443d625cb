"""Runs a training step of a Keras model in a chosen precision and returns what its layers computed."""

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
    """A tensor that a layer made: a result, or a weight."""

    layer: str
    name: str
    tensor: tf.Tensor


class ProbedStep(NamedTuple):
    """The loss, activations, weights and gradients of a training step."""

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
    """Returns the strategy in whose scope a model was made, or None."""
    extension = vars(model).get("_ipu_extension")
    return None if extension is None else extension.strategy


def probed_step(
    model: keras.Model, batch: Nested, half: bool, scale: float = 1.0, single: Sequence[str] = ()
) -> ProbedStep:
    """Traces the loss and gradients of a training step in float32 or float16, without an update of the weights."""
    x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
    policy = "mixed_float16" if half else "float32"

    def compute() -> tf.Tensor:
        return internals.total_loss(model, y, model(x, training=True), weights, training=True)

    with _turn_of(model), tf.GradientTape() as tape, _computing_in(model, policy, single):
        with _watched(model) as probed:
            loss = internals.converting(compute)()
        scaled = loss * tf.cast(scale, loss.dtype)
        activations = list(probed)
        variables = [tf_variable(weight) for weight in model.trainable_variables]
        # Gradients are taken inside the block, as some layers compute their results again in the backward pass.
        results = tape.gradient(scaled, [*(probe.tensor for probe in activations), *variables])
    gradients = [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in results]
    return ProbedStep(
        loss, activations, gradients[: len(activations)], weights_of(model), gradients[len(activations) :]
    )


def _turn_of(model: keras.Model) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which no other thread runs or traces the model."""
    extension = vars(model).get("_ipu_extension")
    return contextlib.nullcontext() if extension is None else extension.calls.turn()


def build(model: keras.Model, batch: Nested) -> None:
    internals.check_compiled(model, "precision_report")
    strategy = strategy_of_model(model)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        internals.build_for_training(model, tf.nest.map_structure(tf.TensorSpec.from_tensor, batch))


def update(model: keras.Model, gradients: Sequence[tf.Tensor | None]) -> None:
    factor = internals.scaled_loss(model.optimizer, tf.constant(1.0))
    scaled = [None if gradient is None else gradient * tf.cast(factor, gradient.dtype) for gradient in gradients]
    internals.update_with(model.optimizer, scaled, model.trainable_variables)


def weights_of(model: keras.Model) -> list[ProbedTensor]:
    """Returns the trainable weights in Keras's order, each with the layer that made it."""
    names = _names(model)
    layer_of = {}
    for layer in reversed(internals.all_layers(model)):  # Innermost layers first: they made the weights.
        for weight in layer.trainable_variables:
            layer_of.setdefault(id(weight), names.get(id(layer), layer.name))
    return [
        ProbedTensor(layer_of.get(id(weight), model.name), weight.name, tf_variable(weight))
        for weight in model.trainable_variables
    ]


def _names(model: keras.Model) -> dict[int, str]:
    """Returns the names of layers by `id`; a name that several layers have gets a number: `dense`, `dense#2`."""
    names: dict[int, str] = {}
    counts: dict[str, int] = {}
    for layer in internals.all_layers(model):
        count = counts[layer.name] = counts.get(layer.name, 0) + 1
        names[id(layer)] = layer.name if count == 1 else f"{layer.name}#{count}"
    return names


@contextlib.contextmanager
def _computing_in(model: keras.Model, policy: str, single: Sequence[str]) -> Iterator[None]:
    """Runs the block with `policy` as the dtype policy of all layers; those named in `single` compute in float32."""
    names = _names(model)
    layers = internals.all_layers(model)
    originals = [layer.dtype_policy for layer in layers]
    try:
        for layer in layers:
            # A named layer stays in float32 together with its inner layers.
            inside = {id(inner) for inner in internals.all_layers(layer)}
            if layer is not model and names[id(layer)] in single:
                single = [*single, *(names[inner] for inner in inside)]
        for layer in layers:
            is_single = layer is not model and names[id(layer)] in single
            internals.set_policy(layer, "float32" if is_single else policy)
        with internals.casting(layers):
            yield
    finally:
        for layer, original in zip(layers, originals, strict=True):
            internals.set_policy(layer, original)


@contextlib.contextmanager
def _watched(model: keras.Model) -> Iterator[list[ProbedTensor]]:
    """Runs the block with watched layers, whose calls add their floating-point results to the yielded list.

    Tensors in the graph of a loop are skipped: what a layer computes in a loop counts as part of that layer's result.
    """
    probed: list[ProbedTensor] = []
    seen_ids: set[int] = set()
    graph = tf.compat.v1.get_default_graph()
    names = _names(model)
    layers = [layer for layer in internals.all_layers(model) if layer is not model]

    def probing(layer: keras.layers.Layer, call: Callable[..., Nested]) -> Callable[..., Nested]:
        def watched(*args: Any, **kwargs: Any) -> Nested:
            result = autograph.user_code(call)(*args, **kwargs)
            tensors = [leaf for leaf in tf.nest.flatten(result) if tf.is_tensor(leaf) and leaf.dtype.is_floating]
            for index, tensor in enumerate(tensors):
                if getattr(tensor, "graph", graph) is graph and id(tensor) not in seen_ids:
                    seen_ids.add(id(tensor))
                    count = sum(probe.layer == names[id(layer)] for probe in probed)
                    probed.append(ProbedTensor(names[id(layer)], str(count) if count or index else "", tensor))
            return result

        return watched

    for layer in layers:
        # `__setattr__` would make Keras track the attribute.
        layer.__dict__["call"] = probing(layer, layer.call)
    try:
        yield probed
    finally:
        for layer in layers:
            del layer.__dict__["call"]
