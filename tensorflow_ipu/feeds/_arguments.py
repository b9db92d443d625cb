"""Checks that the queues share, and the device that a queue belongs to."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu._base import environment
from tensorflow_ipu._base.checks import as_int, is_int
from tensorflow_ipu.errors import DeviceLimitError

if TYPE_CHECKING:
    from tensorflow_ipu.feeds._feed import Queue

# How many elements a dequeue takes that takes all. `tf.int64.max` is the same, and takes 7 us to ask for.
ALL_ELEMENTS = 2**63 - 1


def device_of(device_ordinal: int | None) -> str:
    """The IPU device of a queue."""
    if device_ordinal is None:
        device_ordinal = getattr(tf.distribute.get_strategy().extended, "ordinal", 0)
    if not is_int(device_ordinal):
        raise ValueError(f"Device ordinal must be an integer: `device_ordinal` is {device_ordinal!r}")
    if device_ordinal < 0:
        raise ValueError(f"Device ordinal must be >= 0: `device_ordinal` is {device_ordinal}")
    registered = environment.registered_devices()
    if device_ordinal >= registered:
        raise DeviceLimitError(
            f"`device_ordinal` is {device_ordinal}, and {registered} IPU devices are registered, the last of them"
            f" `/device:IPU:{registered - 1}`; " + environment.way_out(environment.DEVICES_VARIABLE, device_ordinal + 1)
        )
    return f"/device:IPU:{device_ordinal}"


def check_max_elements(most: object) -> None:
    """Refuses what is neither None nor a number of elements that a dequeue can be asked for."""
    count = None if most is None else as_int(most)
    if count is None and most is not None:
        raise TypeError(f"`max_elements` must be an integer or None, but is {most!r}")
    if count is not None and not 1 <= count <= ALL_ELEMENTS:
        raise ValueError(f"`max_elements` must be 1 or more and fit in 64 bits, but is {most}")


def check_same_device(queue: Queue, device: str) -> None:
    """Refuses a queue in a program that is being traced for another device."""
    ordinal = getattr(tf.distribute.get_strategy().extended, "ordinal", None)
    if ordinal is not None and device != device_of(ordinal):
        raise ValueError(
            f"the program runs on `{device_of(ordinal)}`, but {queue!r} serves `{device}`: make the queue inside"
            f" `strategy.scope()` of the strategy that runs the program, or with `device_ordinal={ordinal}`"
        )


def for_type(dtype: tf.DType) -> str:
    """The way out for tensors of a type that an IPU does not have: a clause, with the tensors as `x`."""
    if dtype.is_floating:
        return "cast them to float32, `tf.cast(x, tf.float32)`"
    if dtype.is_integer:
        return "cast them to int32, `tf.cast(x, tf.int32)`"
    if dtype.is_complex:
        return "split them into `tf.math.real(x)` and `tf.math.imag(x)`"
    if dtype == tf.string:
        return "turn them to numbers, as `tf.strings.to_number(x)` or a lookup table do"
    return "leave them out"


class IPUOutfeedMode(enum.Enum):
    """What an outfeed keeps: `ALL` that is enqueued, or the `LAST` element alone."""

    ALL = "all"
    LAST = "get_last"
