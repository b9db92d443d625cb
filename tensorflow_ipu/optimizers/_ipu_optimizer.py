"""The base of the optimizer wrappers: passes everything on to the wrapped optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu import sharding
from tensorflow_ipu.optimizers import _reduced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tensorflow_ipu._base.types import Gradient, GradientMapping, TensorLike


class IpuOptimizer(tf.compat.v1.train.Optimizer):
    """Wraps a `tf.compat.v1.train` optimizer, and by itself changes nothing.

    A wrapper overrides what it changes: `compute_gradients` or `apply_gradients`. Wrappers nest.
    """

    def __init__(self, opt: tf.compat.v1.train.Optimizer, name: str | None = None) -> None:
        """Wraps `opt`.

        Args:
          opt: The optimizer that owns the slots and updates the variables.
          name: The wrapper's name; its class's if omitted.

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

        Args:
          loss: The scalar to minimize; in eager execution, a function that gives it.
          var_list: The variables; all trainable ones if omitted.
          **kwargs: Further arguments of the wrapped optimizer.
        """
        return self._opt.compute_gradients(loss, var_list=var_list, **kwargs)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Gradient | None, tf.Variable]],
        global_step: tf.Variable | None = None,
        name: str | None = None,
    ) -> tf.Operation:
        """Has the wrapped optimizer update the variables.

        Args:
          grads_and_vars: Pairs of gradient and variable.
          global_step: A variable to count the updates in.
          name: The name of the operation.

        Returns:
          The operation that updates.
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


def apply_cross_replica_op_single(grad: Gradient | None, var: tf.Variable) -> tuple[tf.Tensor | None, tf.Variable]:
    """Takes the mean of a gradient over the replicas.

    Args:
      grad: A tensor, `tf.IndexedSlices`, which becomes dense, or None, which is passed on.
      var: The gradient's variable.

    Returns:
      The mean, and `var`.

    Raises:
      RuntimeError: No program is being traced.
    """
    return apply_cross_replica_op([(grad, var)])[0]


def apply_cross_replica_op(
    grads_and_vars: Iterable[tuple[Gradient | None, tf.Variable]],
) -> list[tuple[tf.Tensor | None, tf.Variable]]:
    """Takes the means of gradients over the replicas, all in one exchange.

    Args:
      grads_and_vars: Pairs of gradient and variable; see `apply_cross_replica_op_single`.

    Returns:
      The pairs of mean and variable.

    Raises:
      RuntimeError: No program is being traced.
    """
    pairs = list(grads_and_vars)
    means = _reduced.mean([gradient for gradient, _ in pairs])
    return [(gradient, variable) for gradient, (_, variable) in zip(means, pairs, strict=True)]


class CrossReplicaOptimizer(IpuOptimizer):
    """Has the wrapped optimizer update with the mean of the gradients over the replicas.

    So R replicas train as a single one would with R times the batch. Under a strategy, other optimizers take the sum.
    """

    def __init__(self, opt: tf.compat.v1.train.Optimizer, name: str = "CrossReplicaOptimizer") -> None:
        """Wraps `opt`.

        Args:
          opt: A `tf.compat.v1.train.Optimizer`.
          name: The wrapper's name.

        Raises:
          ValueError: `opt` is no such optimizer.
        """
        super().__init__(opt, name)

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Gradient | None, tf.Variable]],
        global_step: tf.Variable | None = None,
        name: str | None = None,
    ) -> tf.Operation:
        """Takes the means of the gradients, and has the wrapped optimizer update the variables.

        Args:
          grads_and_vars: Pairs of gradient and variable. `tf.IndexedSlices` become dense.
          global_step: A variable to count the updates in.
          name: The name of the operation.

        Returns:
          The operation that updates.

        Raises:
          RuntimeError: No program is being traced.
        """
        means = apply_cross_replica_op(grads_and_vars)
        with _reduced.as_they_are():
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
        """Wraps `wrapped_optimizer`.

        Args:
          wrapped_optimizer: A `tf.compat.v1.train.Optimizer`.
          gradient_mapping_function: From a gradient and the value of its variable to the gradient to use.
          name: The wrapper's name.

        Raises:
          ValueError: `wrapped_optimizer` is no such optimizer.
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

    Gradients are placed on the shards of their operations in any case. This places sums of several gradients too, and what
    else TensorFlow puts beside the forward operations.
    """

    def __init__(self, optimizer: tf.compat.v1.train.Optimizer) -> None:
        """Wraps `optimizer`.

        Args:
          optimizer: A `tf.compat.v1.train.Optimizer`.

        Raises:
          ValueError: It is no such optimizer.
        """
        super().__init__(optimizer, "ShardedOptimizer")

    def compute_gradients(
        self, loss: TensorLike | Callable[[], TensorLike], var_list: Sequence[tf.Variable] | None = None, **kwargs: Any
    ) -> list[tuple[Gradient | None, tf.Variable]]:
        """The wrapped optimizer's pairs of gradient and variable, with all that computes the gradients placed.

        Args:
          loss: The scalar to minimize; in eager execution, a function that gives it.
          var_list: The variables; all trainable ones if omitted.
          **kwargs: Further arguments of the wrapped optimizer; `colocate_gradients_with_ops` is True.
        """
        kwargs["colocate_gradients_with_ops"] = True
        pairs = super().compute_gradients(loss, var_list=var_list, **kwargs)
        if not tf.executing_eagerly():
            sharding.propagate_sharding(tf.compat.v1.get_default_graph())
        return pairs
