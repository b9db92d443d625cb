"""Scopes that set the device, the IPU and the machine's options of the operations created in them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu._base import environment
from tensorflow_ipu._base import poplar_options as library_options
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
    """Places operations and variables on an IPU device such as `"/device:IPU:0"`.

    In a graph of TensorFlow 1, variables created in the scope are resource variables.

    Raises:
      ValueError: `device` does not name an IPU device.
    """
    _check_device(device)
    with contextlib.ExitStack() as stack:
        if not tf.executing_eagerly():
            # Programs support only resource variables, not TensorFlow 1's reference variables.
            scope = tf.compat.v1.get_variable_scope()
            stack.enter_context(tf.compat.v1.variable_scope(scope, use_resource=True, auxiliary_name_scope=False))
        stack.enter_context(tf.device(device))
        yield


@contextlib.contextmanager
def ipu_jit_scope(ipu_scope: object) -> Iterator[None]:
    """Does nothing: only `compiler.compile` and `IPUStrategy.run` compile programs."""
    del ipu_scope
    yield


def outside_compilation_scope(name: str = "outside") -> contextlib.AbstractContextManager[object]:
    """Runs operations in the middle of a program on the host, with TensorFlow's own kernels.

        with outside_compilation_scope():
            known = table.lookup(keys)

    The block may use everything that TensorFlow has: tables, strings, `tf.py_function`, `tf.summary`, variables of the
    host. It runs each time that the program reaches it, once per replica; `replication_ops.replication_index` returns the
    replica's index. While Keras infers the shapes of a model, the block adds its operations to the surrounding graph.

    Only numeric tensors pass between the program and the block. The block reads tensors of the program, and variables of
    the IPU with their current values. The program reads tensors of the block, which need a static shape
    (`tf.ensure_shape`). Gradients flow through the block.

    Args:
      name: A name for the block, which its error messages mention.

    Raises:
      ValueError: The block is not in a program for an IPU, or is within another such block. Or the block uses strings or
        resources of the program, assigns to a variable of the IPU, or uses queues or collectives.
    """
    if host_callbacks.around() is not None:
        raise ValueError(
            "Illegal nesting of outside_compilation_scope: an `outside_compilation_scope` must not be nested in another."
            " End the outer one first"
        )
    if programs.is_tracing():
        return host_callbacks.host_part(name)
    if old_keras.is_computing_shapes():
        return tf.name_scope(name)
    raise ValueError(
        "outside_compilation_scope is only allowed in XLA context, but no program for an IPU is being traced: use it in a"
        " function that `IPUStrategy.run` or `ipu_compiler.compile` gets, or in a layer or step of a Keras model that was"
        " made in `strategy.scope()`"
    )


@contextlib.contextmanager
def ipu_shard(index: int | Sequence[int]) -> Iterator[None]:
    """Places the operations of the block on one or several IPUs, stored in their attribute `_IpuShard`.

    If the highest IPU of a program is n, each replica uses the next power of two from n + 1 on. Gradients are placed on the
    IPUs of their operations. The emulator computes all shards in one place, so shards do not change results.
    `IPUStrategy.report` predicts the time and the memory of each IPU.

    Args:
      index: The number of an IPU within the device, 0 or more, or a list of them; -1 for all IPUs of the program.

    Raises:
      TypeError: `index` is neither an int nor a list of ints.
      ValueError: A number is negative or above 65535, or the list is empty.
    """
    shards = _shards(index)
    if not tf.executing_eagerly():
        programs.follow_operations(tf.compat.v1.get_default_graph())
    with programs.placed(shards):
        yield


@contextlib.contextmanager
def frontend_attribute(attribute_name: str, attribute_value: str, restore_to: str | None = None) -> Iterator[None]:
    """Sets an attribute on the program's instructions that the operations of the block are compiled to.

    Args:
      attribute_name: The name of the attribute.
      attribute_value: The value of the attribute.
      restore_to: The value for operations after the block if the attribute was unset before it. If omitted, it is unset
        again.

    Raises:
      TypeError: An argument is not a string.
      ValueError: The attribute is an option of the vendor's libraries, which does not support the value.
    """
    for argument, value in (
        ("attribute_name", attribute_name),
        ("attribute_value", attribute_value),
        ("restore_to", "" if restore_to is None else restore_to),
    ):
        if not isinstance(value, str):
            raise TypeError(f"`{argument}` must be a string, but is {value!r}")
    option = library_options.option_of(attribute_name)
    if option is not None:
        _check_options("attribute_value", {option: attribute_value})
    attributes_after = None if restore_to is None else {attribute_name: restore_to}
    with programs.computed_by({attribute_name: attribute_value}, attributes_after):
        yield


def stochastic_rounding(override: bool) -> contextlib.AbstractContextManager[None]:
    """Runs the block with or without stochastic rounding of float16 results. Its gradients are rounded likewise.

    Args:
      override: Whether to round stochastically. It overrides `IPUConfig`.

    Raises:
      TypeError: `override` is not a bool.
    """
    check_bool("override", override)
    return frontend_attribute("ipu_stochastic_rounding", "on" if override else "off")


def partials_type(override_type: DTypeLike) -> contextlib.AbstractContextManager[None]:
    """Runs the block with a dtype for the sums in products and convolutions of float16, and in their gradients.

    It overrides `partialsType` of `IPUConfig`. `IPUStrategy.report` takes it into account.

    Args:
      override_type: `tf.float16` or `tf.float32`.

    Raises:
      ValueError: `override_type` is another dtype.
    """
    try:
        partials = _PARTIALS[tf.as_dtype(override_type)]
    except (TypeError, KeyError) as exc:
        raise ValueError(f"`override_type` must be `tf.float16` or `tf.float32`, but is {override_type!r}") from exc
    return frontend_attribute("ipu_partials_type", partials)


@contextlib.contextmanager
def poplar_options(options: Mapping[str, str]) -> Iterator[None]:
    """Runs the block with options of the vendor's libraries for its operations. They override those of `IPUConfig`.

    Only `partialsType` changes results, as `partials_type` does. `IPUStrategy.report` takes into account
    `availableMemoryProportion` and `partialsType` of matrix products and convolutions. All other options are only recorded
    on the instructions. Gradients computed outside of the block get only `partialsType`.

    Args:
      options: Names and values as strings, such as `{"availableMemoryProportion": "0.2", "partialsType": "half"}`.

    Raises:
      TypeError: `options` is not a dictionary of strings.
      ValueError: An option does not support its value.
    """
    if not isinstance(options, Mapping) or not all(isinstance(text, str) for pair in options.items() for text in pair):
        raise TypeError(f"`options` must be a dictionary whose names and values are text, but is {options!r}")
    _check_options("options", options)
    with programs.computed_by({library_options.attribute_of(name): value for name, value in options.items()}):
        yield


def available_memory(proportion: float) -> contextlib.AbstractContextManager[None]:
    """Runs the block with a limit of the tile memory that each operation may use temporarily.

    It is a short form of `poplar_options`. The default of the vendor's libraries is 0.6. A lower limit makes matrix products
    slower, but leaves more memory for other tensors.

    Args:
      proportion: The limit as a share of a tile's memory, from 0 to 1.

    Raises:
      ValueError: `proportion` is not a number from 0 to 1.
    """
    if not is_number(proportion) or not 0 <= proportion <= 1:
        raise ValueError(f"`proportion` must be a number from 0 to 1, but is {proportion!r}")
    return poplar_options({library_options.PROPORTION: str(proportion)})


def is_on_ipu() -> bool:
    """Returns True if operations created now become part of a program for an IPU.

    Returns False in eager execution, in functions that run on the host, and in `outside_compilation_scope`.
    """
    return programs.is_tracing() and host_callbacks.around() is None


def _check_options(argument: str, options: Mapping[str, str]) -> None:
    errors = list(library_options.faults(argument, options))
    if errors:
        raise ValueError("; ".join(errors))


def _check_device(device: str) -> None:
    error = ValueError(f"`device` must name a device like `/device:IPU:0`, but is {device!r}")
    try:
        kind = tf.DeviceSpec.from_string(device).device_type
    except (ValueError, TypeError, AttributeError) as exc:
        raise error from exc
    if kind != "IPU":
        raise error


def _shards(index: Any) -> list[int]:
    shards = list(index) if isinstance(index, (list, tuple)) else [index]
    for shard in shards:
        if not is_int(shard):
            raise TypeError(f"`index` must be an int or a list of ints, but is {index!r}")
        if shard < 0 and shards != [ALL_IPUS]:
            raise ValueError(
                f"`index` must not be negative, but is {index!r}: the IPUs of a device are numbered from 0, and only a single"
                " -1 means all of them"
            )
        if shard >= environment.MOST_IPUS:
            raise ValueError(
                f"`index` must be below {environment.MOST_IPUS}, the maximum number of IPUs, but is {index!r}"
            )
    if not shards:
        raise ValueError("`index` must name at least one IPU, but is an empty list")
    return shards
