"""The options of a model, in groups that are set and reset as one."""

from __future__ import annotations

import copy
import enum
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import tensorflow as tf

from tensorflow_ipu._base import environment
from tensorflow_ipu._base.checks import Faults, as_int, parse_method
from tensorflow_ipu.feeds import IPUInfeedQueue, IPUOutfeedQueue
from tensorflow_ipu.optimizers import GradientAccumulationReductionMethod
from tensorflow_ipu.optimizers.accumulation import checked_method
from tensorflow_ipu.pipelining.options import CHOICE, FLAG, PER_VARIABLE, Arguments, SharedOptions, check_fields

if TYPE_CHECKING:
    from typing_extensions import Self

    from tensorflow_ipu._base.types import DTypeOf
    from tensorflow_ipu.keras.optimizers.accumulated_step import StepAccumulation


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
    explicit: ClassVar[tuple[str, ...]] = ()  # The method's arguments by position, which are shown first.
    refused: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return *cls.explicit, *(each.name for each in fields(cls) if each.name not in cls.explicit)

    @classmethod
    def of(cls, /, **given: Any) -> Self:
        """The group in which these options are set, or all that is wrong with them."""
        faults = Faults()
        for name, reason in cls.refused.items():
            if name in given:
                faults.add(ValueError, f"`{name}` cannot be set here: {reason}")
        unknown = sorted(given.keys() - cls.names() - cls.refused.keys())
        if unknown:
            names, method = ", ".join(f"`{name}`" for name in unknown), f"set_{cls.title.replace(' ', '_')}"
            known = ", ".join(sorted(set(cls.names()).difference(cls.explicit)))
            faults.add(TypeError, f"`{method}` has no option {names}; the options by name are {known}")
        group = cls(**{name: given[name] for name in cls.names() if name in given})
        try:
            group = group.checked(faults)
        except (TypeError, ValueError) as exc:
            faults.add(type(exc), str(exc))
        check_fields(group, faults)
        faults.raise_any()
        return group

    def checked(self, faults: Faults) -> Self:
        """The group as it is used; records, or raises, what is wrong with it."""
        raise NotImplementedError

    def changed(self) -> dict[str, Any]:
        """The options that differ from the defaults, by name."""
        default = type(self)()
        return {name: getattr(self, name) for name in self.names() if getattr(self, name) != getattr(default, name)}

    def text(self, model_name: str) -> str:
        """The options as lines, each as one would type it."""
        unset = {each.name: each.metadata.get("unset", "") for each in fields(self)}
        values = ((name, getattr(self, name)) for name in self.names())
        rows = [(name, value, unset[name] if value is None else "") for name, value in values]
        return assignments(f'Model "{model_name}": {self.title}', rows)


@dataclass(frozen=True)
class InfeedOptions(OptionGroup):
    """What a model's infeeds are made with, as `IPUInfeedQueue` has it."""

    title: ClassVar[str] = "infeed queue options"
    refused: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("dataset", "infeed_spec", "element_spec"), "the model sets it"),
        "device_ordinal": "the strategy has the device",
    }

    prefetch_depth: int | None = 3  # The default of a queue.
    optimise_latency: bool = False

    def checked(self, faults: Faults) -> Self:
        """The group with the depth that a queue takes for None. The queue checks its arguments."""
        del faults
        # A queue of so little data costs nothing.
        queue = IPUInfeedQueue(tf.data.Dataset.range(1), device_ordinal=0, **vars(self))
        return replace(self, prefetch_depth=queue.prefetch_depth)


@dataclass(frozen=True)
class OutfeedOptions(OptionGroup):
    """What a model's outfeeds are made with, as `IPUOutfeedQueue` has it."""

    title: ClassVar[str] = "outfeed queue options"
    refused: ClassVar[Mapping[str, str]] = {
        "outfeed_mode": "the model sets it",
        "device_ordinal": "the strategy has the device",
    }

    buffer_depth: int = 3
    optimise_latency: bool = False

    def checked(self, faults: Faults) -> Self:
        del faults
        IPUOutfeedQueue(device_ordinal=0, **vars(self))
        return self


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

    def checked(self, faults: Faults) -> Self:
        del faults
        return type(self)(ReplicatedMetricReductionMethod.parse(self.replicated_metric_reduction_method))


_NORMALIZATION = {
    "experimental_normalize_gradients": "set `gradient_accumulation_reduction_method` to 'sum', 'mean' or 'running_mean'"
    " instead"
}


@dataclass(frozen=True)
class UpdateOptions(OptionGroup):
    """The options of all models whose updates are of several steps."""

    gradient_accumulation_steps_per_replica: int | None = field(
        default=None, metadata={"unset": "each step updates the weights"}
    )
    gradient_accumulation_reduction_method: GradientAccumulationReductionMethod = (
        GradientAccumulationReductionMethod.SUM
    )

    def checked(self, faults: Faults) -> Self:
        """The group with the steps as an int, and the method parsed."""
        name, steps = "gradient_accumulation_steps_per_replica", self.gradient_accumulation_steps_per_replica
        count = as_int(steps)
        if steps is not None and (count is None or count < 1):
            faults.add(ValueError, f"Expected `{name}` to be a positive integer, but got {steps!r}")
        elif count is not None and count > tf.int32.max:
            faults.add(ValueError, f"`{name}` must be at most {tf.int32.max}, but is {steps}")
        name = "gradient_accumulation_reduction_method"
        method = checked_method(name, self.gradient_accumulation_reduction_method, faults)
        return replace(
            self, gradient_accumulation_steps_per_replica=count, gradient_accumulation_reduction_method=method
        )


@dataclass(frozen=True)
class PipeliningOptions(SharedOptions, UpdateOptions):
    """How a model with pipeline stages runs."""

    title: ClassVar[str] = "pipelining options"
    explicit: ClassVar[tuple[str, ...]] = (
        "gradient_accumulation_steps_per_replica",
        "device_mapping",
        "accumulate_outfeed",
        "gradient_accumulation_reduction_method",
    )
    refused: ClassVar[Mapping[str, str]] = {
        **_NORMALIZATION,
        **{each.name: each.metadata["refused"] for each in fields(Arguments) if "refused" in each.metadata},
    }

    gradient_accumulation_steps_per_replica: int | None = field(
        default=None, metadata={"unset": "to be set before `fit`"}
    )
    device_mapping: list[int] | None = field(default=None, metadata={"unset": "as the schedule has it"})
    accumulate_outfeed: bool | None = field(
        default=None, metadata={**CHOICE, "unset": "results are those of each step"}
    )

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of the options: first those of the arguments by position, then the others in alphabetical order."""
        return *cls.explicit, *sorted(set(super().names()).difference(cls.explicit))

    def arguments(self) -> dict[str, Any]:
        """The arguments of `pipeline` that are here, but for counts, IPUs and whether results are summed."""
        shared = {each.name: getattr(self, each.name) for each in fields(SharedOptions)}
        return {**shared, "reduction_method": self.gradient_accumulation_reduction_method}

    def checked(self, faults: Faults) -> Self:
        """The group with a mapping of its own: the user's list may change, what the program is compiled by does not."""
        group, mapping = super().checked(faults), self.device_mapping
        if mapping is not None and not (isinstance(mapping, list) and all(type(device) is int for device in mapping)):
            faults.add(ValueError, f"Expected `device_mapping` to be a list of integers, but it is {mapping!r}")
        elif not all(-1 <= device < environment.MOST_IPUS for device in mapping or ()):
            faults.add(
                ValueError,
                f"Expected `device_mapping` to have numbers of IPUs, from 0 to {environment.MOST_IPUS - 1} or -1 for all of"
                f" them, but it is {mapping!r}",
            )
        return replace(group, device_mapping=copy.copy(mapping))


@dataclass(frozen=True)
class GradientAccumulationOptions(UpdateOptions):
    """How `fit` accumulates gradients. All but the first two and `dtype` change nothing in the emulator."""

    title: ClassVar[str] = "gradient accumulation options"
    explicit: ClassVar[tuple[str, ...]] = (
        "gradient_accumulation_steps_per_replica",
        "gradient_accumulation_reduction_method",
        "use_v2_gradient_accumulation_optimizer",
    )
    refused: ClassVar[Mapping[str, str]] = {
        **_NORMALIZATION,
        "opt": "the optimizer is the one that the model is compiled with",
        "num_mini_batches": "set `gradient_accumulation_steps_per_replica` instead",
    }

    use_v2_gradient_accumulation_optimizer: bool = field(default=False, metadata=FLAG)
    dtype: DTypeOf = field(default=None, metadata=PER_VARIABLE)
    name: str | None = None
    offload_weight_update_variables: bool | None = field(default=None, metadata=CHOICE)
    replicated_optimizer_state_sharding: bool | None = field(default=False, metadata=CHOICE)
    verify_usage: bool = field(default=True, metadata=FLAG)

    @property
    def plan(self) -> StepAccumulation | None:
        """How gradients are accumulated; None where each step updates the weights."""
        steps = self.gradient_accumulation_steps_per_replica
        if steps is None or steps == 1:
            return None
        from tensorflow_ipu.keras.optimizers.accumulated_step import StepAccumulation  # It takes time to import.

        return StepAccumulation(steps, self.gradient_accumulation_reduction_method, self.dtype)

    def checked(self, faults: Faults) -> Self:
        if self.use_v2_gradient_accumulation_optimizer is True and self.gradient_accumulation_steps_per_replica is None:
            faults.add(
                ValueError,
                "`use_v2_gradient_accumulation_optimizer` may only be set to True when gradients are accumulated: set"
                " `gradient_accumulation_steps_per_replica` too",
            )
        return super().checked(faults)


_OTHER = {"accumulation": "pipelining", "pipelining": "accumulation"}


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

    def set_updates(self, name: str, group: UpdateOptions) -> None:
        """Sets a group, and for the other one the reduction method that it has: the latest call says it for both."""
        setattr(self, name, group)
        self._reduce_by(group.gradient_accumulation_reduction_method, _OTHER[name])

    def reset(self, name: str) -> bool:
        before = replace(self)
        setattr(self, name, type(getattr(self, name))())
        other = _OTHER.get(name)
        # A group without steps has a reduction method only of the other one.
        if other is not None and getattr(self, other).gradient_accumulation_steps_per_replica is None:
            self._reduce_by(GradientAccumulationReductionMethod.SUM, other)
        return self != before

    def _reduce_by(self, method: GradientAccumulationReductionMethod, name: str) -> None:
        setattr(self, name, replace(getattr(self, name), gradient_accumulation_reduction_method=method))
