"""The choices that a pipeline's user has: its schedule and its recomputation."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

from tensorflow_ipu._base.enums import NamedIntEnum


class Results(Enum):
    """What the outfeed gets of a pass: the results of each micro-batch, their sums, or those of the last one alone."""

    EACH = auto()
    SUM = auto()
    LAST = auto()


class PipelineSchedule(NamedIntEnum):
    """In which order the IPUs of a pipeline work on their micro-batches.

    Three stages on three IPUs, in the steady state (letters are passes, digits are micro-batches, `|` ends a step):

        Grouped         Interleaved     Sequential
        B0 F5 | B1 F6   F2 | B0 | F3    .  | .  | B0 | F1
        B1 F4 | B2 F5   B0 | F2 | B1    .  | B0 | .  | .
        B2 F3 | B3 F4   F1 | B1 | F2    B0 | .  | .  | .

    * `Grouped`: each step has a backward and a forward pass. The fastest, with the most activations alive.
    * `Interleaved`: each step has one of the two. About half of the activations; a step takes as long as the slower.
    * `Sequential`: one micro-batch after the other, as in a sharded model. For debugging.
    """

    Grouped = 0
    Interleaved = 1
    Sequential = 2


class PhasedExecution(Enum):
    """In which order the stages of a pipeline come onto the chip, where each has it for itself: as phases.

    Two phases, each forward (letters are passes, `L` loads, `S` saves, `|` ends a step):

        Serial                  Parallel
        LA A SA | LB B          LA | A  | SA   on one group of IPUs
                                .  | LB | B    on the other

    * `Serial`: one phase after the other on one group of IPUs. The least that is on the chip.
    * `Parallel`: alternating between two groups of IPUs: while one runs, the other saves and loads.
    """

    Serial = "Serial phases"
    Parallel = "Parallel phases"

    def default_mapping(self, parts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """The IPUs of each phase of so many parts: 0, 1, ...; of parallel phases 0, 2, ... and 1, 3, ... in turns."""
        if self is PhasedExecution.Serial:
            return tuple(tuple(range(width)) for width in parts)
        return tuple(tuple(phase % 2 + 2 * part for part in range(width)) for phase, width in enumerate(parts))


class Liveness(Enum):
    """When phases leave the chip, with their weights, activations, and sums of gradients.

    * `AlwaysLive`: never. Nothing is loaded or saved.
    * `OffChipAfterFwd`: after the forward phase, until the backward phase.
    * `OffChipAfterEachPhase`: after the forward phase, the backward phase and the update: one phase is on the chip at a
      time. In inference this is the same as `OffChipAfterFwd`.
    """

    AlwaysLive = "always live"
    OffChipAfterFwd = "off the chip after forward"
    OffChipAfterEachPhase = "off the chip after each phase"


class RecomputationMode(Enum):
    """How activations come back that a training pipeline did not keep; the last stage keeps its own.

    * `Auto`: the first of the two below that the schedule supports.
    * `RecomputeThenBackpropagate`: a pass in the step before the backward pass. For `Grouped` and `Interleaved`.
    * `RecomputeAndBackpropagateInterleaved`: within the backward pass, freed as it is used. For `Grouped`, `Sequential`.
    """

    Auto = "Auto"
    RecomputeThenBackpropagate = "Recompute_then_backpropagate"
    RecomputeAndBackpropagateInterleaved = "Recompute_and_backpropagate_interleaved"
