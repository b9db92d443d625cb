"""The arguments of `pipeline` that tune hardware alone: checked and recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tensorflow_ipu._base import poplar_options
from tensorflow_ipu._base.checks import note_bool

if TYPE_CHECKING:
    from tensorflow_ipu._base.checks import Faults
    from tensorflow_ipu.pipelining.arguments.checked import RawArguments

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
        """Checks and records the options.

        Args:
          convolution_options: Names and values for convolutions.
          matmul_options: Names and values for matrix products.
          slice_options: Names and values for slices, gathers and scatters.

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


def checked_options(given: RawArguments, stages: int | None, faults: Faults) -> PipelineOptions:
    """Records what is wrong with these arguments."""
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
