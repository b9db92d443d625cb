"""The base class of wrappers of TensorFlow 1's optimizers, wrappers without accumulation, and means over replicas."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu import sharding
from tensorflow_ipu._tensorflow import devices
from tensorflow_ipu.ops import reductions

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Gradient, GradientMapping, Nested, TensorLike


class IpuOptimizer(tf.compat.v1.train.Optimizer):
    """A wrapper of a `tf.compat.v1.train` optimizer that changes nothing.

    Subclasses override `compute_gradients` or `apply_gradients`. A wrapper may wrap another wrapper.
    """

    def __init__(self, opt: tf.compat.v1.train.Optimizer, name: str | None = None) -> None:
        """Wraps an optimizer.

        Args:
          opt: The optimizer, which owns the slots and updates the variables.
          name: The name of the wrapper; the name of the class if omitted.

        Raises:
          ValueError: `opt` is not a `tf.compat.v1.train.Optimizer`.
        """
        if not isinstance(opt, tf.compat.v1.train.Optimizer):
            raise ValueError(
                f"`opt` must be a `tf.compat.v1.train.Optimizer`, but is {opt!r}. A Keras optimizer needs no wrapper of"
                " this module under `IPUStrategy`"
            )
        super().__init__(False, name or type(self).__name__)
        self._opt = opt

    def compute_gradients(
        self, loss: TensorLike | Callable[[], TensorLike], var_list: Sequence[tf.Variable] | None = None, **kwargs: Any
    ) -> list[tuple[Gradient | None, tf.Variable]]:
        """Returns the wrapped optimizer's pairs of gradient and variable.

        Args:
          loss: The scalar to minimize, or in eager execution a function that returns it.
          var_list: The variables; all trainable variables if omitted.
          **kwargs: Further arguments of the wrapped optimizer's method.
        """
        return self._opt.compute_gradients(loss, var_list=var_list, **kwargs)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Gradient | None, tf.Variable]],
        global_step: tf.Variable | None = None,
        name: str | None = None,
    ) -> tf.Operation:
        """Updates the variables with the wrapped optimizer.

        Args:
          grads_and_vars: The pairs of gradient and variable.
          global_step: A variable that counts the updates.
          name: The name of the operation.

        Returns:
          The operation that updates the variables.
        """
        return self._opt.apply_gradients(grads_and_vars, global_step=global_step, name=name)

    def get_name(self) -> str:
        """Returns the wrapped optimizer's name."""
        return self._opt.get_name()

    def get_slot(self, *args: Any, **kwargs: Any) -> tf.Variable | None:
        """Returns the wrapped optimizer's slot of a variable."""
        return self._opt.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> list[str]:
        """Returns the names of the wrapped optimizer's slots."""
        return self._opt.get_slot_names(*args, **kwargs)

    def variables(self) -> list[tf.Variable]:
        """Returns the wrapped optimizer's variables."""
        return self._opt.variables()

    # In checkpoints, the wrapper is replaced by the wrapped optimizer, so they can be read with or without the wrapper.

    def _trackable_children(self, *args: Any, **kwargs: Any) -> Any:
        return self._opt._trackable_children(*args, **kwargs)

    def _lookup_dependency(self, *args: Any, **kwargs: Any) -> Any:
        return self._opt._lookup_dependency(*args, **kwargs)

    def _create_or_restore_slot_variable(self, *args: Any, **kwargs: Any) -> Any:
        return self._opt._create_or_restore_slot_variable(*args, **kwargs)

    @property
    def _deferred_dependencies(self) -> Any:
        self._opt._maybe_initialize_trackable()
        return self._opt._deferred_dependencies


def mean(gradients: Sequence[Gradient | None]) -> list[tf.Tensor | None]:
    """Returns the means of gradients over all replicas, with one collective."""
    dense = [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]
    reduced = iter(reductions.all_reduce(dense, mean=True))
    return [None if gradient is None else next(reduced) for gradient in gradients]


@contextlib.contextmanager
def as_they_are() -> Iterator[None]:
    """A context in which optimizers do not sum gradients over replicas, as they do under a strategy."""
    context = tf.distribute.get_replica_context()
    if context is None or not tf.distribute.has_strategy():
        yield
    else:
        with _NoReduction(context):
            yield


class _NoReduction(tf.distribute.ReplicaContext):
    """A copy of a replica's context whose all-reduce returns the values unchanged."""

    def __init__(self, context: tf.distribute.ReplicaContext) -> None:
        super().__init__(context.strategy, replica_id_in_sync_group=0)
        self._context = context

    @property
    def replica_id_in_sync_group(self) -> int | tf.Tensor:
        return self._context.replica_id_in_sync_group

    @property
    def devices(self) -> tuple[str, ...]:
        return self._context.devices

    def all_reduce(self, reduce_op: object, value: Nested, options: object = None) -> Nested:
        del reduce_op, options
        return value

    def _merge_call(self, merge_fn: Callable[..., Nested], args: Nested, kwargs: Nested) -> Nested:
        extended = View(self._strategy.extended, batch_reduce_to=_values)
        with devices.cross_replica_mode(self._strategy):
            return merge_fn(View(self._strategy, extended=extended), *args, **kwargs)


class View:
    """A view of an object in which some attributes are replaced."""

    def __init__(self, inner: object, **attributes: object) -> None:
        self._inner = inner
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _values(reduce_op: object, pairs: Iterable[tuple[Nested, object]], options: object = None) -> list[Nested]:
    """Returns the gradients unchanged, in place of `batch_reduce_to`, which would reduce them over replicas."""
    del reduce_op, options
    return [value for value, _ in pairs]


def apply_cross_replica_op_single(grad: Gradient | None, var: tf.Variable) -> tuple[tf.Tensor | None, tf.Variable]:
    """Returns the mean of a gradient over the replicas, and its variable.

    Args:
      grad: The gradient. `tf.IndexedSlices` become dense, and None stays None.
      var: The variable.

    Raises:
      RuntimeError: No program is being traced.
    """
    return apply_cross_replica_op([(grad, var)])[0]


def apply_cross_replica_op(
    grads_and_vars: Iterable[tuple[Gradient | None, tf.Variable]],
) -> list[tuple[tf.Tensor | None, tf.Variable]]:
    """Returns the means of gradients over the replicas, with their variables. One collective reduces all gradients.

    Args:
      grads_and_vars: The pairs of gradient and variable, as in `apply_cross_replica_op_single`.

    Raises:
      RuntimeError: No program is being traced.
    """
    pairs = list(grads_and_vars)
    means = mean([gradient for gradient, _ in pairs])
    return [(gradient, variable) for gradient, (_, variable) in zip(means, pairs, strict=True)]


class CrossReplicaOptimizer(IpuOptimizer):
    """A wrapper that updates the variables with the mean of the gradients over the replicas.

    Under a strategy, other optimizers use the sum.
    """

    def __init__(self, opt: tf.compat.v1.train.Optimizer, name: str = "CrossReplicaOptimizer") -> None:
        """Wraps `opt`; see `IpuOptimizer`."""
        super().__init__(opt, name)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Gradient | None, tf.Variable]],
        global_step: tf.Variable | None = None,
        name: str | None = None,
    ) -> tf.Operation:
        """Updates the variables with the means of the gradients over the replicas; see `IpuOptimizer`.

        Raises:
          RuntimeError: No program is being traced.
        """
        means = apply_cross_replica_op(grads_and_vars)
        with as_they_are():
            return super().apply_gradients(means, global_step=global_step, name=name)


class MapGradientOptimizer(IpuOptimizer):
    """A wrapper that applies a function to each gradient before the wrapped optimizer uses it.

    This example adds a weight decay:

        opt = tf.compat.v1.train.GradientDescentOptimizer(0.1)
        optimizer = MapGradientOptimizer(opt, lambda grad, var: grad + 0.01 * var)
    """

    def __init__(
        self,
        wrapped_optimizer: tf.compat.v1.train.Optimizer,
        gradient_mapping_function: GradientMapping,
        name: str = "MapGradientOptimizer",
    ) -> None:
        """Wraps an optimizer.

        Args:
          wrapped_optimizer: A `tf.compat.v1.train.Optimizer`.
          gradient_mapping_function: Returns the gradient to use, given a gradient and the value of its variable.
          name: The name of the wrapper.

        Raises:
          ValueError: `wrapped_optimizer` is not a `tf.compat.v1.train.Optimizer`.
          TypeError: `gradient_mapping_function` is not callable.
        """
        super().__init__(wrapped_optimizer, name)
        if not callable(gradient_mapping_function):
            raise TypeError(f"`gradient_mapping_function` must be a function, but is {gradient_mapping_function!r}")
        self._map = gradient_mapping_function

    def compute_gradients(
        self, loss: TensorLike | Callable[[], TensorLike], var_list: Sequence[tf.Variable] | None = None, **kwargs: Any
    ) -> list[tuple[Gradient | None, tf.Variable]]:
        """Returns the wrapped optimizer's pairs with mapped gradients. The gradient None stays None."""
        pairs = super().compute_gradients(loss, var_list=var_list, **kwargs)
        return [(gradient if gradient is None else self._map(gradient, var.value()), var) for gradient, var in pairs]


class ShardedOptimizer(IpuOptimizer):
    """A wrapper for a model whose layers are sharded over IPUs.

    Gradients are on the shards of their forward operations even without this wrapper. The wrapper also places sums of
    gradients, and other operations that TensorFlow colocates with forward operations.
    """

    def __init__(self, optimizer: tf.compat.v1.train.Optimizer) -> None:
        """Wraps `optimizer`; see `IpuOptimizer`."""
        super().__init__(optimizer, "ShardedOptimizer")

    def compute_gradients(
        self, loss: TensorLike | Callable[[], TensorLike], var_list: Sequence[tf.Variable] | None = None, **kwargs: Any
    ) -> list[tuple[Gradient | None, tf.Variable]]:
        """Returns pairs as `IpuOptimizer`, with `colocate_gradients_with_ops=True`, and places operations on shards."""
        kwargs["colocate_gradients_with_ops"] = True
        pairs = super().compute_gradients(loss, var_list=var_list, **kwargs)
        if not tf.executing_eagerly():
            sharding.propagate_sharding(tf.compat.v1.get_default_graph())
        return pairs
