"""What `tf.distribute` asks of a strategy, answered for an IPU device in each of several worker processes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu import _worker_environment
from tensorflow_ipu._extended import IPUExtended, reduction
from tensorflow_ipu.hosts import World, exchange
from tensorflow_ipu.ops import random_streams, reductions

if TYPE_CHECKING:
    from tensorflow_ipu._types import Nested


class WorkerExtended(IPUExtended):
    """The side of `IPUMultiWorkerStrategy` that TensorFlow's own library code calls."""

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        ordinal: int,
        cpu_ordinal: int,
        host_kernels: bool,
        world: World,
        ipus_per_replica: int | None,
        reduces: bool,
    ) -> None:
        """Makes the side of a strategy."""
        super().__init__(strategy, ordinal, cpu_ordinal, host_kernels)
        self._world = world
        self._counted: int | None = None
        self._ipus_per_replica = ipus_per_replica
        self._reduces = reduces
        self._alone = False

    # Variables.

    def _create_variable(self, next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
        given = kwargs.get("initial_value")
        if self.workers > 1 and given is not None and not self._alone:
            kwargs["initial_value"] = self._agreed(given, kwargs.get("dtype"), kwargs.get("name") or "a variable")
        return super()._create_variable(next_creator, **kwargs)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """A block that not all workers run, in which variables begin with this worker's values."""
        before, self._alone = self._alone, True
        try:
            yield
        finally:
            self._alone = before

    def _agreed(self, given: Any, dtype: tf.DType | None, name: str) -> Callable[..., object]:
        """What makes the initial value of a variable: worker 0's."""

        def make(*args: Any, **kwargs: Any) -> object:
            value: Any = given(*args, **kwargs) if callable(given) else given
            if isinstance(given, tf.Tensor) and not tf.executing_eagerly():
                value = random_streams.on_host(given)
            value = tf.convert_to_tensor(value, dtype)
            return exchange.broadcast(self.world, value, f"the initial value of `{name}`")

        return make

    # Reductions.

    def _reduced(self, reduce_op: tf.distribute.ReduceOp | str, value: Nested) -> Nested:
        """Reduces all tensors of a structure: in a program over all replicas, outside of one over the workers."""
        if self.workers == 1 and self._reduces:
            return super()._reduced(reduce_op, value)
        mean = reduction(reduce_op) is tf.distribute.ReduceOp.MEAN
        if reductions.in_program():
            if not self._reduces:
                return value
            dense = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(value)]
            return tf.nest.pack_sequence_as(value, reductions.all_reduce(dense, mean))
        if self.workers == 1:
            return value
        return tf.nest.map_structure(
            lambda leaf: exchange.all_reduce(self.world, leaf, mean, "what is reduced outside of programs"), value
        )

    def _gather_to_implementation(
        self,
        value: Nested,
        destinations: object,
        axis: int,
        options: tf.distribute.experimental.CommunicationOptions | None,
    ) -> Nested:
        if self.workers == 1 or reductions.in_program():
            return super()._gather_to_implementation(value, destinations, axis, options)
        return tf.nest.map_structure(lambda leaf: self._gathered(leaf, axis), value)

    def _gathered(self, value: Any, axis: int) -> tf.Tensor:
        """What all workers have, along an axis in which they may differ."""
        what = "what is gathered outside of programs"
        tensor = tf.convert_to_tensor(value)
        front = tf.experimental.numpy.moveaxis(tensor, axis, 0)
        sizes = exchange.all_gather(self.world, tf.shape(front)[:1], what)
        padding = [[0, tf.reduce_max(sizes) - tf.shape(front)[0]], *([[0, 0]] * (front.shape.rank - 1))]
        rows = tf.split(exchange.all_gather(self.world, tf.pad(front, padding), what), self.workers)
        joined = tf.concat([rows[worker][: sizes[worker]] for worker in range(self.workers)], 0)
        return tf.experimental.numpy.moveaxis(joined, 0, axis)

    def _experimental_distribute_values_from_function(
        self, value_fn: Callable[[tf.distribute.experimental.ValueContext], Nested]
    ) -> Nested:
        first, all_of_them = self.first_replica, self._num_replicas_in_sync
        return value_fn(tf.distribute.experimental.ValueContext(first, all_of_them))

    # The shape of the system, as the host sees it.

    @property
    def workers(self) -> int:
        """How many workers there are."""
        return self.world.workers

    @property
    def worker(self) -> int:
        """Which of them this is."""
        return self.world.worker

    @property
    def world(self) -> World:
        """The workers."""
        return self._world

    @property
    def replicas(self) -> int:
        """How many replicas this worker has: as the block around says, else as many as there are IPUs for."""
        if self._counted is not None:
            return self._counted
        if self._ipus_per_replica is not None:
            return max(1, self.ipus // self._ipus_per_replica)
        said = _worker_environment.local_replicas()
        return said if said is not None and self.ipus % said == 0 else self.ipus

    @contextlib.contextmanager
    def counting(self, replicas: int) -> Iterator[None]:
        """A block in which this worker has so many replicas."""
        before, self._counted = self._counted, replicas
        try:
            yield
        finally:
            self._counted = before

    @property
    def first_replica(self) -> int:
        """The number of this worker's first replica, of all workers' replicas."""
        return self.worker * self.replicas

    @property
    def _num_replicas_in_sync(self) -> int:
        return self.workers * self.replicas

    @property
    def experimental_between_graph(self) -> bool:
        return self.workers > 1

    @property
    def should_checkpoint(self) -> bool:
        return self.world.is_chief

    @property
    def should_save_summary(self) -> bool:
        return self.world.is_chief

    def _in_multi_worker_mode(self) -> bool:
        return self.workers > 1
