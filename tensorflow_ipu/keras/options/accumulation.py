"""The options of gradient accumulation: what `set_gradient_accumulation_options` sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tensorflow_ipu._faults import Faults
from tensorflow_ipu.keras.optimizers.accumulated_step import StepAccumulation
from tensorflow_ipu.keras.options import checks
from tensorflow_ipu.keras.options.option_group import OptionGroup
from tensorflow_ipu.optimizers import GradientAccumulationReductionMethod as Method

if TYPE_CHECKING:
    from tensorflow_ipu._types import DTypeOf

_EXPLICIT = (
    "gradient_accumulation_steps_per_replica",
    "gradient_accumulation_reduction_method",
    "use_v2_gradient_accumulation_optimizer",
)
_REFUSED = {
    "opt": "the optimizer is the one that the model is compiled with",
    "num_mini_batches": "set `gradient_accumulation_steps_per_replica` instead",
    **checks.NORMALIZATION,
}


@dataclass(frozen=True)
class GradientAccumulationOptions(OptionGroup):
    """How `fit` accumulates gradients. All but the first two and `dtype` change nothing in the emulator."""

    title: ClassVar[str] = "gradient accumulation options"
    explicit: ClassVar[tuple[str, ...]] = _EXPLICIT
    unset: ClassVar[Mapping[str, str]] = {
        "gradient_accumulation_steps_per_replica": "each step updates the weights",
        "dtype": "that of each variable",
    }

    gradient_accumulation_steps_per_replica: int | None = None
    gradient_accumulation_reduction_method: Method = Method.SUM
    use_v2_gradient_accumulation_optimizer: bool = False
    dtype: DTypeOf = None
    name: str | None = None
    offload_weight_update_variables: bool | None = None
    replicated_optimizer_state_sharding: bool | None = False
    verify_usage: bool = True

    @property
    def plan(self) -> StepAccumulation | None:
        """How gradients are accumulated; None where each step updates the weights."""
        steps = self.gradient_accumulation_steps_per_replica
        if steps is None or steps == 1:
            return None
        return StepAccumulation(steps, self.gradient_accumulation_reduction_method, self.dtype)

    @classmethod
    def checked(
        cls, steps: int | None, method: Method | str, use_v2: bool, kwargs: Mapping[str, Any]
    ) -> GradientAccumulationOptions:
        """The options that the arguments of `set_gradient_accumulation_options` say.

        Raises:
          ValueError: One of them is out of range, or set by another one.
          TypeError: One of them is unknown, or of a wrong kind.
        """
        faults = Faults()
        count = checks.check_steps(steps, faults)
        parsed = checks.check_method(method, faults)
        checks.check_flag("use_v2_gradient_accumulation_optimizer", use_v2, faults)
        if use_v2 is True and steps is None:
            faults.add(
                ValueError,
                "`use_v2_gradient_accumulation_optimizer` may only be set to True when gradients are accumulated: set"
                " `gradient_accumulation_steps_per_replica` too",
            )
        known = [name for name in cls.names() if name not in _EXPLICIT]
        checks.check_names("set_gradient_accumulation_options", kwargs, known, _REFUSED, faults)
        checks.check_dtype("dtype", kwargs.get("dtype"), faults)
        for name in ("offload_weight_update_variables", "replicated_optimizer_state_sharding"):
            checks.check_flag(name, kwargs.get(name), faults, optional=True)
        checks.check_flag("verify_usage", kwargs.get("verify_usage", True), faults)
        checks.check_sharding(kwargs, faults)
        faults.raise_any()
        return cls(count, parsed, use_v2, **kwargs)
