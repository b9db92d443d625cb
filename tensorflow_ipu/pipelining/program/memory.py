"""The tensors that a pass of a plan hands on from operation to operation, and the running of operations on them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu._native.library import ops
from tensorflow_ipu._tensorflow import functions, graphs
from tensorflow_ipu.pipelining.program.layout import SUMS, Key, Layout
from tensorflow_ipu.pipelining.program.operations import Contents, Operation, Read
from tensorflow_ipu.pipelining.schedule.plan import LINKS, Buffer
from tensorflow_ipu.pipelining.weight_update import Accumulation

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Number

_numbers = itertools.count()


def run_once(
    runs: tf.Tensor,
    token: tf.Tensor,
    reads: Sequence[tf.Tensor],
    before: Sequence[tf.Tensor],
    body: Callable[[Token, Sequence[tf.Tensor], Sequence[tf.Tensor]], Sequence[tf.Tensor]],
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Runs `body` after what `token` depends on, or skips it. What it changes is changed in place."""
    graph = graphs.LoopBodyGraph(f"once_{next(_numbers)}")
    with tf.name_scope("once") as scope:
        pass  # Operations of all parts have names of their own: by these, messages find the user's lines.

    def traced(here: tf.Tensor, *values: tf.Tensor) -> list[tf.Tensor]:
        with tf.name_scope(scope):
            return list(body(here, values[len(before) :], values[: len(before)]))

    graphs.trace_into(graph, traced, [tf.TensorSpec(one.shape, one.dtype) for one in (token, *before, *reads)])
    function: Any = functions.of_graph(f"__ipu_{graph.name}", graph, called=False)
    graphs.hold_function(tf.compat.v1.get_default_graph(), function)
    captured = programs.with_states([*reads, *graph.external_captures])
    passed, results = ops.ipu_once(runs=runs, token=token, before=list(before), captured=captured, f=function.name)
    return passed, results


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

    def fence(self, values: Sequence[tf.Tensor], token: Token = 0) -> tuple[Token, list[tf.Tensor]]:
        """Materialises values: what they were computed from is not read any more where they are used."""
        passed, fenced = ops.ipu_fence(token=token, values=list(values))
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


def read_buffer(buffer: Sequence[tf.Tensor], place: Number, token: Token = 0) -> list[tf.Tensor]:
    """What is in a place of a buffer of several places, read once `token` is known, which is 0."""
    return ops.ipu_stash_read(stashes=list(buffer), slot=place, token=token) if buffer else []


def written_buffer(
    buffer: Sequence[tf.Tensor], place: Number, values: Sequence[tf.Tensor], token: Token = 0
) -> list[tf.Tensor]:
    """Such a buffer with values in a place, written once `token` is known, which is 0."""
    if not buffer:
        return []
    return ops.ipu_stash_write(stashes=list(buffer), values=list(values), slot=place, token=token)


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
        places = sorted({(one.micro_batch, buffer.depth) for one in operations for buffer in _stash_buffers(one)})
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
        # Int32 scalars: the numbers in the pass of micro-batches of the section, and their places in buffers of a depth.
        self.numbers: dict[int, tf.Tensor] = dict(zip(numbers, found.numbers, strict=True))
        self.places: dict[tuple[int, int], tf.Tensor] = dict(zip(places, found.slots, strict=True))
        self.runs: dict[Predicate, tf.Tensor] = dict(zip(conditions, found.predicates, strict=True))  # Bool scalars.


def _stash_buffers(operation: Operation) -> Iterable[Buffer]:
    keys = [read.key for read in operation.reads] + list(operation.targets)
    return (key for key in keys if isinstance(key, Buffer) and key.depth > 1)


# Of tensors of so many bytes, an instruction uses all cores by itself, and to copy them takes what overlapping gains: with
# 1 MiB, pipelines of convolutions take 1.20 to 1.26 times as long as one loop where they overlap, and 1.10 to 1.14 where
# not; with 64 KiB, those of products 0.89 and 1.05 times.
LARGE = 256 << 10


def window_of(stages: int) -> int:
    """How many instructions are in flight in a pipeline of so many stages."""
    # On two cores, more in flight are faster, but each takes memory that a plan does not tell of.
    return max(2, stages // 2)


class Overlap:
    """The instructions of one iteration, or of one region of it, in their order."""

    def __init__(self, tokens: TokenThreading, window: int, begin: Token | None = None) -> None:
        """Begins."""
        self._tokens = tokens
        self._window = window
        self._begin: Token = tf.constant(0) if begin is None else begin
        self._in_region = begin is not None
        self._fences: list[Token] = []  # Of the instructions so far.
        self._read: list[Buffer] = []  # The buffers that the current instruction reads.
        self._tokens_of_reads: dict[Buffer, Token] = {}

    def run(
        self,
        reads: Sequence[tf.Tensor],
        before: Sequence[tf.Tensor],
        body: Callable[[Token, Sequence[tf.Tensor], Sequence[tf.Tensor]], Sequence[tf.Tensor]],
    ) -> list[tf.Tensor]:
        """Runs an instruction, as `TokenThreading.once` does where nothing is skipped."""
        wait: Token = self._fences[-self._window] if len(self._fences) >= self._window else self._begin
        if reads and (self._fences or self._in_region):
            _, reads = self._tokens.fence(reads, wait)
        results = body(wait, reads, before)
        for one, old in zip(results, before, strict=True):
            one.set_shape(old.shape)
        fence, fenced = self._tokens.fence(results)
        self._tokens_of_reads.update(dict.fromkeys(self._read, fence))
        self._read.clear()
        self._fences.append(fence)
        return fenced

    def note_read(self, buffer: Buffer) -> None:
        """Records that the current instruction reads a buffer."""
        self._read.append(buffer)

    def after_reads(self, buffer: Buffer) -> Token:
        """What a write to a buffer waits for: an int32 scalar that is 0, and known once the buffer was read."""
        return self._tokens_of_reads.get(buffer, self._begin)


_Each = TypeVar("_Each")
Values: TypeAlias = "Sequence[tf.Tensor]"


class ProgramMemory:
    """What operations read and change."""

    def __init__(self, contents: Contents, tokens: TokenThreading, window: int) -> None:
        """Takes what is there when the pass begins, what runs its operations one after the other, and how many may overlap."""
        self.contents = contents
        self._tokens = tokens
        self._window = window
        self._overlap: Overlap | None = None  # None where each operation waits for the one before.
        self._exchanged: Contents = {}  # What a step writes to links: there when the step ends.
        self._scratch: list[Key] = []  # What goes with the end of the step.

    def run_steps(
        self,
        steps: Sequence[Sequence[Operation]],
        base: Number,
        count: Number,
        *,
        all_there: bool,
        overlapping: bool = False,
    ) -> None:
        """Runs the operations of steps."""
        every = _flat(steps)
        indices = LoopIndices(every, base, count, () if all_there else (Predicate(each.micro_batch) for each in every))
        self._overlap = Overlap(self._tokens, self._window) if overlapping else None
        for operations in steps:
            for operation in operations:
                self._run(operation, indices, None if all_there else indices.runs[Predicate(operation.micro_batch)])
            self._end_step()
        self._overlap = None

    def run_in_pairs(self, steps: Sequence[Sequence[Operation]], base: Number, count: Number) -> None:
        """Runs the operations of steps, two at a time where both have a micro-batch; those that have none are skipped."""
        pairs = [[operations[at : at + 2] for at in range(0, len(operations), 2)] for operations in steps]
        indices = LoopIndices(_flat(steps), base, count, (when for pair in _flat(pairs) for _, when in _runs(pair)))
        for of_step in pairs:
            for pair in of_step:
                for together, when in _runs(pair):
                    runs = indices.runs[when]
                    if len(together) == 1:
                        self._run(together[0], indices, runs)
                    else:
                        self._run_together(together, indices, runs)
            self._end_step()

    def _run(self, operation: Operation, indices: LoopIndices, runs: tf.Tensor | None) -> None:
        """Runs an operation; what it writes to links is there as the step ends."""
        for key, specs in (operation.scratch or {}).items():
            [self.contents[key]] = empty([(specs, 1)])
            self._scratch.append(key)
        given = [self._given(read) for read in operation.reads]
        before = [self._exchanged.get(key, self.contents[key]) for key in operation.targets]
        widths = [len(values) for values in before]

        def flat(token: Token, reads: Values, old: Values) -> list[tf.Tensor]:
            read = dict(zip(operation.reads, cut(reads, [len(values) for values in given]), strict=True))
            targets = dict(zip(operation.targets, cut(old, widths), strict=True))
            new = operation.body(MemoryView(self, operation.micro_batch, indices, token, read, targets))
            return [one for key in operation.targets for one in new[key]]

        reads, old = _flat(given), _flat(before)
        if self._overlap is not None:
            results = self._overlap.run(reads, old, flat)
        else:
            results = self._tokens.once(runs, reads, old, flat)
        self._keep(operation.targets, cut(results, widths))

    def _run_together(self, operations: Sequence[Operation], indices: LoopIndices, runs: tf.Tensor) -> None:
        """Runs several operations of a step, overlapping, or skips all of them."""
        contents, exchanged = self.contents, self._exchanged
        targets = list(dict.fromkeys(key for operation in operations for key in operation.targets))
        written = [key for key in targets if key in exchanged]
        before = [exchanged.get(key, contents[key]) for key in targets]
        widths = [len(values) for values in before]

        def flat(token: Token, _: Values, values: Values) -> list[tf.Tensor]:
            now = dict(zip(targets, cut(values, widths), strict=True))
            self._exchanged = {**exchanged, **{key: now[key] for key in written}}
            self.contents = {**contents, **{key: now[key] for key in targets if key not in exchanged}}
            self._overlap = Overlap(self._tokens, self._window, token)
            for operation in operations:
                self._run(operation, indices, None)
            self._overlap = None
            return [one for key in targets for one in self._exchanged.get(key, self.contents[key])]

        results = self._tokens.once(runs, [], _flat(before), flat)
        self.contents, self._exchanged = contents, exchanged
        self._keep(targets, cut(results, widths))

    def _given(self, read: Read) -> list[tf.Tensor]:
        """The tensors that are read as a whole; none of a buffer of several places, of which one is read."""
        if isinstance(read.key, Buffer) and read.key.depth > 1:
            return []
        values = self.contents[read.key]
        return list(values) if read.numbers is None else [values[number] for number in read.numbers]

    def _keep(self, targets: Sequence[Key], new: Sequence[list[tf.Tensor]]) -> None:
        for key, values in zip(targets, new, strict=True):
            is_link = isinstance(key, Buffer) and key.kind in LINKS
            (self._exchanged if is_link else self.contents)[key] = values

    def _end_step(self) -> None:
        """Ends a step: links have what was written to them."""
        self.contents.update(self._exchanged)
        self._exchanged.clear()
        for key in self._scratch:
            self.contents.pop(key, None)
        self._scratch.clear()


@dataclass(frozen=True)
class MemoryView:
    """What an operation sees of the memory while it runs, for its micro-batch."""

    memory: ProgramMemory
    of_section: int  # The micro-batch's number there.
    indices: LoopIndices
    token: Token  # Known once the operation may run.
    given: dict[Read, list[tf.Tensor]]
    before: dict[Key, list[tf.Tensor]]

    @property
    def micro_batch(self) -> tf.Tensor:
        """The number of its micro-batch in the pass, an int32 scalar."""
        return self.indices.numbers[self.of_section]

    def read(self, read: Read) -> list[tf.Tensor]:
        """What is read: what was given, or what is in the buffer."""
        buffer = read.key
        if not isinstance(buffer, Buffer) or buffer.depth == 1:
            return list(self.given[read])
        if self.memory._overlap is not None:
            self.memory._overlap.note_read(buffer)
        return read_buffer(self.memory.contents[buffer], self.indices.places[self.of_section, buffer.depth], self.token)

    def old(self, key: Key) -> list[tf.Tensor]:
        """What a target holds before."""
        return self.before[key]

    def placed(self, buffer: Buffer, old: Values, values: Values) -> list[tf.Tensor]:
        """Tensors of a buffer, or some of them, with the micro-batch's entry replaced by `values`."""
        if buffer.depth == 1:
            return list(values)
        overlap = self.memory._overlap
        token = self.token if overlap is None else overlap.after_reads(buffer)
        return written_buffer(old, self.indices.places[self.of_section, buffer.depth], values, token)

    def settled(self, values: Values) -> list[tf.Tensor]:
        """Values that are computed before anything else of the operation, where it overlaps with others."""
        if self.memory._overlap is None:
            return list(values)
        return self.memory._tokens.fence(values, self.token)[1]


def empty_memory(layout: Layout, accumulation: Accumulation, sums: Values, tokens: TokenThreading) -> ProgramMemory:
    """The memory as a pass begins."""
    kept = layout.kept(accumulation)
    contents: Contents = {SUMS: list(sums)}
    contents |= dict(zip(kept, empty(list(kept.values())), strict=True))
    return ProgramMemory(contents, tokens, window_of(layout.plan.stages))


def _runs(pair: Sequence[Operation]) -> list[tuple[Sequence[Operation], Predicate]]:
    """What is run of two operations, or of one, and when."""
    first, second = pair[0].micro_batch, pair[-1].micro_batch
    if len(pair) == 1:
        return [(pair, Predicate(first))]
    return [
        (pair, Predicate(first, second, PredicateKind.BOTH)),
        (pair[:1], Predicate(first, second, PredicateKind.FIRST_ALONE)),
        (pair[1:], Predicate(second, first, PredicateKind.FIRST_ALONE)),
    ]


def _flat(values: Sequence[Sequence[_Each]]) -> list[_Each]:
    return [one for some in values for one in some]


def cut(values: Values, widths: Sequence[int]) -> list[list[tf.Tensor]]:
    """A list cut into pieces of these lengths."""
    ends = itertools.accumulate(widths)
    return [list(values[end - width : end]) for end, width in zip(ends, widths, strict=True)]
