"""The arguments of `pipeline`, with all their checks. The Keras options of pipelines are derived from them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from tensorflow_ipu._base import poplar_options
from tensorflow_ipu._base.checks import Faults, as_int, note_bool
from tensorflow_ipu._base.tensors import note_dtype
from tensorflow_ipu.feeds import IPUInfeedQueue, IPUIterator, IPUOutfeedMode, IPUOutfeedQueue
from tensorflow_ipu.feeds.iterator import queue_of
from tensorflow_ipu.optimizers import GradientAccumulationReductionMethod
from tensorflow_ipu.optimizers.accumulation import check_sharding, checked_method
from tensorflow_ipu.pipelining.schedule import plan_arguments
from tensorflow_ipu.pipelining.schedule.enums import (
    Liveness,
    PhasedExecution,
    PipelineSchedule,
    RecomputationMode,
    Results,
)
from tensorflow_ipu.pipelining.schedule.phased import Phased
from tensorflow_ipu.pipelining.schedule.pipelined import Pipelined
from tensorflow_ipu.pipelining.schedule.plan import counted

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tensorflow_ipu._base.types import DTypeOf, Nested, Number
    from tensorflow_ipu.pipelining.weight_update import OptimizerFunctionOutput

_KINDS = ("convolution_options", "matmul_options", "slice_options")


class PoplarOption(NamedTuple):
    """The name and the value of a recorded option."""

    option: str
    value: str


class StageOptionsRecord(NamedTuple):
    """The options that a `PipelineStageOptions` has recorded, in their order."""

    convolution_options: tuple[PoplarOption, ...]
    matmul_options: tuple[PoplarOption, ...]
    slice_options: tuple[PoplarOption, ...]


class PipelineStageOptions:
    """Options of the vendor's libraries for one stage. They are recorded but do not change the emulated program."""

    def __init__(
        self,
        convolution_options: Mapping[str, str] | None = None,
        matmul_options: Mapping[str, str] | None = None,
        slice_options: Mapping[str, str] | None = None,
    ) -> None:
        """Records options, each a dict of names and values.

        Args:
          convolution_options: Options for convolutions.
          matmul_options: Options for matrix products.
          slice_options: Options for slices, gathers and scatters.

        Raises:
          TypeError: An argument is not a dict, or has a key or a value that is not a string. All errors are reported
            together.
          ValueError: An option does not support its value.
        """
        options_by_kind = dict(zip(_KINDS, (convolution_options, matmul_options, slice_options), strict=True))
        faults = Faults()
        for name, options in options_by_kind.items():
            if options is not None and not isinstance(options, dict):
                faults.add(TypeError, f"`{name}` must be a dict of names and values, but is {options!r}")
                continue
            untyped = [item for item in (options or {}).items() if not all(isinstance(part, str) for part in item)]
            for key, value in untyped:
                message = f"must have strings as names and values, but has `{key!r}: {value!r}`; write it as text"
                faults.add(TypeError, f"`{name}` {message}")
            for fault in () if untyped else poplar_options.faults(name, options or {}):
                faults.add(ValueError, fault)
        faults.raise_any()
        self._record = StageOptionsRecord(
            *(tuple(PoplarOption(*item) for item in (options or {}).items()) for options in options_by_kind.values())
        )

    def get_proto(self) -> StageOptionsRecord:
        """Returns the recorded options. The fields have the names of the SDK's protocol buffer message."""
        return self._record

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PipelineStageOptions) and self._record == other._record

    def __hash__(self) -> int:
        return hash(self._record)

    def __repr__(self) -> str:
        fields = (f"{name}={dict(options)!r}" for name, options in self._record._asdict().items() if options)
        return f"PipelineStageOptions({', '.join(fields)})"


def _note_stage_options(name: str, value: object, faults: Faults) -> None:
    if value is not None and not isinstance(value, (list, tuple)):
        faults.add(TypeError, f"`{name}` must be a list of `PipelineStageOptions`, but is {value!r}")
        return
    for options in (inner for item in value or () for inner in (item if isinstance(item, (list, tuple)) else [item])):
        if not isinstance(options, PipelineStageOptions):
            faults.add(TypeError, f"`{name}` must contain `PipelineStageOptions` only, but contains {options!r}")


def _note_update_options(name: str, value: object, faults: Faults) -> None:
    if value is not None and not isinstance(value, PipelineStageOptions):
        faults.add(TypeError, f"`{name}` must be a `PipelineStageOptions`, but is {value!r}")


# The metadata of an option: `check` records errors of a value, `unset` describes the meaning of None, and `refused` is
# the reason why Keras models do not support the option.
PER_VARIABLE = {"check": note_dtype, "unset": "that of each variable"}
FLAG = {"check": note_bool}
CHOICE = {"check": functools.partial(note_bool, optional=True)}  # True, False or None.
_STAGES = {"check": _note_stage_options}
_OF_MODEL = {"refused": "the model sets it"}
_USELESS = {"refused": "a Keras model has no use for it"}
_RENAMED = {
    name: {"refused": f"set `gradient_accumulation_{name}` instead"}
    for name in ("steps_per_replica", "reduction_method")
}


def check_fields(options: DataclassInstance, faults: Faults) -> None:
    """Records errors of single options, and of sharding without offloading."""
    for option in fields(options):
        if "check" in option.metadata:
            option.metadata["check"](option.name, getattr(options, option.name), faults)
    if hasattr(options, "replicated_optimizer_state_sharding"):
        check_sharding(options, faults)


@dataclass(frozen=True, kw_only=True)
class PipelineOptions:
    """The arguments of `pipeline` that tune hardware. They are recorded but do not change the emulated program."""

    forward_propagation_stages_poplar_options: Sequence[PipelineStageOptions] | None = field(
        default=None, metadata=_STAGES
    )
    backward_propagation_stages_poplar_options: Sequence[PipelineStageOptions] | None = field(
        default=None, metadata=_STAGES
    )
    weight_update_poplar_options: PipelineStageOptions | None = field(
        default=None, metadata={"check": _note_update_options}
    )
    offload_weight_update_variables: bool | None = field(default=None, metadata=CHOICE)
    replicated_optimizer_state_sharding: bool | None = field(default=False, metadata=CHOICE)
    offload_activations: bool | None = field(default=None, metadata=CHOICE)
    offload_gradient_accumulation_buffers: bool | None = field(default=None, metadata=CHOICE)
    replicated_weight_sharding: bool | None = field(default=None, metadata=CHOICE)
    offload_weights: bool | None = field(default=None, metadata=CHOICE)


@dataclass(frozen=True, kw_only=True)
class SharedOptions(PipelineOptions):
    """The arguments of `pipeline` that Keras models support too, with the same names and defaults."""

    accumulate_outfeed_dtype: DTypeOf = field(default=None, metadata={**PER_VARIABLE, "unset": "that of each result"})
    continuous_weight_updates: bool = False
    gradient_accumulation_dtype: DTypeOf = field(default=None, metadata=PER_VARIABLE)
    gradient_accumulation_for_captured_grads: bool = True
    name: str | None = None
    phase_liveness: Liveness | None = field(default=None, metadata={"unset": "phases leave the chip after each"})
    pipeline_schedule: PipelineSchedule | PhasedExecution | None = field(
        default=None, metadata={"unset": "PipelineSchedule.Grouped"}
    )
    recomputation_mode: RecomputationMode | None = field(default=None, metadata={"unset": "nothing is recomputed"})


@dataclass(frozen=True, eq=False, kw_only=True)
class Arguments(SharedOptions):
    """The arguments of `pipeline`, and values derived from them. The constructor raises all their errors together.

    Attributes:
      training: True if there is an optimizer function.
      stages: The functions of the parts of each stage.
      count: The number of micro-batches, maybe a tensor.
      multiple: The number of which `count` must be a multiple.
      known_count: `count`; None if it is known at run time only, or if it is not a multiple.
      mapping: The IPUs of each stage.
      schedule: The schedule.
      recomputation: The recomputation mode, never `Auto`; None if nothing is recomputed.
      infeed: The queue of the infeed.
      results: The results that are enqueued.
      method: The reduction method.
    """

    computational_stages: Sequence[Callable[..., Nested] | Sequence[Callable[..., Nested]]] = field(metadata=_OF_MODEL)
    gradient_accumulation_count: Number | tf.Variable | None = field(metadata=_RENAMED["steps_per_replica"])
    repeat_count: int = field(metadata=_OF_MODEL)
    batch_serialization_iterations: int = field(metadata=_USELESS)
    inputs: Nested = field(metadata=_OF_MODEL)
    infeed_queue: IPUInfeedQueue | IPUIterator | None = field(metadata=_OF_MODEL)
    outfeed_queue: IPUOutfeedQueue | None = field(metadata=_OF_MODEL)
    optimizer_function: Callable[..., OptimizerFunctionOutput] | None = field(metadata=_OF_MODEL)
    device_mapping: Sequence[int | Sequence[int]] | None
    outfeed_loss: bool = field(metadata=_USELESS)
    accumulate_outfeed: bool | Results
    outfeed_mask: Sequence[bool] | None = field(metadata=_USELESS)
    reduction_method: GradientAccumulationReductionMethod | str = field(metadata=_RENAMED["reduction_method"])

    # Derived values.
    training: bool = field(init=False)
    stages: tuple[tuple[Callable[..., Nested], ...], ...] = field(init=False)
    count: int | tf.Tensor = field(init=False)
    multiple: int = field(init=False)
    known_count: int | None = field(init=False)
    mapping: plan_arguments.Mapping = field(init=False)
    schedule: plan_arguments.Schedule = field(init=False)
    recomputation: RecomputationMode | None = field(init=False)
    infeed: IPUInfeedQueue | None = field(init=False)
    results: Results = field(init=False)
    method: GradientAccumulationReductionMethod = field(init=False)

    def __post_init__(self) -> None:
        faults = Faults()
        serialization = self.batch_serialization_iterations
        source = self.infeed_queue
        results = Results.SUM if self.accumulate_outfeed else Results.EACH
        schedule = self._schedule(faults)
        vars(self).update(
            training=self.optimizer_function is not None,
            schedule=schedule,
            infeed=queue_of(source) if isinstance(source, IPUIterator) else source,
            results=self.accumulate_outfeed if isinstance(self.accumulate_outfeed, Results) else results,
        )
        count = _count(self.gradient_accumulation_count, faults)
        method = GradientAccumulationReductionMethod.SUM
        if self.training:
            method = checked_method("reduction_method", self.reduction_method, faults)
        plan_arguments.checked_count("batch_serialization_iterations", serialization, faults)
        plan_arguments.checked_count("repeat_count", self.repeat_count, faults)
        counts = {"gradient_accumulation_count": count, "batch_serialization_iterations": serialization}
        plan_arguments.checked_product(counts, faults)
        if plan_arguments.is_serialized(serialization) and method is not GradientAccumulationReductionMethod.SUM:
            faults.add(
                ValueError,
                "batch_serialization_iterations != 1 is only supported when `reduction_method` is SUM, but they are"
                f" {serialization} and {method.name}",
            )
        if self.continuous_weight_updates:
            faults.add(
                NotImplementedError,
                "`continuous_weight_updates` is not supported: weights are updated once a pass. Leave it False",
            )
        stages = _stages(self.computational_stages, faults)
        mapping = self._mapping(stages, schedule, faults)
        mode = None
        if schedule is not None:
            schedule.check(mapping, self.training, serialization, faults, "pipeline_schedule")
            mode = schedule.checked_mode(self.recomputation_mode, self.training, faults)
        if self.training and not callable(self.optimizer_function):
            faults.add(TypeError, f"`optimizer_function` must be a function, but is {self.optimizer_function!r}")
        self._check_queues(faults)
        check_fields(self, faults)
        for name in ("forward_propagation_stages_poplar_options", "backward_propagation_stages_poplar_options"):
            options = getattr(self, name)
            if stages is not None and isinstance(options, (list, tuple)) and len(options) != len(stages):
                faults.add(
                    ValueError,
                    f"`{name}` has {len(options)} items, but there are {len(stages)} stages; pass one for each",
                )
        faults.raise_any()
        assert mapping is not None
        multiple = self.schedule.multiple(mapping, self.training)
        known_count = count if isinstance(count, int) and count % multiple == 0 else None
        vars(self).update(stages=stages, count=count, mapping=mapping, recomputation=mode, method=method)
        vars(self).update(multiple=multiple, known_count=known_count)

    @property
    def full_mapping(self) -> plan_arguments.FullMapping:
        """The IPUs of each stage, and for each stage True if it was passed as a list of parts."""
        return self.mapping, tuple(isinstance(stage, (list, tuple)) for stage in self.computational_stages)

    def recorded(self) -> PipelineOptions:
        """Returns the options that tune hardware."""
        values = {option.name: getattr(self, option.name) for option in fields(PipelineOptions)}
        options: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        return PipelineOptions(**options)

    def _schedule(self, faults: Faults) -> plan_arguments.Schedule | None:
        """Returns the schedule with its liveness; records errors and returns None if there is no schedule."""
        schedule, liveness = self.pipeline_schedule, self.phase_liveness
        if schedule is None:
            serialized = plan_arguments.is_serialized(self.batch_serialization_iterations)
            schedule = PipelineSchedule.Sequential if serialized else PipelineSchedule.Grouped
        if liveness is not None and not isinstance(liveness, Liveness):
            faults.add(TypeError, f"`phase_liveness` must be a `Liveness` or None, but is {liveness!r}")
        elif liveness is not None and not isinstance(schedule, PhasedExecution):
            faults.add(
                ValueError,
                f"`phase_liveness` is {liveness} and `pipeline_schedule` is {schedule}: stages of a pipeline never"
                " leave the chip; omit `phase_liveness`, or use a `PhasedExecution`",
            )
        if isinstance(schedule, PhasedExecution):
            return Phased(schedule, liveness or Liveness.OffChipAfterEachPhase)
        if isinstance(schedule, PipelineSchedule):
            return Pipelined(schedule)
        expected = "must be a `PipelineSchedule` or a `PhasedExecution`"
        faults.add(TypeError, f"`pipeline_schedule` {expected}, but is {schedule!r}")
        return None

    def _mapping(
        self,
        stages: tuple[tuple[Callable[..., Nested], ...], ...] | None,
        schedule: plan_arguments.Schedule | None,
        faults: Faults,
    ) -> plan_arguments.Mapping | None:
        value: object = self.device_mapping
        if value is None:
            if schedule is None or stages is None:
                return None
            value = schedule.default_mapping(list(map(len, stages)), self.batch_serialization_iterations)
        elif not isinstance(value, (list, tuple)):
            faults.add(TypeError, f"device_mapping argument needs to be a list or a tuple, but is {value!r}")
            return None
        elif stages is not None and len(value) != len(stages):
            faults.add(
                ValueError,
                f"Each stage must be mapped to an IPU: `device_mapping` has {len(value)} items, and there are"
                f" {len(stages)} stages",
            )
            return None
        full = plan_arguments.checked_mapping("device_mapping", value, faults)
        if full is None or stages is None:
            return None
        for stage, (ipus, parts) in enumerate(zip(full[0], stages, strict=True)):
            if len(ipus) != len(parts):
                faults.add(
                    ValueError,
                    f"`device_mapping[{stage}]` is {value[stage]!r}, but stage {stage} has"
                    f" {counted(len(parts), 'concurrent function')}; each needs an IPU",
                )
                return None
        return full[0]

    def _check_queues(self, faults: Faults) -> None:
        outfeed, mask = self.outfeed_queue, self.outfeed_mask
        queues = (("infeed_queue", self.infeed, IPUInfeedQueue), ("outfeed_queue", outfeed, IPUOutfeedQueue))
        for name, queue, kind in queues:
            if queue is not None and not isinstance(queue, kind):
                faults.add(TypeError, f"{name} is not an instance of `{kind.__name__}`, but {queue!r}")
        if mask is not None and not isinstance(mask, (list, tuple)):
            faults.add(TypeError, f"`outfeed_mask` must be a list of bools, one an output, but is {mask!r}")
        if mask is not None and not self.training:
            faults.add(ValueError, "An optimizer_function must be provided when `outfeed_mask` is set")
        if self.outfeed_loss and not self.training:
            faults.add(ValueError, "An optimizer_function must be provided when `outfeed_loss` is True")
        if self.outfeed_loss and mask is not None:
            faults.add(ValueError, "Only one of `outfeed_loss` and `outfeed_mask` can be set")
        for name in ("outfeed_loss", "accumulate_outfeed"):
            if getattr(self, name) and outfeed is None:
                faults.add(ValueError, f"An outfeed_queue must be provided when `{name}` is True")
        all_elements = IPUOutfeedMode.ALL
        if (
            self.accumulate_outfeed
            and isinstance(outfeed, IPUOutfeedQueue)
            and outfeed.outfeed_mode is not all_elements
        ):
            faults.add(
                ValueError,
                "To accumulate the outfeed, it must be in `IPUOutfeedMode.ALL`; make another `outfeed_queue`",
            )


def _count(value: Any, faults: Faults) -> int | tf.Tensor | None:
    name = "gradient_accumulation_count"
    if value is None:
        faults.add(ValueError, f"{name} must be specified: it is the number of micro-batches of a weight update")
        return None
    if tf.is_tensor(value) or isinstance(value, tf.Variable):
        if not value.dtype.is_integer or value.shape.rank not in (0, None):
            faults.add(TypeError, f"`{name}` must be a whole number or an integer scalar, but is {value!r}")
            return None
        static_value = tf.get_static_value(value)
        if static_value is None:
            return tf.convert_to_tensor(value)
        value = int(static_value)
    count = as_int(value)
    plan_arguments.checked_count(name, value if count is None else count, faults)
    return count


def _stages(value: object, faults: Faults) -> tuple[tuple[Callable[..., Nested], ...], ...] | None:
    name = "computational_stages"
    if not isinstance(value, (list, tuple)):
        faults.add(TypeError, f"`{name}` must be a list or a tuple of functions, but is {value!r}")
        return None
    if len(value) < 2:
        faults.add(ValueError, f"Pipeline requires at least two computational stages, but `{name}` has {len(value)}")
    if len(value) > plan_arguments.MOST_STAGES:
        plan_arguments.checked_count("stages", len(value), faults, plan_arguments.MOST_STAGES)
        return None
    stages = []
    for number, stage in enumerate(value):
        parts = tuple(stage) if isinstance(stage, (list, tuple)) else (stage,)
        if not parts:
            faults.add(ValueError, f"`{name}[{number}]` is an empty list; name the functions of the concurrent stages")
        for part in parts:
            if not callable(part):
                faults.add(TypeError, f"`{name}[{number}]` must be a function, or a list of them, but is {stage!r}")
        stages.append(parts)
    return tuple(stages)
