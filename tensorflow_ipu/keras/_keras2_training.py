"""The loops, the data and the optimizers of Keras 2 with the words of Keras 3; part of `_keras2`."""

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
    """Refuses a model that was not compiled; stands on `Model._assert_compile_was_called`."""
    del method
    model._assert_compile_was_called()


def check_call(model: keras.Model, method: str) -> None:
    """Refuses a call of `fit` or the like that Keras refuses; stands on what its own methods begin with."""
    if method != "predict":
        check_compiled(model, method)
    model._check_call_args(method)
    _disallow_inside_tf_function(method)


def steps_at_once(model: keras.Model) -> int:
    """How many steps an execution has; `Model.steps_per_execution` is a variable."""
    steps = model.steps_per_execution
    return 1 if steps is None else int(steps.numpy())


class _Steps(int):
    """How many steps an execution has, in the place of the model's variable, which all calls would share."""

    def numpy(self) -> np.int64:
        return np.int64(self)


@contextlib.contextmanager
def taking_steps(model: keras.Model, steps: int) -> Iterator[None]:
    """A block in which Keras, as it begins to iterate, takes so many steps; stands on `Model._steps_per_execution`."""
    attributes: Any = vars(model)  # Past `__setattr__`, which tracks variables.
    before = attributes["_steps_per_execution"]
    attributes["_steps_per_execution"] = _Steps(steps)
    try:
        yield
    finally:
        attributes["_steps_per_execution"] = before


def variables_of_metrics(model: keras.Model) -> list[Any]:
    """The variables in which a model's metrics gather, and counters; stands on `Model._train_counter` and its kin."""
    counters = [model._train_counter, model._test_counter]
    return [*(variable for metric in model.metrics for variable in metric.variables), *counters]


def converting(step: Callable[..., Nested]) -> Callable[..., Nested]:
    """A step as Keras traces it: with AutoGraph for the user's code that it calls."""
    return autograph.converted(step)


def take_steps_of_validation(model: keras.Model) -> None:
    """Has `fit` validate with the steps at once of that data; stands on `Model._eval_data_handler`."""
    handler: Any = model._eval_data_handler
    data = getattr(handler._adapter, "data", None)
    if data is not None:
        handler._steps_per_execution = _Steps(data.steps_per_execution)


def accept_strategy(callback: Any, strategy: tf.distribute.Strategy) -> None:
    """Has a callback run under a strategy; stands on `BackupAndRestore._supported_strategies`."""
    kinds = getattr(callback, "_supported_strategies", None)
    if kinds is not None and type(strategy) not in kinds:
        callback._supported_strategies = (*kinds, type(strategy))


def count_steps(model: keras.Model, mode: str, steps: int | tf.Tensor) -> None:
    """Counts steps of a program for callbacks; stands on `Model._train_counter` and its kin, which `TensorBoard` reads."""
    getattr(model, f"_{mode}_counter").assign_add(tf.cast(steps, tf.int64))


def note_program(model: keras.Model, mode: str, program: object) -> None:
    """Notes the program that runs, whose graph `TensorBoard` writes; stands on `Model.train_tf_function`."""
    if mode == "train":
        attributes: Any = vars(model)  # Past `__setattr__`, by which files would hold it.
        attributes["train_tf_function"] = program


def first_epoch(model: keras.Model) -> int | None:
    """The epoch that `BackupAndRestore` has `fit` begin with, or None; stands on `Model._training_state`."""
    state = getattr(model, "_training_state", None)
    return None if state is None else int(state._ckpt_saved_epoch.numpy()) + 1


def begin_with_epoch(model: Any, epoch: int) -> None:
    """Has `fit` begin with this epoch; stands on what it asks of `Model._training_state`."""

    def load(*_: object, **__: object) -> tuple[int, int]:
        model._training_state = None
        return epoch, 0

    model._training_state = types.SimpleNamespace(maybe_load_initial_counters_from_ckpt=load)


def plain_logs(logs: Logs) -> Logs:
    """Logs with Python's numbers for scalars; stands on `sync_to_numpy_or_python_type`. Else: `float` of each."""
    return sync_to_numpy_or_python_type(logs)


# Data.


class DataAdapter:
    """Data with the properties that the adapters of Keras 3 have."""

    batch_size: int | None = None
    num_batches: int | None = None
    has_partial_batch = False
    partial_batch_size: int | None = None
    goes_on = False  # Whether one pass has the batches of all epochs.

    def get_tf_dataset(self) -> Any:
        raise NotImplementedError

    def on_epoch_begin(self) -> None:
        """Hears of an epoch."""

    def on_epoch_end(self) -> None:
        """Hears of an epoch."""


class TFDatasetAdapter(DataAdapter):
    """A dataset, with weights of classes."""

    def __init__(self, adapter: Any, class_weight: Mapping[int, float] | None) -> None:
        self._dataset = adapter.get_dataset()
        if class_weight:
            self._dataset = self._dataset.map(data_adapter._make_class_weight_map_fn(class_weight))
        cardinality = int(self._dataset.cardinality())
        self.num_batches = cardinality if cardinality >= 0 else None

    def get_tf_dataset(self) -> tf.data.Dataset:
        return self._dataset


class ArrayDataAdapter(DataAdapter):
    """Arrays; stands on `data_adapter.TensorLikeDataAdapter`, and on what makes tensors of its arguments."""

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
    """Data of other kinds."""


class _FedDataAdapter(data_adapter.DataAdapter):
    """How Keras 2 takes a `DataAdapter` of this file, such as data that a device is fed with, for data."""

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
        """Whether an epoch begins anew with the data, as for datasets."""
        return not self.data.goes_on and self._steps in (None, self.data.num_batches)

    def on_epoch_end(self) -> None:
        self.data.on_epoch_end()


# A class of our own in the list is asked for our own data alone.
data_adapter.ALL_ADAPTER_CLS.append(_FedDataAdapter)


_FOR_EVER: dict[str, Any] = {"epochs": None}


def adapter_for(x: Nested, y: Nested, weights: Nested, **options: Any) -> DataAdapter:
    """Keras's view of what a user gave as data; stands on `data_adapter.select_data_adapter`."""
    kind: Any = data_adapter.select_data_adapter(x, y)
    shuffle, class_weight = options["shuffle"], options["class_weight"]
    named = {"sample_weights": weights, "batch_size": options["batch_size"], "steps": options["steps_per_epoch"]}
    if kind is data_adapter.ListsOfScalarsDataAdapter:
        x, y, weights = (None if part is None else tf.convert_to_tensor(part) for part in (x, y, weights))
        return adapter_for(x, y, weights, **options)
    if kind in (data_adapter.TensorLikeDataAdapter, data_adapter.GenericArrayLikeDataAdapter):
        tensors: Any = data_adapter._process_tensorlike((x, y, weights))
        if kind is data_adapter.TensorLikeDataAdapter:
            x, y, named["sample_weights"] = tensors  # Which it would convert anew.
        made = kind(x, y, shuffle=shuffle, **named, **_FOR_EVER)
        return ArrayDataAdapter(made, tensors, class_weight, shuffle)
    if kind is data_adapter.DatasetAdapter:
        return TFDatasetAdapter(kind(x, y, sample_weights=weights, steps=options["steps_per_epoch"]), class_weight)
    if kind is data_adapter.DatasetCreatorAdapter:
        kind(x, y, steps=options["steps_per_epoch"])  # It refuses a missing number of steps.
        return adapter_for(x(tf.distribute.InputContext()), None, None, **options)
    return type(kind.__name__, (_OtherData,), {})()


def arrays_of(adapter: ArrayDataAdapter) -> Nested:
    return adapter.arrays


def is_shuffled(adapter: ArrayDataAdapter) -> bool | str:
    return adapter.shuffle


def goes_on(adapter: ArrayDataAdapter) -> bool:
    """Whether one pass over it has the batches of all epochs: where their order is random."""
    return bool(adapter.shuffle)


def examples_of(adapter: ArrayDataAdapter) -> int:
    return adapter.examples


def split_off(parts: Nested, fraction: float) -> Any:
    """Arrays to train with, and the rest to validate with; stands on `data_adapter.train_validation_split`."""
    return data_adapter.train_validation_split(parts, validation_split=fraction)


# Optimizers.

# The module whose optimizers subclasses extend by overriding the update of one variable.
optimizers: Any = keras.optimizers.legacy
LossScaleOptimizer: Any = loss_scale_optimizer.BaseLossScaleOptimizer  # The base of that of either kind.
OPTIMIZERS: Any = (optimizers.Optimizer, keras.optimizers.Optimizer)


def has_own_minimize(optimizer: Any) -> bool:
    """Whether a user's class overrides `minimize`."""
    return not type(optimizer).minimize.__module__.startswith(("tf_keras.", "tensorflow_ipu."))


def strategy_of(optimizer: object) -> tf.distribute.Strategy | None:
    """The strategy that an optimizer was made in, or None; stands on `Optimizer._distribution_strategy`."""
    return getattr(optimizer, "_distribution_strategy", None)


def update_with(optimizer: Any, gradients: Sequence[Gradient | None], variables: Sequence[Variable]) -> None:
    """Has an optimizer update variables, and make what it needs for them; `apply_gradients` is public."""
    with casting_gradients(optimizer):
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))


@contextlib.contextmanager
def casting_gradients(optimizer: Any) -> Iterator[None]:
    """A block in which Keras's own optimizers take gradients of other types than their variables, as in Keras 3 anyway.

    Stands on the names of the methods by which they update one variable.
    """
    kind = type(optimizer)
    update = getattr(kind, "_resource_apply_dense", None) or getattr(kind, "update_step", None)
    # Updates of the user's or of this package see to it themselves, and optimizers of TensorFlow 1 have none.
    if update is None or not update.__module__.startswith("tf_keras."):
        yield
        return
    apply, before = optimizer.apply_gradients, vars(optimizer).get("apply_gradients")

    def apply_gradients(pairs: Iterable[tuple[Any, Variable]], *args: object, **kwargs: object) -> object:
        typed = [(None if one is None else tf.cast(one, variable.dtype), variable) for one, variable in pairs]
        return apply(typed, *args, **kwargs)

    vars(optimizer)["apply_gradients"] = apply_gradients
    try:
        yield
    finally:
        del vars(optimizer)["apply_gradients"]
        if before is not None:
            vars(optimizer)["apply_gradients"] = before


@contextlib.contextmanager
def transforming_dense(optimizer: Any) -> Iterator[None]:
    """A block in which `gradient_transformers` of an optimizer get dense gradients, as where gradients accumulate."""
    before = getattr(optimizer, "gradient_transformers", None)
    if not before:
        yield
        return

    def dense(pairs: Iterable[tuple[Gradient | None, Variable]]) -> list[tuple[tf.Tensor | None, Variable]]:
        return [(None if one is None else tf.convert_to_tensor(one), variable) for one, variable in pairs]

    optimizer.gradient_transformers = [dense, *before]
    try:
        yield
    finally:
        optimizer.gradient_transformers = before


def build_optimizer(optimizer: Any, variables: Sequence[Variable]) -> None:
    """Has an optimizer make what it needs for variables; stands on `OptimizerV2._create_all_weights`, else its first update."""
    if isinstance(optimizer, OPTIMIZERS):  # Those of TensorFlow 1 have no such method.
        (getattr(optimizer, "build", None) or optimizer._create_all_weights)(variables)


def variables_of(optimizer: Any) -> list[Any]:
    """The variables of an optimizer; `variables` is public, and callable with either kind."""
    return list(optimizer.variables())


def computed_gradients(
    optimizer: Any, loss: Any, variables: Any, factor: Any, tape: tf.GradientTape | None
) -> list[tuple[Gradient | None, Variable]]:
    """The first half of an optimizer's `minimize`; stands on `OptimizerV2._compute_gradients`."""
    if isinstance(optimizer, optimizers.Optimizer):
        return optimizer._compute_gradients(loss, variables, factor, tape)
    return optimizer.compute_gradients(loss, variables, tape)


@contextlib.contextmanager
def scaling_losses(optimizer: Any) -> Iterator[None]:
    """A block in which `minimize` scales losses as `get_gradients` of a user's class does; see `computed_gradients`."""
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
    """The method of optimizers in which all their ways to update variables end, and `update` in its form; see `update_with`."""

    def apply_gradients(grads_and_vars: Any, name: str | None = None, **options: bool) -> None:
        del name
        update(*zip(*grads_and_vars, strict=True), **options)

    return "apply_gradients", apply_gradients
