"""Measures the times of several programs in turns, so that drifts of the machine's speed affect all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

Times = dict[Any, list[float]]


def interleave(contestants: Mapping[Any, Callable[[], object]], rounds: int = 7) -> Times:
    """Calls each contestant once to warm up, and then all of them in turns.

    Args:
      contestants: The functions to call, by name.
      rounds: The number of timed calls of each.

    Returns:
      The seconds of the timed calls, by name.
    """
    for call in contestants.values():
        call()
    times: Times = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, call in contestants.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return times


def median(times: Times, name: Hashable, count: int) -> float:
    """Returns the median time of a call, in microseconds, divided by `count`, the number of steps in a call."""
    return statistics.median(times[name]) / count * 1e6


def ratio(times: Times, faster: Hashable, slower: Hashable) -> float:
    """Returns the speed of `faster` relative to `slower`: the median over the rounds of the ratio of their times."""
    return statistics.median(s / f for s, f in zip(times[slower], times[faster], strict=True))


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Prints a Markdown table. The first column is aligned to the left, the others to the right."""
    texts = [[_text(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [list(header), *texts]) for i in range(len(header))]
    print(f"\n{title}\n")
    print("| " + " | ".join(name.ljust(width) for name, width in zip(header, widths, strict=True)) + " |")
    rule = ("-" * width if i == 0 else "-" * (width - 1) + ":" for i, width in enumerate(widths))
    print("| " + " | ".join(rule) + " |")
    for row in texts:
        cells = (
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("| " + " | ".join(cells) + " |")


def _text(cell: object) -> str:
    return f"{cell:.2f}" if isinstance(cell, float) else str(cell)
