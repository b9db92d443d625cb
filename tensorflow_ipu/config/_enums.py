"""The enumerations that configuration attributes and helpers take."""

from __future__ import annotations

from enum import Enum


class SelectionOrder(Enum):
    """The order in which the shards of a program get the IPUs of a device.

    The IPUs of a machine form a ladder with two IPUs a rung, numbered rung by rung. For sixteen IPUs:

    * `AUTO`: the machine chooses.
    * `ZIGZAG`: by number, so each second step crosses a rung: 0, 1, 2, 3, ...
    * `SNAKE`: each step is a direct link: 0, 1, 3, 2, 4, 5, 7, 6, ...
    * `HOOF`: up one side and down the other, so first and last are neighbours: 0, 2, ..., 14, 15, ..., 3, 1.
    """

    AUTO = 0
    ZIGZAG = 1
    SNAKE = 2
    HOOF = 3


class ExecutionProfileType(Enum):
    """How fine an execution profile is: none, per device, per IPU or per tile."""

    NO_PROFILE = 0
    DEVICE_PROFILE = 1
    IPU_PROFILE = 2
    TILE_PROFILE = 3


class DeviceConnectionType(Enum):
    """When the system attaches to its IPUs.

    * `ALWAYS`: while the system is configured.
    * `ON_DEMAND`: when the first program runs.
    * `NEVER`: programs are compiled only; to run one is an error.
    * `PRE_COMPILE`: programs are compiled, and each run of one returns zeros.
    """

    ALWAYS = 0
    ON_DEMAND = 1
    NEVER = 2
    PRE_COMPILE = 3


class MergeRemoteBuffersBehaviour(Enum):
    """Whether remote buffers of like shape are merged: never, always, or where it lets code be shared."""

    NO_MERGING = 0
    MERGE = 1
    IF_BENEFICIAL = 2


class SchedulingAlgorithm(Enum):
    """How the operations of a program are put in order.

    * `CHOOSE_BEST`: try the others and keep the order with the lowest expected peak of live memory.
    * `CLUSTERING`: move groups of operations as one past stretches that need much memory.
    * `POST_ORDER`: a post-order walk of the graph.
    * `LOOK_AHEAD`: from each operation that is ready, look a bounded number of steps ahead.
    * `SHORTEST_PATH`: prefer what is closest to the result.
    """

    CHOOSE_BEST = 0
    CLUSTERING = 1
    POST_ORDER = 2
    LOOK_AHEAD = 3
    SHORTEST_PATH = 4


class StochasticRoundingBehaviour(Enum):
    """Where half-precision results are rounded at random: nowhere, everywhere, or where all replicas agree."""

    OFF = 0
    ON = 1
    REPLICA_IDENTICAL_ONLY = 2

    @staticmethod
    def from_bool(value: bool) -> StochasticRoundingBehaviour:
        """Returns `ON` for a true `value`, `OFF` for a false one."""
        return StochasticRoundingBehaviour.ON if value else StochasticRoundingBehaviour.OFF


class SyntheticDataCategory(Enum):
    """The kinds of data that `TF_POPLAR_FLAGS` can keep from passing between host and device."""

    Seed = 0
    Infeed = 1
    Outfeed = 2
    HostEmbedding = 3
    Parameters = 4
