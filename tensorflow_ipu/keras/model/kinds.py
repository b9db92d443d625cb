"""Classes that the models of a scope are instances of, by what they have and not by what they inherit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import keras

from tensorflow_ipu.keras._keras_internals import Functional
from tensorflow_ipu.keras.model._file_methods import FileMethods
from tensorflow_ipu.keras.model._option_methods import OptionMethods
from tensorflow_ipu.keras.model._pipeline_methods import PipelineMethods
from tensorflow_ipu.keras.model._report_methods import ReportMethods

if TYPE_CHECKING:
    from tensorflow_ipu.keras.pipeline.stages import Assignment


class _Kind(type):
    """The type of classes whose instances are models that were made in a strategy's scope."""

    _kind: Callable[[object], bool]

    def __instancecheck__(cls, instance: object) -> bool:
        extended = "_ipu_extension" in getattr(instance, "__dict__", ())
        return type.__instancecheck__(cls, instance) or (extended and cls._kind(instance))


class KerasExtensionBase(metaclass=_Kind):
    """What any Keras model is an instance of that was made in a strategy's scope."""

    _kind = staticmethod(lambda model: True)  # noqa: ARG005

    export_for_ipu_serving = FileMethods.export_for_ipu_serving

    def get_pipeline_stage_assignment(self) -> list[Assignment]:
        """The stages of layers, which the kinds of models have each in its own way.

        Raises:
          NotImplementedError: At every call.
        """
        raise NotImplementedError("the kinds of models each have their own `get_pipeline_stage_assignment`")

    def set_pipeline_stage_assignment(
        self, pipeline_stage_assignment: list[Assignment] | list[int] | list[Assignment | int]
    ) -> None:
        """Sets the stages of layers, which the kinds of models have each in its own way.

        Args:
          pipeline_stage_assignment: The stages.

        Raises:
          NotImplementedError: At every call.
        """
        raise NotImplementedError("the kinds of models each have their own `set_pipeline_stage_assignment`")

    def reset_pipeline_stage_assignment(self) -> None:
        """Takes layers out of their stages, which the kinds of models have each in its own way.

        Raises:
          NotImplementedError: At every call.
        """
        raise NotImplementedError("the kinds of models each have their own `reset_pipeline_stage_assignment`")

    def print_pipeline_stage_assignment_summary(
        self, line_length: int | None = None, print_fn: Callable[[str], object] | None = None
    ) -> None:
        """Prints the stages of layers, which the kinds of models have each in its own way.

        Args:
          line_length: How wide the table is.
          print_fn: What prints.

        Raises:
          NotImplementedError: At every call.
        """
        raise NotImplementedError("the kinds of models each have their own `print_pipeline_stage_assignment_summary`")


class SequentialExtension(OptionMethods, PipelineMethods, FileMethods, ReportMethods, KerasExtensionBase):
    """What a sequential model is an instance of that was made in a strategy's scope."""

    _kind = staticmethod(lambda model: isinstance(model, keras.Sequential))


class FunctionalExtension(OptionMethods, PipelineMethods, FileMethods, ReportMethods, KerasExtensionBase):
    """What a functional model is an instance of that was made in a strategy's scope."""

    _kind = staticmethod(lambda model: isinstance(model, Functional) and not isinstance(model, keras.Sequential))


class ModelExtension(OptionMethods, PipelineMethods, FileMethods, ReportMethods, KerasExtensionBase):
    """What a subclassed model is an instance of that was made in a strategy's scope."""

    _kind = staticmethod(lambda model: not isinstance(model, (keras.Sequential, Functional)))
