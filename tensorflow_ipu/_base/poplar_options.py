"""Checks options of Poplar's libraries, and names the attributes that record them on HLO instructions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

PROPORTION = "availableMemoryProportion"
PARTIALS = "partialsType"
_PARTIALS_TYPES = ("half", "float")

# An option is recorded on HLO instructions as `ipu_option_<option>`, except `partialsType`.
_ATTRIBUTE_OF_OPTION = "ipu_option_"
_ATTRIBUTE_OF_PARTIALS = "ipu_partials_type"


def attribute_of(option: str) -> str:
    """Returns the name of the attribute that records `option` on HLO instructions."""
    return _ATTRIBUTE_OF_PARTIALS if option == PARTIALS else f"{_ATTRIBUTE_OF_OPTION}{option}"


def option_of(attribute: str) -> str | None:
    """Returns the option that an attribute of HLO instructions records; None if it records none."""
    if attribute == _ATTRIBUTE_OF_PARTIALS:
        return PARTIALS
    return attribute.removeprefix(_ATTRIBUTE_OF_OPTION) if attribute.startswith(_ATTRIBUTE_OF_OPTION) else None


def faults(name: str, options: Mapping[str, str]) -> Iterator[str]:
    """Yields an error message for each wrong value. Only two options are checked; the libraries check the others."""
    partials = options.get(PARTIALS)
    if partials is not None and partials not in _PARTIALS_TYPES:
        yield f"`{name}` has `{PARTIALS!r}: {partials!r}`, the type of partial sums; write one of {_PARTIALS_TYPES}"
    proportion = options.get(PROPORTION)
    if proportion is not None and not _is_share(proportion):
        yield (
            f"`{name}` has `{PROPORTION!r}: {proportion!r}`, the share of an IPU's memory for temporary data; write a"
            f" number from 0 to 1 as text, such as `{PROPORTION!r}: '0.6'`"
        )


def _is_share(text: str) -> bool:
    try:
        return 0 <= float(text) <= 1
    except ValueError:
        return False
