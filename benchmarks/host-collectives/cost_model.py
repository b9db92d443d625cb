"""What a sum over workers costs: a model of messages and bytes, fitted to measurements over MPI, for up to 1,024 workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

HEADER = ["workers", "MiB a chunk", "messages of a worker", "their time, ms", "bytes, ms", "ways, ms", "all, ms"]

PARAMETERS = 25_000_000
# As in `kernels/support/tuning.h`.
CHUNK = 1 << 20
HALVED = 64 << 10
# A network between hosts, beside MPI's own costs in shared memory, which the fit measures: 10 Gbit/s, and 50 us a way.
NETWORK_BYTES = 1.25e9
NETWORK_WAY = 50e-6


@dataclass(frozen=True)
class Exchange:
    """What one worker does in a sum over all.

    Attributes:
      ways: How often it waits for what the others send: once where each sends all of its own to all others, twice where
        each reduces a part and hands that round.
      messages: How many messages it sends, and receives.
      sent: Bytes that it sends, and receives.
    """

    ways: int
    messages: int
    sent: float


def exchange(workers: int, size: float, chunk: int = CHUNK) -> Exchange:
    """Of a sum of so many bytes."""
    chunks = max(1, -(-int(size) // chunk))
    others = workers - 1
    if others and workers > 2 and size / chunks >= HALVED:
        return Exchange(2, 2 * others * chunks, 2 * others / workers * size)
    return Exchange(1 if others else 0, others * chunks, others * size)


@dataclass(frozen=True)
class Model:
    """A sum takes `ways * way + (messages * message + sent / rate) * crowd`.

    `crowd` is how many workers share a core of the machine, 1 where each has one.

    Attributes:
      way: Seconds until what all sent has come, and the program goes on.
      message: Seconds of processor time of a message, at both ends.
      rate: Bytes a second that a worker packs, sends, receives and adds.
      residual: The median of the relative errors of the fit.
    """

    way: float
    message: float
    rate: float
    residual: float

    def __str__(self) -> str:
        """In words."""
        return (
            f"model: {self.way * 1e6:.0f} us a way + {self.message * 1e6:.0f} us a message + bytes sent /"
            f" {self.rate / 1e6:.0f} MB/s; median error {self.residual:.0%}"
        )


def fit(points: Sequence[tuple[int, int, float]], cores: int) -> Model:
    """The model nearest to (workers, bytes, seconds), by relative errors; no term is below 0.

    Coordinate descent, each unknown kept at 0 or above: three unknowns, so that a few hundred rounds do.
    """
    rows = []
    for workers, size, _ in points:
        done, crowd = exchange(workers, size), max(1.0, workers / cores)
        rows.append([done.ways, done.messages * crowd, done.sent * crowd])
    times = np.array([seconds for _, _, seconds in points])
    scaled = np.array(rows) / times[:, None]
    norms = np.linalg.norm(scaled, axis=0)
    scaled /= norms
    found = np.zeros(3)
    for _ in range(20_000):
        for i in range(3):
            rest = 1.0 - scaled @ found + scaled[:, i] * found[i]
            found[i] = max(0.0, scaled[:, i] @ rest)
    way, message, per_byte = found / norms
    return Model(way, message, 1 / max(per_byte, 1e-15), float(np.median(np.abs(scaled @ found - 1))))


def extended(model: Model, counts: Sequence[int] = (2, 8, 32, 128, 512, 1024)) -> list[list[object]]:
    """Rows of the gradients of 25M parameters over many workers, each on a host of its own with a network between."""
    size = 4 * PARAMETERS
    rate = 1 / (1 / model.rate + 1 / NETWORK_BYTES)
    rows: list[list[object]] = []
    for chunk in (CHUNK, 32 << 20):
        for workers in counts:
            done = exchange(workers, size, chunk)
            parts = done.messages * model.message, done.sent / rate, done.ways * (model.way + NETWORK_WAY)
            rows.append([workers, chunk >> 20, done.messages, *(1e3 * part for part in (*parts, sum(parts)))])
    return rows
