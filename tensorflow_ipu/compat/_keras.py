"""What scripts ask of Keras in ways that Keras 3 no longer takes."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tensorflow_ipu._checks import is_int
from tensorflow_ipu._tensorflow import patches
from tensorflow_ipu._tensorflow.patches import Changes
from tensorflow_ipu.compat._keras_names import ROOTS, SPELLINGS, TF_KERAS
from tensorflow_ipu.compat._optimizers import for_keras

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tensorflow_ipu._types import Gradient, LearningRate, Shape, Variable

# The modules of Keras in which `tf.keras` has kept more of the old names than `keras`, such as `metrics.MSE`.
_FULLER = ("backend", "layers", "losses", "metrics", "preprocessing")


def bridge(changes: Changes) -> None:
    """Makes Keras take these; each is undone with `changes`."""
    _place_old_modules(changes)
    for name in _FULLER:
        fuller, holder = (importlib.import_module(f"{keras_name}.{name}") for keras_name in (TF_KERAS, "keras"))
        for lost in vars(fuller).keys() - vars(holder).keys():
            changes.put(holder, lost, vars(fuller)[lost])
    for patch in (patches.OLD_COMPILE, patches.OLD_OPTIMIZERS, patches.OLD_APPLY_GRADIENTS, patches.OLD_INPUTS):
        changes.apply(patch)
    lr = property(_learning_rate, _set_learning_rate, doc="The learning rate.")
    changes.put(keras.optimizers.Optimizer, "lr", lr)


def _place_old_modules(changes: Changes) -> None:
    """Makes the old modules attributes of every module that is Keras, so that they need no import of their own."""
    for root in ROOTS:
        old = importlib.import_module(root)
        parent, _, name = root.rpartition(".")
        below = parent.removeprefix("keras")
        importlib.import_module(f"{TF_KERAS}{below}")
        # Those of TensorFlow's spellings are there if it made them before the door was opened.
        modules = (sys.modules.get(f"{keras_name}{below}") for keras_name in ("keras", TF_KERAS, *SPELLINGS))
        for holder in filter(None, modules):
            changes.put(holder, name, old)


def _compile(original: Callable[..., Any]) -> Callable[..., Any]:
    """`steps_per_execution` may be a tensor, such as `dataset.cardinality()`, and the optimizer one of TensorFlow 1."""

    @functools.wraps(original)
    def compile(self: keras.Model, *args: Any, **kwargs: Any) -> Any:  # noqa: A001
        if args:
            args = (for_keras(args[0]), *args[1:])
        elif "optimizer" in kwargs:
            kwargs["optimizer"] = for_keras(kwargs["optimizer"])
        if tf.is_tensor(kwargs.get("steps_per_execution")):
            kwargs["steps_per_execution"] = int(kwargs["steps_per_execution"])
        return original(self, *args, **kwargs)

    return compile


def _optimizer_init(original: Callable[..., Any]) -> Callable[..., Any]:
    """Optimizers may be given `lr` for `learning_rate`."""

    @functools.wraps(original)
    def init(self: object, *args: Any, **kwargs: Any) -> None:
        if "lr" in kwargs:
            # By now an optimizer has put its default learning rate beside it, as an argument by name.
            kwargs["learning_rate"] = kwargs.pop("lr")
        original(self, *args, **kwargs)

    return init


def _apply_gradients(original: Callable[..., Any]) -> Callable[..., Any]:
    """`apply_gradients` may be given a `name`, and `experimental_aggregate_gradients`; both say nothing to Keras 3."""

    @functools.wraps(original)
    def apply_gradients(
        self: keras.optimizers.Optimizer,
        grads_and_vars: Iterable[tuple[Gradient | None, Variable]],
        name: str | None = None,
        experimental_aggregate_gradients: bool = True,
    ) -> Any:
        del name, experimental_aggregate_gradients
        return original(self, grads_and_vars)

    return apply_gradients


def _input_layer_init(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Input(shape=80)`, as it comes of `shape=(80)`, means `Input(shape=(80,))`."""

    @functools.wraps(original)
    def init(self: object, shape: Shape | int | None = None, *args: Any, **kwargs: Any) -> None:
        if is_int(shape):
            shape = (shape,)
        original(self, shape, *args, **kwargs)

    # Keras reads the signature of a layer in two ways, of which one looks behind a wrapper.
    del init.__wrapped__
    return init


def _learning_rate(optimizer: keras.optimizers.Optimizer) -> tf.Tensor | keras.Variable:
    return optimizer.learning_rate


def _set_learning_rate(optimizer: keras.optimizers.Optimizer, value: LearningRate) -> None:
    optimizer.learning_rate = value


patches.OLD_COMPILE.by(_compile)
patches.OLD_OPTIMIZERS.by(_optimizer_init)
patches.OLD_APPLY_GRADIENTS.by(_apply_gradients)
patches.OLD_INPUTS.by(_input_layer_init)
