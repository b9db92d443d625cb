"""The enumerations that are values of configuration attributes and arguments of helpers."""

from __future__ import annotations

from enum import Enum


class SelectionOrder(Enum):
    """The order in which IPUs of a device are assigned to the shards of a program.

    The IPUs of a machine form a ladder with two IPUs on each rung, which are numbered rung by rung. For sixteen IPUs:

    * `AUTO`: the machine chooses the order.
    * `ZIGZAG`: by number: 0, 1, 2, 3, ... Each second step is a diagonal between two rungs.
    * `SNAKE`: each step is a direct link: 0, 1, 3, 2, 4, 5, 7, 6, ...
    * `HOOF`: up one side and down the other, so first and last are neighbours: 0, 2, ..., 14, 15, ..., 3, 1.
    """

    AUTO = 0
    ZIGZAG = 1
    SNAKE = 2
    HOOF = 3


class ExecutionProfileType(Enum):
    """The level of detail of an execution profile: none, per device, per IPU or per tile."""

    NO_PROFILE = 0
    DEVICE_PROFILE = 1
    IPU_PROFILE = 2
    TILE_PROFILE = 3


class DeviceConnectionType(Enum):
    """The time at which the system attaches to its IPUs.

    * `ALWAYS`: while the system is configured.
    * `ON_DEMAND`: when the first program runs.
    * `NEVER`: not at all. Programs are only compiled; running one is an error.
    * `PRE_COMPILE`: not at all. Programs are compiled, and each run returns zeros.
    """

    ALWAYS = 0
    ON_DEMAND = 1
    NEVER = 2
    PRE_COMPILE = 3


class MergeRemoteBuffersBehaviour(Enum):
    """The condition for merging remote buffers of equal shape: never, always, or if computations can then share code."""

    NO_MERGING = 0
    MERGE = 1
    IF_BENEFICIAL = 2


class SchedulingAlgorithm(Enum):
    """The algorithm that orders the operations of a program.

    * `CHOOSE_BEST`: all algorithms are tried, and the order with the lowest estimated peak of live memory is used.
    * `CLUSTERING`: groups of operations are moved together past sections that need much memory.
    * `POST_ORDER`: the graph is traversed in post-order.
    * `LOOK_AHEAD`: from each ready operation, a bounded number of steps ahead is evaluated.
    * `SHORTEST_PATH`: the operation that is closest to the result comes first.
    """

    CHOOSE_BEST = 0
    CLUSTERING = 1
    POST_ORDER = 2
    LOOK_AHEAD = 3
    SHORTEST_PATH = 4


class StochasticRoundingBehaviour(Enum):
    """The float16 results that are rounded stochastically.

    * `OFF`: none.
    * `ON`: all.
    * `REPLICA_IDENTICAL_ONLY`: the results that are equal on all replicas.
    """

    OFF = 0
    ON = 1
    REPLICA_IDENTICAL_ONLY = 2

    @staticmethod
    def from_bool(value: bool) -> StochasticRoundingBehaviour:
        """Returns `ON` if `value` is true, otherwise `OFF`."""
        return StochasticRoundingBehaviour.ON if value else StochasticRoundingBehaviour.OFF


class SyntheticDataCategory(Enum):
    """The kinds of data whose transfer between host and device `TF_POPLAR_FLAGS` can switch off."""

    Seed = 0
    Infeed = 1
    Outfeed = 2
    HostEmbedding = 3
    Parameters = 4
