"""Access from the host to the values that a variable has on each replica or group of replicas."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu._base.checks import check_instance
from tensorflow_ipu._base.tensors import tf_variable
from tensorflow_ipu._native.library import ops
from tensorflow_ipu.config import _state
from tensorflow_ipu.programs import ReplicaGroups

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tensorflow_ipu._base.types import TensorLike, Variable

__all__ = ["VariableRetrievalMode", "assign_groups", "read_groups"]


class VariableRetrievalMode(enum.Enum):
    """The replicas whose values `read_groups` returns: the first of each group, or all."""

    OnePerGroup = 0
    AllReplicas = 1


def assign_groups(variable: Variable, values: TensorLike, groups: ReplicaGroups | None = None) -> None:
    """Assigns a different value to each group of replicas.

    With 8 replicas, each pair of neighbours holds one of 4 shards of a table:

        table = tf.Variable(tf.zeros([250, 64]))  # in the strategy's scope
        assign_groups(table, tf.reshape(full_table, [4, 250, 64]), ReplicaGroups(2))

    The host reads and saves the value of replica 0. The other replicas keep their values from run to run, until the host
    assigns to the variable.

    Args:
      variable: A `tf.Variable` or Keras variable on an IPU device of R IPUs.
      values: A tensor of the variable's dtype, of shape [number of groups] + the variable's shape.
      groups: The groups. If omitted, each replica is a group, and `values` has R values.

    Raises:
      RuntimeError: The call is not in eager execution.
      TypeError: `variable` is not a variable.
      ValueError: `values` has another shape, the group size does not divide R, or the variable is on no IPU device.
    """
    handle, replicas = _handle(variable)
    size, indices = _group_indices(groups, replicas)
    tensor = tf.convert_to_tensor(values, variable.dtype)
    expected_shape = [replicas // size, *variable.shape]
    if tensor.shape.as_list() != expected_shape:
        raise ValueError(
            f"`values` must have the shape {expected_shape}, a value a group, but has {tensor.shape.as_list()}: there are"
            f" {replicas} replicas in groups of {size}"
        )
    _write(handle, [tensor[index] for index in indices])


def write_all(variable: Variable, values: Sequence[tf.Tensor]) -> None:
    """Assigns each replica its value, as `read_all` returned them; a single value is assigned to all replicas."""
    handle, _ = _handle(variable)
    if len(values) > 1:
        _write(handle, values)
        return
    with tf.device(handle.device):
        tf_variable(variable).assign(values[0])


def _write(handle: tf.Tensor, values: Sequence[tf.Tensor]) -> None:
    with tf.device(handle.device):
        for replica, value in enumerate(values):
            ops.ipu_replica_write(handle, replica, len(values), value)


def read_all(variable: Variable, replicas: int) -> list[tf.Tensor]:
    """Reads the values of a variable on its first `replicas` replicas, as tensors on the variable's device."""
    handle, _ = _handle(variable)
    return _read(handle, variable, range(replicas))


def _read(handle: tf.Tensor, variable: Variable, replicas: Iterable[int]) -> list[tf.Tensor]:
    with tf.device(handle.device):
        return [ops.ipu_replica_read(handle, replica, dtype=variable.dtype) for replica in replicas]


def read_groups(
    variable: Variable,
    groups: ReplicaGroups | None = None,
    retrieval_mode: VariableRetrievalMode = VariableRetrievalMode.OnePerGroup,
) -> tf.Tensor:
    """Reads the value of the first replica of each group, or of all replicas; see `assign_groups`.

    Returns:
      A tensor of shape [number of groups] + the variable's shape, or [number of replicas] + the variable's shape.

    Raises:
      RuntimeError: The call is not in eager execution.
      TypeError: `variable` is not a variable, or `retrieval_mode` is not a `VariableRetrievalMode`.
      ValueError: The group size does not divide the number of replicas, or the variable is on no IPU device.
    """
    check_instance("retrieval_mode", retrieval_mode, VariableRetrievalMode, "a `VariableRetrievalMode`")
    handle, replicas = _handle(variable)
    _, indices = _group_indices(groups, replicas)
    replicas_to_read = list(range(replicas))
    if retrieval_mode is VariableRetrievalMode.OnePerGroup:
        replicas_to_read = [indices.index(index) for index in range(max(indices) + 1)]
    return tf.stack(_read(handle, variable, replicas_to_read))


def _handle(variable: Variable) -> tuple[tf.Tensor, int]:
    """Returns the resource handle of a variable, and the number of replicas on its device."""
    if not tf.executing_eagerly():
        raise RuntimeError("the values of a variable on its replicas can only be read or assigned in eager execution")
    inner = tf_variable(variable)
    check_instance("variable", inner, tf.Variable, "a `tf.Variable` or a Keras variable")
    spec = tf.DeviceSpec.from_string(inner.device)
    if spec.device_type != "IPU":
        raise ValueError(
            f"`variable` is on `{inner.device}`, where there are no replicas. Create it in `strategy.scope()`"
        )
    return inner.handle, _state.ipus_of_device(spec.device_index or 0)


def _group_indices(groups: ReplicaGroups | None, replicas: int) -> tuple[int, list[int]]:
    """Returns the size of the groups, and the index of each replica's group."""
    groups = ReplicaGroups(1) if groups is None else groups
    check_instance("groups", groups, ReplicaGroups, "a `ReplicaGroups`")
    size = groups.size or replicas
    if replicas % size:
        raise ValueError(f"`groups` has groups of {size}, which does not divide the {replicas} replicas of the device")
    count = replicas // size
    return size, [replica % count if groups.orthogonal else replica // size for replica in range(replicas)]
