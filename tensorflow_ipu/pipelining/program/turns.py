"""Whose turn it is: which micro-batch each instruction has, where in the rings that one is, and whether it is there at all.

All of these numbers of an iteration come from one operation. XLA would compile each of them as a kernel of its own, as they
differ in their constants; and the instructions of two stages, which differ in these numbers alone, would share no kernel.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import tensorflow as tf

from tensorflow_ipu._library import ops
from tensorflow_ipu.pipelining.schedule.buffers import Buffer

if TYPE_CHECKING:
    from tensorflow_ipu._types import Number
    from tensorflow_ipu.pipelining.program.operations import Operation


class Wanted(IntEnum):
    """Which of two micro-batches have to be there for a run, as the operation knows it."""

    FIRST = 0
    BOTH = 1
    FIRST_ALONE = 2


class When(NamedTuple):
    """When something runs, by micro-batches of the section.

    Attributes:
      first: The number of one that has to be there.
      second: The number of another one.
      wanted: Which of both have to be there.
    """

    first: int
    second: int = 0
    wanted: Wanted = Wanted.FIRST


class Turns:
    """The numbers of one iteration."""

    def __init__(
        self, operations: Iterable[Operation], base: Number, count: Number, asked: Iterable[When] = ()
    ) -> None:
        """Has them computed.

        Args:
          operations: The operations of the iteration.
          base: What is added to the numbers of their micro-batches, as a whole number or an int32 scalar.
          count: How many micro-batches a pass has, likewise.
          asked: The conditions that will be asked for.
        """
        operations = list(operations)
        numbers = sorted({operation.micro_batch for operation in operations})
        places = sorted({(one.micro_batch, ring.depth) for one in operations for ring in _rings(one)})
        conditions = list(dict.fromkeys(asked))
        found = ops.ipu_pipeline_turns(
            base=tf.cast(base, tf.int32),
            count=tf.cast(count, tf.int32),
            N=len(numbers),
            P=len(places),
            S=len(conditions),
            number_of=numbers,
            place_of=[number for number, _ in places],
            depths=[depth for _, depth in places],
            first=[when.first for when in conditions],
            second=[when.second for when in conditions],
            wanted=[int(when.wanted) for when in conditions],
        )
        self._numbers = dict(zip(numbers, found.numbers, strict=True))
        self._places = dict(zip(places, found.places, strict=True))
        self._runs = dict(zip(conditions, found.runs, strict=True))

    def number(self, micro_batch: int) -> tf.Tensor:
        """The number in the pass of a micro-batch of the section, an int32 scalar."""
        return self._numbers[micro_batch]

    def place(self, micro_batch: int, ring: Buffer) -> tf.Tensor:
        """Where in a ring of several places it is, an int32 scalar."""
        return self._places[micro_batch, ring.depth]

    def runs(self, when: When) -> tf.Tensor:
        """A bool scalar: whether something runs."""
        return self._runs[when]


def _rings(operation: Operation) -> Iterable[Buffer]:
    keys = [read.key for read in operation.reads] + list(operation.targets)
    return (key for key in keys if isinstance(key, Buffer) and key.depth > 1)
