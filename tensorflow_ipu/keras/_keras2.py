"""The same as `_keras3` for Keras 2, the package `tf_keras`; each function names what it stands on."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf
import tf_keras as keras
from tf_keras.src.engine import base_layer
from tf_keras.src.engine.functional import Functional
from tf_keras.src.engine.node import Node as _KerasNode
from tf_keras.src.layers.core import tf_op_layer

from tensorflow_ipu import programs
from tensorflow_ipu.keras._keras2_training import *  # noqa: F403
from tensorflow_ipu.keras._keras2_training import build_optimizer
from tensorflow_ipu.ops import random_streams

if TYPE_CHECKING:
    from pathlib import Path

    from tensorflow_ipu._base.types import Nested, TensorLike

_OPERATIONS = (tf_op_layer.TFOpLambda, tf_op_layer.SlicingOpLambda, tf_op_layer.InstanceProperty)

# Models.


def symbol(shape: Any, dtype: Any) -> Any:
    """A tensor without a value; stands on `keras.__internal__.KerasTensor`, else `keras.Input`."""
    return keras.__internal__.KerasTensor(tf.TensorSpec(shape, dtype))


def called_with_symbols(model: keras.Model, symbols: Nested, training: bool) -> Nested:
    """What a model returns for symbols, by which it is built; a graph of its own stands for them."""
    with tf.__internal__.FuncGraph("scratch_graph").as_default():
        values = tf.nest.map_structure(lambda one: tf.compat.v1.placeholder(one.dtype, one.shape), symbols)
        outputs = model(values, training=training) if takes_training(model) else model(values)
        return tf.nest.map_structure(lambda one: symbol(one.shape, one.dtype), outputs)


def build_for_training(model: keras.Model, batch: Nested) -> None:
    """Builds a model, its losses, metrics and optimizer for training on batches of this spec; stands on `compiled_loss`."""
    x, y, _ = keras.utils.unpack_x_y_sample_weight(batch)
    losses, metrics, optimizer = model.compiled_loss, model.compiled_metrics, model.optimizer
    waits = [part for part in (losses, metrics) if not (part is None or part.built)]
    if waits or not all(layer.built for layer in all_layers(model)):
        # A model whose steps are its own need not be callable. If it is at fault, its program will say so.
        own = type(model).train_step is not keras.Model.train_step
        with contextlib.suppress(Exception) if own else contextlib.nullcontext():
            predicted = called_with_symbols(model, x, training=True)
            if losses in waits:
                losses.build(predicted)
            if metrics in waits:
                metrics.build(predicted, metrics._conform_to_outputs(predicted, y))  # Of a dict for listed outputs.
    if optimizer is not None:
        build_optimizer(optimizer, model.trainable_variables)


def build_plainly(plain: object, *args: Any, **kwargs: Any) -> None:
    """Does nothing: Keras 2 builds a model as it is traced."""


def all_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """A model or layer, and all layers within; stands on `Layer._flatten_layers`."""
    return list(model._flatten_layers())


def takes_training(model: keras.Model) -> bool:
    """Whether `call` has the argument `training`; stands on `Layer._expects_training_arg`. Else: its signature."""
    return bool(model._expects_training_arg)


def built_shapes(model: keras.Model) -> dict[str, Any] | None:
    """The shapes by argument that a model was built for, or None; stands on `Model._build_input_shape`, else `save_spec`."""
    args, _ = model.save_spec(dynamic_batch=False) or ((), {})
    if args:
        return {"inputs": tf.nest.map_structure(lambda spec: tuple(spec.shape), args[0])}
    shape = getattr(model, "_build_input_shape", None) if model.built else None
    return None if shape is None else {"inputs": _as_tuples(shape)}


def _as_tuples(shapes: Any) -> Any:
    """A shape, or a structure of some, in which each is a tuple."""
    if isinstance(shapes, Mapping):
        return {name: _as_tuples(shape) for name, shape in shapes.items()}
    sizes = shapes.as_list() if isinstance(shapes, tf.TensorShape) else shapes
    if all(size is None or isinstance(size, int) for size in sizes):
        return tuple(sizes)
    return [_as_tuples(shape) for shape in sizes]


def input_dtype(model: keras.Model) -> str | None:
    """The type of the inputs that a model was built for; `Layer.compute_dtype` is public."""
    return model.compute_dtype


def input_specs(model: keras.Model) -> list[Any]:
    """The specs of the flat inputs of a model that was called."""
    args, _ = model.save_spec() or ((), {})
    if not args:
        raise ValueError(f"model `{model.name}` was not called yet")
    return tf.nest.flatten(args)


def input_structure(model: keras.Model) -> Nested:
    """A functional model's structure of inputs, or None; stands on `Functional._nested_inputs`."""
    return getattr(model, "_nested_inputs", None)


def output_structure(graph: Functional) -> Nested:
    """The same of its outputs; stands on `Functional._nested_outputs`."""
    return graph._nested_outputs


def standard_inputs(graph: Functional, x: Nested) -> list[tf.Tensor]:
    """The flat inputs of a functional model, of the shapes and types that it takes; stands on what its `call` begins with."""
    given = graph._flatten_to_reference_inputs(x)
    return [graph._conform_to_reference_input(one, ref_input=ref) for one, ref in zip(given, graph.inputs, strict=True)]


def functional_of(model: keras.Model) -> Functional:
    """A sequential model is a functional one, or None before it is built; stands on `Sequential._graph_initialized`."""
    return None if isinstance(model, keras.Sequential) and not model._graph_initialized else model


def write_archive(archive: Any, folder: Path) -> None:
    """Writes a `keras.export.ExportArchive`, and prints nothing."""
    with contextlib.redirect_stdout(io.StringIO()):
        archive.write_out(str(folder))


def has_own_weights(layer: keras.layers.Layer) -> bool:
    """Whether a layer has weights beside those of the layers within; stands on `Layer._trainable_weights` and the like."""
    return bool(layer._trainable_weights or layer._non_trainable_weights)


# Calls of layers: `Node`, which has other names for what a call has than that of Keras 3.


class Node:
    """A call of a layer, by the names of `_keras3.Node`."""

    def __init__(self, node: _KerasNode) -> None:
        self._node = node
        self.operation: Any = node.layer
        self.input_tensors = list(node.keras_inputs)
        self.outputs = tf.nest.flatten(node.outputs)
        self.is_input: bool = node.is_input
        self.arguments = self
        self.args: tuple[Nested, ...] = tuple(node.call_args)
        self.kwargs: dict[str, Nested] = dict(node.call_kwargs)

    def fill_in(self, values: Mapping[int, tf.Tensor]) -> tuple[tuple[Nested, ...], dict[str, Nested]]:
        return tf.nest.map_structure(lambda one: values.get(id(one), one), (self.args, self.kwargs))

    def __getattr__(self, name: str) -> Any:
        """What was noted with Keras's node."""
        return getattr(self._node, name)

    def __delattr__(self, name: str) -> None:
        """Takes back what was noted with it."""
        delattr(self._node, name)


def _call(node: _KerasNode) -> Node:
    """The same object for a node each time."""
    if "_ipu_call" not in vars(node):
        vars(node)["_ipu_call"] = Node(node)
    return vars(node)["_ipu_call"]


def calls_by_depth(model: keras.Model) -> dict[int, list[Node]]:
    """The calls of a functional model's layers by depth, the inputs deepest; stands on `Functional._nodes_by_depth`."""
    return {depth: [_call(node) for node in nodes] for depth, nodes in model._nodes_by_depth.items()}


def calls_of(layer: keras.layers.Layer) -> list[Node]:
    """The calls of a layer with symbols, in their order; stands on `Layer._inbound_nodes`."""
    return [_call(node) for node in layer._inbound_nodes]


def forget_calls(layer: keras.layers.Layer, kept: int) -> None:
    """Forgets the calls of a layer but for the first ones; see `calls_of`."""
    del layer._inbound_nodes[kept:]


def is_made_by_keras(operation: keras.layers.Layer) -> bool:
    """Whether Keras made a layer by itself, of an operation or of `Model.add_loss`; stands on the classes for both."""
    return isinstance(operation, (*_OPERATIONS, base_layer.AddLoss, base_layer.AddMetric))


def layers_before(call: Node) -> list[keras.layers.Layer]:
    """The layers whose outputs a call takes; stands on `KerasTensor._keras_history`."""
    return [tensor._keras_history.layer for tensor in call.input_tensors]


def bound_operation(operation: keras.layers.Layer, training: bool) -> Callable[..., Nested]:
    """A layer as a function of its arguments, which a functional model tells whether it trains."""
    if not takes_training(operation):
        return operation

    def call(*args: Any, **kwargs: Any) -> Nested:
        if kwargs.get("training") is None:
            kwargs["training"] = training
        return operation(*args, **kwargs)

    return call


def without_selection(select: Callable[..., Nested]) -> Callable[..., Nested]:
    """What a recurrent layer selects for CPUs, by itself; stands on `standard_lstm` and `standard_gru`."""
    kind = select.__name__.partition("_")[0]
    return getattr(sys.modules[select.__module__], f"standard_{kind}")


# Layers.


def seed_generator() -> None:
    """What gives a layer its seeds: nothing, as the layers of Keras 2 draw TensorFlow's own random numbers."""


def uncast(variable: Any) -> Any:
    """A variable in its own type, which layers of a mixed policy wrap; stands on `AutoCastVariable._variable`."""
    return getattr(variable, "_variable", variable)


def computes_again() -> bool:
    """In programs alone: elsewhere, random numbers would not be the same when they are drawn again."""
    return programs.is_tracing()


if TYPE_CHECKING:
    _Variable = Any
else:
    _Variable = object


class _ValueVariable(_Variable):
    """What a variable is while a block holds its value as a tensor; stands on `BaseResourceVariable._read_variable_op`.

    It is the variable itself where execution is eager, as on other threads.
    """

    _ipu_value: tf.Tensor

    @property
    def dtype(self) -> tf.DType:
        return super().dtype if tf.executing_eagerly() else self._ipu_value.dtype

    def _read_variable_op(self, *args: object) -> tf.Tensor:
        return super()._read_variable_op(*args) if tf.executing_eagerly() else self._ipu_value

    def sparse_read(self, indices: tf.Tensor, name: str | None = None) -> tf.Tensor:
        return super().sparse_read(indices, name) if tf.executing_eagerly() else tf.gather(self._ipu_value, indices)

    def assign(self, value: TensorLike, *args: object, **kwargs: object) -> object:
        if tf.executing_eagerly():
            return super().assign(value, *args, **kwargs)
        self._ipu_value = tf.cast(value, self._ipu_value.dtype)
        return self

    def assign_add(self, delta: TensorLike, *args: object, **kwargs: object) -> object:
        if tf.executing_eagerly():
            return super().assign_add(delta, *args, **kwargs)
        return self.assign(self._ipu_value + tf.cast(delta, self._ipu_value.dtype))

    def assign_sub(self, delta: TensorLike, *args: object, **kwargs: object) -> object:
        if tf.executing_eagerly():
            return super().assign_sub(delta, *args, **kwargs)
        return self.assign(self._ipu_value - tf.cast(delta, self._ipu_value.dtype))


@contextlib.contextmanager
def _holding(values: Sequence[tuple[Any, tf.Tensor]]) -> Iterator[None]:
    """A block in which variables have these values in graphs, and keep their own, or those of a block around."""
    before = [(type(variable), getattr(variable, "_ipu_value", None)) for variable, _ in values]
    try:
        for (variable, value), (kind, _) in zip(values, before, strict=True):
            variable._ipu_value = value
            if not issubclass(kind, _ValueVariable):
                variable.__class__ = type(kind.__name__, (_ValueVariable, kind), {})
        yield
    finally:
        for (variable, _), (kind, value) in zip(values, before, strict=True):
            variable.__class__ = kind
            variable._ipu_value = value


class _ScopeValues:
    """The part of Keras 3's `StatelessScope` that is used."""

    def __init__(self) -> None:
        self.losses: list[tf.Tensor] = []
        self.values: dict[int, tf.Tensor] = {}

    def get_current_value(self, variable: Any) -> tf.Tensor:
        return self.values[id(variable)]


@contextlib.contextmanager
def stateless(
    layer: keras.layers.Layer, mapping: Sequence[tuple[Any, tf.Tensor]], seeds: list[tf.Tensor]
) -> Iterator[_ScopeValues]:
    """The same; what it draws by seeds of the list, it draws again. Stands on `Layer._eager_losses`."""
    scope, parts = _ScopeValues(), all_layers(layer)
    before = [part._eager_losses for part in parts]
    forget_losses(layer)
    try:
        with _holding([(uncast(variable), value) for variable, value in mapping]), random_streams.repeated(seeds):
            yield scope
            scope.values = {id(variable): uncast(variable)._ipu_value for variable, _ in mapping}
        scope.losses = [loss for part in parts for loss in part._eager_losses]
    finally:
        for part, losses in zip(parts, before, strict=True):
            part._eager_losses = losses


# These see to the types of their weights themselves.
_UNCAST = (keras.layers.BatchNormalization, keras.layers.LayerNormalization, keras.layers.Embedding)


def set_policy(layer: Any, policy: Any) -> None:
    """Has a layer compute by a policy or its name; stands on what `Layer._set_dtype_policy` sets in a scope."""
    layer._dtype_policy = keras.mixed_precision.Policy(policy) if isinstance(policy, str) else policy
    layer._compute_dtype_object = tf.as_dtype(layer.compute_dtype)


def casting(layers: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
    """A block in which layers have their weights in the type that they compute in; stands on `Layer._trainable_weights`."""
    found: dict[int, tuple[Any, tf.Tensor]] = {}
    for layer in layers:
        weights: list[Any] = [] if isinstance(layer, _UNCAST) else layer._trainable_weights
        for weight in map(uncast, weights):
            dtype: Any = layer.compute_dtype
            found.setdefault(id(weight), (weight, tf.cast(tf.convert_to_tensor(weight), dtype)))
    return _holding(list(found.values()))


def mask_after(layer: keras.layers.Layer, inputs: Nested, mask: Nested) -> Nested:
    """The masks of what a layer returns; models, which would have to be called once more, leave them on their outputs."""
    return None if isinstance(layer, keras.Model) else layer.compute_mask(inputs, mask)


def masks_of(outputs: Nested) -> list[tf.Tensor]:
    """The masks that a call has left on its flat outputs, where all have one; stands on `_keras_mask`."""
    masks: list[Any] = [getattr(one, "_keras_mask", None) for one in tf.nest.flatten(outputs)]
    return [] if any(mask is None for mask in masks) else masks


def put_masks(outputs: Nested, masks: list[tf.Tensor]) -> None:
    """Leaves such masks on outputs; see `masks_of`."""
    for one, mask in zip(tf.nest.flatten(outputs) if masks else [], masks, strict=True):
        one._keras_mask = mask


def make_recurrent(layer: Any, make: Callable[..., None], seed: int | None, time_major: bool, **options: Any) -> bool:
    """The same; time as first dimension is Keras's own. Stands on `BaseRandomLayer._random_generator`, of layer and cell."""
    make(seed=seed, time_major=time_major, **options)
    layer.cell._random_generator = layer._random_generator
    return False


# Losses. `Layer.losses` is public, and mixes what calls added with what weights cost.


def added_losses(layer: keras.layers.Layer) -> list[tf.Tensor]:
    """The losses that the calls of a layer, without those within, have added; stands on `Layer._eager_losses`."""
    return list(layer._eager_losses)


def weight_losses(layer: keras.layers.Layer) -> list[tf.Tensor]:
    """What the weights of a layer, and of those within, cost; stands on `Layer._callable_losses`."""
    found = [cost() for part in all_layers(layer) for cost in part._callable_losses]
    return [loss for loss in found if loss is not None]


def forget_losses(layer: keras.layers.Layer) -> None:
    """Takes away what the calls of a layer, and of those within, have added; stands on `Layer._clear_losses`."""
    layer._clear_losses()


def total_loss(
    model: Any,
    y: Nested,
    predicted: Nested,
    weights: Nested,
    training: bool,
    losses: Sequence[tf.Tensor] | None = None,
) -> tf.Tensor:
    """The loss with those of the layers, or with these in their place; calls the public `compute_loss` as it is."""
    del training
    kind = type(model)
    if losses is not None:  # `Layer.losses` cannot be set.
        own = type(kind.__name__, (kind,), {"losses": list(losses), "__module__": kind.__module__})
        vars(object)["__class__"].__set__(model, own)
    try:
        return model.compute_loss(x=None, y=y, y_pred=predicted, sample_weight=weights)
    finally:
        vars(object)["__class__"].__set__(model, kind)


def note_loss(model: keras.Model, loss: tf.Tensor, batch_size: int | None) -> None:
    """Does nothing: `compute_loss` notes the loss."""


def scaled_loss(optimizer: Any, loss: Any) -> tf.Tensor:
    """The loss to differentiate, as an optimizer wants it; Keras's own scaling takes gradients that are unscaled."""
    return optimizer.scale_loss(loss) if hasattr(optimizer, "scale_loss") else loss
