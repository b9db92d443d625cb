"""The base of the optimizer wrappers: passes everything on to the wrapped optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tensorflow_ipu._types import Gradient, TensorLike


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
