"""The adapter of Keras 3, and the only access to its private API.

Docstrings name the private API that a function uses. "Without it" introduces a public alternative.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import keras
from keras.src import backend
from keras.src.export.export_utils import get_input_signature
from keras.src.losses.loss import unscale_loss_for_distribution
from keras.src.models.functional import Functional, operation_fn
from keras.src.trainers import data_adapters
from keras.src.trainers.data_adapters import array_slicing
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter
from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from keras.src.trainers.data_adapters.tf_dataset_adapter import TFDatasetAdapter
from keras.src.utils.python_utils import pythonify_logs

if TYPE_CHECKING:
    from pathlib import Path

    import tensorflow as tf

    from tensorflow_ipu._base.types import Gradient, Logs, Nested, TensorLike, Variable

    class CallArguments:
        """The part of the arguments of a call that this package uses."""

        args: tuple[Nested, ...]
        kwargs: dict[str, Nested]

        def fill_in(self, tensor_dict: dict[int, tf.Tensor]) -> tuple[tuple[Nested, ...], dict[str, Nested]]: ...

    class Node:
        """The part of `keras.src.ops.node.Node`, a call of a layer or an operation, that this package uses."""

        operation: keras.Operation
        arguments: CallArguments
        input_tensors: list[Any]  # Symbols with the private `_keras_history`.
        outputs: list[keras.KerasTensor]
        is_input: bool


optimizers = keras.optimizers
LossScaleOptimizer = keras.optimizers.LossScaleOptimizer
OPTIMIZERS = (optimizers.Optimizer,)

__all__ = ["ArrayDataAdapter", "DataAdapter", "Functional", "TFDatasetAdapter"]

# Models. `keras.Model(inputs, outputs)` returns a `Functional`. This class has no public name; an alternative is
# `type(keras.Model(x, y))`.


def symbol(shape: Any, dtype: Any) -> keras.KerasTensor:
    """Returns a symbolic tensor of this shape and dtype."""
    return keras.KerasTensor(tuple(shape), backend.standardize_dtype(dtype))


def called_with_symbols(model: keras.Model, symbols: Nested, training: bool) -> Nested:
    """Calls a model with symbolic tensors, which builds it. Uses the private `backend.compute_output_spec`."""
    return backend.compute_output_spec(model, symbols, training=training)


def build_for_training(model: keras.Model, batch: Nested) -> None:
    """Builds a model, its metrics and its optimizer for batches of this spec.

    Uses the private `Trainer._symbolic_build`. Without it: call `fit` with zero steps.
    """
    model._symbolic_build(data_batch=batch)


def build_by_super(super_of_model: Any, *args: Any, **kwargs: Any) -> None:
    """Builds a model by its `super()`, as Keras does when `fit` begins. Uses the private `Trainer._symbolic_build`."""
    super_of_model._symbolic_build(*args, **kwargs)


def all_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """Returns a model or layer and all layers inside it. Uses the private `Layer._flatten_layers`.

    The public `Model.layers` lists only the direct ones.
    """
    return list(model._flatten_layers())


def takes_training(model: keras.Model) -> bool:
    """Returns True if `call` has the argument `training`. Uses the private `Layer._call_has_training_arg`.

    Without it: the signature of `call`.
    """
    return bool(model._call_has_training_arg)


def built_shapes(model: keras.Model) -> dict[str, Any] | None:
    """Returns the input shapes by argument that a model was built for, or None.

    Uses the private `Layer._build_shapes_dict`.
    """
    return model._build_shapes_dict if model.built else None


def input_dtype(model: keras.Model) -> str | None:
    """Returns the dtype of the inputs that a model was built for; `Layer.input_dtype` is public."""
    return model.input_dtype


def input_specs(model: keras.Model) -> list[Any]:
    """Returns the flat input specs of a model that was called. Uses the private `export_utils.get_input_signature`."""
    return keras.tree.flatten(get_input_signature(model))


def input_structure(model: keras.Model) -> Nested:
    """Returns the input structure of a functional model, or None. Uses the private `Functional._inputs_struct`.

    Without it: `Functional.input`.
    """
    return getattr(model, "_inputs_struct", None)


def output_structure(graph: Functional) -> Nested:
    """Returns the output structure of a functional model. Uses the private `Functional._outputs_struct`."""
    return graph._outputs_struct


def standard_inputs(graph: Functional, x: Nested) -> list[tf.Tensor]:
    """Returns the flat inputs of a functional model in the shapes and dtypes that it expects.

    Uses the private `Functional._standardize_inputs`.
    """
    return keras.tree.flatten(graph._standardize_inputs(x))


def functional_of(model: keras.Model) -> Functional:
    """Returns the functional model inside a sequential one, None before it is built. Returns other models unchanged.

    Uses the private `Sequential._functional`.
    """
    return model._functional if isinstance(model, keras.Sequential) else model


def write_archive(archive: Any, folder: Path) -> None:
    """Writes a `keras.export.ExportArchive` without printing."""
    archive.write_out(str(folder), verbose=False)


def has_own_weights(layer: keras.layers.Layer) -> bool:
    """Returns True if a layer has weights in addition to the weights of its inner layers.

    Uses the private `Layer._trainable_variables` and `Layer._non_trainable_variables`.
    """
    return bool(layer._trainable_variables or layer._non_trainable_variables)


# Calls of layers (`Node`). They have no public API: `keras.Operation.input` supports layers with a single call.
# An alternative is `keras.models.clone_model`, which passes each call to its `call_function`.


def calls_by_depth(model: keras.Model) -> dict[int, list[Node]]:
    """Returns the layer calls of a functional model by depth; inputs are deepest.

    Uses the private `Function._nodes_by_depth`.
    """
    return model._nodes_by_depth


def calls_of(layer: keras.Operation) -> list[Node]:
    """Returns Keras's own list of a layer's symbolic calls, in order. Uses the private `Operation._inbound_nodes`."""
    return layer._inbound_nodes


def forget_calls(layer: keras.layers.Layer, count: int) -> None:
    """Removes the symbolic calls of a layer except the first `count`; see `calls_of`."""
    del layer._inbound_nodes[count:]


def is_made_by_keras(operation: keras.Operation) -> bool:
    """Returns False: only Keras 2 creates layers for operations."""
    del operation
    return False


def layers_before(call: Node) -> list[keras.layers.Layer]:
    """Returns the layers whose outputs are inputs of a call. Uses the private `KerasTensor._keras_history`."""
    return [tensor._keras_history.operation for tensor in call.input_tensors]


def bound_operation(operation: keras.Operation, training: bool) -> Callable[..., Nested]:
    """Returns a function that calls a layer or operation as functional models do. Uses the private `operation_fn`."""
    return operation_fn(operation, training=training)


# Layers.


def seed_generator() -> keras.random.SeedGenerator | None:
    """Returns the seed generator of a layer; None in Keras 2, whose layers draw TensorFlow's random numbers."""
    return keras.random.SeedGenerator()


def computes_again() -> bool:
    """Returns True if a second call of a layer can draw the same random numbers, as always in Keras 3; see `stateless`."""
    return True


def stateless(
    layer: keras.layers.Layer, mapping: Sequence[tuple[Any, tf.Tensor]], seeds: list[tf.Tensor]
) -> keras.StatelessScope:
    """Returns a scope in which variables have the values of `mapping`.

    Assignments and losses of calls are kept in the scope, and do not change variables and layers.
    """
    del layer, seeds  # Seeds of Keras 3 are variables, so `mapping` may hold them.
    return keras.StatelessScope(state_mapping=mapping, collect_losses=True)


def uncast(variable: keras.Variable) -> keras.Variable:
    """Returns the variable in its own dtype, here the variable itself; see `_keras2.uncast`."""
    return variable


def mask_after(layer: keras.layers.Layer, inputs: Nested, mask: Nested) -> Nested:
    """Returns the masks of the outputs of a layer."""
    return layer.compute_mask(inputs, mask)


def masks_of(outputs: Nested) -> list[tf.Tensor]:
    """Returns an empty list: in Keras 3, `mask_after` returns all masks."""
    del outputs
    return []


def put_masks(outputs: Nested, masks: list[tf.Tensor]) -> None:
    """Does nothing; see `masks_of`."""


def set_policy(layer: keras.layers.Layer, policy: Any) -> None:
    """Sets the dtype policy of a layer by a policy or its name."""
    layer.dtype_policy = keras.DTypePolicy(policy) if isinstance(policy, str) else policy


def casting(layers: Sequence[keras.layers.Layer]) -> contextlib.AbstractContextManager[None]:
    """Returns an empty context: layers of Keras 3 always cast their weights to the compute dtype."""
    del layers
    return contextlib.nullcontext()


def make_recurrent(layer: Any, make: Callable[..., None], seed: int | None, time_major: bool, **options: Any) -> bool:
    """Initializes a recurrent layer with a dropout seed. Returns True if the caller must handle `time_major`."""
    del layer
    make(seed=seed, use_cudnn=False, **options)  # With cuDNN, Keras would not compile models with the layer.
    return time_major


# Losses. The public `Layer.losses` mixes losses that calls added with regularization losses of weights.


def added_losses(layer: keras.layers.Layer) -> list[tf.Tensor]:
    """Returns the losses that calls of a layer added, without the losses of inner layers.

    Uses the private `Layer._get_own_losses`.
    """
    return layer._get_own_losses()


def weight_losses(layer: keras.layers.Layer) -> list[tf.Tensor]:
    """Returns the regularization losses of a layer and its inner layers.

    Uses the private `Layer._get_regularization_losses`.
    """
    return layer._get_regularization_losses()


def forget_losses(layer: keras.layers.Layer) -> None:
    """Clears the losses that calls of a layer and its inner layers added. Uses the private `Layer._clear_losses`."""
    layer._clear_losses()


def total_loss(
    model: keras.Model,
    y: Nested,
    predicted: Nested,
    weights: Nested,
    training: bool,
    losses: Sequence[tf.Tensor] | None = None,
) -> tf.Tensor:
    """Returns the loss of predictions plus the losses of the layers, or plus `losses` instead.

    Uses the private `Trainer._compute_loss` and `Layer._losses_override`.
    """
    model._losses_override = losses or []
    try:
        return model._compute_loss(x=None, y=y, y_pred=predicted, sample_weight=weights, training=training)  # pyright: ignore[reportReturnType]  # Keras infers those of all backends.
    finally:
        model._losses_override = []


def note_loss(model: keras.Model, loss: tf.Tensor, batch_size: int | None) -> None:
    """Adds the loss of a batch to the metrics.

    Uses the private `Trainer._loss_tracker` and `unscale_loss_for_distribution`.
    """
    model._loss_tracker.update_state(unscale_loss_for_distribution(loss), sample_weight=batch_size)


def scaled_loss(optimizer: Any, loss: TensorLike) -> tf.Tensor:
    """Returns the loss to differentiate, scaled if the optimizer scales losses."""
    return optimizer.scale_loss(loss)


# Loops.


def check_compiled(model: keras.Model, method: str) -> None:
    """Raises an error if a model was not compiled. Uses the private `Trainer._assert_compile_called`.

    Without it: `model.compiled`.
    """
    model._assert_compile_called(method)


def check_call(model: keras.Model, method: str) -> None:
    """Raises Keras's error if the model cannot run this method, such as `fit`; see `check_compiled`."""
    if method != "predict":
        check_compiled(model, method)


def steps_per_execution(model: keras.Model) -> int:
    """Returns the number of steps in an execution."""
    return model.steps_per_execution


@contextlib.contextmanager
def with_steps_per_execution(model: keras.Model, steps: int) -> Iterator[None]:
    """Runs the block with `steps` steps in an execution, a number that Keras reads when it begins to iterate."""
    original = model.steps_per_execution
    model.steps_per_execution = steps
    try:
        yield
    finally:
        model.steps_per_execution = original


def variables_of_metrics(model: keras.Model) -> list[Any]:
    """Returns the variables of a model's metrics; `Model.metrics` is public."""
    return [variable for metric in model.metrics for variable in metric.variables]


def converting(step: Callable[..., Nested]) -> Callable[..., Nested]:
    """Returns the step unchanged: Keras 3 traces steps without AutoGraph."""
    return step


def use_steps_of_validation_data(model: keras.Model) -> None:
    """Makes the validation in `fit` use the steps per execution of the validation data.

    Uses the private `Trainer._eval_epoch_iterator`.
    """
    iterator: Any = model._eval_epoch_iterator
    iterator.steps_per_execution = getattr(iterator.data_adapter, "steps_per_execution", iterator.steps_per_execution)


def accept_strategy(callback: Any, strategy: tf.distribute.Strategy) -> None:
    """Does nothing: callbacks of Keras 3 run under any strategy."""


def count_steps(model: keras.Model, mode: str, steps: int | tf.Tensor) -> None:
    """Does nothing: models of Keras 3 count no steps."""


def note_program(model: keras.Model, mode: str, program: object) -> None:
    """Does nothing: no callback of Keras 3 reads the program."""


def first_epoch(model: keras.Model) -> int | None:
    """Returns the epoch at which `BackupAndRestore` resumes `fit`, or None.

    Uses the private `Trainer._initial_epoch`.
    """
    return getattr(model, "_initial_epoch", None)


def set_first_epoch(model: keras.Model, epoch: int) -> None:
    """Makes `fit` begin with this epoch; see `first_epoch`."""
    model._initial_epoch = epoch


def plain_logs(logs: Logs) -> Logs:
    """Returns logs with Python scalars. Uses the private `pythonify_logs`. Without it: `float` of each value."""
    return pythonify_logs(logs)


# Data. The adapters of Keras have no public names; `keras.utils.PyDataset` supports only one kind of data.


def adapter_for(x: Nested, y: Nested, weights: Nested, **options: Any) -> DataAdapter:
    """Returns Keras's adapter of the user's data. Uses the private `data_adapters.get_data_adapter`."""
    return data_adapters.get_data_adapter(x=x, y=y, sample_weight=weights, **options)


def arrays_of(adapter: ArrayDataAdapter) -> Nested:
    """Returns the arrays of an adapter in a form that can be sliced.

    Uses the private `ArrayDataAdapter._inputs` and `array_slicing`.
    """
    return array_slicing.convert_to_sliceable(adapter._inputs, target_backend="tensorflow")


def is_shuffled(adapter: ArrayDataAdapter) -> bool | str:
    """Returns True if all examples are shuffled, and "batch" if examples are shuffled within each batch.

    Uses the private `ArrayDataAdapter._shuffle`.
    """
    return adapter._shuffle


def has_all_epochs(adapter: ArrayDataAdapter) -> bool:
    """Returns True if one pass over the adapter yields the batches of all epochs. In Keras 3, each epoch is a pass."""
    del adapter
    return False


def examples_of(adapter: ArrayDataAdapter) -> int:
    """Returns the number of examples of an adapter. Uses the private `ArrayDataAdapter._num_samples`."""
    return adapter._num_samples


def split_validation_data(parts: Nested, fraction: float) -> Any:
    """Splits arrays into training and validation data. Uses the private `array_slicing.train_validation_split`."""
    return array_slicing.train_validation_split(parts, validation_split=fraction)


# Optimizers.


def has_own_minimize(optimizer: Any) -> bool:
    """Returns True if the user's class defines `minimize`, which optimizers of Keras 3 do not have."""
    return hasattr(optimizer, "minimize")


def strategy_of(optimizer: object) -> tf.distribute.Strategy | None:
    """Returns the strategy in whose scope the optimizer was made, or None.

    Uses the private `TFOptimizer._distribution_strategy`.
    """
    return getattr(optimizer, "_distribution_strategy", None)


def update_with(optimizer: Any, gradients: Sequence[Gradient | None], variables: Sequence[Variable]) -> None:
    """Updates variables by an optimizer, which creates its slots first if needed; `Optimizer.apply` is public."""
    optimizer.apply(gradients, variables)


def casting_gradients(optimizer: Any) -> contextlib.AbstractContextManager[None]:
    """Returns an empty context: optimizers of Keras 3 cast gradients to the dtype of the variable."""
    del optimizer
    return contextlib.nullcontext()


def transforming_dense(optimizer: Any) -> contextlib.AbstractContextManager[None]:
    """Returns an empty context: optimizers of Keras 3 have no `gradient_transformers`."""
    del optimizer
    return contextlib.nullcontext()


def build_optimizer(optimizer: Any, variables: Sequence[Variable]) -> None:
    """Creates the slots of an optimizer for variables, unless it has them; `Optimizer.build` is public."""
    if not optimizer.built:
        optimizer.build(variables)


def variables_of(optimizer: Any) -> list[Any]:
    """Returns the variables of an optimizer; `Optimizer.variables` is public."""
    return list(optimizer.variables)


def scaling_losses(optimizer: Any) -> contextlib.AbstractContextManager[None]:
    """Returns an empty context: optimizers of Keras 3 scale losses in all their methods."""
    del optimizer
    return contextlib.nullcontext()


def updating(update: Callable[..., None]) -> tuple[str, Callable[..., None]]:
    """Returns the name of the method that every update of variables calls, and `update` with that method's signature.

    See `update_with`.
    """
    return "apply", update
