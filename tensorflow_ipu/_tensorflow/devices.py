"""Devices: where this thread places operations, and whether TensorFlow has begun to use any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorflow.python.distribute import device_util
from tensorflow.python.eager import context

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


def current() -> str:
    """The device of the scope around, as it was named; empty for none.

    Stands on `device_util.current`. In public, only an operation that is made tells: `tf.constant(0).device`, with the
    default in the place of none. When it is gone: that.
    """
    return device_util.current() or ""


def of_eager_thread() -> str:
    """The device of this thread's eager execution, by its full name; empty for none.

    Stands on `context.device_name`; `current` asks a graph where one is built. When it is gone: `current`.
    """
    running: Any = context.context()
    return running.device_name


def full_name(device: str) -> str:
    """The full name of a device: with job, replica and task.

    Stands on `device_util.canonicalize`; `tf.DeviceSpec` does not know the job of this process. When it is gone:
    `tf.DeviceSpec.make_merged_spec` with that of `tf.config.list_logical_devices("CPU")[0]`.
    """
    return device_util.canonicalize(device)


def are_in_use() -> bool:
    """Whether TensorFlow's runtime has started: from then on it takes no new devices.

    Stands on `context.context_safe` and `Context._initialized`; `tf.config` starts the runtime to answer. When it is
    gone: False; the kernels' own check then has the say.
    """
    known: Any = context.context_safe()
    return known is not None and bool(known._initialized)


def eagerly() -> AbstractContextManager[None]:
    """A block of eager execution, whatever is being traced on this thread.

    Stands on `context.eager_mode`; `tf.init_scope` leaves functions, and stays in a graph of TensorFlow 1. When it is
    gone: `tf.__internal__.eager_context.eager_mode`, which Keras has.
    """
    return context.eager_mode()


def global_seed() -> int | None:
    """The seed of `tf.random.set_seed`; stands on `context.global_seed`: there is no public getter."""
    return context.global_seed()
