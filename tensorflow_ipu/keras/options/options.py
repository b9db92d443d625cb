"""The options of a model, in groups that are set and reset as one."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import tensorflow as tf

from tensorflow_ipu._base import environment
from tensorflow_ipu._base.checks import Faults, as_int, note_bool, parse_method
from tensorflow_ipu._base.tensors import note_dtype
from tensorflow_ipu.feeds import IPUInfeedQueue, IPUOutfeedQueue
from tensorflow_ipu.optimizers import GradientAccumulationReductionMethod
from tensorflow_ipu.pipelining import Liveness, PhasedExecution, PipelineSchedule, RecomputationMode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Self

    from tensorflow_ipu._base.types import DTypeOf
    from tensorflow_ipu.keras.optimizers.accumulated_step import StepAccumulation
    from tensorflow_ipu.pipelining import PipelineStageOptions


def print_text(text: str, print_fn: Callable[[str], object] | None) -> None:
    """Prints a text by one call, as `model.summary` does."""
    if print_fn is not None and not callable(print_fn):
        raise TypeError(f"`print_fn` must be a function of a text, such as `print`, or None, but is {print_fn!r}")
    (print_fn or print)(text)


def assignments(heading: str, rows: Iterable[tuple[str, object, str]]) -> str:
    """A heading, and a line for each value, one below the other."""
    rows = list(rows)
    width = max(len(name) for name, _, _ in rows)
    lines = [f"  {name:{width}} = {typed(value)}{f'  # {remark}' * bool(remark)}" for name, value, remark in rows]
    return "\n".join([heading, *lines])


def typed(value: object) -> str:
    """A value as one would type it; a function by its name."""
    if isinstance(value, GradientAccumulationReductionMethod):
        return f'"{value.name.lower()}"'
    if isinstance(value, ReplicatedMetricReductionMethod):
        return f'"{value.name}"'
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list):
        return f"[{', '.join(map(typed, value))}]"
    if isinstance(value, (np.dtype, type)):
        dtype: Any = value
        return repr(tf.as_dtype(dtype))
    return getattr(value, "__name__", None) or repr(value)


@dataclass(frozen=True)
class OptionGroup:
    """Options whose fields are the arguments of the method that sets them, with its defaults."""

    title: ClassVar[str]
    explicit: ClassVar[tuple[str, ...]] = ()
    unset: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of the options, in the order in which they are shown."""
        return tuple(field.name for field in fields(cls))

    @classmethod
    def further(cls) -> list[str]:
        """The names of the options that the method takes as keyword arguments alone."""
        return [name for name in cls.names() if name not in cls.explicit]

    @classmethod
    def checked(cls, *args: Any, **kwargs: Any) -> Self:
        """The options that the arguments of the method that sets them say; each group has a method of its own."""
        raise NotImplementedError

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """The group in which these options are set, checked as the method that sets them does."""
        default = cls()
        explicit = [given.get(name, getattr(default, name)) for name in cls.explicit]
        rest = {name: value for name, value in given.items() if name not in cls.explicit}
        return cls.checked(*explicit, rest)

    def changed(self) -> dict[str, Any]:
        """The options that differ from the defaults, by name."""
        default = type(self)()
        return {name: getattr(self, name) for name in self.names() if getattr(self, name) != getattr(default, name)}

    def in_effect(self) -> dict[str, Any]:
        """All options by name, with the values that count."""
        return {name: getattr(self, name) for name in self.names()}

    def text(self, model_name: str) -> str:
        """The options as lines, each as one would type it."""
        rows = [
            (name, value, self.unset.get(name, "") if value is None else "") for name, value in self.in_effect().items()
        ]
        return assignments(f'Model "{model_name}": {self.title}', rows)


NORMALIZATION = {
    "experimental_normalize_gradients": "set `gradient_accumulation_reduction_method` to 'sum', 'mean' or 'running_mean'"
    " instead"
}


def check_steps(steps: object, faults: Faults) -> int | None:
    """Checks `gradient_accumulation_steps_per_replica`, and gives it as an int or None."""
    if steps is None:
        return None
    count = as_int(steps)
    if count is None or count < 1:
        message = f"Expected `gradient_accumulation_steps_per_replica` to be a positive integer, but got {steps!r}"
        faults.add(ValueError, message)
        return None
    if count > tf.int32.max:
        faults.add(
            ValueError, f"`gradient_accumulation_steps_per_replica` must be at most {tf.int32.max}, but is {steps}"
        )
        return None
    return count


def check_method(
    method: GradientAccumulationReductionMethod | str, faults: Faults
) -> GradientAccumulationReductionMethod:
    """Checks `gradient_accumulation_reduction_method`, and gives it parsed."""
    try:
        return GradientAccumulationReductionMethod.parse(method)
    except ValueError as exc:
        faults.add(ValueError, f"`gradient_accumulation_reduction_method` is no such method: {exc}")
        return GradientAccumulationReductionMethod.SUM


def check_names(
    method: str, given: Iterable[str], known: Iterable[str], refused: Mapping[str, str], faults: Faults
) -> None:
    """Checks which options are given by name."""
    for name in given:
        if name in refused:
            faults.add(ValueError, f"`{name}` cannot be set here: {refused[name]}")
    unknown = sorted(set(given) - set(known) - set(refused))
    if unknown:
        names = ", ".join(f"`{name}`" for name in unknown)
        faults.add(TypeError, f"`{method}` has no option {names}; the options by name are {', '.join(sorted(known))}")


def check_sharding(given: Mapping[str, Any], faults: Faults) -> None:
    """Checks that the optimizer's state is shared out by replicas only where it is off the chip."""
    if given.get("replicated_optimizer_state_sharding") and not given.get("offload_weight_update_variables"):
        faults.add(
            ValueError,
            "`replicated_optimizer_state_sharding=True` wants the optimizer's state offloaded: set"
            " `offload_weight_update_variables=True` too",
        )


def check_queue(make: Callable[[], object], faults: Faults) -> None:
    """Has a queue check its arguments, by making one."""
    try:
        make()
    except (TypeError, ValueError) as exc:
        faults.add(type(exc), str(exc))


_OF_INFEED = {
    **dict.fromkeys(("dataset", "infeed_spec", "element_spec"), "the model sets it"),
    "device_ordinal": "the strategy has the device",
}
_OF_OUTFEED = {"outfeed_mode": "the model sets it", "device_ordinal": "the strategy has the device"}


@dataclass(frozen=True)
class InfeedOptions(OptionGroup):
    """What a model's infeeds are made with, as `IPUInfeedQueue` has it."""

    title: ClassVar[str] = "infeed queue options"

    prefetch_depth: int | None = None
    optimise_latency: bool = False

    def in_effect(self) -> dict[str, Any]:
        """All options by name, with the depth that a queue takes where none is set."""
        return {**super().in_effect(), "prefetch_depth": _infeed(super().in_effect()).prefetch_depth}

    @classmethod
    def checked(cls, kwargs: Mapping[str, Any]) -> InfeedOptions:
        """The options that the arguments of `set_infeed_queue_options` say."""
        faults = Faults()
        check_names("set_infeed_queue_options", kwargs, cls.names(), _OF_INFEED, faults)
        check_queue(lambda: _infeed({name: kwargs[name] for name in cls.names() if name in kwargs}), faults)
        faults.raise_any()
        return cls(**kwargs)


@dataclass(frozen=True)
class OutfeedOptions(OptionGroup):
    """What a model's outfeeds are made with, as `IPUOutfeedQueue` has it."""

    title: ClassVar[str] = "outfeed queue options"

    buffer_depth: int = 3
    optimise_latency: bool = False

    @classmethod
    def checked(cls, kwargs: Mapping[str, Any]) -> OutfeedOptions:
        """The options that the arguments of `set_outfeed_queue_options` say."""
        faults = Faults()
        check_names("set_outfeed_queue_options", kwargs, cls.names(), _OF_OUTFEED, faults)
        given: dict[str, Any] = {name: kwargs[name] for name in cls.names() if name in kwargs}
        check_queue(lambda: IPUOutfeedQueue(device_ordinal=0, **given), faults)
        faults.raise_any()
        return cls(**kwargs)


def _infeed(options: Mapping[str, Any]) -> IPUInfeedQueue:
    """A queue of so little data that it costs nothing, since the queue knows what its arguments mean."""
    return IPUInfeedQueue(tf.data.Dataset.range(1), device_ordinal=0, **options)


class ReplicatedMetricReductionMethod(enum.Enum):
    """Which metrics of R replicas logs show: `NONE` the last replica's, `LIST` all in shape [R], `SUM` or `MEAN` of them."""

    NONE = 1
    LIST = 2
    SUM = 3
    MEAN = 4

    @classmethod
    def parse(cls, value: object) -> ReplicatedMetricReductionMethod:
        """Takes a method, or its name in any case; raises `ValueError` for others."""
        return parse_method(cls, value)

    def reduce(self, values: np.ndarray) -> np.ndarray | np.number:
        """Reduces the values of R replicas, of shape [R] + the metric's shape."""
        if self is ReplicatedMetricReductionMethod.NONE:
            return values[-1]
        if self is ReplicatedMetricReductionMethod.SUM:
            return values.sum(axis=0)
        if self is ReplicatedMetricReductionMethod.MEAN:
            return values.mean(axis=0, dtype=np.float32 if values.dtype.kind == "f" else None)
        return values


@dataclass(frozen=True)
class ReplicationOptions(OptionGroup):
    """What logs show of the metrics of several replicas."""

    title: ClassVar[str] = "replication options"

    replicated_metric_reduction_method: ReplicatedMetricReductionMethod = ReplicatedMetricReductionMethod.NONE

    @classmethod
    def checked(cls, method: object) -> ReplicationOptions:
        """The options that the argument of `set_replication_options` says."""
        return cls(ReplicatedMetricReductionMethod.parse(method))

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> ReplicationOptions:
        """The group in which these options are set; see the class above."""
        return cls.checked(given.get("replicated_metric_reduction_method", ReplicatedMetricReductionMethod.NONE))


_AUTOMATIC = ("computational_stages", "repeat_count", "inputs", "infeed_queue", "outfeed_queue", "optimizer_function")
_NEVER = ("outfeed_loss", "outfeed_mask", "batch_serialization_iterations")
_REFUSED = {
    **NORMALIZATION,
    "gradient_accumulation_count": "set `gradient_accumulation_steps_per_replica` instead",
    "reduction_method": "set `gradient_accumulation_reduction_method` instead",
    **dict.fromkeys(_AUTOMATIC, "the model sets it"),
    **dict.fromkeys(_NEVER, "a Keras model has no use for it"),
}


@dataclass(frozen=True)
class PipeliningOptions(OptionGroup):
    """How a model with pipeline stages runs. Behind the first four are arguments of `pipeline`, with its defaults."""

    title: ClassVar[str] = "pipelining options"
    explicit: ClassVar[tuple[str, ...]] = (
        "gradient_accumulation_steps_per_replica",
        "device_mapping",
        "accumulate_outfeed",
        "gradient_accumulation_reduction_method",
    )
    unset: ClassVar[Mapping[str, str]] = {
        "gradient_accumulation_steps_per_replica": "to be set before `fit`",
        "device_mapping": "as the schedule has it",
        "accumulate_outfeed": "results are those of each step",
        "accumulate_outfeed_dtype": "that of each result",
        "gradient_accumulation_dtype": "that of each variable",
        "phase_liveness": "phases leave the chip after each",
        "pipeline_schedule": "PipelineSchedule.Grouped",
        "recomputation_mode": "nothing is recomputed",
    }

    gradient_accumulation_steps_per_replica: int | None = None
    device_mapping: list[int] | None = None
    accumulate_outfeed: bool | None = None
    gradient_accumulation_reduction_method: GradientAccumulationReductionMethod = (
        GradientAccumulationReductionMethod.SUM
    )
    accumulate_outfeed_dtype: DTypeOf = None
    backward_propagation_stages_poplar_options: Sequence[PipelineStageOptions] | None = None
    continuous_weight_updates: bool = False
    forward_propagation_stages_poplar_options: Sequence[PipelineStageOptions] | None = None
    gradient_accumulation_dtype: DTypeOf = None
    gradient_accumulation_for_captured_grads: bool = True
    name: str | None = None
    offload_activations: bool | None = None
    offload_gradient_accumulation_buffers: bool | None = None
    offload_weight_update_variables: bool | None = None
    offload_weights: bool | None = None
    phase_liveness: Liveness | None = None
    pipeline_schedule: PipelineSchedule | PhasedExecution | None = None
    recomputation_mode: RecomputationMode | None = None
    replicated_optimizer_state_sharding: bool | None = False
    replicated_weight_sharding: bool | None = None
    weight_update_poplar_options: PipelineStageOptions | None = None

    def arguments(self) -> dict[str, Any]:
        """The arguments of `pipeline` that are here, but for counts, IPUs and whether results are summed."""
        given = {name: value for name, value in self.in_effect().items() if name not in self.explicit}
        return {**given, "reduction_method": self.gradient_accumulation_reduction_method}

    @classmethod
    def checked(
        cls,
        steps: int | None,
        device_mapping: list[int] | None,
        accumulate_outfeed: bool | None,
        method: GradientAccumulationReductionMethod | str,
        kwargs: Mapping[str, Any],
    ) -> PipeliningOptions:
        """The options that the arguments of `set_pipelining_options` say."""
        faults = Faults()
        count = check_steps(steps, faults)
        if device_mapping is not None and not (
            isinstance(device_mapping, list) and all(type(device) is int for device in device_mapping)
        ):
            faults.add(ValueError, f"Expected `device_mapping` to be a list of integers, but it is {device_mapping!r}")
        elif not all(-1 <= device < environment.MOST_IPUS for device in device_mapping or ()):
            faults.add(
                ValueError,
                f"Expected `device_mapping` to have numbers of IPUs, from 0 to {environment.MOST_IPUS - 1} or -1 for all of"
                f" them, but it is {device_mapping!r}",
            )
        note_bool("accumulate_outfeed", accumulate_outfeed, faults, optional=True)
        parsed = check_method(method, faults)
        check_names("set_pipelining_options", kwargs, cls.further(), _REFUSED, faults)
        for name in ("accumulate_outfeed_dtype", "gradient_accumulation_dtype"):
            note_dtype(name, kwargs.get(name), faults)
        check_sharding(kwargs, faults)
        faults.raise_any()
        # The user's list may change; what the program is compiled by does not.
        mapping = None if device_mapping is None else list(device_mapping)
        return cls(count, mapping, accumulate_outfeed, parsed, **kwargs)


_REFUSED_OF_ACCUMULATION = {
    "opt": "the optimizer is the one that the model is compiled with",
    "num_mini_batches": "set `gradient_accumulation_steps_per_replica` instead",
    **NORMALIZATION,
}


@dataclass(frozen=True)
class GradientAccumulationOptions(OptionGroup):
    """How `fit` accumulates gradients. All but the first two and `dtype` change nothing in the emulator."""

    title: ClassVar[str] = "gradient accumulation options"
    explicit: ClassVar[tuple[str, ...]] = (
        "gradient_accumulation_steps_per_replica",
        "gradient_accumulation_reduction_method",
        "use_v2_gradient_accumulation_optimizer",
    )
    unset: ClassVar[Mapping[str, str]] = {
        "gradient_accumulation_steps_per_replica": "each step updates the weights",
        "dtype": "that of each variable",
    }

    gradient_accumulation_steps_per_replica: int | None = None
    gradient_accumulation_reduction_method: GradientAccumulationReductionMethod = (
        GradientAccumulationReductionMethod.SUM
    )
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
        from tensorflow_ipu.keras.optimizers.accumulated_step import StepAccumulation  # It takes time to import.

        return StepAccumulation(steps, self.gradient_accumulation_reduction_method, self.dtype)

    @classmethod
    def checked(
        cls,
        steps: int | None,
        method: GradientAccumulationReductionMethod | str,
        use_v2: bool,
        kwargs: Mapping[str, Any],
    ) -> GradientAccumulationOptions:
        """The options that the arguments of `set_gradient_accumulation_options` say."""
        faults = Faults()
        count = check_steps(steps, faults)
        parsed = check_method(method, faults)
        note_bool("use_v2_gradient_accumulation_optimizer", use_v2, faults)
        if use_v2 is True and steps is None:
            faults.add(
                ValueError,
                "`use_v2_gradient_accumulation_optimizer` may only be set to True when gradients are accumulated: set"
                " `gradient_accumulation_steps_per_replica` too",
            )
        check_names("set_gradient_accumulation_options", kwargs, cls.further(), _REFUSED_OF_ACCUMULATION, faults)
        note_dtype("dtype", kwargs.get("dtype"), faults)
        for name in ("offload_weight_update_variables", "replicated_optimizer_state_sharding"):
            note_bool(name, kwargs.get(name), faults, optional=True)
        note_bool("verify_usage", kwargs.get("verify_usage", True), faults)
        check_sharding(kwargs, faults)
        faults.raise_any()
        return cls(count, parsed, use_v2, **kwargs)


@dataclass
class Options:
    """What the `set_...` methods of a model have set."""

    accumulation: GradientAccumulationOptions = field(default_factory=GradientAccumulationOptions)
    pipelining: PipeliningOptions = field(default_factory=PipeliningOptions)
    infeed: InfeedOptions = field(default_factory=InfeedOptions)
    outfeed: OutfeedOptions = field(default_factory=OutfeedOptions)
    replication: ReplicationOptions = field(default_factory=ReplicationOptions)
    asynchronous_callbacks: bool = False

    def groups(self) -> Iterator[tuple[str, OptionGroup]]:
        """The name of each group, and the group."""
        for one in fields(self):
            if isinstance(getattr(self, one.name), OptionGroup):
                yield one.name, getattr(self, one.name)

    def set_accumulation(self, group: GradientAccumulationOptions) -> None:
        """Sets a group, and for pipelines the reduction method that it has: the latest call says it for both."""
        self.accumulation = group
        self._reduce_by(group.gradient_accumulation_reduction_method, "pipelining")

    def set_pipelining(self, group: PipeliningOptions) -> None:
        """Sets a group, and for gradient accumulation the reduction method that it has: the latest call says it for both."""
        self.pipelining = group
        self._reduce_by(group.gradient_accumulation_reduction_method, "accumulation")

    def reset(self, name: str) -> bool:
        """Puts a group back to its defaults."""
        before = replace(self)
        setattr(self, name, type(getattr(self, name))())
        other = {"accumulation": "pipelining", "pipelining": "accumulation"}.get(name)
        # A group without steps has a reduction method only of the other one.
        if other is not None and getattr(self, other).gradient_accumulation_steps_per_replica is None:
            self._reduce_by(GradientAccumulationReductionMethod.SUM, other)
        return self != before

    def _reduce_by(self, method: GradientAccumulationReductionMethod, name: str) -> None:
        setattr(self, name, replace(getattr(self, name), gradient_accumulation_reduction_method=method))
