"""The enums of a pipeline's arguments: its schedule, its recomputation and its results."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

from tensorflow_ipu._base.enums import NamedIntEnum


class Results(Enum):
    """The results that a pass of the pipeline enqueues: of each micro-batch, their sum, or of the last micro-batch."""

    EACH = auto()
    SUM = auto()
    LAST = auto()


class PipelineSchedule(NamedIntEnum):
    """The order in which the IPUs of a pipeline work on their micro-batches.

    Three stages on three IPUs, in the steady state (letters are passes, digits are micro-batches, `|` ends a step):

        Grouped         Interleaved     Sequential
        B0 F5 | B1 F6   F2 | B0 | F3    .  | .  | B0 | F1
        B1 F4 | B2 F5   B0 | F2 | B1    .  | B0 | .  | .
        B2 F3 | B3 F4   F1 | B1 | F2    B0 | .  | .  | .

    * `Grouped`: In each step, an IPU runs a backward and a forward pass. The fastest schedule, with the most
      activations alive.
    * `Interleaved`: In each step, an IPU runs one of the two. About half of the activations are alive, but a step takes
      as long as the slower pass.
    * `Sequential`: One micro-batch after the other, as in a sharded model. For debugging.
    """

    Grouped = 0
    Interleaved = 1
    Sequential = 2


class PhasedExecution(Enum):
    """The order in which the stages of a pipeline are loaded onto the chip as phases: only one occupies it at a time.

    Two phases, in inference (letters are passes, `L` loads, `S` saves, `|` ends a step):

        Serial                  Parallel
        LA A SA | LB B          LA | A  | SA   on one group of IPUs
                                .  | LB | B    on the other

    * `Serial`: One phase after the other, on one group of IPUs. Needs the least memory on the chip.
    * `Parallel`: Phases alternate between two groups of IPUs. While one group runs a phase, the other saves and loads.
    """

    Serial = "Serial phases"
    Parallel = "Parallel phases"

    def default_mapping(self, parts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
        """Returns the IPUs of each phase, given the number of parts of each phase.

        Serial phases use IPUs 0, 1, ...; parallel phases alternate between IPUs 0, 2, ... and IPUs 1, 3, ...
        """
        if self is PhasedExecution.Serial:
            return tuple(tuple(range(width)) for width in parts)
        return tuple(tuple(phase % 2 + 2 * part for part in range(width)) for phase, width in enumerate(parts))


class Liveness(Enum):
    """The time at which a phase leaves the chip, with its weights, activations and gradient accumulators.

    * `AlwaysLive`: Never. Nothing is loaded or saved.
    * `OffChipAfterFwd`: After the forward phase, until the backward phase.
    * `OffChipAfterEachPhase`: After the forward phase, the backward phase and the update. One phase is on the chip at a
      time. In inference, this is the same as `OffChipAfterFwd`.
    """

    AlwaysLive = "always live"
    OffChipAfterFwd = "off the chip after forward"
    OffChipAfterEachPhase = "off the chip after each phase"


class RecomputationMode(Enum):
    """The method of recomputing activations in training. The last stage keeps its activations with any method.

    * `Auto`: The first of the two modes below that the schedule supports.
    * `RecomputeThenBackpropagate`: In a separate pass, one step before the backward pass. For `Grouped` and `Interleaved`.
    * `RecomputeAndBackpropagateInterleaved`: Within the backward pass, which frees each activation after its use. For
      `Grouped` and `Sequential`.
    """

    Auto = "Auto"
    RecomputeThenBackpropagate = "Recompute_then_backpropagate"
    RecomputeAndBackpropagateInterleaved = "Recompute_and_backpropagate_interleaved"
