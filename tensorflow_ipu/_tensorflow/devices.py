"""Devices: where this thread places operations, and whether TensorFlow has begun to use any."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import device_util, distribute_lib, distribute_utils
from tensorflow.python.eager import context


def current() -> str:
    """Returns the device of the scope around as named; empty for none; stands on `device_util.current`."""
    # Without it: `tf.constant(0).device`, which names the default where there is none.
    return device_util.current() or ""


def of_eager_thread() -> str:
    """Returns the full device name of this thread's eager execution, or empty; stands on `context.device_name`."""
    # `current` asks the graph where one is built. Without it: `current`.
    running: Any = context.context()
    return running.device_name


def place_eager_thread(device: str) -> None:
    """Has this thread's eager execution go on on a device, of a full name or empty; stands on `Context._set_device`."""
    # Without it: nothing. A signal handler that raises as a scope ends then leaves the thread on the scope's device.
    running: Any = context.context()
    running._set_device(device, tf.DeviceSpec.from_string(device))


def full_name(device: str) -> str:
    """Returns the full name of a device: with job, replica and task; stands on `device_util.canonicalize`."""
    # `tf.DeviceSpec` does not know the job of this process. Without it: `tf.DeviceSpec.make_merged_spec` with that of
    # `tf.config.list_logical_devices("CPU")[0]`.
    return device_util.canonicalize(device)


def are_in_use() -> bool:
    """Whether the runtime has started and takes no new devices; stands on `context.context_safe` and `Context._initialized`."""
    # `tf.config` starts the runtime to answer. Without it: False; the kernels check too.
    known: Any = context.context_safe()
    return known is not None and bool(known._initialized)


def eagerly() -> AbstractContextManager[None]:
    """A block of eager execution, whatever is being traced on this thread; stands on `context.eager_mode`."""
    # `tf.init_scope` leaves functions, and stays in a graph of TensorFlow 1. Without it:
    # `tf.__internal__.eager_context.eager_mode`, which Keras has.
    return context.eager_mode()


def global_seed() -> int | None:
    """Returns the seed of `tf.random.set_seed`; stands on `context.global_seed`: there is no public getter."""
    return context.global_seed()


def is_of_strategy(generator: tf.random.Generator) -> bool:
    """Returns True for a generator made in the scope of a strategy; stands on `Generator._distribution_strategy`."""
    # Its replicas draw by keys of their own. Without it: all generators count as such.
    return getattr(generator, "_distribution_strategy", generator) is not None


class _Mode:
    """A block in which `tf.distribute` has this thread in a mode. It can be entered any number of times."""

    __slots__ = ("_mode",)

    def __init__(self, mode: Any) -> None:
        self._mode = mode

    def __enter__(self) -> None:
        distribute_lib._push_per_thread_mode(self._mode)

    def __exit__(self, *exc_info: object) -> None:
        distribute_lib._pop_per_thread_mode()


def replica_mode(replica_context: tf.distribute.ReplicaContext) -> _Mode:
    """A block in a replica's context; stands on `ReplicaContext._thread_context` and `_push_per_thread_mode`."""
    # Entering the context does more and costs ten microseconds a run. Without it: enter the context.
    return _Mode(replica_context._thread_context)


def cross_replica_mode(strategy: tf.distribute.Strategy) -> _Mode:
    """Returns the same for one that is in `merge_call`; stands on `_CrossReplicaThreadMode`, see `replica_mode`."""
    return _Mode(distribute_lib._CrossReplicaThreadMode(strategy))


def updating(device: str) -> AbstractContextManager[None]:
    """A block of `Strategy.extended.update`; stands on `UpdateContext`."""
    # `tf.distribute` asks it whether it is in an update. Without it: nothing asks.
    return distribute_lib.UpdateContext(device)


def check_colocated(variable: tf.Variable, extended: tf.distribute.StrategyExtended) -> None:
    """Refuses another strategy's variable for `colocate_vars_with`; stands on `distribute_utils.validate_colocate`."""
    # Without it: `extended.variable_created_in_scope`, which is public.
    distribute_utils.validate_colocate(variable, extended)
