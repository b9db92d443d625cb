"""`fit`, `evaluate` and `predict` of a model that was made in a strategy's scope: Keras's loops over fed data."""

from __future__ import annotations

import functools
import inspect
import operator
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._base import environment
from tensorflow_ipu.keras._keras import internals, keras
from tensorflow_ipu.keras.data import fed_data
from tensorflow_ipu.keras.model.callbacks import AsynchronousCallbacks, written_once
from tensorflow_ipu.keras.optimizers import parts
from tensorflow_ipu.keras.pipeline.places import symbols_of
from tensorflow_ipu.replicas import tracebacks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tensorflow_ipu._base.types import Logs, Nested
    from tensorflow_ipu.keras.model.extension import Extension


class LoopMethods:
    """The methods that replace Keras's own of the same names, on the instance."""

    @tracebacks.user_lines_alone
    @functools.wraps(keras.Model.compile)
    def compile(self: Any, *args: Any, **kwargs: Any) -> None:
        if "steps_per_execution" in kwargs:
            kwargs["steps_per_execution"] = _steps(kwargs["steps_per_execution"])
        # What Keras makes here, the optimizer that goes by a name and the metrics, belongs on the device.
        strategy = self._ipu_extension.strategy
        with strategy.scope():
            result = type(self).compile(self, *args, **kwargs)
        if internals.strategy_of(self.optimizer) not in (None, strategy):
            raise ValueError(
                f"the optimizer of model `{self.name}` was made outside of the scope that the model was made in, so its"
                " variables are not on the IPU: make it inside `strategy.scope()`, with the same strategy"
            )
        wrapped = getattr(self.optimizer, "inner_optimizer", None)
        made_by_keras = all(one is not self.optimizer for one in (*args, *kwargs.values()))
        if made_by_keras and parts.scales_losses(wrapped):
            # Keras scales the losses of models in half precision, and sees no scaling but an outermost one.
            self.optimizer = wrapped
        parts.agree_on_finite(self.optimizer)
        return result

    @tracebacks.user_lines_alone
    @functools.wraps(keras.Model.fit)
    def fit(self: Any, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        bound = _bind("fit", self, args, kwargs)
        given = bound.arguments
        internals.check_compiled(self, "fit")
        extension = self._ipu_extension
        if given["validation_split"] and given["validation_data"] is None:
            arrays = (given["x"], given["y"], given["sample_weight"])
            split: Any = internals.split_off(arrays, given["validation_split"])
            (given["x"], given["y"], given["sample_weight"]), given["validation_data"] = split
        given["validation_split"] = 0.0
        data = _feed(extension, given, "steps_per_epoch", given["shuffle"], given["class_weight"])
        opened = [data]
        given["class_weight"] = None
        _check_accumulation(extension, data)
        if given["validation_data"] is not None:
            x, y, weights = keras.utils.unpack_x_y_sample_weight(given["validation_data"])
            steps = given["validation_steps"]
            size = given["validation_batch_size"] or given["batch_size"]
            adapter = fed_data.adapt(x, y, weights, size, steps, False, None)
            held_out = extension.feed(adapter, steps, "validation_steps")
            given["validation_data"], given["validation_steps"] = held_out, held_out.steps_per_epoch
            opened.append(held_out)
        for callback in tf.nest.flatten(getattr(given["callbacks"], "callbacks", given["callbacks"])):
            internals.accept_strategy(callback, extension.strategy)
        if extension.cluster is not None:
            given["callbacks"] = written_once(given["callbacks"], extension.strategy)
        more = {"add_history": True, "epochs": given["epochs"]}
        given["callbacks"] = callbacks = _callbacks("train", extension, given, data, **more)
        return _run("fit", bound, extension, data, callbacks, opened)

    @tracebacks.user_lines_alone
    @functools.wraps(keras.Model.evaluate)
    def evaluate(self: Any, *args: Any, **kwargs: Any) -> list[float] | float | dict[str, float]:
        bound = _bind("evaluate", self, args, kwargs)
        given = bound.arguments
        internals.check_compiled(self, "evaluate")
        extension = self._ipu_extension
        if given.get("kwargs", {}).get("_use_cached_eval_dataset"):  # The validation of `fit`.
            with internals.validating(self):
                return keras.Model.evaluate(*bound.args, **bound.kwargs)
        data = _feed(extension, given, "steps")
        given["callbacks"] = callbacks = _callbacks("test", extension, given, data, epochs=1)
        return _run("evaluate", bound, extension, data, callbacks, [data])

    @tracebacks.user_lines_alone
    @functools.wraps(keras.Model.predict)
    def predict(self: Any, *args: Any, **kwargs: Any) -> Nested:
        bound = _bind("predict", self, args, kwargs)
        given = bound.arguments
        extension = self._ipu_extension
        data = _feed(extension, given, "steps", for_prediction=True)
        if not all(
            layer.built for layer in internals.all_layers(self)
        ):  # Then Keras builds for `fit` and `evaluate` alone.
            with extension.strategy.scope():
                internals.called_with_symbols(self, symbols_of(data.spec), training=False)
        given["callbacks"] = callbacks = _callbacks("predict", extension, given, data, epochs=1)
        return _run("predict", bound, extension, data, callbacks, [data])

    def make_train_function(self: Any, force: bool = False) -> Callable[[Nested], Nested]:
        """Makes the function that runs an execution of training."""
        return _make(self, "train", force)

    def make_test_function(self: Any, force: bool = False) -> Callable[[Nested], Nested]:
        """Makes the function that runs an execution of evaluation."""
        return _make(self, "test", force)

    def make_predict_function(self: Any, force: bool = False) -> Callable[[Nested], Nested]:
        """Makes the function that runs an execution of prediction."""
        return _make(self, "predict", force)

    def _validate_and_get_metrics_result(self: Any, logs: Logs) -> Logs:
        """The same in Keras 2."""
        del self
        return internals.plain_logs(logs)

    def _get_metrics_result_or_logs(self: Any, logs: Logs) -> Logs:
        """The logs as plain numbers, which they are not in every release of Keras; they hold the metrics already."""
        del self
        return internals.plain_logs(logs)


def _steps(given: Any) -> int:
    """`steps_per_execution` as a number: users give the size of a dataset, which is a tensor."""
    try:
        steps = operator.index(given.numpy() if tf.is_tensor(given) else given)
    except TypeError as exc:
        raise ValueError(f"`steps_per_execution` must be a positive integer, but is {given!r}") from exc
    if steps < 1:
        raise ValueError(
            f"`steps_per_execution` must be a positive integer, but is {steps}; for `dataset.cardinality()`, -1 and -2 mean"
            " that the dataset is infinite, or of unknown size"
        )
    if steps > tf.int32.max:
        raise ValueError(f"`steps_per_execution` must be at most {tf.int32.max}, but is {steps}")
    return steps


def _bind(
    name: str, model: keras.Model, args: Sequence[object], kwargs: Mapping[str, object]
) -> inspect.BoundArguments:
    bound = inspect.signature(getattr(keras.Model, name)).bind(model, *args, **kwargs)
    bound.apply_defaults()
    return bound


def _feed(
    extension: Extension,
    given: dict[str, Any],
    argument: str,
    shuffle: bool | str = False,
    class_weight: Mapping[int, float] | None = None,
    for_prediction: bool = False,
) -> fed_data.FedData:
    """Replaces the data among the arguments by data that the device is fed with."""
    steps = given[argument]
    adapter = fed_data.adapt(
        given["x"], given.get("y"), given.get("sample_weight"), given["batch_size"], steps, shuffle, class_weight
    )
    data = extension.feed(adapter, steps, argument, for_prediction=for_prediction)
    given["x"], given[argument] = data, data.steps_per_epoch
    for name in ("y", "sample_weight"):
        if name in given:
            given[name] = None
    return data


def _callbacks(mode: str, extension: Extension, given: dict[str, Any], data: fed_data.FedData, **more: Any) -> Any:
    # Results of several steps have nothing to tell of each step.
    if not extension.options.asynchronous_callbacks or extension.accumulates(mode):
        return given["callbacks"]
    return AsynchronousCallbacks(
        given["callbacks"],
        per_step=data.replicas,
        add_progbar=given["verbose"] != 0,
        verbose=given["verbose"],
        steps=data.steps * data.replicas,
        model=extension.model,
        **more,
    )


def _run(
    name: str,
    bound: inspect.BoundArguments,
    extension: Extension,
    data: fed_data.FedData,
    callbacks: object,
    opened: list[fed_data.FedData],
) -> Any:
    steps = data.steps_per_execution
    reporter = callbacks if isinstance(callbacks, AsynchronousCallbacks) else None
    try:
        if name != "predict" and environment.uses_keras_2():  # Keras 3 builds in `fit` and `evaluate`.
            with extension.strategy.scope():
                internals.build_for_training(extension.model, data.spec)
        with extension.executing(steps), extension.reporting_to(reporter):
            return getattr(keras.Model, name)(*bound.args, **bound.kwargs)
    finally:
        for source in opened:
            source.close()


def _check_accumulation(extension: Extension, data: fed_data.FedData) -> None:
    count = extension.steps_per_update
    if data.steps_per_execution % count == 0:
        return
    wanted = [n for n in range(count, data.steps + 1, count) if data.steps % n == 0]
    way_out = (
        f"Compile the model with `steps_per_execution` of {' or '.join(map(str, wanted[:4]))}"
        if wanted
        else f"The data makes {data.steps} steps an epoch: give it a multiple of {count}"
    )
    pipelined = extension.stages.is_pipelined
    raise RuntimeError(
        f"The {'pipelined ' if pipelined else ''}model has been configured to use gradient accumulation for training, however"
        f" the current `steps_per_execution` value (set to {data.steps_per_execution}) is not divisible by"
        f" `gradient_accumulation_steps_per_replica` ({count}). {way_out}, or call"
        f" `set_{'pipelining' if pipelined else 'gradient_accumulation'}_options` with another count"
    )


def _make(model: keras.Model, mode: str, force: bool) -> Callable[[Nested], Nested]:
    name = f"make_{mode}_function"
    if getattr(type(model), name) is not getattr(keras.Model, name):
        raise RuntimeError(
            f"The function `{name}` for the model {model.name} has been overridden, and under an `IPUStrategy` the model"
            f" makes the program itself: override `{mode}_step` instead, or make the model outside of the scope"
        )
    function = getattr(model, f"{mode}_function")
    if function is None or force:
        function = vars(model)["_ipu_extension"].make_function(mode)
        setattr(model, f"{mode}_function", function)
    return function
