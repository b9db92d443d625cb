"""The loops, data and optimizers of the Keras 2 adapter, with the functions of `_keras3`; part of `_keras2`."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
import tf_keras as keras
from tf_keras.src.engine import data_adapter
from tf_keras.src.engine.training import _disallow_inside_tf_function
from tf_keras.src.mixed_precision import loss_scale_optimizer
from tf_keras.src.utils.tf_utils import sync_to_numpy_or_python_type

from tensorflow_ipu._tensorflow import autograph
from tensorflow_ipu.optimizers import accumulation

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Gradient, Logs, Nested, Variable

# Loops.


def check_compiled(model: keras.Model, method: str) -> None:
    """Raises an error if a model was not compiled. Uses the private `Model._assert_compile_was_called`."""
    del method
    model._assert_compile_was_called()


def check_call(model: keras.Model, method: str) -> None:
    """Raises Keras's error if the model cannot run this method, such as `fit`.

    Uses the private `Model._check_call_args` and `_disallow_inside_tf_function`, as the methods of Keras do.
    """
    if method != "predict":
        check_compiled(model, method)
    model._check_call_args(method)
    _disallow_inside_tf_function(method)


def steps_per_execution(model: keras.Model) -> int:
    """Returns the number of steps in an execution. `Model.steps_per_execution` is a variable or None."""
    steps = model.steps_per_execution
    return 1 if steps is None else int(steps.numpy())


class _Steps(int):
    """A number of steps for one call. It replaces the variable of the model, which all calls share."""

    def numpy(self) -> np.int64:
        return np.int64(self)


@contextlib.contextmanager
def with_steps_per_execution(model: keras.Model, steps: int) -> Iterator[None]:
    """Runs the block with `steps` steps in an execution, a number that Keras reads when it begins to iterate.

    Uses the private `Model._steps_per_execution`.
    """
    attributes: Any = vars(model)  # Bypasses `__setattr__`, which tracks variables.
    original = attributes["_steps_per_execution"]
    attributes["_steps_per_execution"] = _Steps(steps)
    try:
        yield
    finally:
        attributes["_steps_per_execution"] = original


def variables_of_metrics(model: keras.Model) -> list[Any]:
    """Returns the variables of a model's metrics, and its step counters.

    Uses the private `Model._train_counter` and `Model._test_counter`.
    """
    counters = [model._train_counter, model._test_counter]
    return [*(variable for metric in model.metrics for variable in metric.variables), *counters]


def converting(step: Callable[..., Nested]) -> Callable[..., Nested]:
    """Returns the step converted by AutoGraph, as Keras 2 converts the user's code."""
    return autograph.converted(step)


def use_steps_of_validation_data(model: keras.Model) -> None:
    """Makes the validation in `fit` use the steps per execution of the validation data.

    Uses the private `Model._eval_data_handler`.
    """
    handler: Any = model._eval_data_handler
    data = getattr(handler._adapter, "data", None)
    if data is not None:
        handler._steps_per_execution = _Steps(data.steps_per_execution)


def accept_strategy(callback: Any, strategy: tf.distribute.Strategy) -> None:
    """Adds the class of the strategy to the classes that a callback supports.

    Uses the private `BackupAndRestore._supported_strategies`.
    """
    kinds = getattr(callback, "_supported_strategies", None)
    if kinds is not None and type(strategy) not in kinds:
        callback._supported_strategies = (*kinds, type(strategy))


def count_steps(model: keras.Model, mode: str, steps: int | tf.Tensor) -> None:
    """Adds steps of a program to the counter that `TensorBoard` reads.

    Uses the private `Model._train_counter`, `Model._test_counter` and `Model._predict_counter`.
    """
    getattr(model, f"_{mode}_counter").assign_add(tf.cast(steps, tf.int64))


def note_program(model: keras.Model, mode: str, program: object) -> None:
    """Stores the running program, whose graph `TensorBoard` writes. Uses the private `Model.train_tf_function`."""
    if mode == "train":
        attributes: Any = vars(model)  # Bypasses `__setattr__`, which would add it to saved files.
        attributes["train_tf_function"] = program


def first_epoch(model: keras.Model) -> int | None:
    """Returns the epoch at which `BackupAndRestore` resumes `fit`, or None.

    Uses the private `Model._training_state`.
    """
    state = getattr(model, "_training_state", None)
    return None if state is None else int(state._ckpt_saved_epoch.numpy()) + 1


def set_first_epoch(model: Any, epoch: int) -> None:
    """Makes `fit` begin with this epoch. Uses the private `Model._training_state`, which `fit` reads."""

    def load(*_: object, **__: object) -> tuple[int, int]:
        model._training_state = None
        return epoch, 0

    model._training_state = types.SimpleNamespace(maybe_load_initial_counters_from_ckpt=load)


def plain_logs(logs: Logs) -> Logs:
    """Returns logs with Python scalars. Uses the private `sync_to_numpy_or_python_type`.

    Without it: `float` of each value.
    """
    return sync_to_numpy_or_python_type(logs)


# Data.


class DataAdapter:
    """Data with the properties of the adapters of Keras 3."""

    batch_size: int | None = None
    num_batches: int | None = None
    has_partial_batch = False
    partial_batch_size: int | None = None
    has_all_epochs = False  # True if one pass yields the batches of all epochs.

    def get_tf_dataset(self) -> Any:
        raise NotImplementedError

    def on_epoch_begin(self) -> None:
        """Does nothing; subclasses may override it."""

    def on_epoch_end(self) -> None:
        """Does nothing; subclasses may override it."""


class TFDatasetAdapter(DataAdapter):
    """A dataset, with class weights."""

    def __init__(self, adapter: Any, class_weight: Mapping[int, float] | None) -> None:
        self._dataset = adapter.get_dataset()
        if class_weight:
            self._dataset = self._dataset.map(data_adapter._make_class_weight_map_fn(class_weight))
        cardinality = int(self._dataset.cardinality())
        self.num_batches = cardinality if cardinality >= 0 else None

    def get_tf_dataset(self) -> tf.data.Dataset:
        return self._dataset


class ArrayDataAdapter(DataAdapter):
    """Arrays of examples. Uses the private `data_adapter.TensorLikeDataAdapter`.

    Class weights are applied by the private `data_adapter._make_class_weight_map_fn`.
    """

    def __init__(
        self, adapter: Any, tensors: Any, class_weight: Mapping[int, float] | None, shuffle: bool | str
    ) -> None:
        weigh = data_adapter._make_class_weight_map_fn(class_weight) if class_weight else None
        if weigh is not None:
            tensors = weigh(*tensors)
        dataset = adapter.get_dataset()
        self._dataset = dataset if weigh is None else dataset.map(weigh)
        self.arrays = data_adapter.pack_x_y_sample_weight(*tensors)
        self.examples = int(tf.nest.flatten(self.arrays)[0].shape[0])
        self.shuffle = shuffle
        self.batch_size = adapter.batch_size()
        self.num_batches = adapter.get_size()
        self.has_partial_batch = adapter.has_partial_batch()
        self.partial_batch_size = adapter.partial_batch_size()

    def get_tf_dataset(self) -> tf.data.Dataset:
        return self._dataset


class _OtherData(DataAdapter):
    """Data of any other kind, which models of the scope reject."""


class _FedDataAdapter(data_adapter.DataAdapter):
    """Keras 2's adapter for data that is a `DataAdapter` of this module, such as the data that an infeed reads."""

    @staticmethod
    def can_handle(x: object, y: object = None) -> bool:
        del y
        return isinstance(x, DataAdapter)

    def __init__(self, x: Any, y: Any = None, **options: Any) -> None:
        super().__init__(x, y)
        self.data = x
        self._steps = options.get("steps")

    def get_dataset(self) -> Any:
        return self.data.get_tf_dataset()

    def get_size(self) -> int | None:
        return self.data.num_batches

    def batch_size(self) -> int | None:
        return self.data.batch_size

    def has_partial_batch(self) -> bool:
        return self.data.has_partial_batch

    def partial_batch_size(self) -> int | None:
        return self.data.partial_batch_size

    def should_recreate_iterator(self) -> bool:
        """Returns True if each epoch iterates from the beginning of the data, as for datasets."""
        return not self.data.has_all_epochs and self._steps in (None, self.data.num_batches)

    def on_epoch_end(self) -> None:
        self.data.on_epoch_end()


# Keras uses the first class of this list that accepts the data. This one accepts only data of this package.
data_adapter.ALL_ADAPTER_CLS.append(_FedDataAdapter)


_ENDLESS: dict[str, Any] = {"epochs": None}


def adapter_for(x: Nested, y: Nested, weights: Nested, **options: Any) -> DataAdapter:
    """Returns the adapter of the user's data. Uses the private `data_adapter.select_data_adapter`."""
    kind: Any = data_adapter.select_data_adapter(x, y)
    shuffle, class_weight = options["shuffle"], options["class_weight"]
    keywords = {"sample_weights": weights, "batch_size": options["batch_size"], "steps": options["steps_per_epoch"]}
    if kind is data_adapter.ListsOfScalarsDataAdapter:
        x, y, weights = (None if part is None else tf.convert_to_tensor(part) for part in (x, y, weights))
        return adapter_for(x, y, weights, **options)
    if kind in (data_adapter.TensorLikeDataAdapter, data_adapter.GenericArrayLikeDataAdapter):
        tensors: Any = data_adapter._process_tensorlike((x, y, weights))
        if kind is data_adapter.TensorLikeDataAdapter:
            x, y, keywords["sample_weights"] = tensors  # Otherwise, the adapter converts them a second time.
        adapter = kind(x, y, shuffle=shuffle, **keywords, **_ENDLESS)
        return ArrayDataAdapter(adapter, tensors, class_weight, shuffle)
    if kind is data_adapter.DatasetAdapter:
        return TFDatasetAdapter(kind(x, y, sample_weights=weights, steps=options["steps_per_epoch"]), class_weight)
    if kind is data_adapter.DatasetCreatorAdapter:
        kind(x, y, steps=options["steps_per_epoch"])  # Raises an error if the number of steps is missing.
        return adapter_for(x(tf.distribute.InputContext()), None, None, **options)
    return type(kind.__name__, (_OtherData,), {})()


def arrays_of(adapter: ArrayDataAdapter) -> Nested:
    return adapter.arrays


def is_shuffled(adapter: ArrayDataAdapter) -> bool | str:
    return adapter.shuffle


def has_all_epochs(adapter: ArrayDataAdapter) -> bool:
    """Returns True if one pass over the adapter yields the batches of all epochs, as shuffled data does."""
    return bool(adapter.shuffle)


def examples_of(adapter: ArrayDataAdapter) -> int:
    return adapter.examples


def split_validation_data(parts: Nested, fraction: float) -> Any:
    """Splits arrays into training and validation data. Uses the private `data_adapter.train_validation_split`."""
    return data_adapter.train_validation_split(parts, validation_split=fraction)


# Optimizers.

# The module whose optimizers subclasses extend by overriding the update of one variable.
optimizers: Any = keras.optimizers.legacy
LossScaleOptimizer: Any = loss_scale_optimizer.BaseLossScaleOptimizer  # The base class for both kinds of optimizers.
OPTIMIZERS: Any = (optimizers.Optimizer, keras.optimizers.Optimizer)


def has_own_minimize(optimizer: Any) -> bool:
    """Returns True if the user's class overrides `minimize`."""
    return not type(optimizer).minimize.__module__.startswith(("tf_keras.", "tensorflow_ipu."))


def strategy_of(optimizer: object) -> tf.distribute.Strategy | None:
    """Returns the strategy in whose scope the optimizer was made, or None.

    Uses the private `Optimizer._distribution_strategy`.
    """
    return getattr(optimizer, "_distribution_strategy", None)


def update_with(optimizer: Any, gradients: Sequence[Gradient | None], variables: Sequence[Variable]) -> None:
    """Updates variables by an optimizer, which creates its slots first if needed; `apply_gradients` is public."""
    with casting_gradients(optimizer):
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))


@contextlib.contextmanager
def casting_gradients(optimizer: Any) -> Iterator[None]:
    """Runs the block with gradients cast to the dtypes of their variables, as optimizers of Keras 3 do.

    Only Keras's own optimizers need it. Uses the private `_resource_apply_dense`, or `update_step`, to recognize them.
    """
    kind = type(optimizer)
    update = getattr(kind, "_resource_apply_dense", None) or getattr(kind, "update_step", None)
    # Updates by the user or this package cast gradients themselves. Optimizers of TensorFlow 1 lack both methods.
    if update is None or not update.__module__.startswith("tf_keras."):
        yield
        return
    apply, original = optimizer.apply_gradients, vars(optimizer).get("apply_gradients")

    def apply_gradients(pairs: Iterable[tuple[Any, Variable]], *args: object, **kwargs: object) -> object:
        typed = [
            (None if gradient is None else tf.cast(gradient, variable.dtype), variable) for gradient, variable in pairs
        ]
        return apply(typed, *args, **kwargs)

    vars(optimizer)["apply_gradients"] = apply_gradients
    try:
        yield
    finally:
        del vars(optimizer)["apply_gradients"]
        if original is not None:
            vars(optimizer)["apply_gradients"] = original


@contextlib.contextmanager
def transforming_dense(optimizer: Any) -> Iterator[None]:
    """Runs the block such that `gradient_transformers` of the optimizer get dense gradients, as they do in accumulation."""
    original = getattr(optimizer, "gradient_transformers", None)
    if not original:
        yield
        return

    def dense(pairs: Iterable[tuple[Gradient | None, Variable]]) -> list[tuple[tf.Tensor | None, Variable]]:
        return [
            (None if gradient is None else tf.convert_to_tensor(gradient), variable) for gradient, variable in pairs
        ]

    optimizer.gradient_transformers = [dense, *original]
    try:
        yield
    finally:
        optimizer.gradient_transformers = original


def build_optimizer(optimizer: Any, variables: Sequence[Variable]) -> None:
    """Creates the slots of an optimizer for variables. Uses the private `OptimizerV2._create_all_weights`.

    Without it: the first update creates them.
    """
    if isinstance(optimizer, OPTIMIZERS):  # Optimizers of TensorFlow 1 have no such method.
        (getattr(optimizer, "build", None) or optimizer._create_all_weights)(variables)


def variables_of(optimizer: Any) -> list[Any]:
    """Returns the variables of an optimizer; `variables` is public, and callable for both kinds of optimizers."""
    return list(optimizer.variables())


def computed_gradients(
    optimizer: Any, loss: Any, variables: Any, factor: Any, tape: tf.GradientTape | None
) -> list[tuple[Gradient | None, Variable]]:
    """Computes gradients as the first half of `minimize`. Uses the private `OptimizerV2._compute_gradients`."""
    if isinstance(optimizer, optimizers.Optimizer):
        return optimizer._compute_gradients(loss, variables, factor, tape)
    return optimizer.compute_gradients(loss, variables, tape)


@contextlib.contextmanager
def scaling_losses(optimizer: Any) -> Iterator[None]:
    """Runs the block such that `minimize` scales the loss if the user's class does so in `get_gradients`.

    See `computed_gradients`.
    """
    compute = getattr(optimizer, "_compute_gradients", None)

    def scaled(loss: Any, var_list: Any, grad_loss: Any = None, tape: tf.GradientTape | None = None) -> Any:
        scale = None if tape is None else accumulation.scale_of(optimizer, loss)
        if tape is not None and scale is not None:
            with tape:
                loss = loss * scale
        assert compute is not None
        return compute(loss, var_list, grad_loss, tape)

    if compute is not None:
        vars(optimizer)["_compute_gradients"] = scaled
    try:
        yield
    finally:
        vars(optimizer).pop("_compute_gradients", None)


def updating(update: Callable[..., None]) -> tuple[str, Callable[..., None]]:
    """Returns the name of the method that every update of variables calls, and `update` with that method's signature.

    See `update_with`.
    """

    def apply_gradients(grads_and_vars: Any, name: str | None = None, **options: bool) -> None:
        del name
        update(*zip(*grads_and_vars, strict=True), **options)

    return "apply_gradients", apply_gradients
