"""The interpreter of a pipeline's program: it walks tables of instructions, and runs each on the memory of a pass.

A pass carries its memory, by buffer, through TensorFlow's loops. A row of a table names what its instruction reads and
writes there. Instructions run one after the other, each after the token of the one before; or several are in flight, and
each waits for what is `window` instructions back. Stash buffers are written in place.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu._native.library import ops
from tensorflow_ipu._tensorflow import functions, graphs
from tensorflow_ipu.pipelining.schedule.plan import LINKS, Buffer, Plan, Section

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Number

Key: TypeAlias = "Buffer | str"  # A buffer of the plan, or what a program keeps besides.
Contents: TypeAlias = "dict[Key, list[tf.Tensor]]"
Values: TypeAlias = "Sequence[tf.Tensor]"
Token: TypeAlias = "int | tf.Tensor"  # An int32 scalar that is 0, and known once something else is.
Body: TypeAlias = "Callable[[Token, Values, Values], Values]"
T = TypeVar("T")

_numbers = itertools.count()


@dataclass(frozen=True)
class Read:
    """What an instruction reads: the micro-batch's tensors of a buffer, or those of these numbers."""

    key: Key
    numbers: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Row:
    """An instruction: what it reads and writes, and the function that computes what it writes."""

    micro_batch: int
    reads: tuple[Read, ...]
    writes: tuple[Key, ...]
    compute: Callable[[View], Contents]
    scratch: Mapping[Key, Sequence[tf.TensorSpec]] = field(default_factory=dict)  # Made for it, until the step ends.


Table: TypeAlias = "Sequence[Sequence[Row]]"  # For each step of a section its rows, in the order of their runs.


def run_once(runs: tf.Tensor, token: tf.Tensor, reads: Values, before: Values, body: Body) -> tuple[tf.Tensor, Any]:
    """Runs `body` after what `token` depends on, or skips it. What it changes is changed in place."""
    graph = graphs.LoopBodyGraph(f"once_{next(_numbers)}")
    with tf.name_scope("once") as scope:
        pass  # Operations of all parts have names of their own: by these, messages find the user's lines.

    def traced(here: tf.Tensor, *values: tf.Tensor) -> list[tf.Tensor]:
        with tf.name_scope(scope):
            return list(body(here, values[len(before) :], values[: len(before)]))

    graphs.trace_into(graph, traced, [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in (token, *before, *reads)])
    function: Any = functions.of_graph(f"__ipu_{graph.name}", graph, called=False)
    graphs.hold_function(tf.compat.v1.get_default_graph(), function)
    captured = programs.with_states([*reads, *graph.external_captures])
    return ops.ipu_once(runs=runs, token=token, before=list(before), captured=captured, f=function.name)


def fence(values: Values, token: Token = 0) -> tuple[Token, list[tf.Tensor]]:
    """Materialises values: what they were computed from is not read any more where they are used."""
    return ops.ipu_fence(token=token, values=list(values))


def opaque_zero() -> tf.Tensor:
    """Returns an int32 scalar that is 0, which XLA does not know."""
    return ops.ipu_stash_zeros(T=[tf.int32], output_shapes=[[]])[0]


def empty(kept: Sequence[tuple[Sequence[tf.TensorSpec], int]]) -> list[list[tf.Tensor]]:
    """Returns zeros, for specs and numbers of places.

    All are made at once: so each has its place from the start, while equal constants would be one that is copied.
    """
    shapes = [spec.shape if depth == 1 else [depth, *spec.shape] for specs, depth in kept for spec in specs]
    dtypes = [spec.dtype for specs, _ in kept for spec in specs]
    zeros = ops.ipu_stash_zeros(T=dtypes, output_shapes=shapes) if shapes else []
    return cut(zeros, [len(specs) for specs, _ in kept])


def read_buffer(buffer: Values, place: Number, token: Token = 0) -> list[tf.Tensor]:
    """Reads a place of a buffer of several places, once `token` is known, which is 0."""
    return ops.ipu_stash_read(stashes=list(buffer), slot=place, token=token) if buffer else []


def written_buffer(buffer: Values, place: Number, values: Values, token: Token = 0) -> list[tf.Tensor]:
    """Writes values to a place of such a buffer, once `token` is known, which is 0; returns the buffer."""
    if not buffer:
        return []
    return ops.ipu_stash_write(stashes=list(buffer), values=list(values), slot=place, token=token)


class PredicateKind(IntEnum):
    """Which of two micro-batches have to be there for a run; the values are the operation's."""

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

    def __init__(self, rows: Iterable[Row], base: Number, count: Number, predicates: Iterable[Predicate] = ()) -> None:
        rows = list(rows)
        numbers = sorted({row.micro_batch for row in rows})
        places = sorted({(row.micro_batch, buffer.depth) for row in rows for buffer in _stash_buffers(row)})
        conditions = list(dict.fromkeys(predicates))
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
        # Int32 scalars: the numbers in the pass of micro-batches of the section, and their places in buffers of a depth.
        self.numbers: dict[int, tf.Tensor] = dict(zip(numbers, found.numbers, strict=True))
        self.places: dict[tuple[int, int], tf.Tensor] = dict(zip(places, found.slots, strict=True))
        self.runs: dict[Predicate, tf.Tensor] = dict(zip(conditions, found.predicates, strict=True))  # Bool scalars.


def _stash_buffers(row: Row) -> Iterator[Buffer]:
    for key in (*(read.key for read in row.reads), *row.writes):
        if isinstance(key, Buffer) and key.depth > 1:
            yield key


# Of tensors of so many bytes, an instruction uses all cores by itself, and to copy them takes what overlapping gains: with
# 1 MiB, pipelines of convolutions take 1.20 to 1.26 times as long as one loop where they overlap, and 1.10 to 1.14 where
# not; with 64 KiB, those of products 0.89 and 1.05 times.
LARGE = 256 << 10


def window_of(stages: int) -> int:
    """Returns how many instructions are in flight in a pipeline of so many stages."""
    # On two cores, more in flight are faster, but each takes memory that a plan does not tell of.
    return max(2, stages // 2)


class Overlap:
    """The instructions in flight in one iteration, or in one region of it."""

    def __init__(self, window: int, begin: Token | None = None) -> None:
        self._window = window
        self._begin: Token = tf.constant(0) if begin is None else begin
        self._in_region = begin is not None
        self._fences: list[Token] = []  # Of the instructions so far.
        self._read: list[Buffer] = []  # The buffers that the current instruction reads.
        self._tokens_of_reads: dict[Buffer, Token] = {}

    def run(self, reads: Values, before: Values, body: Body) -> list[tf.Tensor]:
        """Runs an instruction, as `Interpreter.once` does if nothing is skipped."""
        wait: Token = self._fences[-self._window] if len(self._fences) >= self._window else self._begin
        if reads and (self._fences or self._in_region):
            _, reads = fence(reads, wait)
        results = body(wait, reads, before)
        for result, old in zip(results, before, strict=True):
            result.set_shape(old.shape)
        token, fenced = fence(results)
        self._tokens_of_reads.update(dict.fromkeys(self._read, token))
        self._read.clear()
        self._fences.append(token)
        return fenced

    def note_read(self, buffer: Buffer) -> None:
        """Records that the current instruction reads a buffer."""
        self._read.append(buffer)

    def after_reads(self, buffer: Buffer) -> Token:
        """Returns what a write to a buffer waits for: a token that is known once the buffer was read."""
        return self._tokens_of_reads.get(buffer, self._begin)


class Interpreter:
    """Runs one pass of a plan, on the memory that it begins with."""

    def __init__(self, plan: Plan, contents: Contents, token: tf.Tensor, micro_batches: Number) -> None:
        self.contents = contents
        self.token = token
        self.overlap: Overlap | None = None  # None if each instruction waits for the one before.
        self._plan = plan
        self._count = micro_batches
        self._window = window_of(plan.stages)
        self._exchanged: Contents = {}  # What a step writes to links: there when the step ends.
        self._scratch: list[Key] = []

    def run_pass(self, table_of: Callable[[Section], Table], iterations: Number, *, overlapping: bool) -> None:
        """Runs the sections: the steady one as a loop, and the ramps as further iterations of it if they are some.

        If instructions overlap, the loop has an inner one for the iterations in which each instruction has a micro-batch.
        """
        plan = self._plan
        steady = plan.section("steady")
        table = table_of(steady)
        ramps = plan.folded_ramps()
        if ramps is None:
            self._run_once(table_of(plan.section("ramp up")), 0)
            self._loop(table, 0, iterations, complete=True, overlapping=overlapping)
            self._run_once(table_of(plan.section("ramp down")), iterations * steady.advance)
            return
        before, after = ramps
        first, end = -before, iterations + after
        if before == 0 and plan.unlooped_micro_batches == after * steady.advance:
            # No micro-batch is in two iterations.
            self._loop(table, 0, end, complete=True, overlapping=overlapping)
        elif not overlapping:
            self._loop(table, first, end, complete=False)
        elif isinstance(iterations, int) and iterations < before:

            def in_pairs(iteration: tf.Tensor) -> tf.Tensor:
                self._run_in_pairs(table, iteration * steady.advance)
                return iteration + 1

            self._carrying(lambda iteration: iteration < end, in_pairs, tf.constant(first))
        else:

            def body(iteration: tf.Tensor) -> tf.Tensor:
                iteration = self._carrying(
                    lambda at: (at >= 0) & (at < iterations),
                    functools.partial(self._iteration, table, complete=True, overlapping=True),
                    iteration,
                )
                return self._iteration(table, iteration, complete=False)

            self._carrying(lambda iteration: iteration < end, body, tf.constant(first))

    def _loop(self, table: Table, begin: Number, end: Number, *, complete: bool, overlapping: bool = False) -> None:
        """Runs iterations of the steady section; if they are `complete`, each instruction has a micro-batch in each."""
        body = functools.partial(self._iteration, table, complete=complete, overlapping=overlapping)
        self._carrying(lambda iteration: iteration < end, body, tf.constant(begin))

    def _iteration(self, table: Table, iteration: tf.Tensor, *, complete: bool, overlapping: bool = False) -> tf.Tensor:
        base = iteration * self._plan.section("steady").advance
        self._run_once(table, base, complete=complete, overlapping=complete and overlapping)
        return iteration + 1

    def _carrying(
        self, condition: Callable[[tf.Tensor], tf.Tensor], body: Callable[[tf.Tensor], tf.Tensor], begin: tf.Tensor
    ) -> tf.Tensor:
        """Runs a loop that carries a counter, the token and all buffers; returns the counter."""
        keys = list(self.contents)
        widths = [len(values) for values in self.contents.values()]

        def carried(counter: tf.Tensor) -> list[tf.Tensor]:
            return [counter, self.token, *(tensor for key in keys for tensor in self.contents[key])]

        def take(values: Values) -> tf.Tensor:
            counter, self.token, *rest = values
            self.contents = dict(zip(keys, cut(rest, widths), strict=True))
            return counter

        return take(
            tf.while_loop(
                lambda counter, *_: condition(counter), lambda *values: carried(body(take(values))), carried(begin)
            )
        )

    def _run_once(self, table: Table, base: Number, *, complete: bool = True, overlapping: bool = False) -> None:
        """Runs the rows of a table, for micro-batches from `base` on."""
        rows = _flat(table)
        indices = LoopIndices(rows, base, self._count, () if complete else (Predicate(row.micro_batch) for row in rows))
        self.overlap = Overlap(self._window) if overlapping else None
        for step in table:
            for row in step:
                self._run(row, indices, None if complete else indices.runs[Predicate(row.micro_batch)])
            self._end_step()
        self.overlap = None

    def _run_in_pairs(self, table: Table, base: Number) -> None:
        """Runs the rows of a table, two at a time if both have a micro-batch; those that have none are skipped."""
        pairs = [[step[at : at + 2] for at in range(0, len(step), 2)] for step in table]
        indices = LoopIndices(
            _flat(table), base, self._count, (when for pair in _flat(pairs) for _, when in _runs(pair))
        )
        for step in pairs:
            for pair in step:
                for together, when in _runs(pair):
                    if len(together) == 1:
                        self._run(together[0], indices, indices.runs[when])
                    else:
                        self._run_together(together, indices, indices.runs[when])
            self._end_step()

    def _run(self, row: Row, indices: LoopIndices, runs: tf.Tensor | None) -> None:
        """Runs a row, or skips it if `runs` is False."""
        for key, specs in row.scratch.items():
            [self.contents[key]] = empty([(specs, 1)])
            self._scratch.append(key)
        reads = [self._read_whole(read) for read in row.reads]
        before = [self._exchanged.get(key, self.contents[key]) for key in row.writes]
        widths = [len(values) for values in before]

        def body(token: Token, values: Values, old: Values) -> list[tf.Tensor]:
            read = dict(zip(row.reads, cut(values, [len(tensors) for tensors in reads]), strict=True))
            targets = dict(zip(row.writes, cut(old, widths), strict=True))
            new = row.compute(View(self, row.micro_batch, indices, token, read, targets))
            return [tensor for key in row.writes for tensor in new[key]]

        if self.overlap is not None:
            results = self.overlap.run(_flat(reads), _flat(before), body)
        else:
            results = self._once(runs, _flat(reads), _flat(before), body)
        self._keep(row.writes, cut(results, widths))

    def _run_together(self, rows: Sequence[Row], indices: LoopIndices, runs: tf.Tensor) -> None:
        """Runs several rows of a step, overlapping, or skips all of them."""
        contents, exchanged = self.contents, self._exchanged
        targets = list(dict.fromkeys(key for row in rows for key in row.writes))
        before = [exchanged.get(key, contents[key]) for key in targets]
        widths = [len(values) for values in before]

        def body(token: Token, _: Values, values: Values) -> list[tf.Tensor]:
            now = dict(zip(targets, cut(values, widths), strict=True))
            self._exchanged = {**exchanged, **{key: value for key, value in now.items() if key in exchanged}}
            self.contents = {**contents, **{key: value for key, value in now.items() if key not in exchanged}}
            self.overlap = Overlap(self._window, token)
            for row in rows:
                self._run(row, indices, None)
            self.overlap = None
            return [tensor for key in targets for tensor in self._exchanged.get(key, self.contents[key])]

        results = self._once(runs, [], _flat(before), body)
        self.contents, self._exchanged = contents, exchanged
        self._keep(targets, cut(results, widths))

    def _once(self, runs: tf.Tensor | None, reads: Values, before: Values, body: Body) -> list[tf.Tensor]:
        """Runs `body` after all that ran so far and before all that will, or skips it."""
        self.token, results = run_once(tf.constant(True) if runs is None else runs, self.token, reads, before, body)
        return results

    def _read_whole(self, read: Read) -> list[tf.Tensor]:
        """Returns the tensors that are read as a whole; none of a buffer of several places, of which one is read."""
        if isinstance(read.key, Buffer) and read.key.depth > 1:
            return []
        values = self.contents[read.key]
        return list(values) if read.numbers is None else [values[number] for number in read.numbers]

    def _keep(self, targets: Sequence[Key], new: Sequence[list[tf.Tensor]]) -> None:
        for key, values in zip(targets, new, strict=True):
            is_link = isinstance(key, Buffer) and key.kind in LINKS
            (self._exchanged if is_link else self.contents)[key] = values

    def _end_step(self) -> None:
        self.contents.update(self._exchanged)
        self._exchanged.clear()
        while self._scratch:
            self.contents.pop(self._scratch.pop(), None)


@dataclass(frozen=True)
class View:
    """What an instruction sees of the memory while it runs, for its micro-batch."""

    _interpreter: Interpreter
    _of_section: int  # The micro-batch's number there.
    _indices: LoopIndices
    _token: Token  # Known once the instruction may run.
    _read: dict[Read, list[tf.Tensor]]
    before: dict[Key, list[tf.Tensor]]  # What targets hold before.

    @property
    def micro_batch(self) -> tf.Tensor:
        """The number of its micro-batch in the pass, an int32 scalar."""
        return self._indices.numbers[self._of_section]

    def read(self, read: Read) -> list[tf.Tensor]:
        """Returns what is read of the micro-batch."""
        buffer, overlap = read.key, self._interpreter.overlap
        if not isinstance(buffer, Buffer) or buffer.depth == 1:
            return list(self._read[read])
        if overlap is not None:
            overlap.note_read(buffer)
        place = self._indices.places[self._of_section, buffer.depth]
        return read_buffer(self._interpreter.contents[buffer], place, self._token)

    def placed(self, buffer: Buffer, old: Values, values: Values) -> list[tf.Tensor]:
        """Returns tensors of a buffer, or some of them, with the micro-batch's entry replaced by `values`."""
        if buffer.depth == 1:
            return list(values)
        overlap = self._interpreter.overlap
        token = self._token if overlap is None else overlap.after_reads(buffer)
        return written_buffer(old, self._indices.places[self._of_section, buffer.depth], values, token)

    def settled(self, values: Values) -> list[tf.Tensor]:
        """Returns values that are computed before anything else of the instruction if it overlaps with others."""
        return list(values) if self._interpreter.overlap is None else fence(values, self._token)[1]


def _runs(pair: Sequence[Row]) -> list[tuple[Sequence[Row], Predicate]]:
    """Returns what is run of two rows, or of one, and when."""
    first, second = pair[0].micro_batch, pair[-1].micro_batch
    if len(pair) == 1:
        return [(pair, Predicate(first))]
    return [
        (pair, Predicate(first, second, PredicateKind.BOTH)),
        (pair[:1], Predicate(first, second, PredicateKind.FIRST_ALONE)),
        (pair[1:], Predicate(second, first, PredicateKind.FIRST_ALONE)),
    ]


def _flat(values: Iterable[Iterable[T]]) -> list[T]:
    return list(itertools.chain.from_iterable(values))


def cut(values: Values, widths: Sequence[int]) -> list[list[tf.Tensor]]:
    """Cuts a list into pieces of these lengths."""
    ends = itertools.accumulate(widths)
    return [list(values[end - width : end]) for end, width in zip(ends, widths, strict=True)]
