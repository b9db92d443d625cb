"""The methods of models that predict, which load what they call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorflow_ipu.programs.diagnostics import tracebacks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensorflow_ipu._base.types import Nested
    from tensorflow_ipu.analysis.machine import Machine, Report, System
    from tensorflow_ipu.analysis.pipelines.comparison import Pieces
    from tensorflow_ipu.keras.model.extension import Extension


class ReportMethods:
    """The methods that predict."""

    _ipu_extension: Extension

    @tracebacks.user_lines_alone
    def ipu_report(
        self,
        batch_size: int | None = None,
        mode: str = "train",
        machine: System | Machine | str | None = None,
        *,
        spec: Nested = None,
        trip_counts: Mapping[str, int] | None = None,
    ) -> Report:
        """Predicts whether `fit`, `evaluate` or `predict` fits on a real machine, and how long a step takes.

        Nothing is run, and no variable changes. A model that is not built yet is built first, as `fit` would.

        Args:
          batch_size: Samples of each replica in a step. None for the size that the model saw last, or that `keras.Input` or
            `spec` tell.
          mode: `"train"`, `"evaluate"` or `"predict"`.
          machine: As for `strategy.report`.
          spec: A dataset of batches, or a batch `(x, y)` of `tf.TensorSpec`, tensors or arrays. None for the batches that the
            model saw last, else for what its inputs and losses tell: labels are int32 for sparse losses, else as the
            predictions.
          trip_counts: As for `strategy.report`.

        Returns:
          The report, of as many steps as the model runs in an execution.

        Raises:
          ValueError: An argument is out of range; or nothing tells the shapes of the data, or the model was not compiled.
        """
        from tensorflow_ipu.analysis.models import report

        return report.report_of_model(self._ipu_extension, batch_size, mode, machine, spec, trip_counts)

    @tracebacks.user_lines_alone
    def ipu_pieces(self, machine: System | Machine | str | None = None, batch_size: int | None = None) -> Pieces:
        """The layers of the model with what each takes in training, as `pipelining.balance` asks for them.

        The arguments are as for `ipu_report`.

        Raises:
          ValueError: The model was not compiled, or has fewer than two layers; or nothing tells `batch_size`.
        """
        from tensorflow_ipu.analysis.models import report

        return report.pieces_of_model(self._ipu_extension, machine, batch_size)
