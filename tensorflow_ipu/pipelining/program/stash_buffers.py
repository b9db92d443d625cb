"""Ring buffers in a compiled program that are read and written in place.

XLA updates a buffer in place where it can prove that nobody reads it later, and copies it, ring and all, where it
cannot. Nothing in a data flow says that the backward pass of one micro-batch reads its place before the forward pass of
another takes it. So `TokenThreading` threads a token through the program: an integer scalar. Each instruction is a loop of one
iteration (`once`), which begins with what the last one left of the token, and its reads and writes take that besides. At run
time the token is always 0; XLA does not know that.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import tensorflow as tf

from tensorflow_ipu._native.library import ops
from tensorflow_ipu._tensorflow import assembly
from tensorflow_ipu.pipelining.program.loop import run_once
from tensorflow_ipu.pipelining.schedule.instructions import Buffer

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Number
    from tensorflow_ipu.pipelining.program.operations import Operation

Token: TypeAlias = "int | tf.Tensor"  # An int32 scalar that is 0, and known once something else is.


class TokenThreading:
    """Runs the instructions of a program one after the other, by a token."""

    def __init__(self, token: tf.Tensor) -> None:
        """Begins with `token` of what comes before, or with `opaque_zero`."""
        self.token = token

    def once(
        self,
        runs: tf.Tensor | None,
        reads: Sequence[tf.Tensor],
        before: Sequence[tf.Tensor],
        body: Callable[[Token, Sequence[tf.Tensor], Sequence[tf.Tensor]], Sequence[tf.Tensor]],
    ) -> list[tf.Tensor]:
        """Runs `body` after all that was run so far and before all that will be, or skips it."""
        self.token, results = run_once(tf.constant(True) if runs is None else runs, self.token, reads, before, body)
        return results

    def fence(self, values: Sequence[tf.Tensor], behind: Token = 0) -> tuple[Token, list[tf.Tensor]]:
        """Materialises values: what they were computed from is not read any more where they are used."""
        passed, *fenced = assembly.put(_graph(), "IpuFence", "IpuFence", [*_scalars(behind), list(values)])
        return passed, fenced


def opaque_zero() -> tf.Tensor:
    """An int32 scalar that is 0, which XLA does not know."""
    return ops.ipu_stash_zeros(T=[tf.int32], output_shapes=[[]])[0]


def empty(kept: Sequence[tuple[Sequence[tf.TensorSpec], int]]) -> list[list[tf.Tensor]]:
    """Zeros, all made at once: so that each has its place from the start, where equal constants are one that is copied."""
    shapes = [one.shape if depth == 1 else [depth, *one.shape] for specs, depth in kept for one in specs]
    if not shapes:
        return [[] for _ in kept]
    dtypes = [one.dtype for specs, _ in kept for one in specs]
    zeros = iter(ops.ipu_stash_zeros(T=dtypes, output_shapes=shapes))
    return [list(itertools.islice(zeros, len(specs))) for specs, _ in kept]


def read(ring: Sequence[tf.Tensor], place: Number, behind: Token = 0) -> list[tf.Tensor]:
    """What is in a place of a ring of several places, read once `behind` is known, which is 0."""
    return (
        assembly.put(_graph(), "IpuStashRead", "IpuStashRead", [list(ring), *_scalars(place, behind)]) if ring else []
    )


def written(
    ring: Sequence[tf.Tensor], place: Number, values: Sequence[tf.Tensor], behind: Token = 0
) -> list[tf.Tensor]:
    """Such a ring with values in a place, written once `behind` is known, which is 0."""
    if not ring:
        return []
    taken = [list(ring), list(values), *_scalars(place, behind)]
    return assembly.put(_graph(), "IpuStashWrite", "IpuStashWrite", taken)


def _scalars(*values: Number) -> list[tf.Tensor]:
    return [assembly.number(_graph(), value) if isinstance(value, int) else value for value in values]


def _graph() -> tf.Graph:
    return tf.compat.v1.get_default_graph()


class PredicateKind(IntEnum):
    """Which of two micro-batches have to be there for a run, as the operation knows it."""

    FIRST = 0
    BOTH = 1
    FIRST_ALONE = 2


class Predicate(NamedTuple):
    """When something runs, by micro-batches of the section."""

    first: int
    second: int = 0
    wanted: PredicateKind = PredicateKind.FIRST


class LoopIndices:
    """The numbers of one iteration."""

    def __init__(
        self, operations: Iterable[Operation], base: Number, count: Number, asked: Iterable[Predicate] = ()
    ) -> None:
        """Has them computed."""
        operations = list(operations)
        numbers = sorted({operation.micro_batch for operation in operations})
        places = sorted({(one.micro_batch, ring.depth) for one in operations for ring in _rings(one)})
        conditions = list(dict.fromkeys(asked))
        found = ops.ipu_loop_indices(
            base=tf.cast(base, tf.int32),
            count=tf.cast(count, tf.int32),
            N=len(numbers),
            P=len(places),
            S=len(conditions),
            number_of=numbers,
            slot_of=[number for number, _ in places],
            depths=[depth for _, depth in places],
            first=[when.first for when in conditions],
            second=[when.second for when in conditions],
            kinds=[int(when.wanted) for when in conditions],
        )
        self._numbers = dict(zip(numbers, found.numbers, strict=True))
        self._places = dict(zip(places, found.slots, strict=True))
        self._runs = dict(zip(conditions, found.predicates, strict=True))

    def number(self, micro_batch: int) -> tf.Tensor:
        """The number in the pass of a micro-batch of the section, an int32 scalar."""
        return self._numbers[micro_batch]

    def place(self, micro_batch: int, ring: Buffer) -> tf.Tensor:
        """Where in a ring of several places it is, an int32 scalar."""
        return self._places[micro_batch, ring.depth]

    def runs(self, when: Predicate) -> tf.Tensor:
        """A bool scalar: whether something runs."""
        return self._runs[when]


def _rings(operation: Operation) -> Iterable[Buffer]:
    keys = [read.key for read in operation.reads] + list(operation.targets)
    return (key for key in keys if isinstance(key, Buffer) and key.depth > 1)
