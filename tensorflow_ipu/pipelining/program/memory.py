"""The tensors that a pass of a plan hands on from operation to operation, and the running of operations on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from tensorflow_ipu.pipelining.program import rings
from tensorflow_ipu.pipelining.program.layout import SUMS, Key, Layout
from tensorflow_ipu.pipelining.program.operations import Contents, Operation, Read
from tensorflow_ipu.pipelining.program.overlap import Overlap
from tensorflow_ipu.pipelining.schedule.buffers import LINKS, Buffer
from tensorflow_ipu.pipelining.training.accumulation import Accumulation

if TYPE_CHECKING:
    import tensorflow as tf

    from tensorflow_ipu._types import Number
    from tensorflow_ipu.pipelining.program.rings import Position

Values: TypeAlias = "Sequence[tf.Tensor]"
# Whether there is a micro-batch of a number: True, or a bool scalar.
Active: TypeAlias = "Callable[[Any], bool | tf.Tensor]"
Within: TypeAlias = "Callable[[Any], tf.Tensor]"  # The same, always as a bool scalar.


def always(_: object) -> bool:
    """What is active where every instruction has a micro-batch."""
    return True


class Memory:
    """What operations read and change.

    Attributes:
      contents: For each buffer its tensors: `[depth, ...]`, or `[...]` where it holds one micro-batch.
    """

    def __init__(self, contents: Contents, sequencer: rings.Sequencer) -> None:
        """Takes what is there when the pass begins, and what runs its operations one after the other."""
        self.contents = contents
        self._sequencer = sequencer
        self._overlap: Overlap | None = None  # None where each operation waits for the one before.
        self._exchanged: Contents = {}  # What a step writes to links: there when the step ends.
        self._scratch: list[Key] = []  # What goes with the end of the step.

    def run_steps(
        self, steps: Sequence[Sequence[Operation]], base: Number, active: Active, *, overlapping: bool
    ) -> None:
        """Runs the operations of steps.

        Args:
          steps: For each step its operations, in the order in which they are run.
          base: What is added to the numbers of their micro-batches.
          active: Whether there is a micro-batch of a number.
          overlapping: Whether operations may overlap; then none may be skipped.
        """
        self._overlap = Overlap(self._sequencer) if overlapping else None
        for operations in steps:
            for operation in operations:
                self._run(operation, base, active)
            self._end_step()
        self._overlap = None

    def run_in_pairs(self, steps: Sequence[Sequence[Operation]], base: Number, active: Within) -> None:
        """Runs the operations of steps, two at a time where both have a micro-batch.

        Args:
          steps: For each step its operations, in the order in which they are run.
          base: What is added to the numbers of their micro-batches.
          active: Whether there is a micro-batch of a number: a bool scalar.
        """
        for operations in steps:
            for at in range(0, len(operations) - 1, 2):
                self._run_pair(operations[at], operations[at + 1], base, active)
            if len(operations) % 2:
                self._run(operations[-1], base, active)
            self._end_step()

    def _run(self, operation: Operation, base: Number, active: Active) -> None:
        """Runs an operation; what it writes to links is there as the step ends."""
        micro_batch = base + operation.micro_batch
        for key, specs in (operation.scratch or {}).items():
            self.contents[key] = rings.empty_ring(specs, 1)
            self._scratch.append(key)
        given = [self._given(read) for read in operation.reads]
        before = [self._exchanged.get(key, self.contents[key]) for key in operation.targets]
        widths = [len(values) for values in before]

        def flat(position: Position, reads: Values, old: Values) -> list[tf.Tensor]:
            read = dict(zip(operation.reads, _cut(reads, [len(values) for values in given]), strict=True))
            view = _MemoryView(
                self, micro_batch, position, read, dict(zip(operation.targets, _cut(old, widths), strict=True))
            )
            new = operation.body(view)
            return [one for key in operation.targets for one in new[key]]

        reads, old = _flat(given), _flat(before)
        if self._overlap is not None:
            results = self._overlap.run(reads, old, flat)
        else:
            results = self._sequencer.once(active(micro_batch), reads, old, flat)
        self._keep(operation.targets, _cut(results, widths))

    def _run_pair(self, first: Operation, second: Operation, base: Number, active: Within) -> None:
        """Runs two operations at once, or the one that has a micro-batch."""
        one, other = active(base + first.micro_batch), active(base + second.micro_batch)
        self._run_together(one & other, [first, second], base)
        self._run(first, base, lambda _: one & ~other)  # pyright: ignore[reportOperatorIssue]  # The stub of `tf.Tensor` lacks it.
        self._run(second, base, lambda _: other & ~one)  # pyright: ignore[reportOperatorIssue]  # The stub of `tf.Tensor` lacks it.

    def _run_together(self, active: tf.Tensor, operations: Sequence[Operation], base: Number) -> None:
        """Runs several operations of a step, overlapping, or skips all of them."""
        contents, exchanged = self.contents, self._exchanged
        targets = list(dict.fromkeys(key for operation in operations for key in operation.targets))
        written = [key for key in targets if key in exchanged]
        before = [exchanged.get(key, contents[key]) for key in targets]
        widths = [len(values) for values in before]

        def flat(position: Position, _: Values, values: Values) -> list[tf.Tensor]:
            now = dict(zip(targets, _cut(values, widths), strict=True))
            self._exchanged = {**exchanged, **{key: now[key] for key in written}}
            self.contents = {**contents, **{key: now[key] for key in targets if key not in exchanged}}
            self._overlap = Overlap(self._sequencer, position)
            for operation in operations:
                self._run(operation, base, always)
            self._overlap = None
            return [one for key in targets for one in self._exchanged.get(key, self.contents[key])]

        results = self._sequencer.once(active, [], _flat(before), flat)
        self.contents, self._exchanged = contents, exchanged
        self._keep(targets, _cut(results, widths))

    def _given(self, read: Read) -> list[tf.Tensor]:
        """The tensors that are read as a whole; none of a ring, which is read at a position."""
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
class _MemoryView:
    """What an operation sees of the memory while it runs; see `operations.View`."""

    memory: Memory
    micro_batch: Number
    position: Position  # An int32 scalar that is 0, and not known before the operation may run.
    given: dict[Read, list[tf.Tensor]]
    before: dict[Key, list[tf.Tensor]]

    def read(self, read: Read) -> list[tf.Tensor]:
        """What is read: what was given, or what is in the ring."""
        buffer = read.key
        if not isinstance(buffer, Buffer) or buffer.depth == 1:
            return list(self.given[read])
        if self.memory._overlap is not None:
            self.memory._overlap.note_read(buffer)
        return rings.read(
            self.memory.contents[buffer], buffer.depth, _position_in(self.micro_batch, buffer) + self.position
        )

    def old(self, key: Key) -> list[tf.Tensor]:
        """What a target holds before."""
        return self.before[key]

    def placed(self, buffer: Buffer, old: Values, values: Values) -> list[tf.Tensor]:
        """Tensors of a buffer, or some of them, with the micro-batch's entry replaced by `values`."""
        overlap = self.memory._overlap
        position = self.position if overlap is None else overlap.behind_reads(buffer)
        return rings.written(old, buffer.depth, _position_in(self.micro_batch, buffer) + position, values)

    def settled(self, values: Values) -> list[tf.Tensor]:
        """Values that are computed before anything else of the operation, where it overlaps with others."""
        if self.memory._overlap is None:
            return list(values)
        return self.memory._sequencer.fence(values, self.position)[1]


def empty_memory(layout: Layout, accumulation: Accumulation, sums: Values, sequencer: rings.Sequencer) -> Memory:
    """The memory as a pass begins.

    Args:
      layout: What it holds.
      accumulation: How gradients are accumulated.
      sums: What the outfeed's sums begin with.
      sequencer: What runs the operations of the pass one after the other.
    """
    kept = layout.kept(accumulation)
    contents: Contents = {SUMS: list(sums)}
    contents |= {key: rings.empty_ring(specs, depth) for key, (specs, depth) in kept.items()}
    return Memory(contents, sequencer)


def _position_in(micro_batch: Number, ring: Buffer) -> Number:
    return micro_batch % ring.depth  # pyright: ignore[reportOperatorIssue]  # The stub of `tf.Tensor` has no `%`.


def _flat(values: Sequence[Values]) -> list[tf.Tensor]:
    return [one for some in values for one in some]


def _cut(values: Values, widths: Sequence[int]) -> list[list[tf.Tensor]]:
    """A list cut into pieces."""
    found, begin = [], 0
    for width in widths:
        found.append(list(values[begin : begin + width]))
        begin += width
    return found
