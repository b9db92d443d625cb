"""The gradients of the collectives.

In effect, a program's loss is summed over the replicas: what one replica contributes to the results of others comes
back to it from their gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu.ops import _collectives
from tensorflow_ipu.replicas import ReplicaGroups

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tensorflow_ipu._types import Gradient


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
    """Gradients with respect to all inputs: the state and the order have none."""
    return [None, *of_values, *[None] * op.get_attr("orders")]


def _values(op: tf.Operation) -> list[tf.Tensor]:
    return op.inputs[1 : len(op.inputs) - op.get_attr("orders")]


def _dense(grads: Iterable[Gradient]) -> list[tf.Tensor]:
    return [tf.convert_to_tensor(grad) for grad in grads]


@tf.RegisterGradient("IpuAllReduce")
def _all_reduce_grad(op: tf.Operation, *grads: Gradient) -> list[Gradient | None]:
    if op.get_attr("reduction") == b"local":
        return _gradients(op, grads)
    return _gradients(op, _collectives.all_reduce("all_reduce_grad", _dense(grads), _reduction(op), _groups(op)))


@tf.RegisterGradient("IpuAllGather")
def _all_gather_grad(op: tf.Operation, *grads: Gradient) -> list[Gradient | None]:
    flat = [tf.reshape(grad, [-1]) for grad in _dense(grads)]
    own = _collectives.reduce_scatter("all_gather_grad", flat, "sum", _groups(op))
    return _gradients(op, (tf.reshape(grad, tf.shape(value)) for grad, value in zip(own, _values(op), strict=True)))


@tf.RegisterGradient("IpuReduceScatter")
def _reduce_scatter_grad(op: tf.Operation, *grads: Gradient) -> list[Gradient | None]:
    reduction = _reduction(op)
    groups = _groups(op)
    gathered = _collectives.all_gather("reduce_scatter_grad", _dense(grads), groups)
    # The padding at the end came from nowhere.
    whole = [tf.reshape(grad, [-1])[: tf.size(value)] for grad, value in zip(gathered, _values(op), strict=True)]
    if reduction == "mean":
        whole = [grad / tf.cast(groups.size, grad.dtype) for grad in whole]
    return _gradients(op, whole)


@tf.RegisterGradient("IpuAllToAll")
def _all_to_all_grad(op: tf.Operation, *grads: Gradient) -> list[Gradient | None]:
    backwards = op.get_attr("concat_dimension"), op.get_attr("split_dimension")
    return _gradients(op, _collectives.all_to_all("all_to_all_grad", _dense(grads), backwards, _groups(op)))


@tf.RegisterGradient("IpuBroadcast")
def _broadcast_grad(op: tf.Operation, *grads: Gradient) -> list[Gradient | None]:
    groups = _groups(op)
    summed = _collectives.all_reduce("broadcast_grad", _dense(grads), "sum", groups)
    is_root = tf.equal(_collectives.rank("broadcast_grad", groups), op.get_attr("root"))
    return _gradients(op, (tf.where(is_root, grad, tf.zeros_like(grad)) for grad in summed))


tf.no_gradient("IpuReplicaIndex")
