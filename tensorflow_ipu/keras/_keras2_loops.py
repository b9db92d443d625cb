"""The loops of Keras 2 with the words of Keras 3; part of `_keras2`."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
import tf_keras as keras
from tf_keras.src.engine.training import _disallow_inside_tf_function
from tf_keras.src.utils.tf_utils import sync_to_numpy_or_python_type

from tensorflow_ipu._tensorflow import autograph

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Logs, Nested


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
