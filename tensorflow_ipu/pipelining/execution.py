"""The interpreter, which turns the tables of instructions of a plan into the graph of a pipeline's program.

One pass of the pipeline has a memory: for each buffer of the plan, the tensors that it holds. TensorFlow's loops carry
this memory. For each row of a table, the interpreter calls the function of the row with the tensors that the row reads,
and replaces the tensors that the row writes with the results. Stash buffers are written in place.

XLA may run independent operations in any order, so tokens order the instructions. A token is an int32 scalar with the
value 0. An operation that takes a token cannot start before the operation that returned it has ended. Instructions
either run one after the other, or overlap with up to `window` of them in flight.

Example: two stages in training, and an iteration of the steady loop with the rows `0B0`, `1B1`, `0F3` and `1F2`:

    row    reads                           writes
    0B0    stash of 0, backward link of 0  accumulator of 0
    1B1    stash of 1                      accumulator of 1, backward link of 0 when the step ends
    0F3    infeed                          stash of 0, forward link of 1 when the step ends
    1F2    forward link of 1               stash of 1, sums for the outfeed
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

Key: TypeAlias = "Buffer | str"  # A buffer of the plan, or the name of other tensors of the memory, such as `SUMS`.
Contents: TypeAlias = "dict[Key, list[tf.Tensor]]"
Values: TypeAlias = "Sequence[tf.Tensor]"
Token: TypeAlias = "int | tf.Tensor"  # An int32 scalar that is 0, and is computed once another operation has ended.
Body: TypeAlias = "Callable[[Token, Values, Values], Values]"
T = TypeVar("T")

_numbers = itertools.count()


@dataclass(frozen=True)
class Read:
    """The tensors that an instruction reads of a buffer for its micro-batch: all, or those with these indices."""

    key: Key
    numbers: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Row:
    """An instruction: the buffers that it reads and writes, and the function that computes the tensors to write."""

    micro_batch: int
    reads: tuple[Read, ...]
    writes: tuple[Key, ...]
    compute: Callable[[View], Contents]
    scratch: Mapping[Key, Sequence[tf.TensorSpec]] = field(default_factory=dict)  # Buffers that exist in its step only.


Table: TypeAlias = "Sequence[Sequence[Row]]"  # For each step of a section, its rows in the order in which they run.


def run_once(runs: tf.Tensor, token: tf.Tensor, reads: Values, current: Values, body: Body) -> tuple[tf.Tensor, Any]:
    """Runs `body` if `runs` is True, after `token` is computed.

    `body` gets the token, `reads` and `current`, and returns the new values of `current`, which are written in place.

    Returns:
      A token that is computed when `body` has ended or was skipped, and the new values; if skipped, `current`.
    """
    graph = graphs.LoopBodyGraph(f"once_{next(_numbers)}")
    with tf.name_scope("once") as scope:
        pass  # A scope per body makes the names of operations unique. Errors find the user's lines by these names.

    def traced(inner_token: tf.Tensor, *values: tf.Tensor) -> list[tf.Tensor]:
        with tf.name_scope(scope):
            return list(body(inner_token, values[len(current) :], values[: len(current)]))

    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in (token, *current, *reads)]
    graphs.trace_into(graph, traced, specs)
    function: Any = functions.of_graph(f"__ipu_{graph.name}", graph, called=False)
    graphs.hold_function(tf.compat.v1.get_default_graph(), function)
    captured = programs.with_states([*reads, *graph.external_captures])
    return ops.ipu_once(runs=runs, token=token, before=list(current), captured=captured, f=function.name)


def fence(values: Values, token: Token = 0) -> tuple[Token, list[tf.Tensor]]:
    """Stores the values in memory. Returns a token that is computed after that, and the values.

    XLA cannot fuse the computation of the values with their uses. So its operands are not read after the token.
    """
    return ops.ipu_fence(token=token, values=list(values))


def opaque_zero() -> tf.Tensor:
    """Returns an int32 scalar that is 0, but not a constant to XLA."""
    return ops.ipu_stash_zeros(T=[tf.int32], output_shapes=[[]])[0]


def empty(buffers: Sequence[tuple[Sequence[tf.TensorSpec], int]]) -> list[list[tf.Tensor]]:
    """Returns the initial zeros of buffers, given the specs of the tensors and the number of places of each buffer.

    One operation makes all zeros, so that each tensor has its own memory. XLA would merge and copy equal constants.
    """
    shapes = [spec.shape if depth == 1 else [depth, *spec.shape] for specs, depth in buffers for spec in specs]
    dtypes = [spec.dtype for specs, _ in buffers for spec in specs]
    zeros = ops.ipu_stash_zeros(T=dtypes, output_shapes=shapes) if shapes else []
    return cut(zeros, [len(specs) for specs, _ in buffers])


def read_buffer(buffer: Values, place: Number, token: Token = 0) -> list[tf.Tensor]:
    """Reads a place of a buffer of several places, after `token` is computed."""
    return ops.ipu_stash_read(stashes=list(buffer), slot=place, token=token) if buffer else []


def written_buffer(buffer: Values, place: Number, values: Values, token: Token = 0) -> list[tf.Tensor]:
    """Writes values to a place of a buffer of several places, after `token` is computed; returns the buffer."""
    if not buffer:
        return []
    return ops.ipu_stash_write(stashes=list(buffer), values=list(values), slot=place, token=token)


class PredicateKind(IntEnum):
    """The condition under which rows run: their first micro-batch exists, both exist, or only the first exists.

    The operation `IpuLoopIndices` reads these values in its attribute `kinds`.
    """

    FIRST = 0
    BOTH = 1
    FIRST_ALONE = 2


class Predicate(NamedTuple):
    """The condition under which rows run, for one or two micro-batches of the section."""

    first: int
    second: int = 0
    kind: PredicateKind = PredicateKind.FIRST


class LoopIndices:
    """The indices of one iteration, which one operation computes from its first micro-batch `base`.

    Example: with `base` 10 and a buffer of depth 4, micro-batch 1 of the section has the number 11 and the place 3. It
    exists if the pass of the pipeline has at least 12 micro-batches.

    Attributes:
      numbers: For micro-batches of the section, their numbers in the pass of the pipeline, int32 scalars.
      places: For micro-batches of the section and depths of buffers, the places in such buffers, int32 scalars.
      runs: For each predicate, its value, a bool scalar.
    """

    def __init__(self, rows: Iterable[Row], base: Number, count: Number, predicates: Iterable[Predicate] = ()) -> None:
        rows = list(rows)
        numbers = sorted({row.micro_batch for row in rows})
        places = sorted({(row.micro_batch, buffer.depth) for row in rows for buffer in _stash_buffers(row)})
        conditions = list(dict.fromkeys(predicates))
        results = ops.ipu_loop_indices(
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
            kinds=[int(when.kind) for when in conditions],
        )
        self.numbers: dict[int, tf.Tensor] = dict(zip(numbers, results.numbers, strict=True))
        self.places: dict[tuple[int, int], tf.Tensor] = dict(zip(places, results.slots, strict=True))
        self.runs: dict[Predicate, tf.Tensor] = dict(zip(conditions, results.predicates, strict=True))


def _stash_buffers(row: Row) -> Iterator[Buffer]:
    for key in (*(read.key for read in row.reads), *row.writes):
        if isinstance(key, Buffer) and key.depth > 1:
            yield key


# The size in bytes from which tensors are too large to overlap instructions. One instruction on such tensors uses all
# cores, and the copies cost more time than overlapping saves. Measured against one loop that runs all stages: with
# tensors of 1 MiB, pipelines of convolutions take 1.20 to 1.26 times as long if they overlap, and 1.10 to 1.14 times if
# not. With 64 KiB, pipelines of matrix products take 0.89 and 1.05 times as long.
LARGE = 256 << 10


def window_of(stages: int) -> int:
    """Returns the number of instructions in flight in a pipeline of this number of stages."""
    # More instructions in flight are faster on two cores, but each takes memory that a plan does not count.
    return max(2, stages // 2)


class Overlap:
    """The instructions in flight in one iteration, or in one region of it.

    Instruction `i` starts when instruction `i - window` has ended. A buffer is written in place, so a write also waits
    for the latest read of the buffer. `begin` is the token that a region starts with; None for an iteration. Example
    with a window of 2:

        instruction                         0B0      1B1      0F3    1F2
        starts after                        begin    begin    0B0    1B1
        writes the stash of stage 0 after                     0B0
    """

    def __init__(self, window: int, begin: Token | None = None) -> None:
        self._window = window
        self._begin: Token = tf.constant(0) if begin is None else begin
        self._in_region = begin is not None
        self._fences: list[Token] = []  # For each instruction so far, the token that is computed at its end.
        self._read: list[Buffer] = []  # The buffers that the current instruction reads.
        self._tokens_of_reads: dict[Buffer, Token] = {}

    def run(self, reads: Values, current: Values, body: Body) -> list[tf.Tensor]:
        """Runs an instruction, which is never skipped; returns the new values of `current`."""
        wait: Token = self._fences[-self._window] if len(self._fences) >= self._window else self._begin
        if reads and (self._fences or self._in_region):
            _, reads = fence(reads, wait)
        results = body(wait, reads, current)
        for result, old in zip(results, current, strict=True):
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
        """Returns the token that a write to a buffer has to wait for: it is computed once the buffer was read."""
        return self._tokens_of_reads.get(buffer, self._begin)


class Interpreter:
    """The interpreter of one pass of a plan. It starts with the memory `contents` and updates it."""

    def __init__(self, plan: Plan, contents: Contents, token: tf.Tensor, micro_batches: Number) -> None:
        self.contents = contents
        self.token = token
        self.overlap: Overlap | None = None  # None if each instruction waits for the previous one.
        self._plan = plan
        self._count = micro_batches
        self._window = window_of(plan.stages)
        self._exchanged: Contents = {}  # Tensors that a step has written to links. Readers see them when the step ends.
        self._scratch: list[Key] = []

    def run_pass(self, table_of: Callable[[Section], Table], iterations: Number, *, overlapping: bool) -> None:
        """Runs the sections of the plan: the steady section as a loop, and the ramps too if possible.

        In the general case, the ramp-up, the loop and the ramp-down follow each other. If the ramps are further
        iterations of the steady section (see `Plan.folded_ramps`), one loop runs all of them, which makes the program
        smaller. With ramps of 2 iterations each and 10 steady iterations:

            iterations -2, -1         ramp-up: rows without a micro-batch are skipped
            iterations 0 to 9         each row has a micro-batch: nothing is skipped, so instructions may overlap
            iterations 10, 11         ramp-down: rows without a micro-batch are skipped

        * If each micro-batch is in one iteration only, no row is ever skipped: one loop.
        * Without overlapping: one loop in which each row has a predicate.
        * With overlapping and few iterations, mostly ramps: one loop in which each pair of rows has predicates.
        * With overlapping and many iterations: one loop whose body runs an inner loop over all iterations in which
          nothing is skipped, and then one iteration with predicates. The inner loop is empty except at iteration 0.
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
        iterations_up, iterations_down = ramps
        begin, end = -iterations_up, iterations + iterations_down
        if iterations_up == 0 and plan.unlooped_micro_batches == iterations_down * steady.advance:
            # Each micro-batch is in one iteration only.
            self._loop(table, 0, end, complete=True, overlapping=overlapping)
        elif not overlapping:
            self._loop(table, begin, end, complete=False)
        elif isinstance(iterations, int) and iterations < iterations_up:

            def in_pairs(iteration: tf.Tensor) -> tf.Tensor:
                self._run_in_pairs(table, iteration * steady.advance)
                return iteration + 1

            self._carrying(lambda iteration: iteration < end, in_pairs, tf.constant(begin))
        else:

            def body(iteration: tf.Tensor) -> tf.Tensor:
                iteration = self._carrying(
                    lambda counter: (counter >= 0) & (counter < iterations),
                    functools.partial(self._iteration, table, complete=True, overlapping=True),
                    iteration,
                )
                return self._iteration(table, iteration, complete=False)

            self._carrying(lambda iteration: iteration < end, body, tf.constant(begin))

    def _loop(self, table: Table, begin: Number, end: Number, *, complete: bool, overlapping: bool = False) -> None:
        """Runs iterations of the steady section as a loop. If they are `complete`, no instruction is skipped."""
        body = functools.partial(self._iteration, table, complete=complete, overlapping=overlapping)
        self._carrying(lambda iteration: iteration < end, body, tf.constant(begin))

    def _iteration(self, table: Table, iteration: tf.Tensor, *, complete: bool, overlapping: bool = False) -> tf.Tensor:
        base = iteration * self._plan.section("steady").advance
        self._run_once(table, base, complete=complete, overlapping=complete and overlapping)
        return iteration + 1

    def _carrying(
        self, condition: Callable[[tf.Tensor], tf.Tensor], body: Callable[[tf.Tensor], tf.Tensor], begin: tf.Tensor
    ) -> tf.Tensor:
        """Runs a loop that carries a counter, the token and the whole memory; returns the final counter."""
        keys = list(self.contents)
        widths = [len(values) for values in self.contents.values()]

        def carried(counter: tf.Tensor) -> list[tf.Tensor]:
            return [counter, self.token, *(tensor for key in keys for tensor in self.contents[key])]

        def take(values: Values) -> tf.Tensor:
            counter, self.token, *tensors = values
            self.contents = dict(zip(keys, cut(tensors, widths), strict=True))
            return counter

        return take(
            tf.while_loop(
                lambda counter, *_: condition(counter), lambda *values: carried(body(take(values))), carried(begin)
            )
        )

    def _run_once(self, table: Table, base: Number, *, complete: bool = True, overlapping: bool = False) -> None:
        """Runs the rows of a table for micro-batches from `base` on. Unless `complete`, rows may be skipped."""
        rows = _flat(table)
        indices = LoopIndices(rows, base, self._count, () if complete else (Predicate(row.micro_batch) for row in rows))
        self.overlap = Overlap(self._window) if overlapping else None
        for step in table:
            for row in step:
                self._run(row, indices, None if complete else indices.runs[Predicate(row.micro_batch)])
            self._end_step()
        self.overlap = None

    def _run_in_pairs(self, table: Table, base: Number) -> None:
        """Runs the rows of a table in overlapping pairs.

        If a row has no micro-batch, it is skipped, and the other row of the pair runs. The rows `0B0` and `1B1` become
        three branches: both rows, only `0B0`, and only `1B1`. At most one branch runs.
        """
        pairs = [[step[begin : begin + 2] for begin in range(0, len(step), 2)] for step in table]
        predicates = (predicate for pair in _flat(pairs) for _, predicate in _branches(pair))
        indices = LoopIndices(_flat(table), base, self._count, predicates)
        for step in pairs:
            for pair in step:
                for rows, predicate in _branches(pair):
                    if len(rows) == 1:
                        self._run(rows[0], indices, indices.runs[predicate])
                    else:
                        self._run_together(rows, indices, indices.runs[predicate])
            self._end_step()

    def _run(self, row: Row, indices: LoopIndices, runs: tf.Tensor | None) -> None:
        """Runs a row, or skips it if `runs` is False; None means True."""
        for key, specs in row.scratch.items():
            [self.contents[key]] = empty([(specs, 1)])
            self._scratch.append(key)
        reads = [self._read_whole(read) for read in row.reads]
        current = [self._exchanged.get(key, self.contents[key]) for key in row.writes]
        widths = [len(values) for values in current]

        def body(token: Token, values: Values, old: Values) -> list[tf.Tensor]:
            read = dict(zip(row.reads, cut(values, [len(tensors) for tensors in reads]), strict=True))
            targets = dict(zip(row.writes, cut(old, widths), strict=True))
            new = row.compute(View(self, row.micro_batch, indices, token, read, targets))
            return [tensor for key in row.writes for tensor in new[key]]

        if self.overlap is not None:
            results = self.overlap.run(_flat(reads), _flat(current), body)
        else:
            results = self._once(runs, _flat(reads), _flat(current), body)
        self._store(row.writes, cut(results, widths))

    def _run_together(self, rows: Sequence[Row], indices: LoopIndices, runs: tf.Tensor) -> None:
        """Runs several rows of a step, overlapping, or skips all of them if `runs` is False."""
        contents, exchanged = self.contents, self._exchanged
        targets = list(dict.fromkeys(key for row in rows for key in row.writes))
        current = [exchanged.get(key, contents[key]) for key in targets]
        widths = [len(values) for values in current]

        def body(token: Token, _: Values, values: Values) -> list[tf.Tensor]:
            # Within the branch, the memory consists of the branch's own inputs.
            inner = dict(zip(targets, cut(values, widths), strict=True))
            self._exchanged = {**exchanged, **{key: value for key, value in inner.items() if key in exchanged}}
            self.contents = {**contents, **{key: value for key, value in inner.items() if key not in exchanged}}
            self.overlap = Overlap(self._window, token)
            for row in rows:
                self._run(row, indices, None)
            self.overlap = None
            return [tensor for key in targets for tensor in self._exchanged.get(key, self.contents[key])]

        results = self._once(runs, [], _flat(current), body)
        self.contents, self._exchanged = contents, exchanged
        self._store(targets, cut(results, widths))

    def _once(self, runs: tf.Tensor | None, reads: Values, current: Values, body: Body) -> list[tf.Tensor]:
        """Runs `body` after all previous instructions and before all later ones, or skips it."""
        self.token, results = run_once(tf.constant(True) if runs is None else runs, self.token, reads, current, body)
        return results

    def _read_whole(self, read: Read) -> list[tf.Tensor]:
        """Returns the tensors of a buffer of one place; an empty list for deeper buffers, which `View.read` reads."""
        if isinstance(read.key, Buffer) and read.key.depth > 1:
            return []
        values = self.contents[read.key]
        return list(values) if read.numbers is None else [values[number] for number in read.numbers]

    def _store(self, targets: Sequence[Key], new: Sequence[list[tf.Tensor]]) -> None:
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
    """The view of the memory that the function of an instruction gets, for the micro-batch of the instruction."""

    _interpreter: Interpreter
    _section_micro_batch: int  # The micro-batch, as the section counts them.
    _indices: LoopIndices
    _token: Token  # Computed once the instruction may run.
    _read: dict[Read, list[tf.Tensor]]
    current: dict[Key, list[tf.Tensor]]  # The tensors that the instruction replaces, by the buffers that it writes.

    @property
    def micro_batch(self) -> tf.Tensor:
        """The number of the micro-batch in the pass of the pipeline, an int32 scalar."""
        return self._indices.numbers[self._section_micro_batch]

    def read(self, read: Read) -> list[tf.Tensor]:
        """Returns the tensors of the micro-batch."""
        buffer, overlap = read.key, self._interpreter.overlap
        if not isinstance(buffer, Buffer) or buffer.depth == 1:
            return list(self._read[read])
        if overlap is not None:
            overlap.note_read(buffer)
        place = self._indices.places[self._section_micro_batch, buffer.depth]
        return read_buffer(self._interpreter.contents[buffer], place, self._token)

    def placed(self, buffer: Buffer, old: Values, values: Values) -> list[tf.Tensor]:
        """Returns tensors `old` of a buffer with the place of the micro-batch replaced by `values`."""
        if buffer.depth == 1:
            return list(values)
        overlap = self._interpreter.overlap
        token = self._token if overlap is None else overlap.after_reads(buffer)
        return written_buffer(old, self._indices.places[self._section_micro_batch, buffer.depth], values, token)

    def settled(self, values: Values) -> list[tf.Tensor]:
        """Returns the values. If instructions overlap, operations that use one wait until all are computed."""
        return list(values) if self._interpreter.overlap is None else fence(values, self._token)[1]


def _branches(pair: Sequence[Row]) -> list[tuple[Sequence[Row], Predicate]]:
    """Returns the branches of one or two rows: the rows that run together, and their predicate."""
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
    """Returns the pieces of a list that have these lengths."""
    ends = itertools.accumulate(widths)
    return [list(values[end - width : end]) for end, width in zip(ends, widths, strict=True)]
