"""Reads and sets the device, the seed and the `tf.distribute` mode of the current thread."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import device_util, distribute_lib, distribute_utils
from tensorflow.python.eager import context


def current() -> str:
    """Returns the device of the current scope as it was written, or `""`. Uses the private `device_util.current`."""
    # Without it: `tf.constant(0).device`, which names the default device outside of all scopes.
    return device_util.current() or ""


def of_eager_thread() -> str:
    """Returns the full device name of this thread's eager execution, or `""`.

    Uses the private `Context.device_name`.
    """
    # While a graph is built, `current` returns the device of the graph. Without it: use `current`.
    running: Any = context.context()
    return running.device_name


def place_eager_thread(device: str) -> None:
    """Sets the device of this thread's eager execution: a full name or `""`. Uses the private `Context._set_device`."""
    # A signal handler that raises as a scope ends leaves the thread on the scope's device. This function repairs that.
    # Without it: do nothing.
    running: Any = context.context()
    running._set_device(device, tf.DeviceSpec.from_string(device))


def full_name(device: str) -> str:
    """Returns the name of a device with job, replica and task. Uses the private `device_util.canonicalize`."""
    # `tf.DeviceSpec` has no access to the job of this process. Without it: call `tf.DeviceSpec.make_merged_spec` with
    # the spec of `tf.config.list_logical_devices("CPU")[0]`.
    return device_util.canonicalize(device)


def are_in_use() -> bool:
    """Returns True if the runtime has started, after which it accepts no new devices.

    Uses the private `context.context_safe` and `Context._initialized`.
    """
    # The functions of `tf.config` start the runtime. Without it: return False, since the kernels check too.
    eager_context: Any = context.context_safe()
    return eager_context is not None and bool(eager_context._initialized)


def eagerly() -> AbstractContextManager[None]:
    """Runs the block eagerly, even while this thread traces a function. Uses the private `context.eager_mode`."""
    # `tf.init_scope` leaves functions, but not a graph of TensorFlow 1. Without it: use
    # `tf.__internal__.eager_context.eager_mode`, on which Keras relies.
    return context.eager_mode()


def global_seed() -> int | None:
    """Returns the seed of `tf.random.set_seed`. Uses the private `context.global_seed`: there is no public getter."""
    return context.global_seed()


def is_of_strategy(generator: tf.random.Generator) -> bool:
    """Returns True if `generator` was created in a strategy's scope.

    Uses the private `Generator._distribution_strategy`.
    """
    # Such a generator already has one key for each replica. Without it: return True for all generators.
    return getattr(generator, "_distribution_strategy", generator) is not None


class _Mode:
    """A context that puts this thread into a mode of `tf.distribute`; it can be entered repeatedly."""

    __slots__ = ("_mode",)

    def __init__(self, mode: Any) -> None:
        self._mode = mode

    def __enter__(self) -> None:
        distribute_lib._push_per_thread_mode(self._mode)

    def __exit__(self, *exc_info: object) -> None:
        distribute_lib._pop_per_thread_mode()


def replica_mode(replica_context: tf.distribute.ReplicaContext) -> _Mode:
    """Runs the block in a replica's context, at lower cost than entering the context itself.

    Uses the private `ReplicaContext._thread_context` and `_push_per_thread_mode`.
    """
    # The context's own `__enter__` does more, which costs ten microseconds a run. Without it: enter the context.
    return _Mode(replica_context._thread_context)


def cross_replica_mode(strategy: tf.distribute.Strategy) -> _Mode:
    """Runs the block in the mode of a `merge_call`. Uses the private `_CrossReplicaThreadMode`; see `replica_mode`."""
    return _Mode(distribute_lib._CrossReplicaThreadMode(strategy))


def updating(device: str) -> AbstractContextManager[None]:
    """Runs the block as a part of `Strategy.extended.update`. Uses the private `UpdateContext`."""
    # `tf.distribute` looks for this context to find out if an update runs. Without it: nothing needs to be done.
    return distribute_lib.UpdateContext(device)


def check_colocated(variable: tf.Variable, extended: tf.distribute.StrategyExtended) -> None:
    """Raises `ValueError` if `variable` belongs to another strategy. Uses the private `validate_colocate`.

    It checks the argument of `colocate_vars_with`.
    """
    # Without it: use the public `extended.variable_created_in_scope`.
    distribute_utils.validate_colocate(variable, extended)
