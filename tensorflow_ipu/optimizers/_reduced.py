"""Gradients that are reduced over the replicas, and the update that is not to reduce them again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tensorflow_ipu._tensorflow import distribute
from tensorflow_ipu.ops import reductions


def mean(gradients: Sequence[Any]) -> list[Any]:
    """The means of gradients over all replicas, in one meeting of theirs.

    Args:
      gradients: Tensors, `tf.IndexedSlices`, which become dense, and None, which stays.

    Raises:
      RuntimeError: No program is being traced.
    """
    dense = [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]
    reduced = iter(reductions.all_reduce(dense, mean=True))
    return [None if gradient is None else next(reduced) for gradient in gradients]


@contextlib.contextmanager
def as_they_are() -> Iterator[None]:
    """A block in which optimizers take gradients as they are, where under a strategy they would add up the replicas'."""
    around = tf.distribute.get_replica_context()
    if around is None or not tf.distribute.has_strategy():
        yield
    else:
        with _SumsNothing(around):
            yield


class _SumsNothing(tf.distribute.ReplicaContext):
    """The context of a replica, as optimizers see it, but for its sums."""

    def __init__(self, around: Any) -> None:
        super().__init__(around.strategy, replica_id_in_sync_group=0)
        self._around = around

    @property
    def replica_id_in_sync_group(self) -> Any:
        return self._around.replica_id_in_sync_group

    @property
    def devices(self) -> tuple[str, ...]:
        return self._around.devices

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        del reduce_op, options
        return value

    def _merge_call(self, merge_fn: Any, args: Any, kwargs: Any) -> Any:
        distribute.enter_mode(distribute.cross_replica_mode(self._strategy))
        try:
            return merge_fn(_Strategy(self._strategy), *args, **kwargs)
        finally:
            distribute.leave_mode()


class _Strategy:
    """A strategy that `merge_call` hands on, whose sums are the gradients as they are."""

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self.extended = _Extended(strategy.extended)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy, name)


class _Extended:
    def __init__(self, extended: Any) -> None:
        self._extended = extended

    def batch_reduce_to(self, reduce_op: Any, pairs: Any, options: Any = None) -> list[Any]:
        del reduce_op, options
        return [value for value, _ in pairs]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._extended, name)
