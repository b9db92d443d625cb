"""The names of IPU devices."""

from __future__ import annotations

import re

_NAME = re.compile(r"(?:.*/)?(?:device:)?IPU(?::(?P<ordinal>\d+))?", re.IGNORECASE)


def device_name(ordinal: int) -> str:
    """The name of the TensorFlow device with this number."""
    return f"/device:IPU:{ordinal}"


def device_ordinal(name: str, argument: str = "device") -> int:
    """The number of an IPU device."""
    if not isinstance(name, str):
        raise TypeError(f"`{argument}` must be a string such as `/device:IPU:0`, and `{name!r}` is not")
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"`{argument}={name}` names no IPU device; write it as in `/device:IPU:0`")
    return int(found["ordinal"] or 0)
