"""The pipeline stages of a model that was made in a strategy's scope, as methods of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tensorflow_ipu.keras.options import printing
from tensorflow_ipu.keras.pipeline.assignments import summary

if TYPE_CHECKING:
    from tensorflow_ipu.keras.model.extension import Extension
    from tensorflow_ipu.keras.pipeline.stages import Assignment


class PipelineMethods:
    """The methods that models get in addition to Keras's own, for their pipeline stages."""

    def get_pipeline_stage_assignment(self) -> list[Assignment]:
        """The layers in the order in which they run, each with its stage, or None.

        Returns:
          For a sequential model a list of `SequentialLayerPipelineStageAssignment`, for a functional one a list of
          `FunctionalLayerPipelineStageAssignment`, one a call of a layer, and for a subclassed one of
          `ModelLayerPipelineStageAssignment`; for nested models, `SequentialNestedModelPipelineStageAssignment` and so on.

        Raises:
          RuntimeError: The model is subclassed, and was not built yet; or its `call` cannot be cut into stages.
        """
        return _extension(self).stages.get()

    def set_pipeline_stage_assignment(
        self, pipeline_stage_assignment: list[Assignment] | list[int] | list[Assignment | int]
    ) -> None:
        """Sets the stage of each layer.

        Args:
          pipeline_stage_assignment: The list of `get_pipeline_stage_assignment`, with stages set; for a sequential model
            also a list of the numbers of stages.

        Raises:
          ValueError: The list does not fit the model, or a layer depends on one of a later stage.
          RuntimeError: A stage has no layer; or the model is subclassed, and was not built yet.
        """
        _extension(self).stages.set(pipeline_stage_assignment)
        _extension(self).reset()

    def reset_pipeline_stage_assignment(self) -> None:
        """Takes all layers out of their stages: the model is no pipeline any more."""
        _extension(self).stages.reset()
        _extension(self).reset()

    def print_pipeline_stage_assignment_summary(
        self, line_length: int | None = None, print_fn: Callable[[str], object] | None = None
    ) -> None:
        """Prints the stage of each layer.

        Args:
          line_length: How wide the table is, in characters; as wide as it needs if omitted.
          print_fn: What prints, called once with all lines; `print` if omitted.

        Raises:
          TypeError: `print_fn` cannot be called.
        """
        printing.print_text(summary(self.get_pipeline_stage_assignment(), line_length), print_fn)


def _extension(model: object) -> Extension:
    return vars(model)["_ipu_extension"]
