"""The arguments of `pipeline` that tune hardware alone: checked and recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tensorflow_ipu._checks import note_bool
from tensorflow_ipu._faults import Faults
from tensorflow_ipu.pipelining.arguments.given import Given
from tensorflow_ipu.pipelining.arguments.stage_options import PipelineStageOptions

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


def checked_options(given: Given, stages: int | None, faults: Faults) -> PipelineOptions:
    """Records what is wrong with these arguments.

    Args:
      given: All arguments.
      stages: How many stages there are, if that is known.
      faults: Where faults go.
    """
    lists: dict[str, tuple[PipelineStageOptions, ...] | None] = {}
    for direction in ("forward", "backward"):
        name = f"{direction}_propagation_stages_poplar_options"
        lists[name] = _stage_options(name, getattr(given, name), stages, faults)
    update = given.weight_update_poplar_options
    if update is not None and not isinstance(update, PipelineStageOptions):
        faults.add(TypeError, f"`weight_update_poplar_options` must be a `PipelineStageOptions`, but is {update!r}")
    for name in (*_THREE_STATE, "replicated_optimizer_state_sharding"):
        note_bool(name, getattr(given, name), faults, optional=True)
    if given.replicated_optimizer_state_sharding and not given.offload_weight_update_variables:
        faults.add(
            ValueError,
            "To use `replicated_optimizer_state_sharding`, optimizer state must be offloaded by using"
            f" `offload_weight_update_variables`, which is {given.offload_weight_update_variables!r}: make it True",
        )
    return PipelineOptions(
        **lists,
        weight_update_poplar_options=update,
        replicated_optimizer_state_sharding=given.replicated_optimizer_state_sharding,
        **{name: getattr(given, name) for name in _THREE_STATE},
    )


def _stage_options(
    name: str, value: object, stages: int | None, faults: Faults
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


def _flat(values: Sequence[object]) -> list[object]:
    return [inner for each in values for inner in (each if isinstance(each, (list, tuple)) else [each])]
