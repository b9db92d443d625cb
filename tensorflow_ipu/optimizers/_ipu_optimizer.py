"""The base of the wrappers of TensorFlow 1's optimizers, those that are no more than it, and means over replicas."""

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
    """Wraps a `tf.compat.v1.train` optimizer, and by itself changes nothing.

    A wrapper overrides what it changes: `compute_gradients` or `apply_gradients`. Wrappers nest.
    """

    def __init__(self, opt: tf.compat.v1.train.Optimizer, name: str | None = None) -> None:
        """Wraps `opt`, which owns the slots and updates the variables; the name is that of the class if omitted.

        Raises:
          ValueError: `opt` is no `tf.compat.v1.train.Optimizer`.
        """
        if not isinstance(opt, tf.compat.v1.train.Optimizer):
            raise ValueError(
                f"`opt` must be a `tf.compat.v1.train.Optimizer`, but is {opt!r}. A Keras optimizer needs no wrapper of"
                " this module: under `IPUStrategy` it works as it is"
            )
        super().__init__(False, name or type(self).__name__)
        self._opt = opt

    def compute_gradients(
        self, loss: TensorLike | Callable[[], TensorLike], var_list: Sequence[tf.Variable] | None = None, **kwargs: Any
    ) -> list[tuple[Gradient | None, tf.Variable]]:
        """The wrapped optimizer's pairs of gradient and variable.

        `loss` is the scalar to minimize, or in eager execution a function that gives it. `var_list` has the variables, all
        trainable ones if omitted. `kwargs` are further arguments of the wrapped optimizer.
        """
        return self._opt.compute_gradients(loss, var_list=var_list, **kwargs)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Gradient | None, tf.Variable]],
        global_step: tf.Variable | None = None,
        name: str | None = None,
    ) -> tf.Operation:
        """The operation, called `name`, in which the wrapped optimizer updates variables by pairs of gradient and variable.

        Updates are counted in the variable `global_step`, if there is one.
        """
        return self._opt.apply_gradients(grads_and_vars, global_step=global_step, name=name)

    def get_name(self) -> str:
        """The wrapped optimizer's name."""
        return self._opt.get_name()

    def get_slot(self, *args: Any, **kwargs: Any) -> tf.Variable | None:
        """The wrapped optimizer's slot of a variable."""
        return self._opt.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> list[str]:
        """The names of the wrapped optimizer's slots."""
        return self._opt.get_slot_names(*args, **kwargs)

    def variables(self) -> list[tf.Variable]:
        """The wrapped optimizer's variables."""
        return self._opt.variables()

    # In checkpoints, the wrapper stands for the wrapped optimizer, with or without which one can go on from them.

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
    """Returns the means of gradients over all replicas, by one exchange."""
    dense = [tf.convert_to_tensor(gradient) for gradient in gradients if gradient is not None]
    reduced = iter(reductions.all_reduce(dense, mean=True))
    return [None if gradient is None else next(reduced) for gradient in gradients]


@contextlib.contextmanager
def as_they_are() -> Iterator[None]:
    """A block in which optimizers take gradients as they are; under a strategy they would add up those of the replicas."""
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
        extended = View(self._strategy.extended, batch_reduce_to=_values)
        with devices.cross_replica_mode(self._strategy):
            return merge_fn(View(self._strategy, extended=extended), *args, **kwargs)


class View:
    """An object some attributes of which are others."""

    def __init__(self, inner: object, **attributes: object) -> None:
        self._inner = inner
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def _values(reduce_op: object, pairs: Iterable[tuple[Nested, object]], options: object = None) -> list[Nested]:
    """Returns the gradients as they are; a strategy would reduce them."""
    del reduce_op, options
    return [value for value, _ in pairs]


def apply_cross_replica_op_single(grad: Gradient | None, var: tf.Variable) -> tuple[tf.Tensor | None, tf.Variable]:
    """The mean of a gradient over the replicas, and its variable. `tf.IndexedSlices` become dense, and None stays None.

    Raises:
      RuntimeError: No program is being traced.
    """
    return apply_cross_replica_op([(grad, var)])[0]


def apply_cross_replica_op(
    grads_and_vars: Iterable[tuple[Gradient | None, tf.Variable]],
) -> list[tuple[tf.Tensor | None, tf.Variable]]:
    """As `apply_cross_replica_op_single`, for pairs of gradient and variable, all in one exchange.

    Raises:
      RuntimeError: No program is being traced.
    """
    pairs = list(grads_and_vars)
    means = mean([gradient for gradient, _ in pairs])
    return [(gradient, variable) for gradient, (_, variable) in zip(means, pairs, strict=True)]


class CrossReplicaOptimizer(IpuOptimizer):
    """Has the wrapped optimizer update with the mean of the gradients over the replicas.

    Under a strategy, other optimizers take the sum.
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
        """Takes the means of the gradients, and has the wrapped optimizer update; see `IpuOptimizer`.

        Raises:
          RuntimeError: No program is being traced.
        """
        means = apply_cross_replica_op(grads_and_vars)
        with as_they_are():
            return super().apply_gradients(means, global_step=global_step, name=name)


class MapGradientOptimizer(IpuOptimizer):
    """Applies a function to each gradient before the wrapped optimizer gets to see it.

    optimizer = MapGradientOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1), lambda grad, var: grad + 0.01 * var)
    """

    def __init__(
        self,
        wrapped_optimizer: tf.compat.v1.train.Optimizer,
        gradient_mapping_function: GradientMapping,
        name: str = "MapGradientOptimizer",
    ) -> None:
        """Wraps an optimizer; the function is from a gradient and the value of its variable to the gradient to use.

        Raises:
          ValueError: `wrapped_optimizer` is no `tf.compat.v1.train.Optimizer`.
          TypeError: `gradient_mapping_function` cannot be called.
        """
        super().__init__(wrapped_optimizer, name)
        if not callable(gradient_mapping_function):
            raise TypeError(f"`gradient_mapping_function` must be a function, but is {gradient_mapping_function!r}")
        self._map = gradient_mapping_function

    def compute_gradients(
        self, loss: TensorLike | Callable[[], TensorLike], var_list: Sequence[tf.Variable] | None = None, **kwargs: Any
    ) -> list[tuple[Gradient | None, tf.Variable]]:
        """The wrapped optimizer's pairs, each gradient mapped. Variables that the loss does not reach keep None."""
        pairs = super().compute_gradients(loss, var_list=var_list, **kwargs)
        return [(gradient if gradient is None else self._map(gradient, var.value()), var) for gradient, var in pairs]


class ShardedOptimizer(IpuOptimizer):
    """Trains a model whose layers are sharded over IPUs, as the wrapped optimizer does.

    Gradients are on the shards of their operations in any case. This places sums of several gradients too, and what else
    TensorFlow puts beside the forward operations.
    """

    def __init__(self, optimizer: tf.compat.v1.train.Optimizer) -> None:
        """Wraps `optimizer`; see `IpuOptimizer`."""
        super().__init__(optimizer, "ShardedOptimizer")

    def compute_gradients(
        self, loss: TensorLike | Callable[[], TensorLike], var_list: Sequence[tf.Variable] | None = None, **kwargs: Any
    ) -> list[tuple[Gradient | None, tf.Variable]]:
        """As in `IpuOptimizer`, with all that computes the gradients placed: `colocate_gradients_with_ops` is True."""
        kwargs["colocate_gradients_with_ops"] = True
        pairs = super().compute_gradients(loss, var_list=var_list, **kwargs)
        if not tf.executing_eagerly():
            sharding.propagate_sharding(tf.compat.v1.get_default_graph())
        return pairs
