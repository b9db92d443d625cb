"""The tensors that a pass of a plan hands on from instruction to instruction: its plan's buffers, with what is kept besides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tensorflow_ipu.pipelining import _rings
from tensorflow_ipu.pipelining._accumulation import Accumulation
from tensorflow_ipu.pipelining._buffers import LINKS, Buffer, BufferKind
from tensorflow_ipu.pipelining._layout import Layout, Place
from tensorflow_ipu.pipelining._overlap import Overlap
from tensorflow_ipu.pipelining._plan import Plan
from tensorflow_ipu.pipelining._stage import StagePart
from tensorflow_ipu.pipelining._stage_trace import spec_of

# What a program keeps besides the plan's buffers: sums for the outfeed; of a last stage of several parts the outputs, and
# their gradients with what goes back beside these, for one micro-batch; gradients that were captured; what the last
# micro-batch hands to the update.
SUMS, OUTPUTS, OUTPUT_GRADIENTS, CAPTURED, HANDED = "sums", "outputs", "output gradients", "captured", "handed"
Key = Buffer | str
Contents = dict[Key, list[Any]]
Values = Sequence[Any]


class Memory:
    """What instructions read and change.

    Attributes:
      contents: For each buffer its tensors: `[depth, ...]`, or `[...]` where it holds one micro-batch.
      overlap: What the instructions at hand overlap in; None where each one comes behind the one before.
    """

    def __init__(self, contents: Contents, order: _rings.Order) -> None:
        """Takes what is there when the pass begins, and the order of its instructions."""
        self.contents = contents
        self.overlap: Overlap | None = None
        self._order = order
        self._exchanged: Contents = {}  # What a step writes to links: there when the step ends.

    def change(
        self,
        active: Any,
        reads: Values,
        targets: Sequence[Key],
        body: Callable[[Any, Values, Contents], Contents],
    ) -> None:
        """Runs an instruction; what it writes to links is there as the step ends.

        Args:
          active: Whether it is run: True, or a bool scalar.
          reads: Tensors that `body` uses, other than those that it reads with `read` from a ring.
          targets: What it changes.
          body: From an int32 scalar that is 0, for `read` and `written`, `reads` and what the targets hold, to what they
            hold then.
        """
        before = [self._exchanged.get(key, self.contents[key]) for key in targets]
        widths = [len(values) for values in before]

        def flat(order: Any, given: Values, values: Values) -> list[Any]:
            new = body(order, given, dict(zip(targets, _cut(values, widths), strict=True)))
            return [one for key in targets for one in new[key]]

        old = [one for values in before for one in values]
        overlap = self.overlap
        results = overlap.run(reads, old, flat) if overlap else self._order.once(active, reads, old, flat)
        self._keep(targets, _cut(results, widths))

    def change_together(self, active: Any, targets: Sequence[Key], run: Callable[[], None]) -> None:
        """Runs several instructions of a step, overlapping, or skips all of them.

        Args:
          active: Whether they are run: a bool scalar.
          targets: What they change.
          run: Runs them, none of which may be skipped.
        """
        contents, exchanged = self.contents, self._exchanged
        written = [key for key in targets if key in exchanged]
        before = [exchanged.get(key, contents[key]) for key in targets]
        widths = [len(values) for values in before]

        def flat(order: Any, _: Values, values: Values) -> list[Any]:
            now = dict(zip(targets, _cut(values, widths), strict=True))
            self._exchanged = {**exchanged, **{key: now[key] for key in written}}
            self.contents = {**contents, **{key: now[key] for key in targets if key not in exchanged}}
            self.overlap = Overlap(self._order, order)
            run()
            self.overlap = None
            return [one for key in targets for one in self._exchanged.get(key, self.contents[key])]

        results = self._order.once(active, [], [one for values in before for one in values], flat)
        self.contents, self._exchanged = contents, exchanged
        self._keep(targets, _cut(results, widths))

    def end_step(self) -> None:
        """Ends a step: links have what was written to them."""
        self.contents.update(self._exchanged)
        self._exchanged.clear()

    def _keep(self, targets: Sequence[Key], new: Sequence[list[Any]]) -> None:
        for key, values in zip(targets, new, strict=True):
            is_link = isinstance(key, Buffer) and key.kind in LINKS
            (self._exchanged if is_link else self.contents)[key] = values

    def read(self, buffer: Buffer, micro_batch: Any, order: Any, given: Values) -> list[Any]:
        """A buffer's content of a micro-batch: what was given, or what is in the ring."""
        if buffer.depth == 1:
            return list(given)
        if self.overlap is not None:
            self.overlap.note_read(buffer)
        return _rings.read(self.contents[buffer], buffer.depth, micro_batch % buffer.depth + order)

    def written(self, buffer: Buffer, old: Values, micro_batch: Any, order: Any, values: Values) -> list[Any]:
        """A buffer's tensors, or some of them, with a micro-batch's values in the place of the old ones."""
        if self.overlap is not None:
            order = self.overlap.behind_reads(buffer)
        return _rings.written(old, buffer.depth, micro_batch % buffer.depth + order, values)


def empty_contents(
    plan: Plan,
    parts: Mapping[Place, StagePart],
    sums: Values,
    accumulation: Accumulation,
    head: StagePart | None,
) -> Contents:
    """What the memory holds as a pass begins.

    Args:
      plan: The plan.
      parts: The stages' functions, by stage and part.
      sums: What the outfeed's sums begin with.
      accumulation: How gradients are accumulated.
      head: For a last stage of several parts that trains, what computes the loss from the outputs of all of them.
    """
    layout = Layout(plan, parts)
    captures = [spec for runner in parts.values() for specs in runner.captures.values() for spec in specs]
    handed = [spec_of(one) for runner in (*parts.values(), head) if runner for one in runner.handed]
    contents: Contents = {
        SUMS: list(sums),
        CAPTURED: _rings.empty_ring(captures, 1),
        HANDED: _rings.empty_ring(handed, 1),
    }
    for buffer in plan.buffers:
        if buffer.kind is BufferKind.ACCUMULATOR:
            contents[buffer] = accumulation.zeros(parts[buffer.stage, buffer.part].variables)
        elif buffer.kind is not BufferKind.RECOMPUTED or not layout.recomputes_within(buffer.stage):
            contents[buffer] = _rings.empty_ring(layout.specs(buffer), buffer.depth)
    last = plan.stages - 1
    if len(plan.parts(last)) > 1:
        contents[OUTPUTS] = _rings.empty_ring(layout.output_specs(last), 1)
        if head is not None:
            carried = _rings.empty_ring([spec_of(one) for one in layout.carried(last)], 1)
            contents[OUTPUT_GRADIENTS] = [contents[OUTPUTS][number] for number in head.input_gradients] + carried
    return contents


def _cut(values: Values, widths: Sequence[int]) -> list[list[Any]]:
    """A list cut into pieces."""
    found, begin = [], 0
    for width in widths:
        found.append(list(values[begin : begin + width]))
        begin += width
    return found
