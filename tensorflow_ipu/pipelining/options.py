"""What `pipeline` was given: checked, all faults at once, and brought into one form."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from tensorflow_ipu._base import poplar_options
from tensorflow_ipu._base.checks import Faults, as_int, is_int, note_bool
from tensorflow_ipu._base.tensors import note_dtype
from tensorflow_ipu.feeds import IPUInfeedQueue, IPUOutfeedMode, IPUOutfeedQueue
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
from tensorflow_ipu.pipelining.schedule.phased import check_groups

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import DTypeOf, Nested
    from tensorflow_ipu.pipelining.weight_update import OptimizerFunctionOutput

_KINDS = ("convolution_options", "matmul_options", "slice_options")


class PoplarOption(NamedTuple):
    """One recorded option."""

    option: str
    value: str


class StageOptionsRecord(NamedTuple):
    """What a `PipelineStageOptions` recorded, in the order in which it was given."""

    convolution_options: tuple[PoplarOption, ...]
    matmul_options: tuple[PoplarOption, ...]
    slice_options: tuple[PoplarOption, ...]


class PipelineStageOptions:
    """Options for the libraries that a stage uses on hardware. They tune hardware, so here they change nothing."""

    def __init__(
        self,
        convolution_options: Mapping[str, str] | None = None,
        matmul_options: Mapping[str, str] | None = None,
        slice_options: Mapping[str, str] | None = None,
    ) -> None:
        """Records names and values of options for convolutions, for matrix products, and for slices, gathers and scatters.

        Raises:
          TypeError: An argument is no dict, or has a key or a value that is no string. All faults together.
          ValueError: The value of an option is none that it can have.
        """
        given = dict(zip(_KINDS, (convolution_options, matmul_options, slice_options), strict=True))
        faults = [fault for name, options in given.items() for fault in _faults(name, options)]
        if faults:
            raise TypeError("; ".join(faults))
        faults = [fault for name, options in given.items() for fault in poplar_options.faults(name, options or {})]
        if faults:
            raise ValueError("; ".join(faults))
        self._record = StageOptionsRecord(
            *(tuple(PoplarOption(*item) for item in (options or {}).items()) for options in given.values())
        )

    def get_proto(self) -> StageOptionsRecord:
        """The recorded options, under the field names of the message that hardware is given."""
        return self._record

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PipelineStageOptions) and self._record == other._record

    def __hash__(self) -> int:
        return hash(self._record)

    def __repr__(self) -> str:
        fields = (f"{name}={dict(options)!r}" for name, options in self._record._asdict().items() if options)
        return f"PipelineStageOptions({', '.join(fields)})"


def _faults(name: str, options: object) -> list[str]:
    if options is None:
        return []
    if not isinstance(options, dict):
        return [f"`{name}` must be a dict of names and values, but is {options!r}"]
    return [
        f"`{name}` must have strings as names and values, but has `{key!r}: {value!r}`; write it as text"
        for key, value in options.items()
        if not (isinstance(key, str) and isinstance(value, str))
    ]


@dataclass(frozen=True)
class PipelineOptions:
    """What tunes hardware alone, as given to `pipeline`: checked and recorded, of no effect in the emulator."""

    forward_propagation_stages_poplar_options: tuple[PipelineStageOptions, ...] | None
    backward_propagation_stages_poplar_options: tuple[PipelineStageOptions, ...] | None
    weight_update_poplar_options: PipelineStageOptions | None
    offload_weight_update_variables: bool | None
    replicated_optimizer_state_sharding: bool | None
    offload_activations: bool | None
    offload_gradient_accumulation_buffers: bool | None
    replicated_weight_sharding: bool | None
    offload_weights: bool | None


def checked_options(given: object, stages: int | None, faults: Faults) -> PipelineOptions:
    """What `given` has of them. Records what is wrong with them, and with the dtypes."""
    for name in ("gradient_accumulation_dtype", "accumulate_outfeed_dtype"):
        note_dtype(name, getattr(given, name), faults)
    lists: dict[str, tuple[PipelineStageOptions, ...] | None] = {}
    for direction in ("forward", "backward"):
        name = f"{direction}_propagation_stages_poplar_options"
        lists[name] = _stage_options(name, getattr(given, name), stages, faults)
    name = "weight_update_poplar_options"
    update = getattr(given, name)
    if update is not None and not isinstance(update, PipelineStageOptions):
        faults.add(TypeError, f"`{name}` must be a `PipelineStageOptions`, but is {update!r}")
    names = [each.name for each in fields(PipelineOptions) if not each.name.endswith("_poplar_options")]
    flags = {name: getattr(given, name) for name in names}
    for name, value in flags.items():
        note_bool(name, value, faults, optional=True)
    check_sharding(given, faults)
    return PipelineOptions(**lists, weight_update_poplar_options=update, **flags)


def _stage_options(
    name: str, value: object, stages: int | None, faults: Faults
) -> tuple[PipelineStageOptions, ...] | None:
    if value is None:
        return None
    if not isinstance(value, (list, tuple)):
        faults.add(TypeError, f"`{name}` must be a list of `PipelineStageOptions`, but is {value!r}")
        return None
    for each in (inner for item in value for inner in (item if isinstance(item, (list, tuple)) else [item])):
        if not isinstance(each, PipelineStageOptions):
            faults.add(TypeError, f"`{name}` must hold `PipelineStageOptions` alone, but holds {each!r}")
    if stages is not None and len(value) != stages:
        faults.add(ValueError, f"`{name}` has {len(value)} items, but there are {stages} stages; give one for each")
    return tuple(value)


def check_queues(given: SimpleNamespace, training: bool, faults: Faults) -> None:
    """Records what is wrong with the queues, and with what is to go into the outfeed."""
    infeed, outfeed, mask = given.infeed_queue, given.outfeed_queue, given.outfeed_mask
    if infeed is not None and not isinstance(infeed, IPUInfeedQueue):
        faults.add(TypeError, f"infeed_queue is not an instance of `IPUInfeedQueue`, but {infeed!r}")
    if outfeed is not None and not isinstance(outfeed, IPUOutfeedQueue):
        faults.add(TypeError, f"outfeed_queue is not an instance of `IPUOutfeedQueue`, but {outfeed!r}")
    if mask is not None and not isinstance(mask, (list, tuple)):
        faults.add(TypeError, f"`outfeed_mask` must be a list of bools, one an output, but is {mask!r}")
    if mask is not None and not training:
        faults.add(ValueError, "An optimizer_function must be provided when `outfeed_mask` is set")
    if given.outfeed_loss and not training:
        faults.add(ValueError, "An optimizer_function must be provided when `outfeed_loss` is True")
    if given.outfeed_loss and mask is not None:
        faults.add(ValueError, "Only one of `outfeed_loss` and `outfeed_mask` can be set")
    if given.outfeed_loss and outfeed is None:
        faults.add(ValueError, "An outfeed_queue must be provided when `outfeed_loss` is True")
    if given.accumulate_outfeed:
        if outfeed is None:
            faults.add(ValueError, "An outfeed_queue must be provided when `accumulate_outfeed` is True")
        elif isinstance(outfeed, IPUOutfeedQueue) and outfeed.outfeed_mode is not IPUOutfeedMode.ALL:
            faults.add(
                ValueError,
                "To accumulate the outfeed, it must be in `IPUOutfeedMode.ALL`; make another `outfeed_queue`",
            )


@dataclass(frozen=True)
class Arguments:
    """The arguments of a pipeline, in the form in which they are used."""

    stages: tuple[tuple[Callable[..., Nested], ...], ...]
    count: int | tf.Tensor
    accumulation_dtype: DTypeOf
    sum_captured: bool
    repeat_count: int
    serialization: int
    inputs: tuple[Nested, ...]
    infeed: IPUInfeedQueue | None
    outfeed: IPUOutfeedQueue | None
    optimizer_function: Callable[..., OptimizerFunctionOutput] | None
    mapping: plan_arguments.Mapping
    concurrent: tuple[bool, ...]
    everywhere: frozenset[int]
    schedule: PipelineSchedule | PhasedExecution
    recomputation: RecomputationMode | None
    outfeed_loss: bool
    results: Results
    accumulate_outfeed_dtype: DTypeOf
    outfeed_mask: tuple[bool, ...] | None
    method: GradientAccumulationReductionMethod
    options: PipelineOptions
    liveness: Liveness | None

    @property
    def training(self) -> bool:
        """Whether there are backward passes and updates."""
        return self.optimizer_function is not None


def checked(given: SimpleNamespace) -> Arguments:
    """Checks the arguments of `pipeline`, under their names."""
    faults = Faults()
    training = given.optimizer_function is not None
    count = _count(given.gradient_accumulation_count, faults)
    method = GradientAccumulationReductionMethod.SUM
    if training:
        method = checked_method("reduction_method", given.reduction_method, faults)
    serialization = given.batch_serialization_iterations
    plan_arguments.checked_count("batch_serialization_iterations", serialization, faults)
    plan_arguments.checked_count("repeat_count", given.repeat_count, faults)
    serialized = is_int(serialization) and serialization > 1
    counts = {"gradient_accumulation_count": count, "batch_serialization_iterations": serialization}
    plan_arguments.checked_product(counts, faults)
    if serialized and method is not GradientAccumulationReductionMethod.SUM:
        faults.add(
            ValueError,
            f"batch_serialization_iterations != 1 is only supported when `reduction_method` is SUM, but they are"
            f" {serialization} and {method.name}",
        )
    if given.continuous_weight_updates:
        faults.add(
            NotImplementedError,
            "`continuous_weight_updates` is not supported: weights are updated once a pass. Leave it False",
        )
    schedule = given.pipeline_schedule
    if schedule is None:
        schedule = PipelineSchedule.Sequential if serialized else PipelineSchedule.Grouped
    stages = _stages(given.computational_stages, faults)
    mapping = _mapping(given.device_mapping, stages, schedule, serialized, faults)
    mode = None
    if isinstance(schedule, PhasedExecution):
        _check_phases(schedule, mapping, given, faults)
    else:
        plan_arguments.checked_schedule(schedule, mapping, training, serialization, faults, name="pipeline_schedule")
        mode = plan_arguments.checked_recomputation(given.recomputation_mode, schedule, training, faults)
    _check_liveness(schedule, given.phase_liveness, faults)
    function = given.optimizer_function
    if function is not None and not callable(function):
        faults.add(TypeError, f"`optimizer_function` must be a function, but is {function!r}")
    check_queues(given, training, faults)
    options = checked_options(given, None if stages is None else len(stages), faults)
    faults.raise_any()
    assert stages is not None
    assert count is not None
    assert mapping is not None
    inputs = given.inputs
    mask = given.outfeed_mask
    return Arguments(
        stages=stages,
        count=count,
        accumulation_dtype=given.gradient_accumulation_dtype,
        sum_captured=bool(given.gradient_accumulation_for_captured_grads),
        repeat_count=given.repeat_count,
        serialization=serialization,
        inputs=() if inputs is None else tuple(inputs) if isinstance(inputs, (list, tuple)) else (inputs,),
        infeed=given.infeed_queue,
        outfeed=given.outfeed_queue,
        optimizer_function=given.optimizer_function,
        mapping=mapping,
        concurrent=tuple(isinstance(stage, (list, tuple)) for stage in given.computational_stages),
        everywhere=frozenset(
            at for at, item in enumerate(given.device_mapping or ()) if item == plan_arguments.ALL_IPUS
        ),
        schedule=schedule,
        recomputation=mode,
        outfeed_loss=bool(given.outfeed_loss),
        results=_results(given.accumulate_outfeed),
        accumulate_outfeed_dtype=given.accumulate_outfeed_dtype,
        outfeed_mask=None if mask is None else tuple(map(bool, mask)),
        method=method,
        options=options,
        liveness=(given.phase_liveness or Liveness.OffChipAfterEachPhase)
        if isinstance(schedule, PhasedExecution)
        else None,
    )


def _results(accumulate: bool | Results) -> Results:
    if isinstance(accumulate, Results):
        return accumulate
    return Results.SUM if accumulate else Results.EACH


def _count(value: Any, faults: Faults) -> int | tf.Tensor | None:
    name = "gradient_accumulation_count"
    if value is None:
        faults.add(ValueError, f"{name} must be specified: it is the number of micro-batches of a weight update")
        return None
    if tf.is_tensor(value) or isinstance(value, tf.Variable):
        if not value.dtype.is_integer or value.shape.rank not in (0, None):
            faults.add(TypeError, f"`{name}` must be a whole number or an integer scalar, but is {value!r}")
            return None
        known = tf.get_static_value(value)
        if known is None:
            return tf.convert_to_tensor(value)
        value = int(known)
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
    found = []
    for at, stage in enumerate(value):
        parts = tuple(stage) if isinstance(stage, (list, tuple)) else (stage,)
        if not parts:
            faults.add(ValueError, f"`{name}[{at}]` is an empty list; name the functions of the concurrent stages")
        for part in parts:
            if not callable(part):
                faults.add(TypeError, f"`{name}[{at}]` must be a function, or a list of them, but is {stage!r}")
        found.append(parts)
    return tuple(found)


def _mapping(
    value: object,
    stages: tuple[tuple[Callable[..., Nested], ...], ...] | None,
    schedule: object,
    serialized: bool,
    faults: Faults,
) -> plan_arguments.Mapping | None:
    if value is None:
        if stages is None:
            return None
        default = _default_mapping([len(parts) for parts in stages], schedule, serialized)
        full = plan_arguments.checked_mapping("device_mapping", default, faults)
        return full and full[0]
    if not isinstance(value, (list, tuple)):
        faults.add(TypeError, f"device_mapping argument needs to be a list or a tuple, but is {value!r}")
        return None
    if stages is not None and len(value) != len(stages):
        faults.add(
            ValueError,
            f"Each stage must be mapped to an IPU: `device_mapping` has {len(value)} items, and there are"
            f" {len(stages)} stages",
        )
        return None
    full = plan_arguments.checked_mapping("device_mapping", value, faults)
    if full is None or stages is None:
        return None
    for at, (ipus, parts) in enumerate(zip(full[0], stages, strict=True)):
        if len(ipus) != len(parts):
            faults.add(
                ValueError,
                f"`device_mapping[{at}]` is {value[at]!r}, but stage {at} has {len(parts)} concurrent"
                f" function{'s' * (len(parts) > 1)}; each needs an IPU",
            )
            return None
    return full[0]


def _default_mapping(widths: list[int], schedule: object, serialized: bool) -> plan_arguments.Mapping:
    """The IPUs of stages of so many parts, where the user names none."""
    if isinstance(schedule, PhasedExecution):
        return schedule.default_mapping(widths)
    ends = itertools.accumulate(widths)
    return tuple(
        tuple(0 if serialized else end - width + part for part in range(width))
        for end, width in zip(ends, widths, strict=True)
    )


def _check_phases(
    execution: PhasedExecution, mapping: plan_arguments.Mapping | None, given: SimpleNamespace, faults: Faults
) -> None:
    """Records what cannot be done in phases: a mapping to other than their groups of IPUs, and what schedules can do."""
    if mapping is not None:
        check_groups(execution, mapping, faults)
    mode = given.recomputation_mode
    if mode is not None:
        kind = NotImplementedError if isinstance(mode, RecomputationMode) else TypeError
        faults.add(
            kind,
            f"`recomputation_mode` is {mode!r} and `pipeline_schedule` is {execution}: a phase keeps its activations off"
            " the chip, and recomputes nothing; leave `recomputation_mode` out, or use a `PipelineSchedule`",
        )
    serialization = given.batch_serialization_iterations
    if is_int(serialization) and serialization > 1:
        faults.add(
            NotImplementedError,
            f"`batch_serialization_iterations` is {serialization} and `pipeline_schedule` is {execution}; batches can be"
            " serialised with `PipelineSchedule.Sequential` only",
        )


def _check_liveness(schedule: object, liveness: object, faults: Faults) -> None:
    if liveness is None:
        return
    if not isinstance(liveness, Liveness):
        faults.add(TypeError, f"`phase_liveness` must be a `Liveness` or None, but is {liveness!r}")
    elif not isinstance(schedule, PhasedExecution):
        faults.add(
            ValueError,
            f"`phase_liveness` is {liveness} and `pipeline_schedule` is {schedule}: stages of a pipeline never leave the"
            " chip; leave `phase_liveness` out, or use a `PhasedExecution`",
        )
