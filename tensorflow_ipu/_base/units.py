"""Sizes and times in words."""

from __future__ import annotations


def format_bytes(size: float) -> str:
    """A size in words, for instance `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"


def format_seconds(time: float) -> str:
    """A time in words, for instance `1.5 ms`."""
    if not time:
        return "0 s"
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if time * scale >= 1:
            return f"{time * scale:.3g} {unit}"
    return f"{time * 1e9:.3g} ns"
