"""How many of a device's IPUs one replica of a program uses: noted while the program is traced, read when it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorflow_ipu._tensorflow import graphs

if TYPE_CHECKING:
    import tensorflow as tf

    from tensorflow_ipu._tensorflow import functions

# Lists the shards of an operation. Not TensorFlow's `_XlaSharding`, by which XLA would split the program.
SHARD_ATTRIBUTE = "_IpuShard"
ALL_IPUS = -1  # The number that stands for all shards.

# On the graph of a function: how many IPUs what was traced in it uses.
ATTRIBUTE = "_ipu_shards"


def note_shards(index: int) -> None:
    """Notes that what is being traced uses the IPU `index` of its replica.

    The note goes to the function that is being traced and to all around it, since which of them becomes a program is not
    known yet. Outside of a function it goes nowhere.

    Args:
      index: The number of an IPU within a replica, 0 or more.
    """
    for graph in graphs.being_traced():
        setattr(graph, ATTRIBUTE, max(getattr(graph, ATTRIBUTE, 1), index + 1))


def shards_of(program: functions.ConcreteFunction | tf.Graph) -> int:
    """How many IPUs one replica of a program uses: the highest number noted and 1; 1 where nothing was noted.

    Args:
      program: A traced function, or its graph. Functions that it calls count, traced with it or before.
    """
    return max(getattr(graph, ATTRIBUTE, 1) for graph in graphs.graphs_of(program))


def power_of_2(shards: int) -> int:
    """How many IPUs a replica takes whose stages or shards are on so many: the next power of 2."""
    return 1 << (shards - 1).bit_length()
