"""What a strategy of our own needs of `tf.distribute`: its thread's mode, and blocks that public strategies enter alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorflow.python.distribute import distribute_lib, distribute_utils

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import tensorflow as tf


def mode_of(replica_context: tf.distribute.ReplicaContext) -> Any:
    """What TensorFlow keeps for a thread that is in a replica's context.

    Stands on `ReplicaContext._thread_context`. Entering the context does the same and more, ten microseconds of each
    run. When it is gone: enter the context.
    """
    return replica_context._thread_context


def cross_replica_mode(strategy: tf.distribute.Strategy) -> Any:
    """The same for one that is in `merge_call`; stands on `_CrossReplicaThreadMode`, see `mode_of`."""
    return distribute_lib._CrossReplicaThreadMode(strategy)


def enter_mode(mode: Any) -> None:
    """Puts this thread into a mode; stands on `_push_per_thread_mode`, see `mode_of`."""
    distribute_lib._push_per_thread_mode(mode)


def leave_mode() -> None:
    """Ends the mode that was entered last; stands on `_pop_per_thread_mode`, see `mode_of`."""
    distribute_lib._pop_per_thread_mode()


def updating(device: str) -> AbstractContextManager[None]:
    """A block of `Strategy.extended.update`.

    Stands on `UpdateContext`, by which `tf.distribute` knows that it is in an update. When it is gone: nothing asks.
    """
    return distribute_lib.UpdateContext(device)


def check_colocated(variable: tf.Variable, extended: tf.distribute.StrategyExtended) -> None:
    """Refuses a variable of another strategy for `colocate_vars_with`.

    Stands on `distribute_utils.validate_colocate`. When it is gone: `extended.variable_created_in_scope`, which is public.
    """
    distribute_utils.validate_colocate(variable, extended)
