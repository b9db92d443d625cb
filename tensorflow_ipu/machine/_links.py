"""What leaves the chip: collectives over links, feeds over the host's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tensorflow_ipu.machine._hlo import HloInstruction, Shape
from tensorflow_ipu.machine._system import System

INFEED = "ipu_infeed_dequeue"
OUTFEED = "ipu_outfeed_enqueue"
COLLECTIVE = "ipu_collective"
_SEED = "ipu_random_seed"
_STREAM = "ipu_random_stream"
_INDEX = "ipu_replica_index"
HOST_CALLS = frozenset({INFEED, OUTFEED})
# What names a queue to a call, and the order of the program's calls. No element has this type.
_STATE = Shape("s64", (4,))
# They pass nothing but a few words: random numbers are drawn, and costed, by what is given the seed or the stream.
IDLE_CALLS = frozenset({_SEED, _STREAM, _INDEX})

# Kinds of collectives in the order of their numbers in a program: a name, and how many times its data a replica
# sends in a ring of so many.
_KINDS: tuple[tuple[str, Callable[[int], float]], ...] = (
    ("all-reduce", lambda ranks: 2 * (ranks - 1) / ranks),
    ("all-gather", lambda ranks: ranks - 1),
    ("reduce-scatter", lambda ranks: (ranks - 1) / ranks),
    ("all-to-all", lambda ranks: (ranks - 1) / ranks),
    ("broadcast", lambda _: 1.0),
)

_GATHER = next(number for number, (name, _) in enumerate(_KINDS) if name == "all-gather")


def collective_kind(operation: HloInstruction) -> str:
    """What a collective does, such as `all-reduce`."""
    return _KINDS[operation.attributes.get("kind", 0)][0]


def collective_seconds(operation: HloInstruction, system: System, replicas: int) -> float:
    """The time of a collective in a ring of the replicas of its groups.

    Of `n` replicas each sends `2 * (n - 1) / n` of an all-reduce's bytes, in `2 * (n - 1)` steps, each of which takes a
    link's latency. More replicas than the links join go over the gateways besides.

    Args:
      operation: The call.
      system: The machine.
      replicas: How many replicas the program has.
    """
    attributes = operation.attributes
    ranks = min(attributes.get("group_size", 0) or replicas, replicas)
    size = _data_bytes([each.shape for each in operation.operands])
    return _ring_seconds(attributes.get("kind", 0), size, ranks, system)


def gather_seconds(size: float, replicas: int, system: System) -> float:
    """The time in which replicas gather data that are divided among them.

    Args:
      size: The bytes of all data.
      replicas: How many replicas have a part each.
      system: The machine.
    """
    return _ring_seconds(_GATHER, size / replicas, replicas, system)


def _ring_seconds(kind: int, size: float, ranks: int, system: System) -> float:
    if ranks < 2:  # A replica that is alone.
        return 0.0
    share = _KINDS[kind][1]
    inside = min(ranks, system.ipus_of_pod)
    seconds = share(inside) * size / system.link_bytes_per_second + 2 * (inside - 1) * system.link_latency_seconds
    pods = math.ceil(ranks / system.ipus_of_pod)
    if pods > 1:
        seconds += share(pods) * size / inside / system.gateway_bytes_per_second
    return seconds


def host_bytes(operation: HloInstruction) -> int:
    """The bytes that a feed's call passes between host and chip, without the states of queues and of their order."""
    if operation.target == INFEED:
        return _data_bytes(operation.shape.parts)
    return _data_bytes([each.shape for each in operation.operands])


def _data_bytes(shapes: Sequence[Shape]) -> int:
    return sum(shape.bytes for shape in shapes if shape != _STATE)
