"""The writer of traces in Chrome's JSON format, which Perfetto opens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Chrome:
    """A trace that is being made: processes of tracks of slices, and counters. Times are in nanoseconds."""

    def __init__(self, begin: int, processes: Sequence[str] = ()) -> None:
        self._begin = begin
        self._order = {name: number for number, name in enumerate(processes)}
        self._processes: dict[str, int] = {}
        self._tracks: dict[tuple[str, str], int] = {}
        self._events: list[dict[str, Any]] = []
        # A group of tracks: when each of them is free again.
        self._free: dict[tuple[str, str], list[float]] = {}

    def add_tracks(self, process: str, *names: str) -> None:
        """Adds tracks that have no slices yet: viewers show tracks in the order in which they were added."""
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
        at, end = self._at(begin), self._at(begin + duration)
        event = {"ph": "X", "pid": process_id, "tid": self._track(process, track), "ts": at}
        event |= {"dur": round(end - at, 3), "name": name, "cat": kind}
        self._events.append(
            event | ({"cname": colour} if colour else {}) | ({"args": dict(details)} if details else {})
        )

    def add_beside(
        self, process: str, tracks: str, name: str, begin: float, duration: float, kind: str, **more: Any
    ) -> None:
        """Adds a slice on the first of several tracks that is free then: slices of one track must not overlap."""
        free = self._free.setdefault((process, tracks), [])
        track = next((at for at, until in enumerate(free) if until <= begin), len(free))
        free[track : track + 1] = [begin + duration]
        title = f"{tracks} ({track + 1})" if track else tracks
        self.add_slice(process, title, name, begin, duration, kind, **more)

    def add_value(self, process: str, name: str, at: float, values: Mapping[str, float]) -> None:
        event = {"ph": "C", "pid": self._process(process), "name": name, "ts": self._at(at)}
        self._events.append(event | {"args": dict(values)})

    def trace(self) -> dict[str, Any]:
        """Returns the trace as what `json.dump` takes."""
        return {"traceEvents": self._events, "displayTimeUnit": "ms"}

    def _at(self, time: float) -> float:
        # In whole nanoseconds, as viewers keep it: slices that touch would overlap otherwise, and are dropped then.
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
            where = {"ph": "M", "pid": self._processes[process], "tid": number}
            self._events.append(where | {"name": "thread_name", "args": {"name": name}})
            self._events.append(where | {"name": "thread_sort_index", "args": {"sort_index": number}})
        return number
