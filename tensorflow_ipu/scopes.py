"""Scopes that say where the operations built inside of them run, and how the machine is to treat them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu._base import environment
from tensorflow_ipu._base import poplar_options as known_options
from tensorflow_ipu._base.checks import check_bool, is_int, is_number
from tensorflow_ipu._tensorflow import old_keras
from tensorflow_ipu.ops import host_callbacks
from tensorflow_ipu.programs import ALL_IPUS, SHARD_ATTRIBUTE

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import DTypeLike

__all__ = [
    "ALL_IPUS",
    "SHARD_ATTRIBUTE",
    "available_memory",
    "frontend_attribute",
    "ipu_jit_scope",
    "ipu_scope",
    "ipu_shard",
    "is_on_ipu",
    "outside_compilation_scope",
    "partials_type",
    "poplar_options",
    "stochastic_rounding",
]

_PARTIALS = {tf.float16: "half", tf.float32: "float"}


@contextlib.contextmanager
def ipu_scope(device: str) -> Iterator[None]:
    """Places operations and variables on an IPU device such as `"/device:IPU:0"`; variables of a graph are resource variables.

    Raises:
      ValueError: `device` names no IPU device.
    """
    _check_device(device)
    with contextlib.ExitStack() as stack:
        if not tf.executing_eagerly():
            # No program can hold a variable of TensorFlow 1's other kind.
            scope = tf.compat.v1.get_variable_scope()
            stack.enter_context(tf.compat.v1.variable_scope(scope, use_resource=True, auxiliary_name_scope=False))
        stack.enter_context(tf.device(device))
        yield


@contextlib.contextmanager
def ipu_jit_scope(ipu_scope: object) -> Iterator[None]:
    """Accepted and of no effect: `compiler.compile` and `IPUStrategy.run` say what becomes one program."""
    del ipu_scope
    yield


def outside_compilation_scope(name: str = "outside") -> contextlib.AbstractContextManager[object]:
    """Has operations in the midst of a program run on the host, by TensorFlow's own kernels.

        with outside_compilation_scope():
            known = table.lookup(keys)

    There is all that TensorFlow has: tables, strings, `tf.py_function`, `tf.summary`, variables of the host. The block is
    called each time that the program comes by, once a replica, of which `replication_ops.replication_index` gives the
    number. Where Keras asks a model for its shapes, the operations are those of the code around.

    Numbers alone cross the border: what the block uses of the program, variables of the IPU as they are then, and what the
    program uses of the block, which has a static shape (`tf.ensure_shape`). Gradients flow through the block.

    Args:
      name: A name for the block, which errors in it tell.

    Raises:
      ValueError: The block is in no program for an IPU, or inside another of these; or it uses strings or resources that
        the program made; or it assigns to a variable of the IPU, or uses queues or other replicas.
    """
    if host_callbacks.around() is not None:
        raise ValueError(
            "Illegal nesting of outside_compilation_scope: an `outside_compilation_scope` must not be nested in another."
            " End the outer one first"
        )
    if programs.is_tracing():
        return host_callbacks.host_part(name)
    if old_keras.are_asked_for():
        return tf.name_scope(name)
    raise ValueError(
        "outside_compilation_scope is only allowed in XLA context, and here is no program for an IPU: use it in a function"
        " that `IPUStrategy.run` or `ipu_compiler.compile` gets, or in a layer or step of a Keras model that was made in"
        " `strategy.scope()`"
    )


@contextlib.contextmanager
def ipu_shard(index: int | Sequence[int]) -> Iterator[None]:
    """Places the operations inside on an IPU, or on several: their attribute `_IpuShard` says which.

    A program whose highest IPU is n takes as many IPUs a replica as the next power of two from n + 1 on. Gradients are
    placed as their operations are. The emulator computes all shards in one place, so that numbers do not depend on them;
    `IPUStrategy.report` has time and memory of each IPU.

    Args:
      index: The number of an IPU within the device, 0 or more, or a list of them; -1 for all that the program takes.

    Raises:
      TypeError: `index` is neither an int nor a list of them.
      ValueError: A number is negative or above 65535, or the list is empty.
    """
    shards = _shards(index)
    if not tf.executing_eagerly():
        programs.follow_operations(tf.compat.v1.get_default_graph())
    with programs.placed(shards):
        yield


@contextlib.contextmanager
def frontend_attribute(attribute_name: str, attribute_value: str, restore_to: str | None = None) -> Iterator[None]:
    """Sets an attribute on the instructions of the program that the operations inside become.

    Args:
      attribute_name: The name of the attribute.
      attribute_value: Its value.
      restore_to: Its value for operations after the block, where it had none before; it stays unset if omitted.

    Raises:
      TypeError: An argument is no string.
      ValueError: The attribute is an option of the machine's libraries, and there is no such value.
    """
    for argument, value in (
        ("attribute_name", attribute_name),
        ("attribute_value", attribute_value),
        ("restore_to", "" if restore_to is None else restore_to),
    ):
        if not isinstance(value, str):
            raise TypeError(f"`{argument}` must be a string, but is {value!r}")
    option = known_options.option_of(attribute_name)
    if option is not None:
        _check_options("attribute_value", {option: attribute_value})
    after = None if restore_to is None else {attribute_name: restore_to}
    with programs.computed_by({attribute_name: attribute_value}, after):
        yield


def stochastic_rounding(override: bool) -> contextlib.AbstractContextManager[None]:
    """Says whether results of operations inside, and their gradients, are rounded to float16 at random.

    Args:
      override: Whether they are; it goes before `IPUConfig`.

    Raises:
      TypeError: `override` is no bool.
    """
    check_bool("override", override)
    return frontend_attribute("ipu_stochastic_rounding", "on" if override else "off")


def partials_type(override_type: DTypeLike) -> contextlib.AbstractContextManager[None]:
    """Says in which type products and convolutions of float16 inside, and their gradients, are summed up.

    It goes before `partialsType` of `IPUConfig`. `IPUStrategy.report` reckons with it.

    Args:
      override_type: `tf.float16` or `tf.float32`.

    Raises:
      ValueError: It is another type.
    """
    try:
        partials = _PARTIALS[tf.as_dtype(override_type)]
    except (TypeError, KeyError) as exc:
        raise ValueError(f"`override_type` must be `tf.float16` or `tf.float32`, but is {override_type!r}") from exc
    return frontend_attribute("ipu_partials_type", partials)


@contextlib.contextmanager
def poplar_options(options: Mapping[str, str]) -> Iterator[None]:
    """Gives the operations inside options of the machine's libraries, which go before those of `IPUConfig`.

    Numbers do not depend on them, but on `partialsType`, which is as by `partials_type`. `IPUStrategy.report` reckons with
    `availableMemoryProportion` and `partialsType` of matrix products and convolutions; all others are written down on the
    instructions alone. Gradients get `partialsType` alone, unless they are asked for inside.

    Args:
      options: Names and values, all text, such as `{"availableMemoryProportion": "0.2", "partialsType": "half"}`.

    Raises:
      TypeError: `options` is no dictionary of text.
      ValueError: A value is none that the option has.
    """
    if not isinstance(options, Mapping) or not all(isinstance(word, str) for pair in options.items() for word in pair):
        raise TypeError(f"`options` must be a dictionary whose names and values are text, but is {options!r}")
    _check_options("options", options)
    with programs.computed_by({known_options.attribute_of(name): each for name, each in options.items()}):
        yield


def available_memory(proportion: float) -> contextlib.AbstractContextManager[None]:
    """Says which share of a tile's memory each operation inside may take besides: `poplar_options` in short.

    The machine's libraries take 0.6 where nothing is said. Less makes products slower, and lets more else stay on the chip.

    Args:
      proportion: The share, from 0 to 1.

    Raises:
      ValueError: It is no such number.
    """
    if not is_number(proportion) or not 0 <= proportion <= 1:
        raise ValueError(f"`proportion` must be a number from 0 to 1, but is {proportion!r}")
    return poplar_options({known_options.PROPORTION: str(proportion)})


def is_on_ipu() -> bool:
    """Whether operations that are made now go into a program for an IPU.

    False in eager execution, in functions that run on the host, and in `outside_compilation_scope`.
    """
    return programs.is_tracing() and host_callbacks.around() is None


def _check_options(argument: str, options: Mapping[str, str]) -> None:
    faults = list(known_options.faults(argument, options))
    if faults:
        raise ValueError("; ".join(faults))


def _check_device(device: str) -> None:
    fault = ValueError(f"`device` must name a device like `/device:IPU:0`, but is {device!r}")
    try:
        kind = tf.DeviceSpec.from_string(device).device_type
    except (ValueError, TypeError, AttributeError) as exc:
        raise fault from exc
    if kind != "IPU":
        raise fault


def _shards(index: Any) -> list[int]:
    shards = list(index) if isinstance(index, (list, tuple)) else [index]
    for shard in shards:
        if not is_int(shard):
            raise TypeError(f"`index` must be an int or a list of ints, but is {index!r}")
        if shard < 0 and shards != [ALL_IPUS]:
            raise ValueError(
                f"`index` must not be negative, but is {index!r}: IPUs of a device count from 0, and -1 alone is all of them"
            )
        if shard >= environment.MOST_IPUS:
            raise ValueError(
                f"`index` must be below {environment.MOST_IPUS}, the most IPUs that there can be, but is {index!r}"
            )
    if not shards:
        raise ValueError("`index` must name at least one IPU, but is an empty list")
    return shards
