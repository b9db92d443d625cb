"""`IPUMultiWorkerStrategy`: an `IPUStrategy` over several processes, on one or more hosts."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tensorflow_ipu import hosts
from tensorflow_ipu._base import environment
from tensorflow_ipu._base.checks import check_bool, is_int
from tensorflow_ipu._base.types import Nested
from tensorflow_ipu.config import IPUConfig, _state
from tensorflow_ipu.hosts import Cluster, exchange
from tensorflow_ipu.hosts.mpi import Communicator
from tensorflow_ipu.ops import random_streams, reductions
from tensorflow_ipu.strategy import IPUStrategyV1
from tensorflow_ipu.strategy.extended import IPUExtended, reduction
from tensorflow_ipu.strategy.share import share_of

_logger = logging.getLogger(__name__)


class _Thread(threading.local):
    replicas: int | None = None  # The replicas of this thread's program, if known.


class WorkerExtended(IPUExtended):
    """The methods of `IPUMultiWorkerStrategy` that TensorFlow's library code calls."""

    def __init__(self, cluster: Cluster, ipus_per_replica: int | None, reduces: bool, *base_arguments: Any) -> None:
        super().__init__(*base_arguments)
        self._cluster = self.cluster = cluster
        self.workers, self.worker = cluster.workers, cluster.worker
        self._thread = _Thread()
        self._ipus_per_replica = ipus_per_replica
        self._reduces = reduces
        self._alone = False

    def _create_variable(self, next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
        initial = kwargs.get("initial_value")
        if self.workers > 1 and initial is not None and not self._alone:
            name = kwargs.get("name") or "a variable"
            kwargs["initial_value"] = self._broadcast_from_chief(initial, kwargs.get("dtype"), name)
        return super()._create_variable(next_creator, **kwargs)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        was_alone, self._alone = self._alone, True
        try:
            yield
        finally:
            self._alone = was_alone

    def _broadcast_from_chief(self, initial: Any, dtype: tf.DType | None, name: str) -> Callable[..., object]:
        """Returns a function that returns worker 0's initial value of a variable on all workers."""

        def make(*args: Any, **kwargs: Any) -> object:
            value: Any = initial(*args, **kwargs) if callable(initial) else initial
            if isinstance(initial, tf.Tensor) and not tf.executing_eagerly():
                value = random_streams.on_host(initial)
            value = tf.convert_to_tensor(value, dtype)
            return exchange.collective(self._cluster, "broadcast", value, f"the initial value of `{name}`")

        return make

    def _reduced(self, reduce_op: tf.distribute.ReduceOp | str, value: Nested) -> Nested:
        """Reduces all tensors of a structure: over all replicas in a program, and over the workers outside."""
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
        return self._collective("mean" if mean else "sum", value, "what is reduced outside of programs")

    def _collective(self, kind: str, value: Nested, description: str) -> Nested:
        return tf.nest.map_structure(lambda leaf: exchange.collective(self._cluster, kind, leaf, description), value)

    def _gather_to_implementation(
        self,
        value: Nested,
        destinations: object,
        axis: int,
        options: tf.distribute.experimental.CommunicationOptions | None,
    ) -> Nested:
        if self.workers == 1 or reductions.in_program():
            return super()._gather_to_implementation(value, destinations, axis, options)
        rows = tf.nest.map_structure(lambda leaf: tf.experimental.numpy.moveaxis(leaf, axis, 0), value)
        gathered = self._collective("rows", rows, "what is gathered outside of programs")
        return tf.nest.map_structure(lambda leaf: tf.experimental.numpy.moveaxis(leaf, 0, axis), gathered)

    @property
    def replicas(self) -> int:
        """The number of replicas of this worker."""
        if self._thread.replicas is not None:
            return self._thread.replicas
        if self._ipus_per_replica is not None:
            return max(1, self.ipus // self._ipus_per_replica)
        launched = environment.local_replicas()
        return launched if launched is not None and self.ipus % launched == 0 else self.ipus

    @contextlib.contextmanager
    def counting(self, replicas: int) -> Iterator[None]:
        previous, self._thread.replicas = self._thread.replicas, replicas
        try:
            yield
        finally:
            self._thread.replicas = previous

    @property
    def first_replica(self) -> int:
        return self.worker * self.replicas

    @property
    def _num_replicas_in_sync(self) -> int:
        return self.workers * self.replicas


class IPUMultiWorkerStrategyV1(IPUStrategyV1):
    """An `IPUStrategy` over several processes, the workers. Each worker has some of the replicas.

    All workers run the same program, each on its share of the data:

        strategy = ipu.IPUMultiWorkerStrategy()  # Started by `mpiexec -n 2 python train.py`.
        with strategy.scope():
            model = tf.keras.Sequential([...])
            model.compile(...)
            model.fit(x, y)

    Variables get worker 0's initial values. Programs reduce over the replicas of all workers. `num_replicas_in_sync` is
    the number of all these replicas, and Keras divides losses by it. So w workers of r replicas compute the same as one
    worker of w * r replicas.

    Attributes:
      cluster: The workers, with the number of this process among them.
      bytes_per_pack: The most bytes of a message, from `communication_options`; 0 if the configuration sets the size.
    """

    def __init__(
        self,
        cluster_resolver: tf.distribute.cluster_resolver.ClusterResolver | None = None,
        ipu_device: str = "/device:IPU:0",
        variables_on_host: bool = False,
        cpu_device: str = "/device:CPU:0",
        enable_dataset_iterators: bool = True,
        enable_keras_extensions: bool = True,
        *,
        add_ipu_cross_replica_reductions: bool = True,
        ipus_per_replica: int | None = None,
        host_kernels: bool | None = None,
        communication_options: tf.distribute.experimental.CommunicationOptions | None = None,
        timeout: float | None = None,
        communicator: Communicator | None = None,
    ) -> None:
        """Joins the cluster, waits for all workers, and creates the strategy.

        The arguments of `IPUStrategy` have the same meaning and errors here.

        Args:
          cluster_resolver: A resolver that must agree with MPI about the workers. None: `TF_CONFIG` must agree, if it
            is set.
          ipu_device: The IPU device.
          variables_on_host: It is checked, and has no effect here.
          cpu_device: The device on which initial values are computed.
          enable_dataset_iterators: Whether `iter(dataset)` in the scope returns an `IPUIterator`.
          enable_keras_extensions: Whether Keras models run their loops on the device.
          add_ipu_cross_replica_reductions: Whether the strategy reduces values over replicas in programs, such as
            gradients. If False, the program has to reduce them.
          ipus_per_replica: The IPUs of a replica, for shares of datasets and `num_replicas_in_sync`; Keras models use
            the IPUs of their stages. None: `TENSORFLOW_IPU_IPUS_PER_REPLICA`. If that is unset, there are
            `TENSORFLOW_IPU_REPLICAS` replicas, which `run --replicas` sets, or else one replica per IPU.
          host_kernels: Whether TensorFlow's kernels may compute layers.
          communication_options: Its `timeout_seconds` is used if `timeout` is None. Its `bytes_per_pack`, the same on
            all workers, is the most bytes of a message; 0 means `optimizations.maximum_cross_replica_sum_buffer_size`.
          timeout: The seconds to wait for workers, when joining and in each collective. None: `TENSORFLOW_IPU_TIMEOUT`,
            or 60 if that is unset.
          communicator: A communicator of `mpi4py` whose processes are the workers. None: all processes that MPI's
            launcher has started, or one worker without a launcher.

        Raises:
          ClusterError: Not all workers joined within `timeout`.
          ValueError: `timeout` or `communication_options` is malformed, or the resolver disagrees with MPI.
          TypeError: An argument has a wrong type.
        """
        check_bool("variables_on_host", variables_on_host)
        check_bool("add_ipu_cross_replica_reductions", add_ipu_cross_replica_reductions)
        if ipus_per_replica is not None and (not is_int(ipus_per_replica) or ipus_per_replica < 1):
            raise ValueError(f"`ipus_per_replica` must be a positive whole number, but is {ipus_per_replica!r}")
        self._ipus_per_replica = ipus_per_replica or environment.ipus_per_replica()
        self.bytes_per_pack = 0
        if communication_options is not None:
            self.bytes_per_pack, seconds = _checked_options(communication_options)
            timeout = seconds if timeout is None else timeout
        self._reduces = add_ipu_cross_replica_reductions
        self.cluster = hosts.join(cluster_resolver, timeout, communicator)
        self._cluster_resolver = _resolver(cluster_resolver, self.cluster)
        super().__init__(
            ipu_device, cpu_device, enable_dataset_iterators, enable_keras_extensions, host_kernels=host_kernels
        )
        _state.set_pack_bytes(self.bytes_per_pack)
        _logger.debug("worker %d of %d", self.cluster.worker, self.cluster.workers)

    def _make_extended(self, ordinal: int, cpu_ordinal: int, host_kernels: bool) -> IPUExtended:
        base_arguments = (self, ordinal, cpu_ordinal, host_kernels)
        return WorkerExtended(self.cluster, self._ipus_per_replica, self._reduces, *base_arguments)

    @property
    def cluster_resolver(self) -> tf.distribute.cluster_resolver.ClusterResolver:
        """The resolver of the workers, for callbacks and code of `tf.distribute`."""
        return self._cluster_resolver

    def experimental_distribute_dataset(
        self, dataset: tf.data.Dataset, options: tf.distribute.InputOptions | None = None
    ) -> tf.data.Dataset:
        """Returns this worker's share of a dataset that all workers have, without batching it again.

        `dataset.options().experimental_distribute.auto_shard_policy` selects the share. With `AUTO` and `DATA`, replica
        g of R gets the elements g, g + R and so on. `FILE` and `HINT` have TensorFlow's meaning. With `OFF`, every
        worker gets all elements.

        Args:
          dataset: The dataset, batched for one replica.
          options: Accepted for `tf.distribute`; no effect.
        """
        del options
        if not isinstance(dataset, tf.data.Dataset):
            return dataset  # Keras passes an object that is a share already.
        extended: Any = self.extended
        return share_of(dataset, self.cluster, extended.replicas)

    def distribute_datasets_from_function(
        self,
        dataset_fn: Callable[[tf.distribute.InputContext], tf.data.Dataset],
        options: tf.distribute.InputOptions | None = None,
    ) -> tf.data.Dataset:
        """Returns this worker's dataset, `dataset_fn(context)`.

        Args:
          dataset_fn: A function of a `tf.distribute.InputContext`, whose `input_pipeline_id` is the number of this
            worker.
          options: Accepted for `tf.distribute`; no effect.
        """
        del options
        context = tf.distribute.InputContext(self.cluster.workers, self.cluster.worker, self.num_replicas_in_sync)
        return dataset_fn(context)

    experimental_distribute_datasets_from_function = distribute_datasets_from_function

    def update_ipu_config(self, config: IPUConfig) -> IPUConfig:
        """Sets the number of workers and the number of this worker in a configuration, and returns it unapplied."""
        processes = config.experimental.multi_replica_distribution
        processes.process_count, processes.process_index = self.cluster.workers, self.cluster.worker
        return config


IPUMultiWorkerStrategy = IPUMultiWorkerStrategyV1
"""The usual name of `IPUMultiWorkerStrategyV1`."""


class PopDistStrategy(IPUMultiWorkerStrategyV1):
    """`IPUMultiWorkerStrategy` with the arguments that scripts for `poprun` pass."""

    def __init__(
        self,
        ipu_device: str = "/device:IPU:0",
        add_ipu_cross_replica_reductions: bool = True,
        enable_dataset_iterators: bool = True,
        enable_keras_extensions: bool = True,
    ) -> None:
        """Joins the cluster and creates the strategy; see `IPUMultiWorkerStrategy` for the arguments and errors."""
        super().__init__(
            None,
            ipu_device,
            enable_dataset_iterators=enable_dataset_iterators,
            enable_keras_extensions=enable_keras_extensions,
            add_ipu_cross_replica_reductions=add_ipu_cross_replica_reductions,
        )


def _resolver(resolver: object, cluster: Cluster) -> tf.distribute.cluster_resolver.ClusterResolver:
    kinds = tf.distribute.cluster_resolver
    if cluster.workers == 1:
        return resolver if isinstance(resolver, kinds.ClusterResolver) else kinds.TFConfigClusterResolver()
    # The worker's number replaces the port, because nothing connects to these addresses.
    spec = tf.train.ClusterSpec({"worker": [f"{host}:{worker}" for worker, host in enumerate(cluster.hosts)]})
    return kinds.SimpleClusterResolver(spec, task_type="worker", task_id=cluster.worker, rpc_layer="grpc")


def _checked_options(options: object) -> tuple[int, float | None]:
    """Returns the bytes of a message and the timeout in seconds from TensorFlow's options of collectives."""
    kinds = tf.distribute.experimental
    if not isinstance(
        options, type(kinds.CommunicationOptions())
    ):  # TensorFlow does not export the class of the object.
        raise TypeError(
            f"`communication_options` must be a `tf.distribute.experimental.CommunicationOptions`, but is {options!r}"
        )
    checked: Any = options
    if checked.implementation == kinds.CommunicationImplementation.NCCL:
        raise ValueError(
            "`communication_options` asks for NCCL, which connects GPUs, and workers of emulated IPUs have none: leave out"
            " `implementation`"
        )
    return checked.bytes_per_pack, checked.timeout_seconds
