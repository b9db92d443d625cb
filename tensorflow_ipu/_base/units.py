"""Sizes and times in words."""

from __future__ import annotations

import math


def format_bytes(size: float) -> str:
    """Returns a size as text, for instance `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"


def format_seconds(time: float) -> str:
    """Returns a time as text, for instance `1.5 ms`."""
    if not time:
        return "0 s"
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if time * scale >= 1:
            return f"{time * scale:.3g} {unit}"
    return f"{time * 1e9:.3g} ns"


def round_ticks(end: float, most: int = 5, binary: bool = False) -> list[float]:
    """At most so many round steps from 0 to an end: of 1, 2 or 5 times a power of ten, or for bytes a power of two."""
    if end <= 0:
        return [0.0]
    least = end / most
    if binary:
        step = 2.0 ** math.ceil(math.log2(least))
    else:
        power = 10.0 ** math.floor(math.log10(least))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - 1e-9))
    return [step * at for at in range(math.floor(end / step * (1 + 1e-9)) + 1)]


def tick_label(text: str) -> str:
    """A size or a time in words as the label of a tick: `1 MiB`, not `1.0 MiB`, and `0`."""
    number, _, unit = text.replace(".0 ", " ").partition(" ")
    return f"{number} {unit}" if number != "0" else number
