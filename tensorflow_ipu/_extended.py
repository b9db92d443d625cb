"""What `tf.distribute` asks of a strategy, answered for one IPU device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import device_util, distribute_lib, distribute_utils, reduce_util
from tensorflow.python.framework import indexed_slices

_REDUCTIONS = (reduce_util.ReduceOp.SUM, reduce_util.ReduceOp.MEAN)


class IPUReplicaContext(distribute_lib.ReplicaContext):
    """The context in which a program is traced."""

    def __init__(self, strategy: Any) -> None:
        super().__init__(strategy, replica_id_in_sync_group=0)

    @property
    def devices(self) -> tuple[str, ...]:
        """The one device of the strategy."""
        return (self._strategy.extended.ipu_device,)


class IPUExtended(distribute_lib.StrategyExtendedV1):
    """The side of `IPUStrategy` that TensorFlow's own library code calls."""

    def __init__(self, strategy: Any, ipu_device: str, cpu_device: str) -> None:
        super().__init__(strategy)
        self.ipu_device = device_util.resolve(ipu_device)
        self.cpu_device = device_util.resolve(cpu_device)
        self.ordinal: int = tf.DeviceSpec.from_string(self.ipu_device).device_index or 0

    # Variables.

    def _create_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        colocate_with = kwargs.pop("colocate_with", None)
        initial_value = kwargs.get("initial_value")
        if callable(initial_value):
            kwargs["initial_value"] = lambda *args, **extra: self._on_host(initial_value, *args, **extra)
        device = self.ipu_device if colocate_with is None else getattr(colocate_with, "device", self.ipu_device)
        with tf.device(device):
            return next_creator(**kwargs)

    def _on_host(self, initial_value: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with tf.device(self.cpu_device):
            return initial_value(*args, **kwargs)

    def _validate_colocate_with_variable(self, colocate_with_variable: Any) -> None:
        distribute_utils.validate_colocate(colocate_with_variable, self)

    def variable_created_in_scope(self, v: Any) -> bool:
        return v._distribute_strategy is None or v._distribute_strategy is self._container_strategy()

    def read_var(self, replica_local_var: Any) -> Any:
        return tf.identity(replica_local_var)

    def value_container(self, value: Any) -> Any:
        return value

    # Calls.

    def _call_for_each_replica(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        with tf.device(self.ipu_device), IPUReplicaContext(self._container_strategy()):
            return fn(*args, **kwargs)

    def _update(self, var: Any, fn: Callable[..., Any], args: Any, kwargs: Any, group: bool) -> Any:
        return self._update_non_slot(var, fn, (var, *args), kwargs, group)

    def _update_non_slot(self, colocate_with: Any, fn: Callable[..., Any], args: Any, kwargs: Any, group: bool) -> Any:
        with tf.device(self.ipu_device), distribute_lib.UpdateContext(self.ipu_device):
            result = fn(*args, **kwargs)
            return result if group else tf.nest.map_structure(self._local_results, result)

    def _local_results(self, value: Any) -> tuple[Any, ...]:
        return (value,)

    def _get_local_replica_id(self, replica_id_in_sync_group: Any) -> Any:
        return replica_id_in_sync_group

    def _use_merge_call(self) -> bool:
        # A program is traced once, by one thread, so there is nothing to merge.
        return False

    # Reductions.

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        del destinations, options
        _check_reduction(reduce_op)
        return value

    def _batch_reduce_to(self, reduce_op: Any, value_destination_pairs: Any, options: Any) -> list[Any]:
        return [self._reduce_to(reduce_op, value, to, options) for value, to in value_destination_pairs]

    def _replica_ctx_all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        del options
        _check_reduction(reduce_op)
        return tf.nest.map_structure(_identity, value)

    def _gather_to_implementation(self, value: Any, destinations: Any, axis: int, options: Any) -> Any:
        del destinations, axis, options
        return value

    def _broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        del destinations
        return tensor

    # Data.

    def _make_dataset_iterator(self, dataset: Any) -> Any:
        return tf.compat.v1.data.make_initializable_iterator(dataset)

    def _make_input_fn_iterator(self, input_fn: Callable[[Any], Any], replication_mode: Any = None) -> Any:
        del replication_mode
        return self._make_dataset_iterator(input_fn(distribute_lib.InputContext()))

    def _experimental_distribute_values_from_function(self, value_fn: Callable[[Any], Any]) -> Any:
        return value_fn(distribute_lib.ValueContext())

    def _global_batch_size(self) -> bool:
        return True

    # The shape of the system, as the host sees it.

    @property
    def _num_replicas_in_sync(self) -> int:
        return 1

    @property
    def worker_devices(self) -> tuple[str, ...]:
        return (self.ipu_device,)

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        return (self.ipu_device,)

    def non_slot_devices(self, var_list: Any) -> tuple[str, ...]:
        del var_list
        return (self.ipu_device,)

    @property
    def _num_replicas_in_sync_or_none(self) -> int:
        return 1

    @property
    def experimental_require_static_shapes(self) -> bool:
        return True

    @property
    def experimental_between_graph(self) -> bool:
        return False

    @property
    def experimental_should_init(self) -> bool:
        return True

    @property
    def should_checkpoint(self) -> bool:
        return True

    @property
    def should_save_summary(self) -> bool:
        return True

    def _in_multi_worker_mode(self) -> bool:
        return False


def _check_reduction(reduce_op: Any) -> None:
    if reduce_op not in _REDUCTIONS:
        raise ValueError(f"Unsupported reduce op: {reduce_op}. Reduce with `tf.distribute.ReduceOp.SUM` or `MEAN`")


def _identity(value: Any) -> Any:
    if isinstance(value, indexed_slices.IndexedSlices):
        return value
    return tf.identity(value)
