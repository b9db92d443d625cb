"""The collectives that the public operations are made of: lists of tensors, one meeting of the replicas a call."""

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

# The reductions that users name, and what the kernels call them.
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
_MOVED = (
    tf.bool, tf.bfloat16, tf.float16, tf.float32, tf.float64, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8,
    tf.uint16, tf.uint32, tf.uint64,
)  # fmt: skip

# It only reads the state, and does not wait for other uses of it.
graphs.declare_read_only("IpuReplicaIndex")


def all_reduce(
    function: str, values: Sequence[tf.Tensor], reduction: str, groups: ReplicaGroups, name: str | None = None
) -> list[tf.Tensor]:
    """Reduces each tensor over the replicas of a group, in the order of the replicas.

    float16 and bfloat16 accumulate in float32. The mean of integers is rounded toward zero.
    """
    return _meet(ops.ipu_all_reduce, function, values, groups, name, reduction=reduction)


def all_gather(
    function: str, values: Sequence[tf.Tensor], groups: ReplicaGroups, name: str | None = None
) -> list[tf.Tensor]:
    """Gathers each tensor from the replicas of a group: shape s becomes [size of the group] + s."""
    return _meet(ops.ipu_all_gather, function, values, groups, name)


def reduce_scatter(
    function: str, values: Sequence[tf.Tensor], reduction: str, groups: ReplicaGroups, name: str | None = None
) -> list[tf.Tensor]:
    """Reduces vectors over the k replicas of a group, and leaves part r to the replica of rank r.

    A vector of n elements has parts of ceil(n / k); the last ones are filled up with zeros.
    """
    return _meet(ops.ipu_reduce_scatter, function, values, groups, name, reduction=reduction)


def all_to_all(
    function: str, value: tf.Tensor, axes: tuple[int, int], groups: ReplicaGroups, name: str | None = None
) -> tf.Tensor:
    """Splits a tensor along the first of `axes` and sends part r to rank r, which concatenates along the second."""
    split, concat = axes
    count = groups.size
    assert count is not None
    # The trace may not know the shape.
    known = value.shape.is_fully_defined()
    shape: Nested = np.array(value.shape) if known else tf.shape(value)
    rank = len(value.shape) if known else tf.rank(value)
    joined, numbers = (np.concatenate, np.arange) if known else (tf.concat, tf.range)
    part = joined([shape[:split], [shape[split] // count], shape[split + 1 :]], 0)
    whole = joined([part[:concat], [part[concat] * count], part[concat + 1 :]], 0)
    # The kernel exchanges along a first axis of one part for each replica.
    parts = tf.reshape(value, joined([shape[:split], [count], part[split:]], 0))
    forth: Nested = joined([[split], numbers(0, split), numbers(split + 1, rank + 1)], 0)
    back: Nested = joined([numbers(1, concat + 1), [0], numbers(concat + 1, rank + 1)], 0)
    (received,) = _meet(ops.ipu_all_to_all, function, [tf.transpose(parts, forth)], groups, name)
    return tf.reshape(tf.transpose(received, back), whole)


def broadcast(
    function: str, values: Sequence[tf.Tensor], root: int, groups: ReplicaGroups, name: str | None = None
) -> list[tf.Tensor]:
    """Copies the tensors of the replica of rank `root` to all replicas of its group."""
    return _meet(ops.ipu_broadcast, function, values, groups, name, root=root)


def rank(function: str, groups: ReplicaGroups, name: str | None = None) -> tf.Tensor:
    """Returns the rank of this replica in its group, an int32 scalar."""
    return _in_a_program(
        function, lambda: ops.ipu_replica_index(sites.identity(function), name=name, **_attributes(groups)), []
    )


def _in_a_program(function: str, collective: Callable[..., _Result], values: Sequence[tf.Tensor]) -> _Result:
    """Calls `collective` with the values; in the graph of a session as a program of its own, unless on another device."""
    if not programs.in_plain_graph() or sites.device_here().device_type not in (None, "IPU"):
        return collective(*values)
    device = sites.device_of_program(function)
    with tf.device(device):
        return programs.insert(collective, list(values), {}, device)


def as_tensors(x: TensorLike) -> list[tf.Tensor]:
    """Converts an argument that is a tensor, or a list of them, to a list."""
    values = [tf.convert_to_tensor(value) for value in (x if isinstance(x, (list, tuple)) else [x])]
    if not values:
        raise ValueError(f"`x` must hold at least one tensor, but is {x!r}")
    return values


def check_types(function: str, values: Sequence[tf.Tensor], reduction: str | None = None) -> None:
    """Raises `TypeError` for tensors that replicas cannot exchange, or cannot reduce by `reduction`."""
    for value in values:
        if value.dtype not in _MOVED:
            raise TypeError(
                f"`{function}` got a tensor of type {value.dtype.name}; replicas exchange numbers and booleans. For"
                " complex numbers, pass the real and the imaginary part"
            )
        if reduction in (None, "local"):
            continue
        if (reduction in _LOGICAL) != (value.dtype == tf.bool):
            raise TypeError(
                f"`{function}` got a tensor of type {value.dtype.name}, which has no `{reduction}`: booleans have `and`"
                " and `or` alone, and numbers have all others. `tf.cast` it"
            )


def reduction_of(op: str, known: Sequence[str]) -> str:
    """Returns the kernels' name of a reduction that a user named."""
    if op not in known:
        raise ValueError(f"`op` must be one of {', '.join(known)}, but is {op!r}")
    return REDUCTIONS[op]


def _meet(
    op: Callable[..., list[tf.Tensor]],
    function: str,
    values: Sequence[tf.Tensor],
    groups: ReplicaGroups,
    name: str | None,
    **options: Any,
) -> list[tf.Tensor]:
    """Adds the op of a collective to the program being traced, at a site of its own."""
    check_types(function, values, options.get("reduction"))

    def meet(*tensors: tf.Tensor) -> list[tf.Tensor]:
        site, order = sites.new(function, name or function, _described(function, tensors, groups, options), groups)
        attributes = {**_attributes(groups), "advance": not programs.in_condition(), **options}
        return op(site, tensors, order, name=name, **attributes)

    return _in_a_program(function, meet, values)


def _described(function: str, tensors: Sequence[tf.Tensor], groups: ReplicaGroups, options: dict[str, Any]) -> str:
    """Describes a collective, for workers to compare: they have to agree on all of it."""
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
    """Converts an argument that is a group size or a `ReplicaGroups`; if `optional`, None and 0 mean all replicas."""
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
            f"a reduction over replicas by `{reduction}` has no gradient; sums and means have. Wrap its input in"
            " `tf.stop_gradient` where none is needed"
        )
    return reduction


def _gradients(op: tf.Operation, of_values: Iterable[Gradient]) -> list[Gradient | None]:
    """Returns the gradients with respect to all inputs: the state and the order have none."""
    return [None, *of_values, *[None] * op.get_attr("orders")]


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
    own = reduce_scatter("all_gather_grad", flat, "sum", _groups(op))
    return _gradients(op, (tf.reshape(grad, tf.shape(value)) for grad, value in zip(own, _values(op), strict=True)))


@tf.RegisterGradient("IpuReduceScatter")
def _reduce_scatter_grad(op: tf.Operation, *grads: Gradient) -> list[Gradient | None]:
    reduction = _reduction(op)
    groups = _groups(op)
    gathered = all_gather("reduce_scatter_grad", _dense(grads), groups)
    # The padding at the end is not part of the input.
    whole = [tf.reshape(grad, [-1])[: tf.size(value)] for grad, value in zip(gathered, _values(op), strict=True)]
    if reduction == "mean":
        whole = [grad / tf.cast(groups.size, grad.dtype) for grad in whole]
    return _gradients(op, whole)


@tf.RegisterGradient("IpuAllToAll")
def _all_to_all_grad(op: tf.Operation, *grads: Gradient) -> list[Gradient | None]:
    return _gradients(op, _meet(ops.ipu_all_to_all, "all_to_all_grad", _dense(grads), _groups(op), None))


@tf.RegisterGradient("IpuBroadcast")
def _broadcast_grad(op: tf.Operation, *grads: Gradient) -> list[Gradient | None]:
    groups = _groups(op)
    summed = all_reduce("broadcast_grad", _dense(grads), "sum", groups)
    is_root = tf.equal(rank("broadcast_grad", groups), op.get_attr("root"))
    return _gradients(op, (tf.where(is_root, grad, tf.zeros_like(grad)) for grad in summed))


tf.no_gradient("IpuReplicaIndex")
