"""The collectives that the public operations are built from: each call uses one rendezvous for a list of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu._native.library import ops
from tensorflow_ipu._tensorflow import graphs
from tensorflow_ipu.ops import sites
from tensorflow_ipu.programs import ReplicaGroups, check_size

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tensorflow_ipu._base.types import Gradient, Nested, TensorLike

_Result = TypeVar("_Result")

# Maps the public name of each reduction to its name in the kernels.
REDUCTIONS = {
    "COLLECTIVE_OP_ADD": "sum",
    "COLLECTIVE_OP_LOCAL": "local",
    "COLLECTIVE_OP_LOGICAL_AND": "and",
    "COLLECTIVE_OP_LOGICAL_OR": "or",
    "COLLECTIVE_OP_MAX": "max",
    "COLLECTIVE_OP_MEAN": "mean",
    "COLLECTIVE_OP_MIN": "min",
    "COLLECTIVE_OP_MUL": "product",
}
_LOGICAL = ("and", "or")
_SUPPORTED_TYPES = (
    tf.bool, tf.bfloat16, tf.float16, tf.float32, tf.float64, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8,
    tf.uint16, tf.uint32, tf.uint64,
)  # fmt: skip

# This operation only reads its state variable, so it need not wait for other uses of the variable.
graphs.declare_read_only("IpuReplicaIndex")


def all_reduce(
    function: str, values: Sequence[tf.Tensor], reduction: str, groups: ReplicaGroups, name: str | None = None
) -> list[tf.Tensor]:
    """Reduces each tensor over the replicas of a group, in the order of the replicas.

    float16 and bfloat16 accumulate in float32. The mean of integers is rounded toward zero.
    """
    return _add_collective(ops.ipu_all_reduce, function, values, groups, name, reduction=reduction)


def all_gather(
    function: str, values: Sequence[tf.Tensor], groups: ReplicaGroups, name: str | None = None
) -> list[tf.Tensor]:
    """Gathers each tensor from the replicas of a group: shape `s` becomes `[group size] + s`."""
    return _add_collective(ops.ipu_all_gather, function, values, groups, name)


def reduce_scatter(
    function: str, values: Sequence[tf.Tensor], reduction: str, groups: ReplicaGroups, name: str | None = None
) -> list[tf.Tensor]:
    """Reduces vectors over the k replicas of a group, and returns part r of each result to rank r.

    Each part of a vector of n elements has ceil(n / k) elements. The last parts are padded with zeros.
    """
    return _add_collective(ops.ipu_reduce_scatter, function, values, groups, name, reduction=reduction)


def all_to_all(
    function: str, value: tf.Tensor, axes: tuple[int, int], groups: ReplicaGroups, name: str | None = None
) -> tf.Tensor:
    """Splits a tensor along the first of `axes`, sends part r to rank r, and concatenates along the second.

    The kernel sends row r of its operand to rank r. So the axis of the parts is moved to the front before the kernel, and
    next to the axis of concatenation after it. For 2 replicas, shape [8, 3] and `axes` (0, 1):

        value [8, 3] --reshape--> [2, 4, 3] --kernel--> [2, 4, 3] --transpose--> [4, 2, 3] --reshape--> [4, 6]
    """
    split_axis, concat_axis = axes
    group_size = groups.size
    assert group_size is not None
    # The shape may be unknown while the program is traced.
    is_static = value.shape.is_fully_defined()
    shape: Nested = np.array(value.shape) if is_static else tf.shape(value)
    rank = len(value.shape) if is_static else tf.rank(value)
    concatenate, arange = (np.concatenate, np.arange) if is_static else (tf.concat, tf.range)
    part = concatenate([shape[:split_axis], [shape[split_axis] // group_size], shape[split_axis + 1 :]], 0)
    result = concatenate([part[:concat_axis], [part[concat_axis] * group_size], part[concat_axis + 1 :]], 0)
    parts = tf.reshape(value, concatenate([shape[:split_axis], [group_size], part[split_axis:]], 0))
    to_first: Nested = concatenate([[split_axis], arange(0, split_axis), arange(split_axis + 1, rank + 1)], 0)
    from_first: Nested = concatenate([arange(1, concat_axis + 1), [0], arange(concat_axis + 1, rank + 1)], 0)
    (received,) = _add_collective(ops.ipu_all_to_all, function, [tf.transpose(parts, to_first)], groups, name)
    return tf.reshape(tf.transpose(received, from_first), result)


def broadcast(
    function: str, values: Sequence[tf.Tensor], root: int, groups: ReplicaGroups, name: str | None = None
) -> list[tf.Tensor]:
    """Copies the tensors of rank `root` to all replicas of its group."""
    return _add_collective(ops.ipu_broadcast, function, values, groups, name, root=root)


def rank(function: str, groups: ReplicaGroups, name: str | None = None) -> tf.Tensor:
    """Returns the rank of this replica in its group, an int32 scalar."""
    return _call_in_program(
        function, lambda: ops.ipu_replica_index(sites.identity(function), name=name, **_attributes(groups)), []
    )


def _call_in_program(function: str, collective: Callable[..., _Result], values: Sequence[tf.Tensor]) -> _Result:
    """Calls `collective` with the values.

    In the graph of a session, outside of any program, the call becomes a program of its own. On a device other than an
    IPU, the operation is added to that graph without a program.
    """
    if not programs.in_plain_graph() or sites.device_here().device_type not in (None, "IPU"):
        return collective(*values)
    device = sites.device_of_program(function)
    with tf.device(device):
        return programs.insert(collective, list(values), {}, device)


def as_tensors(x: TensorLike) -> list[tf.Tensor]:
    """Converts a tensor, or a list or tuple of tensors, to a list of tensors."""
    values = [tf.convert_to_tensor(value) for value in (x if isinstance(x, (list, tuple)) else [x])]
    if not values:
        raise ValueError(f"`x` must hold at least one tensor, but is {x!r}")
    return values


def check_types(function: str, values: Sequence[tf.Tensor], reduction: str | None = None) -> None:
    """Raises `TypeError` for tensors of a type that collectives do not support, or that `reduction` does not."""
    for value in values:
        if value.dtype not in _SUPPORTED_TYPES:
            raise TypeError(
                f"`{function}` supports real numbers and booleans, but got a tensor of type {value.dtype.name}. For"
                " complex numbers, pass the real and the imaginary part"
            )
        if reduction in (None, "local"):
            continue
        if (reduction in _LOGICAL) != (value.dtype == tf.bool):
            raise TypeError(
                f"`{function}` got a tensor of type {value.dtype.name}, which does not support the reduction"
                f" `{reduction}`: booleans support only `and` and `or`, and numbers only the other reductions. Convert it by"
                " `tf.cast`"
            )


def reduction_of(op: str, supported: Sequence[str]) -> str:
    """Returns the kernels' name of the reduction `op`; raises `ValueError` if it is not in `supported`."""
    if op not in supported:
        raise ValueError(f"`op` must be one of {', '.join(supported)}, but is {op!r}")
    return REDUCTIONS[op]


def _add_collective(
    op: Callable[..., list[tf.Tensor]],
    function: str,
    values: Sequence[tf.Tensor],
    groups: ReplicaGroups,
    name: str | None,
    **options: Any,
) -> list[tf.Tensor]:
    """Adds the operation of a collective, with a new call site, to the program that is being traced."""
    check_types(function, values, options.get("reduction"))

    def collective(*tensors: tf.Tensor) -> list[tf.Tensor]:
        site, order = sites.new(function, name or function, _description(function, tensors, groups, options), groups)
        attributes = {**_attributes(groups), "advance": not programs.in_condition(), **options}
        return op(site, tensors, order, name=name, **attributes)

    return _call_in_program(function, collective, values)


def _description(function: str, tensors: Sequence[tf.Tensor], groups: ReplicaGroups, options: dict[str, Any]) -> str:
    """Returns a description of a collective, which must be the same on all workers."""
    details = [f"{name} {value}" for name, value in options.items()]
    if groups.size is not None:
        details.append(f"in {'orthogonal ' if groups.orthogonal else ''}groups of {groups.size}")
    operands = ", ".join(f"{tensor.dtype.name}{_shape(tensor.shape)}" for tensor in tensors)
    return f"`{function}` of {operands}" + (f" ({', '.join(details)})" if details else "")


def _shape(shape: tf.TensorShape) -> str:
    return "[...]" if shape.rank is None else str(shape.as_list()).replace(" ", "").replace("None", "?")


def _attributes(groups: ReplicaGroups) -> dict[str, int | bool]:
    return {"group_size": groups.size or 0, "orthogonal": groups.orthogonal}


def groups_of(argument: str, value: int | ReplicaGroups | None, optional: bool = False) -> ReplicaGroups:
    """Returns `value` as `ReplicaGroups`; an int is the group size. If `optional`, None and 0 mean all replicas."""
    size = value.size if isinstance(value, ReplicaGroups) else value
    if optional and size == 0 and type(size) is int:
        size = None
    check_size(argument, size, optional=optional)
    return value if isinstance(value, ReplicaGroups) else ReplicaGroups(size)


def _groups(op: tf.Operation) -> ReplicaGroups:
    return ReplicaGroups(op.get_attr("group_size") or None, op.get_attr("orthogonal"))


def _reduction(op: tf.Operation) -> str:
    reduction = op.get_attr("reduction").decode()
    if reduction not in ("sum", "mean"):
        raise LookupError(
            f"a reduction over replicas by `{reduction}` has no gradient; only sums and means have one. If no gradient"
            " is needed, wrap the input in `tf.stop_gradient`"
        )
    return reduction


def _gradients(op: tf.Operation, value_gradients: Iterable[Gradient]) -> list[Gradient | None]:
    """Returns the gradients of all inputs of `op`: None for the state variable and the tokens."""
    return [None, *value_gradients, *[None] * op.get_attr("orders")]


def _values(op: tf.Operation) -> list[tf.Tensor]:
    return op.inputs[1 : len(op.inputs) - op.get_attr("orders")]


def _dense(grads: Iterable[Gradient]) -> list[tf.Tensor]:
    return [tf.convert_to_tensor(grad) for grad in grads]


@tf.RegisterGradient("IpuAllReduce")
def _all_reduce_grad(op: tf.Operation, *grads: Gradient) -> list[Gradient | None]:
    if op.get_attr("reduction") == b"local":
        return _gradients(op, grads)
    return _gradients(op, all_reduce("all_reduce_grad", _dense(grads), _reduction(op), _groups(op)))


@tf.RegisterGradient("IpuAllGather")
def _all_gather_grad(op: tf.Operation, *grads: Gradient) -> list[Gradient | None]:
    flat = [tf.reshape(grad, [-1]) for grad in _dense(grads)]
    summed = reduce_scatter("all_gather_grad", flat, "sum", _groups(op))
    return _gradients(op, (tf.reshape(grad, tf.shape(value)) for grad, value in zip(summed, _values(op), strict=True)))


@tf.RegisterGradient("IpuReduceScatter")
def _reduce_scatter_grad(op: tf.Operation, *grads: Gradient) -> list[Gradient | None]:
    reduction = _reduction(op)
    groups = _groups(op)
    gathered = all_gather("reduce_scatter_grad", _dense(grads), groups)
    # The padding at the end is not part of the input.
    unpadded = [tf.reshape(grad, [-1])[: tf.size(value)] for grad, value in zip(gathered, _values(op), strict=True)]
    if reduction == "mean":
        unpadded = [grad / tf.cast(groups.size, grad.dtype) for grad in unpadded]
    return _gradients(op, unpadded)


@tf.RegisterGradient("IpuAllToAll")
def _all_to_all_grad(op: tf.Operation, *grads: Gradient) -> list[Gradient | None]:
    return _gradients(op, _add_collective(ops.ipu_all_to_all, "all_to_all_grad", _dense(grads), _groups(op), None))


@tf.RegisterGradient("IpuBroadcast")
def _broadcast_grad(op: tf.Operation, *grads: Gradient) -> list[Gradient | None]:
    groups = _groups(op)
    summed = all_reduce("broadcast_grad", _dense(grads), "sum", groups)
    is_root = tf.equal(rank("broadcast_grad", groups), op.get_attr("root"))
    return _gradients(op, (tf.where(is_root, grad, tf.zeros_like(grad)) for grad in summed))


tf.no_gradient("IpuReplicaIndex")
