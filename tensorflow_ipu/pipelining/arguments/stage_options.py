"""Options of one stage for the machine's libraries, checked and recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tensorflow_ipu import _poplar_options

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
        faults = [fault for name, options in given.items() for fault in _poplar_options.faults(name, options or {})]
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
