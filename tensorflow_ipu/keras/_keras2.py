"""The adapter of Keras 2 (`tf_keras`), with the same functions as `_keras3`.

Docstrings name the private API that a function uses. "Without it" introduces a public alternative.
"""

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
    """Returns a symbolic tensor of this shape and dtype. Uses the private `keras.__internal__.KerasTensor`.

    Without it: `keras.Input`.
    """
    return keras.__internal__.KerasTensor(tf.TensorSpec(shape, dtype))


def called_with_symbols(model: keras.Model, symbols: Nested, training: bool) -> Nested:
    """Calls a model with placeholders for symbolic tensors, which builds it, and returns symbolic outputs."""
    with tf.__internal__.FuncGraph("scratch_graph").as_default():
        values = tf.nest.map_structure(lambda leaf: tf.compat.v1.placeholder(leaf.dtype, leaf.shape), symbols)
        outputs = model(values, training=training) if takes_training(model) else model(values)
        return tf.nest.map_structure(lambda output: symbol(output.shape, output.dtype), outputs)


def build_for_training(model: keras.Model, batch: Nested) -> None:
    """Builds a model, its losses, metrics and optimizer for batches of this spec.

    Uses the private `Model.compiled_loss`, and `_conform_to_outputs` of the metrics.
    """
    x, y, _ = keras.utils.unpack_x_y_sample_weight(batch)
    losses, metrics, optimizer = model.compiled_loss, model.compiled_metrics, model.optimizer
    unbuilt = [part for part in (losses, metrics) if not (part is None or part.built)]
    if unbuilt or not all(layer.built for layer in all_layers(model)):
        # A model that overrides `train_step` may have no `call`. Tracing the program raises other errors of the call again.
        has_own_step = type(model).train_step is not keras.Model.train_step
        with contextlib.suppress(Exception) if has_own_step else contextlib.nullcontext():
            predicted = called_with_symbols(model, x, training=True)
            if losses in unbuilt:
                losses.build(predicted)
            if metrics in unbuilt:
                # Converts a dict to the list of outputs.
                metrics.build(predicted, metrics._conform_to_outputs(predicted, y))
    if optimizer is not None:
        build_optimizer(optimizer, model.trainable_variables)


def build_by_super(super_of_model: object, *args: Any, **kwargs: Any) -> None:
    """Does nothing: Keras 2 builds a model when it is traced."""


def all_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """Returns a model or layer and all layers inside it. Uses the private `Layer._flatten_layers`."""
    return list(model._flatten_layers())


def takes_training(model: keras.Model) -> bool:
    """Returns True if `call` has the argument `training`. Uses the private `Layer._expects_training_arg`.

    Without it: the signature of `call`.
    """
    return bool(model._expects_training_arg)


def built_shapes(model: keras.Model) -> dict[str, Any] | None:
    """Returns the input shapes by argument that a model was built for, or None.

    Uses the private `Model._build_input_shape`. Without it: `save_spec`.
    """
    args, _ = model.save_spec(dynamic_batch=False) or ((), {})
    if args:
        return {"inputs": tf.nest.map_structure(lambda spec: tuple(spec.shape), args[0])}
    shape = getattr(model, "_build_input_shape", None) if model.built else None
    return None if shape is None else {"inputs": _as_tuples(shape)}


def _as_tuples(shapes: Any) -> Any:
    """Returns a shape, or a structure of shapes, with each shape as a tuple."""
    if isinstance(shapes, Mapping):
        return {name: _as_tuples(shape) for name, shape in shapes.items()}
    sizes = shapes.as_list() if isinstance(shapes, tf.TensorShape) else shapes
    if all(size is None or isinstance(size, int) for size in sizes):
        return tuple(sizes)
    return [_as_tuples(shape) for shape in sizes]


def input_dtype(model: keras.Model) -> str | None:
    """Returns the dtype of the inputs that a model was built for; `Layer.compute_dtype` is public."""
    return model.compute_dtype


def input_specs(model: keras.Model) -> list[Any]:
    """Returns the flat input specs of a model that was called."""
    args, _ = model.save_spec() or ((), {})
    if not args:
        raise ValueError(f"model `{model.name}` was not called yet")
    return tf.nest.flatten(args)


def input_structure(model: keras.Model) -> Nested:
    """Returns the input structure of a functional model, or None. Uses the private `Functional._nested_inputs`."""
    return getattr(model, "_nested_inputs", None)


def output_structure(graph: Functional) -> Nested:
    """Returns the output structure of a functional model. Uses the private `Functional._nested_outputs`."""
    return graph._nested_outputs


def standard_inputs(graph: Functional, x: Nested) -> list[tf.Tensor]:
    """Returns the flat inputs of a functional model in the shapes and dtypes that it expects.

    Uses the private `Functional._flatten_to_reference_inputs` and `Functional._conform_to_reference_input`.
    """
    tensors = graph._flatten_to_reference_inputs(x)
    return [
        graph._conform_to_reference_input(tensor, ref_input=ref)
        for tensor, ref in zip(tensors, graph.inputs, strict=True)
    ]


def functional_of(model: keras.Model) -> Functional:
    """Returns the model, which is functional in Keras 2, or None if it is sequential and not built.

    Uses the private `Sequential._graph_initialized`.
    """
    return None if isinstance(model, keras.Sequential) and not model._graph_initialized else model


def write_archive(archive: Any, folder: Path) -> None:
    """Writes a `keras.export.ExportArchive` without printing."""
    with contextlib.redirect_stdout(io.StringIO()):
        archive.write_out(str(folder))


def has_own_weights(layer: keras.layers.Layer) -> bool:
    """Returns True if a layer has weights in addition to the weights of its inner layers.

    Uses the private `Layer._trainable_weights` and `Layer._non_trainable_weights`.
    """
    return bool(layer._trainable_weights or layer._non_trainable_weights)


# Calls of layers. `Node` gives Keras 2's nodes the attribute names of Keras 3.


class Node:
    """A call of a layer, with the attributes of `_keras3.Node`."""

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
        return tf.nest.map_structure(lambda leaf: values.get(id(leaf), leaf), (self.args, self.kwargs))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def __delattr__(self, name: str) -> None:
        delattr(self._node, name)


def _call(node: _KerasNode) -> Node:
    """Returns the `Node` of a Keras node, the same object each time."""
    if "_ipu_call" not in vars(node):
        vars(node)["_ipu_call"] = Node(node)
    return vars(node)["_ipu_call"]


def calls_by_depth(model: keras.Model) -> dict[int, list[Node]]:
    """Returns the layer calls of a functional model by depth; inputs are deepest.

    Uses the private `Functional._nodes_by_depth`.
    """
    return {depth: [_call(node) for node in nodes] for depth, nodes in model._nodes_by_depth.items()}


def calls_of(layer: keras.layers.Layer) -> list[Node]:
    """Returns the symbolic calls of a layer, in order. Uses the private `Layer._inbound_nodes`."""
    return [_call(node) for node in layer._inbound_nodes]


def forget_calls(layer: keras.layers.Layer, count: int) -> None:
    """Removes the symbolic calls of a layer except the first `count`; see `calls_of`."""
    del layer._inbound_nodes[count:]


def is_made_by_keras(operation: keras.layers.Layer) -> bool:
    """Returns True if Keras created a layer, for an operation or for `Model.add_loss`.

    Uses the private classes of such layers, such as `TFOpLambda` and `AddLoss`.
    """
    return isinstance(operation, (*_OPERATIONS, base_layer.AddLoss, base_layer.AddMetric))


def layers_before(call: Node) -> list[keras.layers.Layer]:
    """Returns the layers whose outputs are inputs of a call. Uses the private `KerasTensor._keras_history`."""
    return [tensor._keras_history.layer for tensor in call.input_tensors]


def bound_operation(operation: keras.layers.Layer, training: bool) -> Callable[..., Nested]:
    """Returns a function that calls a layer, with this `training` unless its caller passes another value."""
    if not takes_training(operation):
        return operation

    def call(*args: Any, **kwargs: Any) -> Nested:
        if kwargs.get("training") is None:
            kwargs["training"] = training
        return operation(*args, **kwargs)

    return call


def without_selection(select: Callable[..., Nested]) -> Callable[..., Nested]:
    """Returns a recurrent layer's kernel for CPUs: `standard_lstm` if `select` is `lstm_with_backend_selection`.

    Uses the private `standard_lstm` and `standard_gru`.
    """
    kind = select.__name__.partition("_")[0]
    return getattr(sys.modules[select.__module__], f"standard_{kind}")


# Layers.


def seed_generator() -> None:
    """Returns None: layers of Keras 2 draw TensorFlow's random numbers."""


def uncast(variable: Any) -> Any:
    """Returns the variable in its own dtype, without the wrapper of a mixed policy.

    Uses the private `AutoCastVariable._variable`.
    """
    return getattr(variable, "_variable", variable)


def computes_again() -> bool:
    """Returns True in programs: only there can a second call of a layer draw the same random numbers."""
    return programs.is_tracing()


if TYPE_CHECKING:
    _Variable = Any
else:
    _Variable = object


class _ValueVariable(_Variable):
    """A variable whose value is a tensor while a graph is built. In eager execution, it is the original variable.

    Other threads may execute eagerly at the same time. Uses the private `BaseResourceVariable._read_variable_op`.
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
    """Runs the block with variables that have tensors as their values when graphs read or assign them.

    The class of each variable is replaced by a subclass of this class and `_ValueVariable`. Blocks nest: at the end, a
    block restores the class and the tensor that the variable had before. Eager code is not affected.
    """
    originals = [(type(variable), getattr(variable, "_ipu_value", None)) for variable, _ in values]
    try:
        for (variable, value), (kind, _) in zip(values, originals, strict=True):
            variable._ipu_value = value
            if not issubclass(kind, _ValueVariable):
                variable.__class__ = type(kind.__name__, (_ValueVariable, kind), {})
        yield
    finally:
        for (variable, _), (kind, value) in zip(values, originals, strict=True):
            variable.__class__ = kind
            variable._ipu_value = value


class _ScopeValues:
    """The part of Keras 3's `StatelessScope` that this package uses."""

    def __init__(self) -> None:
        self.losses: list[tf.Tensor] = []
        self.values: dict[int, tf.Tensor] = {}

    def get_current_value(self, variable: Any) -> tf.Tensor:
        return self.values[id(variable)]


@contextlib.contextmanager
def stateless(
    layer: keras.layers.Layer, mapping: Sequence[tuple[Any, tf.Tensor]], seeds: list[tf.Tensor]
) -> Iterator[_ScopeValues]:
    """Runs the block in a scope like `_keras3.stateless`. With the same `seeds`, two blocks draw the same random numbers.

    Uses the private `Layer._eager_losses`.
    """
    scope, parts = _ScopeValues(), all_layers(layer)
    original_losses = [part._eager_losses for part in parts]
    forget_losses(layer)
    try:
        with _holding([(uncast(variable), value) for variable, value in mapping]), random_streams.repeated(seeds):
            yield scope
            scope.values = {id(variable): uncast(variable)._ipu_value for variable, _ in mapping}
        scope.losses = [loss for part in parts for loss in part._eager_losses]
    finally:
        for part, losses in zip(parts, original_losses, strict=True):
            part._eager_losses = losses


# These layers cast their weights themselves.
_UNCAST = (keras.layers.BatchNormalization, keras.layers.LayerNormalization, keras.layers.Embedding)


def set_policy(layer: Any, policy: Any) -> None:
    """Sets the dtype policy of a layer by a policy or its name.

    Uses the private `Layer._dtype_policy` and `Layer._compute_dtype_object`, which `Layer._set_dtype_policy` sets.
    """
    layer._dtype_policy = keras.mixed_precision.Policy(policy) if isinstance(policy, str) else policy
    layer._compute_dtype_object = tf.as_dtype(layer.compute_dtype)


def casting(layers: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which layers have their weights in their compute dtype.

    Uses the private `Layer._trainable_weights`.
    """
    values: dict[int, tuple[Any, tf.Tensor]] = {}
    for layer in layers:
        weights: list[Any] = [] if isinstance(layer, _UNCAST) else layer._trainable_weights
        for weight in map(uncast, weights):
            dtype: Any = layer.compute_dtype
            values.setdefault(id(weight), (weight, tf.cast(tf.convert_to_tensor(weight), dtype)))
    return _holding(list(values.values()))


def mask_after(layer: keras.layers.Layer, inputs: Nested, mask: Nested) -> Nested:
    """Returns the masks of the outputs of a layer.

    Returns None for a model, because its `compute_mask` calls the model again; see `masks_of` instead.
    """
    return None if isinstance(layer, keras.Model) else layer.compute_mask(inputs, mask)


def masks_of(outputs: Nested) -> list[tf.Tensor]:
    """Returns the masks stored on the flat outputs of a call, or an empty list if an output has none.

    Uses the private `_keras_mask`.
    """
    masks: list[Any] = [getattr(output, "_keras_mask", None) for output in tf.nest.flatten(outputs)]
    return [] if any(mask is None for mask in masks) else masks


def put_masks(outputs: Nested, masks: list[tf.Tensor]) -> None:
    """Stores masks on outputs; see `masks_of`."""
    for output, mask in zip(tf.nest.flatten(outputs) if masks else [], masks, strict=True):
        output._keras_mask = mask


def make_recurrent(layer: Any, make: Callable[..., None], seed: int | None, time_major: bool, **options: Any) -> bool:
    """Initializes a recurrent layer with a seed for its dropout. Returns False: Keras 2 supports `time_major`.

    Uses the private `BaseRandomLayer._random_generator`, of layer and cell.
    """
    make(seed=seed, time_major=time_major, **options)
    layer.cell._random_generator = layer._random_generator
    return False


# Losses. The public `Layer.losses` mixes losses that calls added with regularization losses of weights.


def added_losses(layer: keras.layers.Layer) -> list[tf.Tensor]:
    """Returns the losses that calls of a layer added, without the losses of inner layers.

    Uses the private `Layer._eager_losses`.
    """
    return list(layer._eager_losses)


def weight_losses(layer: keras.layers.Layer) -> list[tf.Tensor]:
    """Returns the regularization losses of a layer and its inner layers. Uses the private `Layer._callable_losses`."""
    losses = [cost() for part in all_layers(layer) for cost in part._callable_losses]
    return [loss for loss in losses if loss is not None]


def forget_losses(layer: keras.layers.Layer) -> None:
    """Clears the losses that calls of a layer and its inner layers added. Uses the private `Layer._clear_losses`."""
    layer._clear_losses()


def total_loss(
    model: Any,
    y: Nested,
    predicted: Nested,
    weights: Nested,
    training: bool,
    losses: Sequence[tf.Tensor] | None = None,
) -> tf.Tensor:
    """Returns the loss of predictions plus the losses of the layers, or plus `losses` instead.

    Calls `compute_loss`, which is public and may be overridden.
    """
    del training
    kind = type(model)
    if losses is not None:  # `Layer.losses` cannot be set.
        subclass = type(kind.__name__, (kind,), {"losses": list(losses), "__module__": kind.__module__})
        vars(object)["__class__"].__set__(model, subclass)
    try:
        return model.compute_loss(x=None, y=y, y_pred=predicted, sample_weight=weights)
    finally:
        vars(object)["__class__"].__set__(model, kind)


def note_loss(model: keras.Model, loss: tf.Tensor, batch_size: int | None) -> None:
    """Does nothing: `compute_loss` adds the loss to the metrics."""


def scaled_loss(optimizer: Any, loss: Any) -> tf.Tensor:
    """Returns the loss to differentiate. Optimizers without `scale_loss` get gradients of the unscaled loss."""
    return optimizer.scale_loss(loss) if hasattr(optimizer, "scale_loss") else loss
