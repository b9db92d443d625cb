"""Extends the Keras models that are made in a strategy's scope, and only these."""

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
    """Returns True if a model made now becomes an IPU model. In a graph of TensorFlow 1, it does not."""
    is_extending = isinstance(strategy, strategies.IPUStrategyV1) and strategy._enable_keras_extensions
    return is_extending and tf.compat.v1.executing_eagerly_outside_functions()


def ignore_ipus_for_jit_compile() -> None:
    """Makes Keras, if imported, ignore IPUs when it decides whether to compile models outside of a scope."""
    if patches.JIT_COMPILE_AUTO.is_loaded:
        patches.JIT_COMPILE_AUTO.apply_for_good(_ignoring_ipus)


def _ignoring_ipus(original: Callable[[object], bool]) -> Callable[[object], bool]:
    @functools.wraps(original)
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
            return False  # The result of Keras for `{"CPU"}`.
        return original(self)

    return resolve


@contextlib.contextmanager
def extending_models() -> Iterator[None]:
    """Runs the block with Keras patched to extend models that are made under an IPU strategy of their thread."""
    ignore_ipus_for_jit_compile()
    keras_choice.warn_of_late_change()
    with contextlib.ExitStack() as stack:
        if environment.uses_keras_2():
            stack.enter_context(patches.KERAS_LOSS_SCALING.applied(supporting_loss_scaling))
        stack.enter_context(patches.KERAS_MODELS.applied(_extending))
        yield


def _extending(original: Callable[..., None]) -> Callable[..., None]:
    from tensorflow_ipu.keras.model.ipu_model import mix_in  # Imported late, as it imports Keras.

    @functools.wraps(original)
    def __init__(self: keras.Model, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        strategy = tf.distribute.get_strategy()
        if makes_ipu_models(strategy):
            mix_in(self, strategy)

    return __init__


_IPU_METHOD_NAMES = {name for name in dir(IPUMethods) if not name.startswith("_")}


def _explaining_ipu_methods(original: Callable[[object, str], object] | None) -> Callable[[object, str], object]:
    def __getattr__(self: object, name: str) -> object:  # noqa: N807
        if name in _IPU_METHOD_NAMES:
            raise AttributeError(
                f"`{name}` is a method of models that were made in a strategy's scope in eager execution, and this one was"
                " not: make the model inside `strategy.scope()`, and not in a graph of TensorFlow 1",
                name=name,
                obj=self,
            )
        # If the class has no `__getattr__` of its own, this raises Python's usual `AttributeError`.
        return object.__getattribute__(self, name) if original is None else original(self, name)

    return __getattr__


def follow_models(strategy: strategies.IPUStrategyV1) -> None:
    """Patches Keras while a strategy lives: models save their options, and errors explain missing IPU methods."""
    patches.KERAS_NAMES.apply_while(strategy, _explaining_ipu_methods)
    patches.KERAS_FILES.apply_while(strategy, files.keeping_options)
    if environment.uses_keras_2():
        patches.KERAS_METRICS.apply_while(strategy, files.building_on_device)


_IMAGES = 4  # The IPU uses the fused operation for inputs of this rank.

_Moments = tuple["tf.Tensor", "tf.Tensor"]


def sharing_moments(original: Callable[..., _Moments]) -> Callable[..., _Moments]:
    """Wraps Keras's function for mean and variance, to share them in a replica group for fused batch normalization."""

    @functools.wraps(original)
    def moments(self: keras.layers.BatchNormalization, inputs: tf.Tensor, mask: tf.Tensor | None) -> _Moments:
        rank = inputs.shape.rank
        renorm = getattr(self, "renorm", False)  # Keras 3.12, the last for Python 3.10, has no `renorm`.
        fused = rank == _IMAGES and mask is None and not self.synchronized and not renorm
        size = distributed_batch_norm.group_size() if fused else 1
        if size == 1:
            return original(self, inputs, mask)
        return distributed_batch_norm.shared_moments(inputs, [i for i in range(rank) if i != self.axis % rank], size)

    return moments


# 2**32 divided by the golden ratio: its multiples modulo 2**32 are far apart.
_SEED_DISTANCE = 0x9E3779B9


def seeding_by_replica(original: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Wraps seeds of Keras, which then differ by replica in programs. Replica 0 has the seeds of plain Keras."""

    @functools.wraps(original)
    def by_replica(self: keras.random.SeedGenerator, ordered: bool = True) -> tf.Tensor:
        value = original(self, ordered)
        if not programs.is_tracing():
            return value
        offset = tf.cast(random_streams.stream() * _SEED_DISTANCE, tf.uint32)
        return tf.bitwise.bitwise_xor(value, tf.cast(tf.stack([offset, tf.zeros_like(offset)]), value.dtype))

    return by_replica
