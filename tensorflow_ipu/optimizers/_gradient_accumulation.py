"""Wrappers of TensorFlow 1's optimizers that accumulate the gradients of several mini-batches for one update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu._base.checks import check_bool
from tensorflow_ipu.ops import kept_variables
from tensorflow_ipu.optimizers import _loop_check
from tensorflow_ipu.optimizers._accumulator import (
    AccumulationOptions,
    Accumulator,
    GradientAccumulationReductionMethod,
    checked_options,
)
from tensorflow_ipu.optimizers._ipu_optimizer import CrossReplicaOptimizer, IpuOptimizer

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from tensorflow_ipu._base.types import DTypeOf, Gradient, ShapeLike


class _Accumulating(IpuOptimizer):
    """The base class of wrappers that accumulate gradients."""

    def __init__(
        self, opt: tf.compat.v1.train.Optimizer, options: AccumulationOptions, verify_usage: bool, name: str
    ) -> None:
        super().__init__(opt, name)
        self._options = options
        self._verify_usage = verify_usage
        # The accumulator of each call of `apply_gradients`, by the variables that have gradients in the call.
        self._accumulators: dict[tuple[Hashable, ...], Accumulator] = {}

    @property
    def options(self) -> AccumulationOptions:
        """The options that were passed to the constructor."""
        return self._options

    @property
    def accumulators(self) -> list[tf.Variable]:
        """The variables in which gradients accumulate, for all traced programs."""
        return [total for accumulator in self._accumulators.values() for total in accumulator.totals]

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Gradient | None, tf.Variable]],
        global_step: tf.Variable | None = None,
        name: str | None = None,
    ) -> tf.Operation:
        """Adds the gradients to the accumulators. At the last mini-batch, the wrapped optimizer updates the variables.

        Args:
          grads_and_vars: The pairs of gradient and variable. Gradients may be `tf.IndexedSlices`; accumulators are
            dense.
          global_step: A variable that counts the updates.
          name: The name of the operation.

        Returns:
          The operation that adds the gradients.

        Raises:
          ValueError: No variable has a gradient.
          tf.errors.FailedPreconditionError: The call is not in a loop of the program being traced. Or the number of
            iterations of the loop is not a multiple of `num_mini_batches`; this is raised when the trace of the program
            ends.
        """
        pairs = [(gradient, variable) for gradient, variable in grads_and_vars if gradient is not None]
        if not pairs:
            raise ValueError("`grads_and_vars` has no gradient for any variable: does the loss depend on them?")
        gradients, variables = zip(*pairs, strict=True)
        if self._verify_usage:
            _loop_check.note(type(self).__name__, self._options.num_mini_batches)

        def update(reduced: list[tf.Tensor]) -> tf.Operation:
            return self._opt.apply_gradients(list(zip(reduced, variables, strict=True)), global_step=global_step)

        with tf.name_scope(name or self._name):
            return self._accumulator(variables).step(gradients, update)

    def _accumulator(self, variables: Sequence[tf.Variable]) -> Accumulator:
        key = tuple(variable.ref() for variable in variables)
        if key not in self._accumulators:
            options = self._options
            # The accumulators are created outside of the loop and of the program, as the variables are.
            with tf.init_scope():
                counter = _zeros((), tf.int32, f"{self._name}/counter", variables[0])
                totals = [
                    _zeros(
                        variable.shape,
                        options.accumulator_dtype(variable),
                        f"{variable.name.split(':')[0]}/{self._name}",
                        variable,
                    )
                    for variable in variables
                ]
            self._accumulators[key] = Accumulator(counter, totals, options.num_mini_batches, options.reduction_method)
        return self._accumulators[key]


class GradientAccumulationOptimizerV2(_Accumulating):
    """A wrapper that accumulates the gradients of `num_mini_batches` mini-batches, and then updates the variables once.

    Use it in a loop of the program. Every `num_mini_batches` iterations, the wrapped optimizer gets the reduced
    gradients, in the type of their accumulators. The wrapper must be the outermost optimizer.

        optimizer = GradientAccumulationOptimizerV2(tf.compat.v1.train.MomentumOptimizer(0.01, 0.9), 8)

        @tf.function(jit_compile=True)
        def train(iterator):
            for _ in tf.range(8 * 100):
                loss = ...
                optimizer.minimize(loss)  # Or `apply_gradients`.
    """

    def __init__(
        self,
        opt: tf.compat.v1.train.Optimizer,
        num_mini_batches: int,
        offload_weight_update_variables: bool | None = None,
        replicated_optimizer_state_sharding: bool = False,
        dtype: DTypeOf = None,
        reduction_method: GradientAccumulationReductionMethod | str = GradientAccumulationReductionMethod.SUM,
        name: str = "GradientAccumulationOptimizerV2",
    ) -> None:
        """Wraps an optimizer.

        Args:
          opt: A `tf.compat.v1.train.Optimizer`.
          num_mini_batches: The number of mini-batches of an update. The number of iterations of the loop must be a
            multiple.
          offload_weight_update_variables: True to store the variables of `opt` in remote memory between updates. This
            option and the next are recorded and change the result of `update_memory`, but not the emulated program.
          replicated_optimizer_state_sharding: True to divide these variables among the replicas; needs
            `offload_weight_update_variables=True`.
          dtype: The type of the accumulators: None for that of each variable, a floating-point type, or a function from
            a variable to a type.
          reduction_method: A `GradientAccumulationReductionMethod`, or its name.
          name: The name of the wrapper.

        Raises:
          ValueError: `opt` is not such an optimizer, `num_mini_batches` is below 1, the reduction method is unknown, or
            variables are to be sharded and not offloaded.
          TypeError: An argument is of the wrong type.
        """
        options = AccumulationOptions(
            num_mini_batches, offload_weight_update_variables, replicated_optimizer_state_sharding, dtype
        )
        super().__init__(opt, checked_options(options, reduction_method), True, name)


class CrossReplicaGradientAccumulationOptimizerV2(GradientAccumulationOptimizerV2):
    """A wrapper that accumulates gradients, and updates with the mean of the accumulators over the replicas.

    It is the same as `GradientAccumulationOptimizerV2(CrossReplicaOptimizer(opt), ...)`.
    """

    def __init__(
        self,
        opt: tf.compat.v1.train.Optimizer,
        num_mini_batches: int,
        offload_weight_update_variables: bool | None = None,
        replicated_optimizer_state_sharding: bool = False,
        dtype: DTypeOf = None,
        reduction_method: GradientAccumulationReductionMethod | str = GradientAccumulationReductionMethod.SUM,
        name: str = "CrossReplicaGradientAccumulationOptimizerV2",
    ) -> None:
        """Wraps `opt`, with the arguments and errors of `GradientAccumulationOptimizerV2`."""
        super().__init__(
            CrossReplicaOptimizer(opt), num_mini_batches, offload_weight_update_variables,
            replicated_optimizer_state_sharding, dtype, reduction_method, name,
        )  # fmt: skip


class GradientAccumulationOptimizer(_Accumulating):
    """A wrapper that accumulates the gradients of mini-batches, and updates the variables with their sum.

    This is the earlier form of `GradientAccumulationOptimizerV2`. It accumulates in the types of the variables.
    """

    def __init__(
        self,
        opt: tf.compat.v1.train.Optimizer,
        num_mini_batches: int,
        verify_usage: bool = True,
        name: str = "GradientAccumulationOptimizer",
    ) -> None:
        """Wraps an optimizer, with the errors of `GradientAccumulationOptimizerV2`.

        Args:
          opt: A `tf.compat.v1.train.Optimizer`.
          num_mini_batches: The number of mini-batches of an update.
          verify_usage: True to check that the optimizer is in a loop with a multiple of `num_mini_batches` iterations.
            If False, the gradients of an incomplete update wait for the next run.
          name: The name of the wrapper.
        """
        check_bool("verify_usage", verify_usage)
        super().__init__(opt, checked_options(AccumulationOptions(num_mini_batches)), verify_usage, name)


class CrossReplicaGradientAccumulationOptimizer(GradientAccumulationOptimizer):
    """A wrapper that accumulates gradients, and updates with the mean of their sums over the replicas.

    It is the same as `GradientAccumulationOptimizer(CrossReplicaOptimizer(opt), ...)`.
    """

    def __init__(
        self,
        opt: tf.compat.v1.train.Optimizer,
        num_mini_batches: int,
        verify_usage: bool = True,
        name: str = "CrossReplicaGradientAccumulationOptimizer",
    ) -> None:
        """Wraps `opt`, with the arguments and errors of `GradientAccumulationOptimizer`."""
        super().__init__(CrossReplicaOptimizer(opt), num_mini_batches, verify_usage, name)


def _zeros(shape: ShapeLike, dtype: tf.DType, name: str, neighbor: tf.Variable) -> tf.Variable:
    if not tf.executing_eagerly():
        return kept_variables.zeros(shape, dtype, name, neighbor.device)
    with tf.device(neighbor.device):
        return tf.Variable(lambda: tf.zeros(shape, dtype), trainable=False, name=name)
