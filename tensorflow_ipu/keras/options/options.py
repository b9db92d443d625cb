"""The options of a model, in groups that are set and reset together."""

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
    """Returns a heading and a line for each `(name, value, remark)`, with aligned values."""
    rows = list(rows)
    width = max(len(name) for name, _, _ in rows)
    lines = [f"  {name:{width}} = {typed(value)}{f'  # {remark}' if remark else ''}" for name, value, remark in rows]
    return "\n".join([heading, *lines])


def typed(value: object) -> str:
    """Returns a value as source code, and a function by its name."""
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
    """A group of options. Its fields are the arguments of the method that sets them, with the same defaults."""

    title: ClassVar[str]
    explicit: ClassVar[tuple[str, ...]] = ()  # The positional arguments of the method, which are printed first.
    refused: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return *cls.explicit, *(option.name for option in fields(cls) if option.name not in cls.explicit)

    @classmethod
    def of(cls, /, **options: Any) -> Self:
        """Returns the group with these options set, or raises an error with all that is wrong with them."""
        faults = Faults()
        for name, reason in cls.refused.items():
            if name in options:
                faults.add(ValueError, f"`{name}` cannot be set here: {reason}")
        unsupported = sorted(options.keys() - cls.names() - cls.refused.keys())
        if unsupported:
            names, method = ", ".join(f"`{name}`" for name in unsupported), f"set_{cls.title.replace(' ', '_')}"
            supported = ", ".join(sorted(set(cls.names()).difference(cls.explicit)))
            faults.add(TypeError, f"`{method}` has no option {names}; the options by name are {supported}")
        group = cls(**{name: options[name] for name in cls.names() if name in options})
        try:
            group = group.checked(faults)
        except (TypeError, ValueError) as exc:
            faults.add(type(exc), str(exc))
        check_fields(group, faults)
        faults.raise_any()
        return group

    def checked(self, faults: Faults) -> Self:
        """Returns the group with converted values, such as an enum for a name. Adds errors to `faults`, or raises one."""
        raise NotImplementedError

    def changed(self) -> dict[str, Any]:
        """Returns the options that differ from the defaults, by name."""
        default = type(self)()
        return {name: getattr(self, name) for name in self.names() if getattr(self, name) != getattr(default, name)}

    def text(self, model_name: str) -> str:
        """Returns a line of source code for each option, below a heading."""
        unset = {option.name: option.metadata.get("unset", "") for option in fields(self)}
        values = ((name, getattr(self, name)) for name in self.names())
        rows = [(name, value, unset[name] if value is None else "") for name, value in values]
        return assignments(f'Model "{model_name}": {self.title}', rows)


@dataclass(frozen=True)
class InfeedOptions(OptionGroup):
    """The options of a model's infeeds, as in `IPUInfeedQueue`."""

    title: ClassVar[str] = "infeed queue options"
    refused: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("dataset", "infeed_spec", "element_spec"), "the model sets it"),
        "device_ordinal": "the strategy has the device",
    }

    prefetch_depth: int | None = 3  # The default of `IPUInfeedQueue`.
    optimise_latency: bool = False

    def checked(self, faults: Faults) -> Self:
        """Returns the group with the depth that a queue uses for None. The queue checks its arguments."""
        del faults
        # The queue is only made for its checks. Its small dataset is not read.
        queue = IPUInfeedQueue(tf.data.Dataset.range(1), device_ordinal=0, **vars(self))
        return replace(self, prefetch_depth=queue.prefetch_depth)


@dataclass(frozen=True)
class OutfeedOptions(OptionGroup):
    """The options of a model's outfeeds, as in `IPUOutfeedQueue`."""

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
    """The reduction of metrics of R replicas for logs.

    `NONE` shows the metrics of the last replica, `LIST` all of them in shape [R], and `SUM` or `MEAN` their sum or
    mean.
    """

    NONE = 1
    LIST = 2
    SUM = 3
    MEAN = 4

    @classmethod
    def parse(cls, value: object) -> ReplicatedMetricReductionMethod:
        """Returns a method from a method or its name in any case. Raises `ValueError` for other values."""
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
    """The option that sets how logs combine the metrics of replicas."""

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
    """The options of gradient accumulation and of pipelining, which both update weights after several steps."""

    gradient_accumulation_steps_per_replica: int | None = field(
        default=None, metadata={"unset": "each step updates the weights"}
    )
    gradient_accumulation_reduction_method: GradientAccumulationReductionMethod = (
        GradientAccumulationReductionMethod.SUM
    )

    def checked(self, faults: Faults) -> Self:
        """Returns the group with the steps as an int, and the method parsed."""
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
    """The options of a model with pipeline stages."""

    title: ClassVar[str] = "pipelining options"
    explicit: ClassVar[tuple[str, ...]] = (
        "gradient_accumulation_steps_per_replica",
        "device_mapping",
        "accumulate_outfeed",
        "gradient_accumulation_reduction_method",
    )
    refused: ClassVar[Mapping[str, str]] = {
        **_NORMALIZATION,
        **{option.name: option.metadata["refused"] for option in fields(Arguments) if "refused" in option.metadata},
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
        """Returns the names of the options: positional arguments first, then the others in alphabetical order."""
        return *cls.explicit, *sorted(set(super().names()).difference(cls.explicit))

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments of `pipeline` in this group, without counts, IPUs and `accumulate_outfeed`."""
        shared = {option.name: getattr(self, option.name) for option in fields(SharedOptions)}
        return {**shared, "reduction_method": self.gradient_accumulation_reduction_method}

    def checked(self, faults: Faults) -> Self:
        """Returns the group with a copy of the mapping, as the user's list may change after the compilation."""
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
    """The options of gradient accumulation in `fit`. Only the first two and `dtype` affect the emulator."""

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
        """The accumulation of gradients, or None if each step updates the weights."""
        steps = self.gradient_accumulation_steps_per_replica
        if steps is None or steps == 1:
            return None
        # Imported late, as the import takes time.
        from tensorflow_ipu.keras.optimizers.accumulated_step import StepAccumulation

        return StepAccumulation(steps, self.gradient_accumulation_reduction_method, self.dtype)

    def checked(self, faults: Faults) -> Self:
        if self.use_v2_gradient_accumulation_optimizer is True and self.gradient_accumulation_steps_per_replica is None:
            faults.add(
                ValueError,
                "`use_v2_gradient_accumulation_optimizer` may only be set to True when gradients are accumulated: set"
                " `gradient_accumulation_steps_per_replica` too",
            )
        return super().checked(faults)


_SHARES_REDUCTION_WITH = {"accumulation": "pipelining", "pipelining": "accumulation"}


@dataclass
class Options:
    """All options of a model."""

    accumulation: GradientAccumulationOptions = field(default_factory=GradientAccumulationOptions)
    pipelining: PipeliningOptions = field(default_factory=PipeliningOptions)
    infeed: InfeedOptions = field(default_factory=InfeedOptions)
    outfeed: OutfeedOptions = field(default_factory=OutfeedOptions)
    replication: ReplicationOptions = field(default_factory=ReplicationOptions)
    asynchronous_callbacks: bool = False

    def groups(self) -> Iterator[tuple[str, OptionGroup]]:
        """Yields the name of each group, and the group."""
        for group in fields(self):
            if isinstance(getattr(self, group.name), OptionGroup):
                yield group.name, getattr(self, group.name)

    def set_updates(self, name: str, group: UpdateOptions) -> None:
        """Sets a group, and its reduction method in the other group: the latest call sets it for both."""
        setattr(self, name, group)
        self._reduce_by(group.gradient_accumulation_reduction_method, _SHARES_REDUCTION_WITH[name])

    def reset(self, name: str) -> bool:
        """Resets a group to its defaults. Returns True if that changed an option."""
        original = replace(self)
        setattr(self, name, type(getattr(self, name))())
        sharing_group = _SHARES_REDUCTION_WITH.get(name)
        # A group without steps was not set, so its reduction method was set by the other group.
        if sharing_group is not None and getattr(self, sharing_group).gradient_accumulation_steps_per_replica is None:
            self._reduce_by(GradientAccumulationReductionMethod.SUM, sharing_group)
        return self != original

    def _reduce_by(self, method: GradientAccumulationReductionMethod, name: str) -> None:
        setattr(self, name, replace(getattr(self, name), gradient_accumulation_reduction_method=method))
