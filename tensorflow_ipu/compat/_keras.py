"""What scripts ask of Keras in ways that Keras 3 no longer takes."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tensorflow_ipu.compat._patches import Patches


def bridge(patches: Patches) -> None:
    """Makes Keras take these; each is undone with `patches`."""
    ipu = importlib.import_module("keras.ipu")  # Which makes it an attribute of `keras`.
    # The module behind `tf.keras`, which itself is a stand-in until it is used for the first time.
    tf_keras = importlib.import_module("keras._tf_keras.keras")
    patches.put(tf_keras, "ipu", ipu)
    patches.put(keras.Model, "compile", _compile(keras.Model.compile))
    optimizer = keras.optimizers.Optimizer
    patches.put(optimizer, "__init__", _optimizer_init(optimizer.__init__))
    patches.put(optimizer, "apply_gradients", _apply_gradients(optimizer.apply_gradients))
    patches.put(optimizer, "lr", property(_learning_rate, _set_learning_rate, doc="The learning rate."))
    taking_int = _input(keras.Input)
    for module in (keras, keras.layers, tf_keras, tf_keras.layers):
        patches.put(module, "Input", taking_int)


def _compile(original: Callable[..., Any]) -> Callable[..., Any]:
    """`steps_per_execution` may be a tensor, such as `dataset.cardinality()`."""

    @functools.wraps(original)
    def compile(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A001
        if tf.is_tensor(kwargs.get("steps_per_execution")):
            kwargs["steps_per_execution"] = int(kwargs["steps_per_execution"])
        return original(self, *args, **kwargs)

    return compile


def _optimizer_init(original: Callable[..., Any]) -> Callable[..., Any]:
    """Optimizers may be given `lr` for `learning_rate`."""

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if "lr" in kwargs:
            # By now an optimizer has put its default learning rate beside it, as an argument by name.
            kwargs["learning_rate"] = kwargs.pop("lr")
        original(self, *args, **kwargs)

    return init


def _apply_gradients(original: Callable[..., Any]) -> Callable[..., Any]:
    """`apply_gradients` may be given a `name`, and `experimental_aggregate_gradients`; both say nothing to Keras 3."""

    @functools.wraps(original)
    def apply_gradients(
        self: Any, grads_and_vars: Any, name: str | None = None, experimental_aggregate_gradients: bool = True
    ) -> Any:
        del name, experimental_aggregate_gradients
        return original(self, grads_and_vars)

    return apply_gradients


def _input(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Input(shape=80)`, as it comes of `shape=(80)`, means `Input(shape=(80,))`."""

    @functools.wraps(original)
    def Input(shape: Any = None, *args: Any, **kwargs: Any) -> Any:  # noqa: N802
        if isinstance(shape, int) and not isinstance(shape, bool):
            shape = (shape,)
        return original(shape, *args, **kwargs)

    return Input


def _learning_rate(optimizer: Any) -> Any:
    return optimizer.learning_rate


def _set_learning_rate(optimizer: Any, value: Any) -> None:
    optimizer.learning_rate = value
