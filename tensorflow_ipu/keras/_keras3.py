"""The only access to what Keras keeps private; each function names what it stands on, and what else would serve."""

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
        """What the package uses of the arguments of a call."""

        args: tuple[Nested, ...]
        kwargs: dict[str, Nested]

        def fill_in(self, tensor_dict: dict[int, tf.Tensor]) -> tuple[tuple[Nested, ...], dict[str, Nested]]: ...

    class Node:
        """What it uses of `keras.src.ops.node.Node`, a call of a layer or an operation of Keras."""

        operation: keras.Operation
        arguments: CallArguments
        input_tensors: list[Any]  # Symbols, with their history.
        outputs: list[keras.KerasTensor]
        is_input: bool


optimizers = keras.optimizers
LossScaleOptimizer = keras.optimizers.LossScaleOptimizer
OPTIMIZERS = (optimizers.Optimizer,)

__all__ = ["ArrayDataAdapter", "DataAdapter", "Functional", "TFDatasetAdapter"]

# Models. `Functional` is what `keras.Model(inputs, outputs)` makes, and has no public name. When it is gone:
# `type(keras.Model(x, y))`.


def symbol(shape: Any, dtype: Any) -> keras.KerasTensor:
    """A tensor without a value."""
    return keras.KerasTensor(tuple(shape), backend.standardize_dtype(dtype))


def called_with_symbols(model: keras.Model, symbols: Nested, training: bool) -> Nested:
    """What a model returns for symbols, by which it is built; stands on `backend.compute_output_spec`."""
    return backend.compute_output_spec(model, symbols, training=training)


def build_for_training(model: keras.Model, batch: Nested) -> None:
    """Builds a model for training on batches of this spec; stands on `Trainer._symbolic_build`, else `fit` of no steps."""
    model._symbolic_build(data_batch=batch)


def build_plainly(plain: Any, *args: Any, **kwargs: Any) -> None:
    """Builds a model, by its `super()`, as Keras does at the beginning of `fit`; stands on `Trainer._symbolic_build`."""
    plain._symbolic_build(*args, **kwargs)


def all_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """A model or layer, and all layers within; stands on `Layer._flatten_layers`: `Model.layers` has those one down."""
    return list(model._flatten_layers())


def takes_training(model: keras.Model) -> bool:
    """Whether `call` has the argument `training`; stands on `Layer._call_has_training_arg`. Else: its signature."""
    return bool(model._call_has_training_arg)


def built_shapes(model: keras.Model) -> dict[str, Any] | None:
    """The shapes by argument that a model was built for, or None; stands on `Layer._build_shapes_dict`."""
    return model._build_shapes_dict if model.built else None


def input_dtype(model: keras.Model) -> str | None:
    """The type of the inputs that a model was built for; `Layer.input_dtype` is public."""
    return model.input_dtype


def input_specs(model: keras.Model) -> list[Any]:
    """The specs of the flat inputs of a model that was called; stands on `export_utils.get_input_signature`."""
    return keras.tree.flatten(get_input_signature(model))


def input_structure(model: keras.Model) -> Nested:
    """A functional model's structure of inputs, or None; stands on `Functional._inputs_struct`, else `Functional.input`."""
    return getattr(model, "_inputs_struct", None)


def output_structure(graph: Functional) -> Nested:
    """The same of its outputs; stands on `Functional._outputs_struct`."""
    return graph._outputs_struct


def standard_inputs(graph: Functional, x: Nested) -> list[tf.Tensor]:
    """The flat inputs of a functional model, of the shapes and types that it takes; stands on `_standardize_inputs`."""
    return keras.tree.flatten(graph._standardize_inputs(x))


def functional_of(model: keras.Model) -> Functional:
    """The functional model that a sequential one keeps, or the model; stands on `Sequential._functional`."""
    return model._functional if isinstance(model, keras.Sequential) else model


def write_archive(archive: Any, folder: Path) -> None:
    """Writes a `keras.export.ExportArchive`, and prints nothing."""
    archive.write_out(str(folder), verbose=False)


def has_own_weights(layer: keras.layers.Layer) -> bool:
    """Whether a layer has weights beside those of the layers within; stands on `Layer._trainable_variables` and the like."""
    return bool(layer._trainable_variables or layer._non_trainable_variables)


# Calls of layers (`Node`), which Keras has no public name for: `keras.Operation.input` is of the only call. When they are
# gone: `keras.models.clone_model` with a `call_function` sees each call.


def calls_by_depth(model: keras.Model) -> dict[int, list[Node]]:
    """The calls of a functional model's layers by depth, the inputs deepest; stands on `Function._nodes_by_depth`."""
    return model._nodes_by_depth


def calls_of(layer: keras.Operation) -> list[Node]:
    """The calls of a layer with symbols, in their order; stands on `Operation._inbound_nodes`. The list is Keras's own."""
    return layer._inbound_nodes


def forget_calls(layer: keras.layers.Layer, kept: int) -> None:
    """Forgets the calls of a layer but for the first ones; see `calls_of`."""
    del layer._inbound_nodes[kept:]


def is_made_by_keras(operation: keras.Operation) -> bool:
    """Whether Keras 2 made a layer by itself; there are none here."""
    del operation
    return False


def layers_before(call: Node) -> list[keras.layers.Layer]:
    """The layers whose outputs a call takes; stands on `KerasTensor._keras_history`."""
    return [tensor._keras_history.operation for tensor in call.input_tensors]


def bound_operation(operation: keras.Operation, training: bool) -> Callable[..., Nested]:
    """A layer or operation as a function of its arguments, as functional models call it; stands on `operation_fn`."""
    return operation_fn(operation, training=training)


# Layers.


def seed_generator() -> keras.random.SeedGenerator | None:
    """What gives a layer its seeds; None where TensorFlow's own random numbers do."""
    return keras.random.SeedGenerator()


def computes_again() -> bool:
    """Whether layers can be called as functions of their weights here; see `stateless`."""
    return True


def stateless(
    layer: keras.layers.Layer, mapping: Sequence[tuple[Any, tf.Tensor]], seeds: list[tf.Tensor]
) -> keras.StatelessScope:
    """A block in which variables have these values and keep their own; calls add losses to the block's, not the layer's."""
    del layer, seeds  # Those are variables.
    return keras.StatelessScope(state_mapping=mapping, collect_losses=True)


def uncast(variable: keras.Variable) -> keras.Variable:
    """A variable in its own type; see `_keras2.uncast`."""
    return variable


def mask_after(layer: keras.layers.Layer, inputs: Nested, mask: Nested) -> Nested:
    """The masks of what a layer returns."""
    return layer.compute_mask(inputs, mask)


def masks_of(outputs: Nested) -> list[tf.Tensor]:
    """The masks that a call has left on its flat outputs: nothing, as `mask_after` tells them."""
    del outputs
    return []


def put_masks(outputs: Nested, masks: list[tf.Tensor]) -> None:
    """Leaves such masks on outputs."""


def set_policy(layer: keras.layers.Layer, policy: Any) -> None:
    """Has a layer compute by a policy or its name."""
    layer.dtype_policy = keras.DTypePolicy(policy) if isinstance(policy, str) else policy


def casting(layers: Sequence[keras.layers.Layer]) -> contextlib.AbstractContextManager[None]:
    """A block in which layers have their weights in the type that they compute in, as they have in any case."""
    del layers
    return contextlib.nullcontext()


def make_recurrent(layer: Any, make: Callable[..., None], seed: int | None, time_major: bool, **options: Any) -> bool:
    """Makes a recurrent layer with a seed for its dropout; returns whether others have to see to time as first dimension."""
    del layer
    make(seed=seed, use_cudnn=False, **options)  # With cuDNN, Keras would not compile models with the layer.
    return time_major


# Losses. `Layer.losses` is public, and mixes what calls added with what weights cost.


def added_losses(layer: keras.layers.Layer) -> list[tf.Tensor]:
    """The losses that the calls of a layer, without those within, have added; stands on `Layer._get_own_losses`."""
    return layer._get_own_losses()


def weight_losses(layer: keras.layers.Layer) -> list[tf.Tensor]:
    """What the weights of a layer, and of those within, cost; stands on `Layer._get_regularization_losses`."""
    return layer._get_regularization_losses()


def forget_losses(layer: keras.layers.Layer) -> None:
    """Takes away what the calls of a layer, and of those within, have added; stands on `Layer._clear_losses`."""
    layer._clear_losses()


def total_loss(
    model: keras.Model,
    y: Nested,
    predicted: Nested,
    weights: Nested,
    training: bool,
    losses: Sequence[tf.Tensor] | None = None,
) -> tf.Tensor:
    """The loss with those of the layers, or these instead; stands on `Trainer._compute_loss` and `Layer._losses_override`."""
    model._losses_override = losses or []
    try:
        return model._compute_loss(x=None, y=y, y_pred=predicted, sample_weight=weights, training=training)  # pyright: ignore[reportReturnType]  # Keras infers those of all backends.
    finally:
        model._losses_override = []


def note_loss(model: keras.Model, loss: tf.Tensor, batch_size: int | None) -> None:
    """Notes a batch's loss in metrics; stands on `Trainer._loss_tracker` and `unscale_loss_for_distribution`."""
    model._loss_tracker.update_state(unscale_loss_for_distribution(loss), sample_weight=batch_size)


def scaled_loss(optimizer: Any, loss: TensorLike) -> tf.Tensor:
    """The loss to differentiate, as an optimizer wants it."""
    return optimizer.scale_loss(loss)


# Loops.


def check_compiled(model: keras.Model, method: str) -> None:
    """Refuses a model that was not compiled; stands on `Trainer._assert_compile_called`, else `model.compiled`."""
    model._assert_compile_called(method)


def check_call(model: keras.Model, method: str) -> None:
    """Refuses a call of `fit` or the like that Keras refuses; see `check_compiled`."""
    if method != "predict":
        check_compiled(model, method)


def steps_at_once(model: keras.Model) -> int:
    """How many steps an execution has."""
    return model.steps_per_execution


@contextlib.contextmanager
def taking_steps(model: keras.Model, steps: int) -> Iterator[None]:
    """A block in which Keras, as it begins to iterate, takes so many steps for an execution."""
    before = model.steps_per_execution
    model.steps_per_execution = steps
    try:
        yield
    finally:
        model.steps_per_execution = before


def variables_of_metrics(model: keras.Model) -> list[Any]:
    """The variables in which a model's metrics gather; all of this is public."""
    return [variable for metric in model.metrics for variable in metric.variables]


def converting(step: Callable[..., Nested]) -> Callable[..., Nested]:
    """A step as Keras traces it: without AutoGraph, which Keras 3 keeps out of its steps."""
    return step


def take_steps_of_validation(model: keras.Model) -> None:
    """Has `fit` validate with the steps at once of that data; stands on `Trainer._eval_epoch_iterator`."""
    iterator: Any = model._eval_epoch_iterator
    iterator.steps_per_execution = getattr(iterator.data_adapter, "steps_per_execution", iterator.steps_per_execution)


def accept_strategy(callback: Any, strategy: tf.distribute.Strategy) -> None:
    """Does nothing: all callbacks run under all strategies."""


def count_steps(model: keras.Model, mode: str, steps: int | tf.Tensor) -> None:
    """Does nothing: the model counts no steps."""


def note_program(model: keras.Model, mode: str, program: object) -> None:
    """Does nothing: no callback asks for it."""


def first_epoch(model: keras.Model) -> int | None:
    """The epoch that `BackupAndRestore` has `fit` begin with, or None; stands on `Trainer._initial_epoch`."""
    return getattr(model, "_initial_epoch", None)


def begin_with_epoch(model: keras.Model, epoch: int) -> None:
    """Has `fit` begin with this epoch; see `first_epoch`."""
    model._initial_epoch = epoch


def plain_logs(logs: Logs) -> Logs:
    """Logs with Python's numbers for scalars; stands on `pythonify_logs`. When it is gone: `float` of each."""
    return pythonify_logs(logs)


# Data. Keras has its adapters under no public name; `keras.utils.PyDataset` is one kind of data alone.


def adapter_for(x: Nested, y: Nested, weights: Nested, **options: Any) -> DataAdapter:
    """Keras's view of what a user gave as data; stands on `data_adapters.get_data_adapter`."""
    return data_adapters.get_data_adapter(x=x, y=y, sample_weight=weights, **options)


def arrays_of(adapter: ArrayDataAdapter) -> Nested:
    """The arrays of an adapter, as a structure of what can be cut; stands on `_inputs` and `array_slicing`."""
    return array_slicing.convert_to_sliceable(adapter._inputs, target_backend="tensorflow")


def is_shuffled(adapter: ArrayDataAdapter) -> bool | str:
    """Whether its order is random: True, False, or "batch" for whole batches; stands on `ArrayDataAdapter._shuffle`."""
    return adapter._shuffle


def goes_on(adapter: ArrayDataAdapter) -> bool:
    """Whether one pass over it has the batches of all epochs: here, each epoch is a pass."""
    del adapter
    return False


def examples_of(adapter: ArrayDataAdapter) -> int:
    """How many examples it has; stands on `ArrayDataAdapter._num_samples`."""
    return adapter._num_samples


def split_off(parts: Nested, fraction: float) -> Any:
    """Arrays to train with, and the rest to validate with; stands on `array_slicing.train_validation_split`."""
    return array_slicing.train_validation_split(parts, validation_split=fraction)


# Optimizers.


def has_own_minimize(optimizer: Any) -> bool:
    """Whether a user's class has a `minimize`, which those of Keras 3 have not."""
    return hasattr(optimizer, "minimize")


def strategy_of(optimizer: object) -> tf.distribute.Strategy | None:
    """The strategy that an optimizer was made in, or None; stands on `TFOptimizer._distribution_strategy`."""
    return getattr(optimizer, "_distribution_strategy", None)


def update_with(optimizer: Any, gradients: Sequence[Gradient | None], variables: Sequence[Variable]) -> None:
    """Has an optimizer update variables, and make what it needs for them; `Optimizer.apply` is public."""
    optimizer.apply(gradients, variables)


def casting_gradients(optimizer: Any) -> contextlib.AbstractContextManager[None]:
    """A block in which Keras's own optimizers take gradients of other types than their variables, as they do anyway."""
    del optimizer
    return contextlib.nullcontext()


def transforming_dense(optimizer: Any) -> contextlib.AbstractContextManager[None]:
    """Does nothing: optimizers have no `gradient_transformers`."""
    del optimizer
    return contextlib.nullcontext()


def build_optimizer(optimizer: Any, variables: Sequence[Variable]) -> None:
    """Has an optimizer make what it needs for variables; `Optimizer.build` is public."""
    if not optimizer.built:
        optimizer.build(variables)


def variables_of(optimizer: Any) -> list[Any]:
    """The variables of an optimizer; `Optimizer.variables` is public."""
    return list(optimizer.variables)


def scaling_losses(optimizer: Any) -> contextlib.AbstractContextManager[None]:
    """A block in which optimizers scale losses in all their ways, as those of Keras 3 do anyway."""
    del optimizer
    return contextlib.nullcontext()


def updating(update: Callable[..., None]) -> tuple[str, Callable[..., None]]:
    """The method of optimizers in which all their ways to update variables end, and `update` in its form; see `update_with`."""
    return "apply", update
