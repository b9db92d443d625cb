"""Gives the models that are made in a strategy's scope what IPU models have, and no others."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu import strategy as strategies
from tensorflow_ipu._base import environment
from tensorflow_ipu._tensorflow import keras_choice, patches
from tensorflow_ipu.keras._keras import keras
from tensorflow_ipu.keras.model import files
from tensorflow_ipu.keras.model.ipu_methods import IPUMethods
from tensorflow_ipu.ops import distributed_batch_norm, random_streams
from tensorflow_ipu.strategy.ipu_strategy import supporting_loss_scaling

if TYPE_CHECKING:
    from typing import TypeGuard


def makes_ipu_models(strategy: tf.distribute.Strategy) -> TypeGuard[strategies.IPUStrategyV1]:
    """Returns True if models that are made now are an IPU's: in a graph of TensorFlow 1, Keras trains them by sessions."""
    extends = isinstance(strategy, strategies.IPUStrategyV1) and strategy._enable_keras_extensions
    return extends and tf.compat.v1.executing_eagerly_outside_functions()


def look_past_ipus() -> None:
    """Has Keras, if it is imported, not compile models outside of a strategy's scope because there are IPUs."""
    if patches.JIT_COMPILE_AUTO.is_loaded:
        patches.JIT_COMPILE_AUTO.apply_for_good(_past_ipus)


def _past_ipus(plain: Callable[[object], bool]) -> Callable[[object], bool]:
    @functools.wraps(plain)
    def resolve(self: object) -> bool:
        strategy = tf.distribute.get_strategy()
        if makes_ipu_models(strategy) and not isinstance(self, sys.modules["keras"].Model):
            raise ValueError(
                f"`{type(self).__name__}` is no `keras.Model`, and the IPU trains only models: derive the class from"
                " `keras.Model`, or make and compile the object outside of `strategy.scope()`"
            )
        if makes_ipu_models(strategy) and "_ipu_extension" not in vars(self):
            raise ValueError(
                "the model was made outside of the scope of the strategy that it is compiled in, so its weights are not on"
                " the IPU: make the model inside `strategy.scope()`"
            )
        kinds = {device.device_type for device in tf.config.list_physical_devices()}
        if kinds == {"CPU", "IPU"} and sys.modules["keras"].backend.backend() == "tensorflow":
            return False  # As for `{"CPU"}`.
        return plain(self)

    return resolve


@contextlib.contextmanager
def extending_models() -> Iterator[None]:
    """Has models be extended that are made under an IPU strategy of their thread, while any block of this lasts."""
    look_past_ipus()
    keras_choice.warn_of_late_change()
    with contextlib.ExitStack() as stack:
        if environment.uses_keras_2():
            stack.enter_context(patches.KERAS_LOSS_SCALING.applied(supporting_loss_scaling))
        stack.enter_context(patches.KERAS_MODELS.applied(_extending))
        yield


def _extending(plain: Callable[..., None]) -> Callable[..., None]:
    from tensorflow_ipu.keras.model.ipu_model import mix_in  # It imports Keras.

    @functools.wraps(plain)
    def __init__(self: keras.Model, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        plain(self, *args, **kwargs)
        strategy = tf.distribute.get_strategy()
        if makes_ipu_models(strategy):
            mix_in(self, strategy)

    return __init__


_OF_SCOPE = {name for name in dir(IPUMethods) if not name.startswith("_")}


def _telling_of_scope(plain: Callable[[object, str], object] | None) -> Callable[[object, str], object]:
    def __getattr__(self: object, name: str) -> object:  # noqa: N807
        if name in _OF_SCOPE:
            raise AttributeError(
                f"`{name}` is a method of models that were made in a strategy's scope in eager execution, and this one was"
                " not: make the model inside `strategy.scope()`, and not in a graph of TensorFlow 1",
                name=name,
                obj=self,
            )
        # Without `plain` it raises the error that it raised before this was asked.
        return object.__getattribute__(self, name) if plain is None else plain(self, name)

    return __getattr__


def follow_models(strategy: strategies.IPUStrategyV1) -> None:
    """Has models keep their options in files, and explain methods that they lack, as long as a strategy lives."""
    patches.KERAS_NAMES.apply_while(strategy, _telling_of_scope)
    patches.KERAS_FILES.apply_while(strategy, files.keeping_options)
    if environment.uses_keras_2():
        patches.KERAS_METRICS.apply_while(strategy, files.building_on_device)


_IMAGES = 4  # The rank of what the IPU's layer normalizes by the fused operation.

_Moments = tuple["tf.Tensor", "tf.Tensor"]


def sharing_moments(plain: Callable[..., _Moments]) -> Callable[..., _Moments]:
    """Has fused batch normalization that is not `synchronized` share mean and variance in training."""

    @functools.wraps(plain)
    def moments(self: keras.layers.BatchNormalization, inputs: tf.Tensor, mask: tf.Tensor | None) -> _Moments:
        rank = inputs.shape.rank
        renorm = getattr(self, "renorm", False)  # Keras 3.12, the last for Python 3.10, has none.
        fused = rank == _IMAGES and mask is None and not self.synchronized and not renorm
        size = distributed_batch_norm.group_size() if fused else 1
        if size == 1:
            return plain(self, inputs, mask)
        return distributed_batch_norm.shared_moments(inputs, [i for i in range(rank) if i != self.axis % rank], size)

    return moments


# 2**32 divided by the golden ratio: its multiples are far apart.
_FAR = 0x9E3779B9


def seeding_by_replica(plain: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Has seeds of Keras in a program be the replica's own; replica 0 draws what plain Keras draws."""

    @functools.wraps(plain)
    def by_replica(self: keras.random.SeedGenerator, ordered: bool = True) -> tf.Tensor:
        value = plain(self, ordered)
        if not programs.is_tracing():
            return value
        own = tf.cast(random_streams.stream() * _FAR, tf.uint32)
        return tf.bitwise.bitwise_xor(value, tf.cast(tf.stack([own, tf.zeros_like(own)]), value.dtype))

    return by_replica
