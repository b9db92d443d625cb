"""The IPUs of a replica that operations are placed on, and how many a program uses, noted in the trace."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import tensorflow as tf

from tensorflow_ipu._tensorflow import functions, graphs
from tensorflow_ipu.programs import _instruction_attributes

# Lists the shards of an operation. Not TensorFlow's `_XlaSharding`, by which XLA would split the program.
SHARD_ATTRIBUTE = "_IpuShard"
# Says the same of the instructions that the operation becomes, with blanks between several.
INSTRUCTION_ATTRIBUTE = "ipu_shard"
ALL_IPUS = -1  # The number that stands for all shards.

# On the graph of a function: how many IPUs what was traced in it uses.
ATTRIBUTE = "_ipu_shards"


_CALLS = frozenset(
    {
        "Case",
        "If",
        "PartitionedCall",
        "StatefulPartitionedCall",
        "StatelessCase",
        "StatelessIf",
        "StatelessWhile",
        "While",
    }
)


def note_shards(index: int) -> None:
    """Notes in all functions being traced that they use the IPU `index` of their replica."""
    for graph in graphs.being_traced():
        setattr(graph, ATTRIBUTE, max(getattr(graph, ATTRIBUTE, 1), index + 1))


@contextlib.contextmanager
def placed(shards: Sequence[int]) -> Iterator[None]:
    """A block whose operations are placed on these IPUs of their replica, or on all by `ALL_IPUS`."""
    note_shards(max(0, *shards))
    with graphs.attributed({SHARD_ATTRIBUTE: _value(shards)}), _instruction_attributes.set_to(_said(shards)):
        yield


def place_on(operation: tf.Operation, shards: Sequence[int]) -> None:
    """Places an operation that is in a graph; the program uses the IPUs already."""
    graphs.set_attribute(operation, SHARD_ATTRIBUTE, _value(shards))
    _instruction_attributes.add(operation, _said(shards))


def placed_on(operation: tf.Operation) -> list[int] | None:
    """The IPUs that an operation of a graph was placed on; None where it was not placed."""
    attributes = operation.node_def.attr
    return list(attributes[SHARD_ATTRIBUTE].list.i) if SHARD_ATTRIBUTE in attributes else None


def placed_by_name(program: functions.ConcreteFunction | tf.Graph) -> dict[str, list[int]]:
    """The IPUs of all placed operations of a program by name; a name with a slash stands for what it calls."""
    found: dict[str, list[int]] = {}
    for operation in (each for graph in graphs.graphs_of(program) for each in graph.get_operations()):
        shards = placed_on(operation)
        if shards is not None:
            found[operation.name] = shards
            if operation.type in _CALLS:
                found[f"{operation.name}/"] = shards
    return found


def shards_of(program: functions.ConcreteFunction | tf.Graph) -> int:
    """How many IPUs one replica of a program uses: the highest number noted and 1."""
    return max(getattr(graph, ATTRIBUTE, 1) for graph in graphs.graphs_of(program))


def power_of_2(shards: int) -> int:
    """How many IPUs a replica with so many stages or shards takes: the next power of 2."""
    return 1 << (shards - 1).bit_length()


def _value(shards: Sequence[int]) -> tf.compat.v1.AttrValue:
    return tf.compat.v1.AttrValue(list=tf.compat.v1.AttrValue.ListValue(i=shards))


def _said(shards: Sequence[int]) -> dict[str, str]:
    return {INSTRUCTION_ATTRIBUTE: " ".join(map(str, shards))}
