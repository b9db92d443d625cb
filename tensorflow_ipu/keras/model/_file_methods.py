"""What models that were made in a strategy's scope add to files, and the one that they are served from."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tensorflow_ipu.keras.model import _export, _saved_options

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import tensorflow as tf

    from tensorflow_ipu._tensorflow import functions
    from tensorflow_ipu._types import Nested
    from tensorflow_ipu.keras.model.extension import Extension


class FileMethods:
    """The methods that models get in addition to Keras's own, for files."""

    def save_assets(self, dir_path: str) -> None:
        """Writes the model's options and pipeline stages to its file; Keras calls it."""
        _call_own(self, "save_assets", dir_path)
        _saved_options.save(_extension(self).options, _extension(self).stages, dir_path)

    def load_assets(self, dir_path: str | None) -> None:
        """Reads the model's options and pipeline stages from its file; Keras calls it."""
        _call_own(self, "load_assets", dir_path)
        _extension(self).options = _saved_options.load(_extension(self).stages, dir_path)
        _extension(self).reset()

    def export_for_ipu_serving(
        self,
        export_dir: str | os.PathLike[str],
        batch_size: int | None = None,
        output_names: str | list[str] | None = None,
        preprocessing_step: Callable[..., Nested] | None = None,
        preprocessing_step_signature: Sequence[tf.TensorSpec] | None = None,
        postprocessing_step: Callable[..., Nested] | None = None,
        postprocessing_step_signature: Sequence[tf.TensorSpec] | None = None,
        purge_export_dir: bool = False,
    ) -> functions.Function:
        """Exports the model as a SavedModel, for TensorFlow Serving on a CPU. Who loads it needs no part of this package.

        Args:
          export_dir: An empty folder, or one to be made.
          batch_size: How many examples a request has; needed where the model's inputs leave it open.
          output_names: The name of each output, as a string or a list of them; `output_0` and so on if omitted.
          preprocessing_step: A function from the request's tensors to the model's inputs.
          preprocessing_step_signature: The `tf.TensorSpec` of the request's tensors; needed where `preprocessing_step` is no
            `tf.function` with an `input_signature`.
          postprocessing_step: A function from the model's outputs to those of the request.
          postprocessing_step_signature: The `tf.TensorSpec` of its inputs, to be checked.
          purge_export_dir: Whether to delete what `export_dir` has.

        Returns:
          The function that is served.

        Raises:
          RuntimeError: The model has not said what its inputs are.
          ValueError: A shape is not known, `export_dir` is not empty, or steps, outputs and names do not fit together.
          TypeError: A signature or name is of a wrong kind.
        """
        return _export.export(
            _extension(self).model,
            export_dir,
            batch_size,
            output_names,
            preprocessing_step,
            preprocessing_step_signature,
            postprocessing_step,
            postprocessing_step_signature,
            purge_export_dir,
        )


def _extension(model: object) -> Extension:
    return vars(model)["_ipu_extension"]


def _call_own(model: object, name: str, dir_path: str | None) -> None:
    own = getattr(type(model), name, None)
    if own is not None:
        own(model, dir_path)
