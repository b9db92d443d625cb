"""Predicts the time of a sum over up to 1,024 workers, by a model that is fitted to measurements over MPI."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

HEADER = ["workers", "MiB a chunk", "messages of a worker", "their time, ms", "bytes, ms", "ways, ms", "all, ms"]

PARAMETERS = 25_000_000
# As in `kernels/support/tuning.h`.
CHUNK = 1 << 20
HALVED = 64 << 10
# The assumed network between hosts: 10 Gbit/s, and a latency of 50 us. The fit measures the costs of MPI in shared memory.
NETWORK_BYTES = 1.25e9
NETWORK_WAY = 50e-6


@dataclass(frozen=True)
class Exchange:
    """The communication of one worker in a sum over all workers.

    There are two algorithms. For small sums, or two workers, each worker sends its operand to all others (one way). For
    large sums, each worker reduces one part of the operands and sends the result to all others (two ways).

    Attributes:
      ways: How many times the worker waits for messages of all others.
      messages: The number of messages that it sends, and that it receives.
      sent: The number of bytes that it sends, and that it receives.
    """

    ways: int
    messages: int
    sent: float


def exchange(workers: int, size: float, chunk: int = CHUNK) -> Exchange:
    """Returns the communication of a worker in a sum of `size` bytes."""
    chunks = max(1, -(-int(size) // chunk))
    others = workers - 1
    if others and workers > 2 and size / chunks >= HALVED:
        return Exchange(2, 2 * others * chunks, 2 * others / workers * size)
    return Exchange(1 if others else 0, others * chunks, others * size)


@dataclass(frozen=True)
class Model:
    """A cost model: a sum takes `ways * way + (messages * message + sent / rate) * crowd` seconds.

    `crowd` is the number of workers that share a core of the host, but at least 1.

    Attributes:
      way: The seconds from the last send until all messages have arrived and the program continues.
      message: The processor time of a message in seconds, on both sides together.
      rate: The bytes per second that a worker packs, sends, receives and adds.
      residual: The median of the relative errors of the fit.
    """

    way: float
    message: float
    rate: float
    residual: float

    def __str__(self) -> str:
        return (
            f"model: {self.way * 1e6:.0f} us a way + {self.message * 1e6:.0f} us a message + bytes sent /"
            f" {self.rate / 1e6:.0f} MB/s; median error {self.residual:.0%}"
        )


def fit(points: Sequence[tuple[int, int, float]], cores: int) -> Model:
    """Fits the model to measurements, by least squares of the relative errors. No term is negative.

    The method is coordinate descent: each round minimizes the error over one unknown at a time, and replaces negative
    values by 0. With three unknowns, it converges within the fixed number of rounds.

    Args:
      points: For each measurement the number of workers, the bytes and the seconds.
      cores: The number of cores of the host.
    """
    rows = []
    for workers, size, _ in points:
        cost, crowd = exchange(workers, size), max(1.0, workers / cores)
        rows.append([cost.ways, cost.messages * crowd, cost.sent * crowd])
    times = np.array([seconds for _, _, seconds in points])
    scaled = np.array(rows) / times[:, None]
    norms = np.linalg.norm(scaled, axis=0)
    scaled /= norms
    solution = np.zeros(3)
    for _ in range(20_000):
        for i in range(3):
            residual = 1.0 - scaled @ solution + scaled[:, i] * solution[i]
            solution[i] = max(0.0, scaled[:, i] @ residual)
    way, message, per_byte = solution / norms
    return Model(way, message, 1 / max(per_byte, 1e-15), float(np.median(np.abs(scaled @ solution - 1))))


def extended(model: Model, counts: Sequence[int] = (2, 8, 32, 128, 512, 1024)) -> list[list[object]]:
    """Returns rows with the predicted time of a sum of 25M gradients, with each worker on a separate host of a network."""
    size = 4 * PARAMETERS
    rate = 1 / (1 / model.rate + 1 / NETWORK_BYTES)
    rows: list[list[object]] = []
    for chunk in (CHUNK, 32 << 20):
        for workers in counts:
            cost = exchange(workers, size, chunk)
            parts = cost.messages * model.message, cost.sent / rate, cost.ways * (model.way + NETWORK_WAY)
            rows.append([workers, chunk >> 20, cost.messages, *(1e3 * part for part in (*parts, sum(parts)))])
    return rows
