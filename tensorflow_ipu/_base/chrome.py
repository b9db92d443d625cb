"""Writes traces in Chrome's JSON format, which Perfetto opens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Chrome:
    """A trace under construction. A process has counters, and tracks that contain slices. Times are in nanoseconds."""

    def __init__(self, begin: int, processes: Sequence[str] = ()) -> None:
        self._begin = begin
        self._order = {name: number for number, name in enumerate(processes)}
        self._processes: dict[str, int] = {}
        self._tracks: dict[tuple[str, str], int] = {}
        self._events: list[dict[str, Any]] = []
        # The times at which the tracks of a group become free, by (process, name of the group).
        self._free: dict[tuple[str, str], list[float]] = {}

    def add_tracks(self, process: str, *names: str) -> None:
        """Adds tracks without slices, to fix their order: viewers show tracks in the order in which they were added."""
        self._process(process)
        for name in names:
            self._track(process, name)

    def add_slice(
        self,
        process: str,
        track: str,
        name: str,
        begin: float,
        duration: float,
        kind: str = "",
        *,
        colour: str = "",
        details: Mapping[str, object] | None = None,
    ) -> None:
        process_id = self._process(process)
        start, end = self._at(begin), self._at(begin + duration)
        event = {"ph": "X", "pid": process_id, "tid": self._track(process, track), "ts": start}
        event |= {"dur": round(end - start, 3), "name": name, "cat": kind}
        self._events.append(
            event | ({"cname": colour} if colour else {}) | ({"args": dict(details)} if details else {})
        )

    def add_beside(
        self, process: str, tracks: str, name: str, begin: float, duration: float, kind: str, **options: Any
    ) -> None:
        """Adds a slice to the first track of a group that is free at `begin`: slices of a track must not overlap.

        The tracks are called `tracks`, `tracks (2)`, `tracks (3)` and so on, and are added as needed.
        """
        ends = self._free.setdefault((process, tracks), [])
        track = next((index for index, end in enumerate(ends) if end <= begin), len(ends))
        ends[track : track + 1] = [begin + duration]
        title = f"{tracks} ({track + 1})" if track else tracks
        self.add_slice(process, title, name, begin, duration, kind, **options)

    def add_value(self, process: str, name: str, time: float, values: Mapping[str, float]) -> None:
        event = {"ph": "C", "pid": self._process(process), "name": name, "ts": self._at(time)}
        self._events.append(event | {"args": dict(values)})

    def trace(self) -> dict[str, Any]:
        """Returns the trace, to be written by `json.dump`."""
        return {"traceEvents": self._events, "displayTimeUnit": "ms"}

    def _at(self, time: float) -> float:
        # Times are rounded to nanoseconds, as in viewers. Otherwise, adjacent slices might overlap, and viewers drop
        # those.
        return round(time - self._begin) / 1e3

    def _process(self, name: str) -> int:
        number = self._processes.get(name)
        if number is None:
            number = self._processes[name] = len(self._processes)
            about = {"ph": "M", "pid": number, "tid": 0}
            place = self._order.get(name, len(self._order) + number)
            self._events.append({**about, "name": "process_name", "args": {"name": name}})
            self._events.append({**about, "name": "process_sort_index", "args": {"sort_index": place}})
        return number

    def _track(self, process: str, name: str) -> int:
        number = self._tracks.get((process, name))
        if number is None:
            number = self._tracks[process, name] = len(self._tracks) + 1
            about = {"ph": "M", "pid": self._processes[process], "tid": number}
            self._events.append(about | {"name": "thread_name", "args": {"name": name}})
            self._events.append(about | {"name": "thread_sort_index", "args": {"sort_index": number}})
        return number
