"""The class that is mixed into the class of a Keras model made in a strategy's scope."""

from __future__ import annotations

import contextlib
import functools
import operator
import threading
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._base import environment, progress
from tensorflow_ipu.keras._keras import internals, keras
from tensorflow_ipu.keras.data import fed_data
from tensorflow_ipu.keras.model import files
from tensorflow_ipu.keras.model.callbacks import AsynchronousCallbacks, written_once
from tensorflow_ipu.keras.model.extension import Extension, set_class
from tensorflow_ipu.keras.model.ipu_methods import IPUMethods
from tensorflow_ipu.keras.model.scope import makes_ipu_models
from tensorflow_ipu.keras.optimizers import wrapping
from tensorflow_ipu.keras.pipeline.places import symbols_of
from tensorflow_ipu.programs.diagnostics import tracebacks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tensorflow_ipu._base.types import Logs, Nested
    from tensorflow_ipu.keras.model.loop import Call
    from tensorflow_ipu.strategy import IPUStrategyV1

    _Model = keras.Model
else:
    _Model = object  # A mixed class has the model's class as its last base.


def mix_in(model: keras.Model, strategy: IPUStrategyV1) -> None:
    """Makes a model an IPU model: its class becomes a subclass of its class and of `IPUModel`."""
    if not isinstance(model, IPUModel):
        kind = ModelExtension
        if isinstance(model, keras.Sequential):
            kind = SequentialExtension
        elif isinstance(model, internals.Functional):
            kind = FunctionalExtension
        with _classes_lock:
            ipu_class = _mixed(kind, type(model))
        set_class(model, ipu_class)
    model.__dict__["_ipu_extension"] = Extension(model, strategy)  # `__setattr__` would make Keras track it.


# Guards the creation of IPU classes: threads that make models of one class share its IPU class.
_classes_lock = threading.Lock()


def _mixed(kind: type[IPUModel], plain_class: type[keras.Model]) -> type[keras.Model]:
    """Returns the IPU class of a class of Keras or of the user, the same one each time.

    Its models have the plain class as attribute `__class__`, because Keras uses this attribute to name, save, copy and
    clone models. Outside of a scope, a call of the IPU class makes a plain model.
    """
    existing_class = next(
        (subclass for subclass in plain_class.__subclasses__() if subclass.__bases__ == (kind, plain_class)), None
    )
    if existing_class is not None:
        return existing_class

    def __new__(cls: type, *args: Nested, **kwargs: Nested) -> object:  # noqa: N807
        if cls is ipu_class and not makes_ipu_models(tf.distribute.get_strategy()):
            return plain_class(*args, **kwargs)
        return plain_class.__new__(cls, *args, **kwargs)

    names = ("__module__", "__qualname__", "__doc__")
    attributes = {name: getattr(plain_class, name) for name in names}
    ipu_class = type(
        plain_class.__name__,
        (kind, plain_class),
        {**attributes, "__new__": __new__, "__class__": property(lambda _: plain_class)},
    )
    return ipu_class


class IPUModel(IPUMethods, _Model):
    """A model that trains, evaluates and predicts by programs of an IPU, in Keras's loops over data of an infeed."""

    def __init_subclass__(cls) -> None:
        """Hides a mixed class from the user's base classes, which may count or check their subclasses."""

    def __reduce__(self) -> tuple[Any, ...]:
        load, *arguments = super().__reduce__()
        # Pickle looks up a class by its name, which is the plain class's.
        if isinstance(getattr(load, "__self__", None), type):
            load = getattr(self.__class__, load.__name__)
        return (load, *arguments)

    @tracebacks.user_lines_alone
    @functools.wraps(keras.Model.compile)
    def compile(self, *args: Nested, **kwargs: Nested) -> None:
        if kwargs.get("steps_per_execution") is not None:  # Files of Keras 2 hold the default, None.
            kwargs["steps_per_execution"] = _steps(kwargs["steps_per_execution"])
        # Keras creates metrics here, and the optimizer if its name was passed. Their variables belong on the device.
        extension = self._ipu_extension
        strategy = extension.strategy
        with strategy.scope(), extension.calls.turn():
            result = super().compile(*args, **kwargs)
            extension.reset()
            if internals.strategy_of(self.optimizer) not in (None, strategy):
                raise ValueError(
                    f"the optimizer of model `{self.name}` was not made in the scope of the model, so its"
                    " variables are not on the IPU: make it inside `strategy.scope()`, with the same strategy"
                )
            wrapped = getattr(self.optimizer, "inner_optimizer", None)
            made_by_keras = all(argument is not self.optimizer for argument in (*args, *kwargs.values()))
            if made_by_keras and wrapping.scales_losses(wrapped):
                # In half precision, Keras wraps optimizers to scale losses, and does not see that an inner one does so.
                self.optimizer = wrapped
            wrapping.agree_on_finite(self.optimizer)
        return result

    # If the user's class overrides `fit`, `evaluate` or `predict`, Keras's loop runs a program for each batch.

    def _overrides(self, method: str) -> bool:
        return getattr(self.__class__, method) is not getattr(keras.Model, method)

    @tracebacks.user_lines_alone
    @functools.wraps(keras.Model.fit)
    def fit(self, *args: Nested, **kwargs: Nested) -> keras.callbacks.History:
        if self._overrides("fit"):
            return super().fit(*args, **kwargs)
        arguments = Arguments("fit", args, kwargs)
        internals.check_call(self, "fit")
        extension = self._ipu_extension
        with extension.calls.fitting(), extension.call("fit") as call, contextlib.ExitStack() as opened:
            if arguments["validation_split"]:
                if arguments["validation_data"] is None:
                    arrays = tuple(arguments[name] for name in _DATA)
                    split: Any = internals.split_validation_data(arrays, arguments["validation_split"])
                    arguments.update(zip(_DATA, split[0], strict=True))
                    arguments["validation_data"] = split[1]
                arguments["validation_split"] = 0.0
            data = _feed(extension, arguments, "steps_per_epoch", arguments["shuffle"], arguments["class_weight"])
            opened.callback(data.close)
            arguments["class_weight"] = None
            _check_accumulation(extension, data)
            if arguments["validation_data"] is not None:
                x, y, weights = keras.utils.unpack_x_y_sample_weight(arguments["validation_data"])
                steps = arguments["validation_steps"]
                size = arguments["validation_batch_size"] or arguments["batch_size"]
                adapter = fed_data.adapt(x, y, weights, size, steps, False, None)
                held_out = extension.feed(adapter, steps, "validation_steps")
                opened.callback(held_out.close)
                arguments["validation_data"], arguments["validation_steps"] = held_out, held_out.steps_per_epoch
            for callback in _callback_list(arguments["callbacks"]):
                internals.accept_strategy(callback, extension.strategy)
            if extension.cluster is not None:
                arguments["callbacks"] = written_once(arguments["callbacks"], extension.strategy)
            arguments["callbacks"] = _with_history(arguments["callbacks"])
            epochs = arguments["epochs"]
            result = _run(super().fit, "train", call, extension, arguments, data, add_history=True, epochs=epochs)
            # Keras stores the history in the model, so `result` may be the history of another thread's call.
            histories = [
                callback
                for callback in _callback_list(arguments["callbacks"])
                if isinstance(callback, keras.callbacks.History)
            ]
            if not histories:
                return result
            self.history = histories[-1]
            return histories[-1]

    @tracebacks.user_lines_alone
    @functools.wraps(keras.Model.evaluate)
    def evaluate(self, *args: Nested, **kwargs: Nested) -> list[float] | float | dict[str, float]:
        if self._overrides("evaluate"):
            return super().evaluate(*args, **kwargs)
        arguments = Arguments("evaluate", args, kwargs)
        extension = self._ipu_extension
        if arguments["_use_cached_eval_dataset"]:  # This is the validation of `fit`, and part of its call.
            internals.use_steps_of_validation_data(self)
            return super().evaluate(*args, **kwargs)
        internals.check_call(self, "evaluate")
        with extension.call("evaluate") as call, contextlib.ExitStack() as opened:
            data = _feed(extension, arguments, "steps")
            opened.callback(data.close)
            return _run(super().evaluate, "test", call, extension, arguments, data, epochs=1)

    @tracebacks.user_lines_alone
    @functools.wraps(keras.Model.predict)
    def predict(self, *args: Nested, **kwargs: Nested) -> Nested:
        if self._overrides("predict"):
            return super().predict(*args, **kwargs)
        arguments = Arguments("predict", args, kwargs)
        internals.check_call(self, "predict")
        extension = self._ipu_extension
        with extension.call("predict") as call, contextlib.ExitStack() as opened:
            data = _feed(extension, arguments, "steps", for_prediction=True)
            opened.callback(data.close)
            return _run(super().predict, "predict", call, extension, arguments, data, epochs=1)

    @functools.wraps(keras.Model.train_on_batch)
    def train_on_batch(self, *args: Nested, **kwargs: Nested) -> Nested:
        with self._ipu_extension.call("train_on_batch"):
            return super().train_on_batch(*args, **kwargs)

    @functools.wraps(keras.Model.test_on_batch)
    def test_on_batch(self, *args: Nested, **kwargs: Nested) -> Nested:
        with self._ipu_extension.call("test_on_batch"):
            return super().test_on_batch(*args, **kwargs)

    @functools.wraps(keras.Model.predict_on_batch)
    def predict_on_batch(self, *args: Nested, **kwargs: Nested) -> Nested:
        with self._ipu_extension.call("predict_on_batch"):
            return super().predict_on_batch(*args, **kwargs)

    # The host uses the model in these methods. A turn keeps steps from changing the weights at the same time.

    @functools.wraps(keras.Model.save)
    def save(self, *args: Nested, **kwargs: Nested) -> Nested:  # pyright: ignore[reportIncompatibleMethodOverride]
        with self._ipu_extension.calls.turn():
            return super().save(*args, **kwargs)

    @functools.wraps(keras.Model.save_weights)
    def save_weights(self, *args: Nested, **kwargs: Nested) -> Nested:  # pyright: ignore[reportIncompatibleMethodOverride]
        with self._ipu_extension.calls.turn():
            return super().save_weights(*args, **kwargs)

    @functools.wraps(keras.Model.export)
    def export(self, *args: Nested, **kwargs: Nested) -> Nested:  # pyright: ignore[reportIncompatibleMethodOverride]
        with self._ipu_extension.calls.turn():
            return super().export(*args, **kwargs)

    @functools.wraps(keras.Model.reset_metrics)
    def reset_metrics(self) -> None:
        calls = self._ipu_extension.calls
        with calls.turn():
            if tf.executing_eagerly():
                calls.claim_metrics()
            super().reset_metrics()

    # Methods that Keras calls.

    def save_assets(self, dir_path: str) -> None:
        """Writes the model's options and pipeline stages to its file."""
        getattr(super(), "save_assets", _do_nothing)(dir_path)
        text = files.to_json(self._ipu_extension.options, self._ipu_extension.stages)
        if text:
            files.write_options(dir_path, text)

    def load_assets(self, dir_path: str | None) -> None:
        """Reads the model's options and pipeline stages from its file."""
        getattr(super(), "load_assets", _do_nothing)(dir_path)
        self._ipu_extension.load_options(files.read_options(dir_path) if dir_path else "")

    def make_train_function(self, force: bool = False) -> Callable[[Nested], Nested]:
        return self._make_function("train", force)

    def make_test_function(self, force: bool = False) -> Callable[[Nested], Nested]:
        return self._make_function("test", force)

    def make_predict_function(self, force: bool = False) -> Callable[[Nested], Nested]:
        return self._make_function("predict", force)

    def _make_function(self, mode: str, force: bool) -> Callable[[Nested], Nested]:
        name = f"make_{mode}_function"
        if self._overrides(name):
            raise RuntimeError(
                f"The function `{name}` for the model {self.name} has been overridden, but under an `IPUStrategy` the model"
                f" makes its programs itself: override `{mode}_step` instead, or make the model outside of the scope"
            )
        extension = self._ipu_extension
        with extension.calls.turn():
            function = getattr(self, f"{mode}_function")
            if function is None or force:
                function = extension.make_function(mode)
                setattr(self, f"{mode}_function", function)
            return function

    def _symbolic_build(self, *args: Nested, **kwargs: Nested) -> None:
        """Builds the model in a turn. Keras 3 calls this at the beginning of its methods."""
        with self._ipu_extension.calls.turn(), progress.of(f"building `{self.name}`"):
            internals.build_by_super(super(), *args, **kwargs)

    def _validate_and_get_metrics_result(self, logs: Logs) -> Logs:
        """Returns the logs, which hold the metrics, with Python scalars. Keras 2 calls this."""
        return internals.plain_logs(logs)

    def _get_metrics_result_or_logs(self, logs: Logs) -> Logs:
        """Returns the logs, which hold the metrics, with Python scalars. Some releases of Keras keep arrays."""
        return internals.plain_logs(logs)


class SequentialExtension(IPUModel):
    """A base class of sequential models that are made in a strategy's scope."""


class FunctionalExtension(IPUModel):
    """A base class of functional models that are made in a strategy's scope."""


class ModelExtension(IPUModel):
    """A base class of subclassed models that are made in a strategy's scope."""


def _do_nothing(_: object) -> None:
    """Does nothing, in place of a method that a plain class may lack."""


def _steps(value: Any) -> int:
    """Returns `steps_per_execution` as an int. Users pass the size of a dataset, which is a tensor."""
    try:
        steps = operator.index(value.numpy() if tf.is_tensor(value) else value)
    except TypeError as exc:
        raise ValueError(f"`steps_per_execution` must be a positive integer, but is {value!r}") from exc
    if steps < 1:
        raise ValueError(
            f"`steps_per_execution` must be a positive integer, but is {steps}; for `dataset.cardinality()`, -1 and -2 mean"
            " that the dataset is infinite, or of unknown size"
        )
    if steps > tf.int32.max:
        raise ValueError(f"`steps_per_execution` must be at most {tf.int32.max}, but is {steps}")
    return steps


_DATA = ("x", "y", "sample_weight")
# The arguments in the order of their positions.
_NAMES = {
    "fit": (
        *("x", "y", "batch_size", "epochs", "verbose", "callbacks", "validation_split", "validation_data", "shuffle"),
        *("class_weight", "sample_weight", "initial_epoch", "steps_per_epoch", "validation_steps"),
        *("validation_batch_size", "validation_freq"),
    ),
    "evaluate": ("x", "y", "batch_size", "verbose", "sample_weight", "steps", "callbacks"),
    "predict": ("x", "batch_size", "verbose", "steps", "callbacks"),
}
# Defaults other than None.
_DEFAULTS = {"epochs": 1, "verbose": "auto", "shuffle": True, "validation_split": 0.0}


class Arguments:
    """The arguments of a call, by position or keyword as the user passed them.

    They are not bound to a signature: a tool may have replaced Keras's method by one with another signature.
    """

    def __init__(self, method: str, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        self._names = _NAMES[method]
        self.args = list(args)
        self.kwargs = dict(kwargs)

    def __getitem__(self, name: str) -> Any:
        place = self._place(name)
        return self.kwargs.get(name, _DEFAULTS.get(name)) if place is None else self.args[place]

    def __setitem__(self, name: str, value: object) -> None:
        place = self._place(name)
        if place is not None:
            self.args[place] = value
        elif name in self.kwargs or value is not None:
            self.kwargs[name] = value

    def update(self, values: Iterable[tuple[str, object]]) -> None:
        for name, value in values:
            self[name] = value

    def _place(self, name: str) -> int | None:
        place = self._names.index(name) if name in self._names else len(self.args)
        return place if place < len(self.args) else None


def _feed(
    extension: Extension,
    arguments: Arguments,
    argument: str,
    shuffle: bool | str = False,
    class_weight: Mapping[int, float] | None = None,
    for_prediction: bool = False,
) -> fed_data.FedData:
    """Replaces the data among the arguments by data that an infeed reads, and returns the latter."""
    steps = arguments[argument]
    x, y, weights = (arguments[name] for name in _DATA)
    adapter = fed_data.adapt(x, y, weights, arguments["batch_size"], steps, shuffle, class_weight, for_prediction)
    data = extension.feed(adapter, steps, argument, for_prediction=for_prediction)
    arguments.update({"x": data, argument: data.steps_per_epoch, "y": None, "sample_weight": None}.items())
    return data


def _callback_list(callbacks: Nested) -> list[Any]:
    """Returns callbacks as a list, from a `CallbackList`, a structure or a single callback."""
    return [
        callback for callback in tf.nest.flatten(getattr(callbacks, "callbacks", callbacks)) if callback is not None
    ]


def _with_history(callbacks: Nested) -> Nested:
    """Returns the callbacks and a `History`, which Keras would add as well. Returns a `CallbackList` unchanged."""
    callback_list = _callback_list(callbacks)
    if hasattr(callbacks, "callbacks") or any(
        isinstance(callback, keras.callbacks.History) for callback in callback_list
    ):
        return callbacks
    return [*callback_list, keras.callbacks.History()]


def _run(
    method: Callable[..., Any],
    mode: str,
    call: Call,
    extension: Extension,
    arguments: Arguments,
    data: fed_data.FedData,
    **more: object,
) -> Any:
    """Builds the model, and calls Keras's method, or a tool's replacement of it, with data that an infeed reads."""
    model = extension.model
    # Results that are accumulated over steps cannot be reported step by step.
    if extension.options.asynchronous_callbacks and not extension.accumulates(mode):
        arguments["callbacks"] = call.callbacks = AsynchronousCallbacks(
            arguments["callbacks"],
            per_step=data.replicas,
            add_progbar=arguments["verbose"] != 0,
            verbose=arguments["verbose"],
            steps=data.steps * data.replicas,
            model=model,
            **more,
        )
    with extension.beginning(data):
        if mode == "predict":  # Keras does not build models in `predict`.
            if not all(layer.built for layer in internals.all_layers(model)):
                with extension.strategy.scope():
                    internals.called_with_symbols(model, symbols_of(data.spec), training=False)
        elif environment.uses_keras_2():  # Keras 3 builds in `fit` and `evaluate`.
            with extension.strategy.scope():
                internals.build_for_training(model, data.spec)
        return method(*arguments.args, **arguments.kwargs)


def _check_accumulation(extension: Extension, data: fed_data.FedData) -> None:
    count = extension.steps_per_update
    if data.steps_per_execution % count == 0:
        return
    multiples = [n for n in range(count, data.steps + 1, count) if data.steps % n == 0]
    advice = (
        f"Compile the model with `steps_per_execution` of {' or '.join(map(str, multiples[:4]))}"
        if multiples
        else f"The data makes {data.steps} steps an epoch, and needs a multiple of {count}. A smaller `batch_size` makes more"
    )
    pipelined = extension.stages.is_pipelined
    raise RuntimeError(
        f"The {'pipelined ' if pipelined else ''}model has been configured to use gradient accumulation for training, however"
        f" the current `steps_per_execution` value (set to {data.steps_per_execution}) is not divisible by"
        f" `gradient_accumulation_steps_per_replica` ({count}). {advice}, or call"
        f" `set_{'pipelining' if pipelined else 'gradient_accumulation'}_options` with another count"
    )
