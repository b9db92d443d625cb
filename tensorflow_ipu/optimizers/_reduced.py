"""Gradients that are reduced over the replicas, and the update that is not to reduce them again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._tensorflow import distribute
from tensorflow_ipu.ops import reductions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tensorflow_ipu._base.types import Gradient, Nested


def mean(gradients: Sequence[Gradient | None]) -> list[tf.Tensor | None]:
    """The means of gradients over all replicas, in one meeting of theirs."""
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
        with _NoReduction(around):
            yield


class _NoReduction(tf.distribute.ReplicaContext):
    """The context of a replica, as optimizers see it, but for its sums."""

    def __init__(self, around: tf.distribute.ReplicaContext) -> None:
        super().__init__(around.strategy, replica_id_in_sync_group=0)
        self._around = around

    @property
    def replica_id_in_sync_group(self) -> int | tf.Tensor:
        return self._around.replica_id_in_sync_group

    @property
    def devices(self) -> tuple[str, ...]:
        return self._around.devices

    def all_reduce(self, reduce_op: object, value: Nested, options: object = None) -> Nested:
        del reduce_op, options
        return value

    def _merge_call(self, merge_fn: Callable[..., Nested], args: Nested, kwargs: Nested) -> Nested:
        distribute.enter_mode(distribute.cross_replica_mode(self._strategy))
        try:
            return merge_fn(_Strategy(self._strategy), *args, **kwargs)
        finally:
            distribute.leave_mode()


class _Strategy:
    """A strategy that `merge_call` hands on, whose sums are the gradients as they are."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        self.extended = _Extended(strategy.extended)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy, name)


class _Extended:
    def __init__(self, extended: tf.distribute.StrategyExtended) -> None:
        self._extended = extended

    def batch_reduce_to(
        self, reduce_op: object, pairs: Iterable[tuple[Nested, object]], options: object = None
    ) -> list[Nested]:
        del reduce_op, options
        return [value for value, _ in pairs]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._extended, name)
