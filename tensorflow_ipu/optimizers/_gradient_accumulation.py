"""The optimizers of TensorFlow 1 that apply the gradients of several mini-batches as one."""

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
    """Accumulates as its options say."""

    def __init__(
        self, opt: tf.compat.v1.train.Optimizer, options: AccumulationOptions, verify_usage: bool, name: str
    ) -> None:
        super().__init__(opt, name)
        self._options = options
        self._verify_usage = verify_usage
        # The variables that a call of `apply_gradients` has gradients for: where those accumulate.
        self._accumulators: dict[tuple[Hashable, ...], Accumulator] = {}

    @property
    def options(self) -> AccumulationOptions:
        """How gradients accumulate, as the constructor was told."""
        return self._options

    @property
    def accumulators(self) -> list[tf.Variable]:
        """The variables in which gradients accumulate, of all programs that were traced."""
        return [total for accumulator in self._accumulators.values() for total in accumulator.totals]

    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Gradient | None, tf.Variable]],
        global_step: tf.Variable | None = None,
        name: str | None = None,
    ) -> tf.Operation:
        """Adds the gradients to the accumulators; the last mini-batch has the wrapped optimizer update the variables.

        Gradients may be `tf.IndexedSlices`; accumulated they are dense. `global_step` counts the updates.

        Raises:
          ValueError: No variable has a gradient.
          tf.errors.FailedPreconditionError: There is no loop around in the program being traced, or one of so many
            iterations that gradients would be left over; the latter is raised as the trace of the program ends.
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
            # Not in the loop, nor in the program, but with the variables.
            with tf.init_scope():
                counter = _zeros((), tf.int32, f"{self._name}/counter", variables[0])
                totals = [
                    _zeros(each.shape, options.accumulator_dtype(each), f"{each.name.split(':')[0]}/{self._name}", each)
                    for each in variables
                ]
            self._accumulators[key] = Accumulator(counter, totals, options.num_mini_batches, options.reduction_method)
        return self._accumulators[key]


class GradientAccumulationOptimizerV2(_Accumulating):
    """Accumulates the gradients of mini-batches, and updates the variables once for so many of them.

    It goes into a loop of the program, and does the update within: every `num_mini_batches` iterations, the wrapped
    optimizer gets the reduced gradients, in the type of their accumulators. It must be the outermost optimizer.

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
        """Wraps `opt`.

        Args:
          opt: A `tf.compat.v1.train.Optimizer`.
          num_mini_batches: How many mini-batches make an update. The loop's iterations must be a multiple.
          offload_weight_update_variables: Whether the state of `opt` goes to remote memory between updates. The emulator
            has one memory: recorded in `options`, it counts in `update_memory` alone.
          replicated_optimizer_state_sharding: Whether that state is divided among the replicas; needs
            `offload_weight_update_variables=True`. It counts likewise.
          dtype: The type of the accumulators: None for that of each variable, a floating-point type, or a function from a
            variable to one.
          reduction_method: A `GradientAccumulationReductionMethod`, or its name.
          name: The wrapper's name.

        Raises:
          ValueError: `opt` is no such optimizer; `num_mini_batches` is below 1; the reduction is unknown; or the state is
            to be sharded and not offloaded.
          TypeError: An argument is of a wrong type.
        """
        options = AccumulationOptions(
            num_mini_batches, offload_weight_update_variables, replicated_optimizer_state_sharding, dtype
        )
        super().__init__(opt, checked_options(options, reduction_method), True, name)


class CrossReplicaGradientAccumulationOptimizerV2(GradientAccumulationOptimizerV2):
    """Accumulates, and takes the mean of what has accumulated over the replicas, once an update.

    The same as `GradientAccumulationOptimizerV2(CrossReplicaOptimizer(opt), ...)`.
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
        """Wraps `opt`; see `GradientAccumulationOptimizerV2` for the arguments, and for what is raised."""
        super().__init__(
            CrossReplicaOptimizer(opt), num_mini_batches, offload_weight_update_variables,
            replicated_optimizer_state_sharding, dtype, reduction_method, name,
        )  # fmt: skip


class GradientAccumulationOptimizer(_Accumulating):
    """Adds up the gradients of mini-batches, and updates the variables with the sum.

    The earlier form of `GradientAccumulationOptimizerV2`, which accumulates in the types of the variables.
    """

    def __init__(
        self,
        opt: tf.compat.v1.train.Optimizer,
        num_mini_batches: int,
        verify_usage: bool = True,
        name: str = "GradientAccumulationOptimizer",
    ) -> None:
        """Wraps `opt`; see `GradientAccumulationOptimizerV2` for the other arguments, and for what is raised.

        `verify_usage` says whether to check that the optimizer is in a loop whose iterations are a multiple of
        `num_mini_batches`. Without, gradients that are left over wait for the next run.
        """
        check_bool("verify_usage", verify_usage)
        super().__init__(opt, checked_options(AccumulationOptions(num_mini_batches)), verify_usage, name)


class CrossReplicaGradientAccumulationOptimizer(GradientAccumulationOptimizer):
    """Adds up gradients, and takes the mean of the sum over the replicas, once an update.

    The same as `GradientAccumulationOptimizer(CrossReplicaOptimizer(opt), ...)`.
    """

    def __init__(
        self,
        opt: tf.compat.v1.train.Optimizer,
        num_mini_batches: int,
        verify_usage: bool = True,
        name: str = "CrossReplicaGradientAccumulationOptimizer",
    ) -> None:
        """Wraps `opt`; see `GradientAccumulationOptimizer` for the arguments, and for what is raised."""
        super().__init__(CrossReplicaOptimizer(opt), num_mini_batches, verify_usage, name)


def _zeros(shape: ShapeLike, dtype: tf.DType, name: str, beside: tf.Variable) -> tf.Variable:
    if not tf.executing_eagerly():
        return kept_variables.zeros(shape, dtype, name, beside.device)
    with tf.device(beside.device):
        return tf.Variable(lambda: tf.zeros(shape, dtype), trainable=False, name=name)
