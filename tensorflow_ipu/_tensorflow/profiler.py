"""Runs TensorFlow's profiler and reads the events that it recorded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf


class Measured(NamedTuple):
    """An event of a host thread. Times are in nanoseconds; `begin` counts from the epoch."""

    thread: int
    line: str
    name: str
    begin: float
    duration: float
    details: dict[str, Any]


def start(logdir: str) -> None:
    """Starts the profiler, which writes below `logdir`. `tf.profiler.experimental.start` is public."""
    # The default options are right: operations of the host, no Python. TensorFlow 2.21 ignores `ProfilerOptions`, and
    # warns.
    tf.profiler.experimental.start(logdir)


def stop() -> None:
    """Stops the profiler, which then writes its events. `tf.profiler.experimental.stop` is public."""
    tf.profiler.experimental.stop()


def measured(logdir: str) -> Iterator[Measured]:
    """Yields the events of host threads in the latest profile below `logdir`. Uses the private `xplane_pb2`."""
    # TensorFlow's wheel includes this format for TensorBoard. Without it: read the file by
    # `tensorboard-plugin-profile`.
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    files = sorted(Path(logdir).glob("plugins/profile/*/*.xplane.pb"), key=lambda file: file.stat().st_mtime)
    if not files:
        return
    space: Any = xplane_pb2.XSpace()  # pyright: ignore[reportAttributeAccessIssue]
    space.ParseFromString(files[-1].read_bytes())
    begin = 0  # The start of the profile. The times of lines are relative to it.
    for plane in space.planes:
        names = {number: metadata.name for number, metadata in plane.stat_metadata.items()}
        for stat in plane.stats:
            if names[stat.metadata_id] == "profile_start_time":
                begin = _value(stat, names)
    for plane in space.planes:
        if not plane.name.startswith("/host:CPU"):
            continue
        names = {number: metadata.name for number, metadata in plane.stat_metadata.items()}
        for line in plane.lines:
            for event in line.events:
                yield Measured(
                    line.id,
                    line.name,
                    plane.event_metadata[event.metadata_id].name,
                    begin + line.timestamp_ns + event.offset_ps / 1e3,
                    event.duration_ps / 1e3,
                    {names[stat.metadata_id]: _value(stat, names) for stat in event.stats},
                )


def _value(stat: Any, names: dict[int, str]) -> Any:
    """Returns the value of a stat, whatever its type; see `measured`."""
    kind = stat.WhichOneof("value")
    return names.get(stat.ref_value, "") if kind == "ref_value" else getattr(stat, kind or "str_value")
