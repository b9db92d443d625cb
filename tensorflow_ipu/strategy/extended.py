"""`IPUExtended`: the methods of the strategy that `tf.distribute` calls, for one IPU device."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu._base.types import Nested
from tensorflow_ipu._tensorflow import devices, graphs, variables
from tensorflow_ipu.config import _state
from tensorflow_ipu.hosts import Cluster
from tensorflow_ipu.ops import random_streams, reductions, replication_ops


def reduction(reduce_op: tf.distribute.ReduceOp | str) -> tf.distribute.ReduceOp:
    """Returns the `tf.distribute.ReduceOp` for an operation or its name; raises `ValueError` for other reductions."""
    name = reduce_op.upper() if isinstance(reduce_op, str) else reduce_op
    for supported in (tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN):
        if name in (supported, supported.value):
            return supported
    raise ValueError(
        f"Unsupported reduce op: `reduce_op` is {reduce_op!r}. Reduce with `tf.distribute.ReduceOp.SUM` or `MEAN`"
    )


class IPUReplicaContext(tf.distribute.ReplicaContext):
    """The replica context of `tf.distribute` during the trace of a program."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        super().__init__(strategy, replica_id_in_sync_group=0)

    @property
    def devices(self) -> tuple[str, ...]:
        return (self._strategy.extended.ipu_device,)

    @property
    def replica_id_in_sync_group(self) -> int | tf.Tensor:
        """The replica index: an int32 scalar in a program, and the first replica of this process outside a program."""
        return replication_ops.replication_index() if reductions.in_program() else self._strategy.extended.first_replica

    def all_reduce(
        self,
        reduce_op: tf.distribute.ReduceOp | str,
        value: Nested,
        options: tf.distribute.experimental.CommunicationOptions | None = None,
    ) -> Nested:
        return super().all_reduce(reduction(reduce_op), value, options)

    def all_gather(
        self,
        value: Nested,
        axis: int,
        options: tf.distribute.experimental.CommunicationOptions | None = None,
    ) -> Nested:
        is_sparse = any(isinstance(leaf, tf.IndexedSlices) for leaf in tf.nest.flatten(value))
        if is_sparse or not reductions.in_program():
            return super().all_gather(value, axis, options)
        # TensorFlow's gradient of a gather slices by lengths that are known at run time. Programs need static shapes.
        return self._strategy.extended.gathered(value, axis)


class IPUExtended(tf.compat.v1.distribute.StrategyExtended):
    """The methods of `IPUStrategy` that TensorFlow's library code calls.

    Attributes:
      cluster: The processes that share the strategy; None for a strategy of a single process.
      workers: The number of these processes.
      worker: The number of this process among them.
    """

    cluster: Cluster | None = None
    workers = 1
    worker = 0

    def __init__(self, strategy: tf.distribute.Strategy, ordinal: int, cpu_ordinal: int, host_kernels: bool) -> None:
        super().__init__(strategy)
        self.ordinal = ordinal
        self.ipu_device = devices.full_name(f"/device:IPU:{ordinal}")
        self.host_kernels = host_kernels
        self.cpu_device = devices.full_name(f"/device:CPU:{cpu_ordinal}")
        self._target = programs.Target(None, host_kernels)
        self._configured: tuple[int, ...] | None = None  # The configuration for which `_target` was made.
        self._require_static_shapes = True  # As for every strategy whose programs XLA compiles.

    @property
    def ipus(self) -> int:
        """The number of IPUs of the device in the current configuration; 1 if it does not exist."""
        return _state.ipus_or_one(self.ordinal)

    @property
    def target(self) -> programs.Target:
        """The target of traces under the current configuration."""
        # Each run reads this property, so the target is cached until the system is configured again.
        configured = _state.ipus()
        if self._configured is not configured:
            _state.warn_of_unapplied()
            self._configured = configured
            floating_point = programs.floating_point_of(self.ordinal)
            self._target = programs.Target(_state.ipus_or_one(self.ordinal), self.host_kernels, floating_point)
        return self._target

    @contextlib.contextmanager
    def without_traps(self) -> Iterator[None]:
        """Runs the block with traps disabled, so that no floating-point exception stops a program. Not thread-safe."""
        self._target = self.target.without_traps()
        try:
            yield
        finally:
            self._configured = None

    def _create_variable(self, next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
        colocate_with = kwargs.pop("colocate_with", None)
        initial_value = kwargs.get("initial_value")
        if callable(initial_value):
            kwargs["initial_value"] = lambda *args, **extra: self._on_host(initial_value, *args, **extra)
        elif isinstance(initial_value, tf.Tensor) and not tf.executing_eagerly():
            kwargs["initial_value"] = random_streams.on_host(initial_value)
        device = self.ipu_device if colocate_with is None else getattr(colocate_with, "device", self.ipu_device)
        with tf.device(device):
            return next_creator(**kwargs)

    def _on_host(self, initial_value: Callable[..., object], *args: Any, **kwargs: Any) -> object:
        with _not_colocated(), tf.device(self.cpu_device), programs.on_host():
            return initial_value(*args, **kwargs)

    def _validate_colocate_with_variable(self, colocate_with_variable: tf.Variable) -> None:
        try:
            devices.check_colocated(colocate_with_variable, self)
        except ValueError as exc:
            raise ValueError(
                f"`{colocate_with_variable.name}` was made outside of the scope of the strategy that updates it: make the"
                " model inside `strategy.scope()`, and its optimizer and variables too"
            ) from exc

    def read_var(self, replica_local_var: tf.Variable) -> tf.Tensor:
        return tf.identity(replica_local_var)

    def value_container(self, value: Nested) -> Nested:
        return value

    @functools.cached_property
    def as_replica(self) -> contextlib.AbstractContextManager[None]:
        """A context in which traces are found. It only sets the replica context, a part of TensorFlow's cache key."""
        return devices.replica_mode(IPUReplicaContext(self._container_strategy()))

    def call_on_device(self, fn: Callable[..., Nested], args: Nested, kwargs: Nested) -> Nested:
        with tf.device(self.ipu_device), IPUReplicaContext(self._container_strategy()):
            return fn(*args, **kwargs)

    def _call_for_each_replica(self, fn: Callable[..., Nested], args: Nested, kwargs: Nested) -> Nested:
        return self.call_on_device(fn, args, kwargs)

    def _update(self, var: tf.Variable, fn: Callable[..., Nested], args: Nested, kwargs: Nested, group: bool) -> Nested:
        return self._update_non_slot(var, fn, (var, *args), kwargs, group)

    def _update_non_slot(
        self, colocate_with: object, fn: Callable[..., Nested], args: Nested, kwargs: Nested, group: bool
    ) -> Nested:
        del colocate_with  # All variables are on the one device.
        with tf.device(self.ipu_device), devices.updating(self.ipu_device):
            result = fn(*args, **kwargs)
            return result if group else tf.nest.map_structure(self._local_results, result)

    def _local_results(self, value: Nested) -> tuple[Nested, ...]:
        return (value,)

    def _get_local_replica_id(self, replica_id_in_sync_group: int | tf.Tensor) -> int | tf.Tensor:
        return replica_id_in_sync_group

    def _use_merge_call(self) -> bool:
        # One thread traces a program once for all replicas, so there is nothing to merge.
        return False

    def reduce_to(
        self,
        reduce_op: tf.distribute.ReduceOp | str,
        value: Nested,
        destinations: object,
        options: tf.distribute.experimental.CommunicationOptions | None = None,
    ) -> Nested:
        return super().reduce_to(reduction(reduce_op), value, destinations, options)

    def batch_reduce_to(
        self,
        reduce_op: tf.distribute.ReduceOp | str,
        value_destination_pairs: Iterable[tuple[Nested, object]],
        options: tf.distribute.experimental.CommunicationOptions | None = None,
    ) -> list[Nested]:
        return super().batch_reduce_to(reduction(reduce_op), value_destination_pairs, options)

    def _reduce_to(
        self,
        reduce_op: tf.distribute.ReduceOp | str,
        value: Nested,
        destinations: object,
        options: tf.distribute.experimental.CommunicationOptions | None,
    ) -> Nested:
        del destinations, options
        return self._reduced(reduce_op, value)

    def _batch_reduce_to(
        self,
        reduce_op: tf.distribute.ReduceOp | str,
        value_destination_pairs: Iterable[tuple[Nested, object]],
        options: tf.distribute.experimental.CommunicationOptions | None,
    ) -> list[Nested]:
        del options
        return self._reduced(reduce_op, [value for value, _ in value_destination_pairs])

    def _replica_ctx_all_reduce(
        self,
        reduce_op: tf.distribute.ReduceOp | str,
        value: Nested,
        options: tf.distribute.experimental.CommunicationOptions | None = None,
    ) -> Nested:
        del options
        reduced = self._reduced(reduce_op, value)
        if reduced is not value:
            return reduced
        return tf.nest.map_structure(
            lambda leaf: leaf if isinstance(leaf, tf.IndexedSlices) else tf.identity(leaf), value
        )

    def _reduced(self, reduce_op: tf.distribute.ReduceOp | str, value: Nested) -> Nested:
        """Reduces all tensors of a structure over the replicas at once. Outside a program, there is one replica."""
        if not reductions.in_program() or programs.ipus_traced_for() == 1:
            return value
        dense = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(value)]
        reduced = reductions.all_reduce(dense, reduction(reduce_op) is tf.distribute.ReduceOp.MEAN)
        return tf.nest.pack_sequence_as(value, reduced)

    def _gather_to_implementation(
        self,
        value: Nested,
        destinations: object,
        axis: int,
        options: tf.distribute.experimental.CommunicationOptions | None,
    ) -> Nested:
        del destinations, options
        return self.gathered(value, axis) if reductions.in_program() else value

    def gathered(self, value: Nested, axis: int) -> Nested:
        return reductions.all_gather(value, axis, self.ordinal, self.workers)

    def _broadcast_to(self, tensor: Nested, destinations: object) -> Nested:
        del destinations
        return tensor

    def _experimental_distribute_values_from_function(
        self, value_fn: Callable[[tf.distribute.experimental.ValueContext], Nested]
    ) -> Nested:
        return value_fn(tf.distribute.experimental.ValueContext(self.first_replica, self._num_replicas_in_sync))

    def _make_dataset_iterator(self, dataset: tf.data.Dataset) -> _InputIterator:
        return _InputIterator(self._container_strategy().experimental_distribute_dataset(dataset), self.cpu_device)

    def _make_input_fn_iterator(
        self, input_fn: Callable[[tf.distribute.InputContext], Nested], replication_mode: object = None
    ) -> _InputIterator:
        del replication_mode  # There is only one mode.
        with tf.device(self.cpu_device):
            source = self._container_strategy().distribute_datasets_from_function(input_fn)
        return _InputIterator(source, self.cpu_device)

    def _experimental_make_numpy_dataset(
        self, numpy_input: Nested, session: tf.compat.v1.Session | None
    ) -> tf.data.Dataset:
        return variables.numpy_dataset(numpy_input, self.cpu_device, session)

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context for code of one worker: its new variables get this worker's initial values."""
        return contextlib.nullcontext()

    def counting(self, replicas: int) -> contextlib.AbstractContextManager[None]:
        """Returns a context that sets the number of this process's replicas on the current thread."""
        del replicas
        return contextlib.nullcontext()

    @property
    def first_replica(self) -> int:
        """The number of this process's first replica."""
        return 0

    @property
    def _num_replicas_in_sync(self) -> int:
        return 1

    @property
    def worker_devices(self) -> tuple[str, ...]:
        return (self.ipu_device,)

    parameter_devices = worker_devices

    def non_slot_devices(self, var_list: object) -> tuple[str, ...]:
        del var_list
        return (self.ipu_device,)

    @property
    def experimental_between_graph(self) -> bool:
        return self.workers > 1

    @property
    def experimental_should_init(self) -> bool:
        return True

    @property
    def should_checkpoint(self) -> bool:
        return self.worker == 0

    @property
    def should_save_summary(self) -> bool:
        return self.worker == 0

    @property
    def _global_batch_size(self) -> bool:
        return True

    def _in_multi_worker_mode(self) -> bool:
        return self.workers > 1


def _not_colocated() -> contextlib.AbstractContextManager[None]:
    """Returns a context in which a graph does not colocate the initial value of a variable with the variable."""
    if tf.executing_eagerly() or not graphs.has_attribute_now("_class"):
        return contextlib.nullcontext()
    return graphs.attributed({"_class": None})


class _InputIterator:
    """The iterator of TensorFlow 1's strategies: returns elements of a dataset, or results of a function, on the host.

    In a graph, a session has to run `initializer` first. In eager execution the iterator is ready, and `initialize()`
    restarts it.
    """

    def __init__(self, source: tf.data.Dataset | Callable[[], Nested], device: str) -> None:
        if not isinstance(source, tf.data.Dataset) and not callable(source):
            raise ValueError(f"`input_fn` must return a `tf.data.Dataset` or a function, but returned {source!r}")
        self._source = source
        self._device = device
        self._iterator = self._make()

    def _make(self) -> Nested:
        if not isinstance(self._source, tf.data.Dataset):
            return None
        make = tf.compat.v1.data.make_one_shot_iterator
        if not tf.compat.v1.executing_eagerly_outside_functions():
            make = tf.compat.v1.data.make_initializable_iterator
        with tf.device(self._device):
            return make(self._source)

    def get_next(self) -> Nested:
        """Returns the next element."""
        with tf.device(self._device):
            return self._iterator.get_next() if isinstance(self._source, tf.data.Dataset) else self._source()

    def initialize(self) -> tf.Operation | None:
        """Returns the operation that initializes the iterator. In eager execution, restarts it and returns None."""
        if tf.compat.v1.executing_eagerly_outside_functions():
            self._iterator = self._make()
            return None
        return tf.no_op() if self._iterator is None else self._iterator.initializer

    @property
    def initializer(self) -> tf.Operation | None:
        """The result of `initialize()`."""
        return self.initialize()

    @property
    def element_spec(self) -> Nested:
        """The structure of an element; None for a function."""
        return self._source.element_spec if isinstance(self._source, tf.data.Dataset) else None
