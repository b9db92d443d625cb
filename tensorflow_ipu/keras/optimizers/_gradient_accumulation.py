"""The Keras optimizer that applies the gradients of several mini-batches as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tensorflow_ipu._base.tensors import is_function, tf_variable
from tensorflow_ipu.keras.optimizers._wrapper import OptimizerWrapper
from tensorflow_ipu.optimizers import AccumulationOptions, GradientAccumulationReductionMethod, parts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from typing_extensions import Self

    from tensorflow_ipu._base.types import Config, DTypeOf, Gradient, Variable


@keras.saving.register_keras_serializable("tensorflow_ipu")
class GradientAccumulationOptimizer(OptimizerWrapper):
    """Accumulates the gradients of mini-batches, and updates the variables once for so many of them.

    It goes into a loop of the program, and does the update within: every `num_mini_batches` iterations, the wrapped
    optimizer gets the reduced gradients. It must be the outermost optimizer.
    """

    def __init__(
        self,
        opt: keras.optimizers.Optimizer,
        num_mini_batches: int,
        offload_weight_update_variables: bool | None = None,
        replicated_optimizer_state_sharding: bool = False,
        dtype: DTypeOf = None,
        reduction_method: GradientAccumulationReductionMethod | str = GradientAccumulationReductionMethod.SUM,
        name: str = "GradientAccumulationOptimizer",
    ) -> None:
        """Wraps `opt`.

        Args:
          opt: A Keras optimizer.
          num_mini_batches: How many mini-batches make an update. The loop's iterations must be a multiple.
          offload_weight_update_variables: Whether the state of `opt` goes to remote memory between updates. The emulator
            has one memory: recorded in `options`, it counts in `optimizers.update_memory` alone.
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
        options = parts.checked_options(
            num_mini_batches,
            offload_weight_update_variables,
            replicated_optimizer_state_sharding,
            dtype,
            reduction_method,
        )
        super().__init__(opt, name)
        self._options = options
        self._totals: list[keras.Variable] = []

    @staticmethod
    def bool_to_three_state(value: bool | None, default: str | None) -> str | None:
        """The name of a switch of the compiler: on, off, or `default` for None."""
        if value is None:
            return default
        return "THREESTATE_ON" if value else "THREESTATE_OFF"

    @property
    def options(self) -> AccumulationOptions:
        """How gradients accumulate, as the constructor was told."""
        return self._options

    @property
    def accumulators(self) -> list[keras.Variable]:
        """The variables in which gradients accumulate; none before the optimizer is built."""
        return self._totals

    def _build_own(self, variables: list[Variable]) -> None:
        self._counter = self.add_variable((), "zeros", "int32", name="mini_batches")
        self._totals = [self._total(variable) for variable in variables]

    def _total(self, variable: Variable) -> keras.Variable:
        dtype = self._options.accumulator_dtype(variable)
        with self._distribution_strategy.extended.colocate_vars_with(tf_variable(variable)):
            name = f"{getattr(variable, 'path', variable.name).replace('/', '_').replace(':', '_')}_accumulator"
            return self.add_variable(variable.shape, "zeros", dtype.name, name=name)

    def _apply(self, gradients: list[Gradient | None], variables: list[Variable]) -> None:
        self._accumulate(gradients, variables, self.inner_optimizer.apply)

    def _accumulate(
        self,
        gradients: list[Gradient | None],
        variables: list[Variable],
        update: Callable[[list[tf.Tensor], list[Variable]], None],
    ) -> None:
        pairs = [(grad, variable) for grad, variable in zip(gradients, variables, strict=True) if grad is not None]
        if not pairs:
            raise ValueError("`grads` has no gradient for any variable: does the loss depend on them?")
        parts.must_be_in_loop(type(self).__name__, self._options.num_mini_batches)
        known, used = zip(*pairs, strict=True)
        places: list[int] = [self._get_variable_index(variable) for variable in used]
        totals = [self._totals[place].value for place in places]
        number, reduction = self._options.num_mini_batches, self._options.reduction_method
        accumulator = parts.Accumulator(self._counter.value, totals, number, reduction)
        accumulator.step(known, lambda reduced: update(reduced, list(used)))

    def get_config(self) -> Config:
        """What `from_config` makes an equal optimizer of; a function `dtype` has to be registered with Keras."""
        options = self._options
        dtype: Any = options.dtype
        if dtype is not None:
            dtype = keras.saving.serialize_keras_object(dtype) if is_function(dtype) else tf.as_dtype(dtype).name
        return {
            **super().get_config(),
            "num_mini_batches": options.num_mini_batches,
            "offload_weight_update_variables": options.offload_weight_update_variables,
            "replicated_optimizer_state_sharding": options.replicated_optimizer_state_sharding,
            "dtype": dtype,
            "reduction_method": options.reduction_method.name,
        }

    @classmethod
    def from_config(cls, config: Config, custom_objects: Mapping[str, object] | None = None) -> Self:
        """Makes an optimizer of what `get_config` returned."""
        dtype = config["dtype"]
        if isinstance(dtype, dict):
            dtype = keras.saving.deserialize_keras_object(dtype, custom_objects=custom_objects)
        return super().from_config({**config, "dtype": dtype}, custom_objects)
