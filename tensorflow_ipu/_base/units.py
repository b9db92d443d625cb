"""Formats sizes in bytes and times in seconds as text, and chooses ticks of axes."""

from __future__ import annotations

import math


def format_bytes(size: float) -> str:
    """Returns a size in bytes as text: `1572864 -> "1.5 MiB"`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"


def format_seconds(time: float) -> str:
    """Returns a time in seconds as text: `0.0015 -> "1.5 ms"`."""
    if not time:
        return "0 s"
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if time * scale >= 1:
            return f"{time * scale:.3g} {unit}"
    return f"{time * 1e9:.3g} ns"


def round_ticks(end: float, max_steps: int = 5, binary: bool = False) -> list[float]:
    """Returns ticks from 0 up to `end`, with at most `max_steps` steps between them: `12 -> [0, 5, 10]`.

    A step is 1, 2 or 5 times a power of ten or, if `binary`, a power of two.
    """
    if end <= 0:
        return [0.0]
    min_step = end / max_steps
    if binary:
        step = 2.0 ** math.ceil(math.log2(min_step))
    else:
        power = 10.0 ** math.floor(math.log10(min_step))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= min_step * (1 - 1e-9))
    return [step * index for index in range(math.floor(end / step * (1 + 1e-9)) + 1)]


def tick_label(text: str) -> str:
    """Returns a formatted size or time as the label of a tick: `"1.0 MiB" -> "1 MiB"` and `"0 s" -> "0"`."""
    number, _, unit = text.replace(".0 ", " ").partition(" ")
    return f"{number} {unit}" if number != "0" else number
