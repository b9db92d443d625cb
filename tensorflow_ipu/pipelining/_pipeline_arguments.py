"""What `pipeline` was given: checked, all faults at once, and brought into one form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tensorflow_ipu._faults import Faults
from tensorflow_ipu.feeds import IPUInfeedQueue, IPUOutfeedMode, IPUOutfeedQueue
from tensorflow_ipu.optimizers import GradientAccumulationReductionMethod
from tensorflow_ipu.pipelining import _arguments
from tensorflow_ipu.pipelining._accumulation import is_function
from tensorflow_ipu.pipelining._enums import PhasedExecution, PipelineSchedule, RecomputationMode, Results
from tensorflow_ipu.pipelining._phased import check_groups
from tensorflow_ipu.pipelining._stage_options import PipelineStageOptions

_THREE_STATE = (
    "offload_weight_update_variables",
    "offload_activations",
    "offload_gradient_accumulation_buffers",
    "replicated_weight_sharding",
    "offload_weights",
)


@dataclass(frozen=True)
class PipelineOptions:
    """What tunes hardware alone: checked and recorded, of no effect in the emulator.

    Attributes:
      forward_propagation_stages_poplar_options: As given to `pipeline`, as are all that follow.
    """

    forward_propagation_stages_poplar_options: tuple[PipelineStageOptions, ...] | None
    backward_propagation_stages_poplar_options: tuple[PipelineStageOptions, ...] | None
    weight_update_poplar_options: PipelineStageOptions | None
    offload_weight_update_variables: bool | None
    replicated_optimizer_state_sharding: bool | None
    offload_activations: bool | None
    offload_gradient_accumulation_buffers: bool | None
    replicated_weight_sharding: bool | None
    offload_weights: bool | None


@dataclass(frozen=True)
class Arguments:
    """The arguments of a pipeline, in the form in which they are used.

    Attributes:
      stages: For each stage the functions of its parts.
      count: How many micro-batches one pass has: a whole number, or an integer scalar known at run time only.
      mapping: For each stage its IPU, or the IPUs of its parts.
      everywhere: The stages that are mapped to all IPUs.
    """

    stages: tuple[tuple[Callable[..., Any], ...], ...]
    count: Any
    accumulation_dtype: Any
    sum_captured: bool
    repeat_count: int
    serialization: int
    inputs: tuple[Any, ...]
    infeed: IPUInfeedQueue | None
    outfeed: IPUOutfeedQueue | None
    optimizer_function: Callable[..., Any] | None
    mapping: tuple[int | tuple[int, ...], ...]
    everywhere: frozenset[int]
    schedule: PipelineSchedule | PhasedExecution
    recomputation: RecomputationMode | None
    outfeed_loss: bool
    results: Results
    accumulate_outfeed_dtype: Any
    outfeed_mask: tuple[bool, ...] | None
    method: GradientAccumulationReductionMethod
    options: PipelineOptions

    @property
    def training(self) -> bool:
        """Whether there are backward passes and updates."""
        return self.optimizer_function is not None


def checked(given: dict[str, Any]) -> Arguments:
    """Checks the arguments of `pipeline`.

    Args:
      given: They, by name.

    Raises:
      ValueError: One is out of range, or two do not go together.
      TypeError: One is of a wrong kind.
      NotImplementedError: The schedule cannot do what is asked for.
    """
    faults = Faults()
    training = given["optimizer_function"] is not None
    count = _count(given["gradient_accumulation_count"], faults)
    method = GradientAccumulationReductionMethod.SUM
    if training:
        try:
            method = GradientAccumulationReductionMethod.parse(given["reduction_method"])
        except ValueError as exc:
            faults.add(ValueError, f"`reduction_method` must be SUM, MEAN or RUNNING_MEAN: {exc}")
    serialization = given["batch_serialization_iterations"]
    _arguments.checked_count("batch_serialization_iterations", serialization, faults)
    _arguments.checked_count("repeat_count", given["repeat_count"], faults)
    serialized = _arguments.is_count(serialization) and serialization > 1
    counts = {"gradient_accumulation_count": count, "batch_serialization_iterations": serialization}
    _arguments.checked_product(counts, faults)
    if serialized and method is not GradientAccumulationReductionMethod.SUM:
        faults.add(
            ValueError,
            f"batch_serialization_iterations != 1 is only supported when `reduction_method` is SUM, but they are"
            f" {serialization} and {method.name}",
        )
    if given["continuous_weight_updates"]:
        faults.add(
            NotImplementedError,
            "`continuous_weight_updates` is not supported: weights are updated once a pass. Leave it False",
        )
    schedule = given["pipeline_schedule"]
    if schedule is None:
        schedule = PipelineSchedule.Sequential if serialized else PipelineSchedule.Grouped
    stages = _stages(given["computational_stages"], faults)
    mapping = _mapping(given["device_mapping"], stages, schedule, serialized, faults)
    if isinstance(schedule, PhasedExecution):
        _check_phases(schedule, mapping, given, faults)
    else:
        _arguments.checked_schedule(schedule, mapping, training, serialization, faults, name="pipeline_schedule")
        _arguments.checked_recomputation(given["recomputation_mode"], schedule, training, faults)
    _check_functions(given, faults)
    _check_queues(given, training, faults)
    for name in ("gradient_accumulation_dtype", "accumulate_outfeed_dtype"):
        _check_dtype(name, given[name], faults)
    options = _options(given, None if stages is None else len(stages), faults)
    faults.raise_any()
    assert stages is not None
    assert mapping is not None
    assert options is not None
    inputs = given["inputs"]
    mask = given["outfeed_mask"]
    widths = [isinstance(stage, (list, tuple)) for stage in given["computational_stages"]]
    return Arguments(
        stages=stages,
        count=count,
        accumulation_dtype=given["gradient_accumulation_dtype"],
        sum_captured=bool(given["gradient_accumulation_for_captured_grads"]),
        repeat_count=given["repeat_count"],
        serialization=serialization,
        inputs=() if inputs is None else tuple(inputs) if isinstance(inputs, (list, tuple)) else (inputs,),
        infeed=given["infeed_queue"],
        outfeed=given["outfeed_queue"],
        optimizer_function=given["optimizer_function"],
        mapping=tuple(ipus if several else ipus[0] for ipus, several in zip(mapping, widths, strict=True)),
        everywhere=frozenset(
            at for at, item in enumerate(given["device_mapping"] or ()) if item == _arguments.ALL_IPUS
        ),
        schedule=schedule,
        recomputation=given["recomputation_mode"],
        outfeed_loss=bool(given["outfeed_loss"]),
        results=_results(given["accumulate_outfeed"]),
        accumulate_outfeed_dtype=given["accumulate_outfeed_dtype"],
        outfeed_mask=None if mask is None else tuple(map(bool, mask)),
        method=method,
        options=options,
    )


def _results(accumulate: Any) -> Results:
    if isinstance(accumulate, Results):
        return accumulate
    return Results.SUM if accumulate else Results.EACH


def _count(value: Any, faults: Faults) -> Any:
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
    if hasattr(value, "__index__") and not isinstance(value, bool):
        value = int(value)
    _arguments.checked_count(name, value, faults)
    return value


def _stages(value: Any, faults: Faults) -> tuple[tuple[Callable[..., Any], ...], ...] | None:
    name = "computational_stages"
    if not isinstance(value, (list, tuple)):
        faults.add(TypeError, f"`{name}` must be a list or a tuple of functions, but is {value!r}")
        return None
    if len(value) < 2:
        faults.add(ValueError, f"Pipeline requires at least two computational stages, but `{name}` has {len(value)}")
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
    value: Any, stages: tuple[tuple[Any, ...], ...] | None, schedule: Any, serialized: bool, faults: Faults
) -> tuple[tuple[int, ...], ...] | None:
    if value is None:
        if stages is None:
            return None
        if isinstance(schedule, PhasedExecution):
            return schedule.default_mapping([len(parts) for parts in stages])
        first = [0, *_running_sums(len(parts) for parts in stages)]
        return tuple(
            tuple(0 if serialized else first[at] + part for part in range(len(parts)))
            for at, parts in enumerate(stages)
        )
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
    full = _arguments.checked_mapping("device_mapping", value, faults)
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


def _check_phases(execution: PhasedExecution, mapping: Any, given: dict[str, Any], faults: Faults) -> None:
    """Records what cannot be done in phases: a mapping to other than their groups of IPUs, and what schedules can do."""
    if mapping is not None:
        check_groups(execution, mapping, faults)
    mode = given["recomputation_mode"]
    if mode is not None:
        kind = NotImplementedError if isinstance(mode, RecomputationMode) else TypeError
        faults.add(
            kind,
            f"`recomputation_mode` is {mode!r} and `pipeline_schedule` is {execution}: a phase keeps its activations off"
            " the chip, and recomputes nothing; leave `recomputation_mode` out, or use a `PipelineSchedule`",
        )
    serialization = given["batch_serialization_iterations"]
    if _arguments.is_count(serialization) and serialization > 1:
        faults.add(
            NotImplementedError,
            f"`batch_serialization_iterations` is {serialization} and `pipeline_schedule` is {execution}; batches can be"
            " serialised with `PipelineSchedule.Sequential` only",
        )


def _running_sums(values: Any) -> list[int]:
    sums, total = [], 0
    for value in values:
        total += value
        sums.append(total)
    return sums


def _check_functions(given: dict[str, Any], faults: Faults) -> None:
    function = given["optimizer_function"]
    if function is not None and not callable(function):
        faults.add(TypeError, f"`optimizer_function` must be a function, but is {function!r}")


def _check_queues(given: dict[str, Any], training: bool, faults: Faults) -> None:
    infeed, outfeed, mask = given["infeed_queue"], given["outfeed_queue"], given["outfeed_mask"]
    if infeed is not None and not isinstance(infeed, IPUInfeedQueue):
        faults.add(TypeError, f"infeed_queue is not an instance of `IPUInfeedQueue`, but {infeed!r}")
    if outfeed is not None and not isinstance(outfeed, IPUOutfeedQueue):
        faults.add(TypeError, f"outfeed_queue is not an instance of `IPUOutfeedQueue`, but {outfeed!r}")
    if mask is not None and not isinstance(mask, (list, tuple)):
        faults.add(TypeError, f"`outfeed_mask` must be a list of bools, one an output, but is {mask!r}")
    if mask is not None and not training:
        faults.add(ValueError, "An optimizer_function must be provided when `outfeed_mask` is set")
    if given["outfeed_loss"] and not training:
        faults.add(ValueError, "An optimizer_function must be provided when `outfeed_loss` is True")
    if given["outfeed_loss"] and mask is not None:
        faults.add(ValueError, "Only one of `outfeed_loss` and `outfeed_mask` can be set")
    if given["outfeed_loss"] and outfeed is None:
        faults.add(ValueError, "An outfeed_queue must be provided when `outfeed_loss` is True")
    if given["accumulate_outfeed"]:
        if outfeed is None:
            faults.add(ValueError, "An outfeed_queue must be provided when `accumulate_outfeed` is True")
        elif isinstance(outfeed, IPUOutfeedQueue) and outfeed.outfeed_mode is not IPUOutfeedMode.ALL:
            faults.add(
                ValueError,
                "To accumulate the outfeed, it must be in `IPUOutfeedMode.ALL`; make another `outfeed_queue`",
            )


def _check_dtype(name: str, value: Any, faults: Faults) -> None:
    if value is None or is_function(value):
        return
    try:
        tf.as_dtype(value)
    except TypeError:
        faults.add(TypeError, f"`{name}` must be a dtype, a function that returns one, or None, but is {value!r}")


def _options(given: dict[str, Any], stages: int | None, faults: Faults) -> PipelineOptions | None:
    lists: dict[str, tuple[PipelineStageOptions, ...] | None] = {}
    for direction in ("forward", "backward"):
        name = f"{direction}_propagation_stages_poplar_options"
        lists[name] = _stage_options(name, given[name], stages, faults)
    update = given["weight_update_poplar_options"]
    if update is not None and not isinstance(update, PipelineStageOptions):
        faults.add(TypeError, f"`weight_update_poplar_options` must be a `PipelineStageOptions`, but is {update!r}")
    for name in (*_THREE_STATE, "replicated_optimizer_state_sharding"):
        if given[name] is not None and not isinstance(given[name], bool):
            faults.add(TypeError, f"`{name}` must be True, False or None, but is {given[name]!r}")
    if given["replicated_optimizer_state_sharding"] and not given["offload_weight_update_variables"]:
        faults.add(
            ValueError,
            "To use `replicated_optimizer_state_sharding`, optimizer state must be offloaded by using"
            f" `offload_weight_update_variables`, which is {given['offload_weight_update_variables']!r}: make it True",
        )
    return PipelineOptions(
        **lists,
        weight_update_poplar_options=update,
        replicated_optimizer_state_sharding=given["replicated_optimizer_state_sharding"],
        **{name: given[name] for name in _THREE_STATE},
    )


def _stage_options(
    name: str, value: Any, stages: int | None, faults: Faults
) -> tuple[PipelineStageOptions, ...] | None:
    if value is None:
        return None
    if not isinstance(value, (list, tuple)):
        faults.add(TypeError, f"`{name}` must be a list of `PipelineStageOptions`, but is {value!r}")
        return None
    for each in _flat(value):
        if not isinstance(each, PipelineStageOptions):
            faults.add(TypeError, f"`{name}` must hold `PipelineStageOptions` alone, but holds {each!r}")
    if stages is not None and len(value) != stages:
        faults.add(ValueError, f"`{name}` has {len(value)} items, but there are {stages} stages; give one for each")
    return tuple(value)


def _flat(values: Sequence[Any]) -> list[Any]:
    return [inner for each in values for inner in (each if isinstance(each, (list, tuple)) else [each])]
