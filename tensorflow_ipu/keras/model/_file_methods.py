"""What models that were made in a strategy's scope add to files, and the one that they are served from."""

from __future__ import annotations

import enum
import json
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu import pipelining
from tensorflow_ipu._base import files
from tensorflow_ipu._base.checks import Faults, is_int, note_bool
from tensorflow_ipu.keras._keras import internals, keras
from tensorflow_ipu.keras.options.options import OptionGroup, Options, ReplicatedMetricReductionMethod
from tensorflow_ipu.keras.pipeline.graph import StageAssignment
from tensorflow_ipu.optimizers import GradientAccumulationReductionMethod
from tensorflow_ipu.pipelining import PipelineStageOptions
from tensorflow_ipu.serving import serving_steps

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Nested
    from tensorflow_ipu._tensorflow import functions
    from tensorflow_ipu.keras.model.extension import Extension

_FILE = "ipu_options.json"
_STAGES = "pipeline_stages"
_CALLBACKS = "asynchronous_callbacks"
_ENUMS: dict[str, type[enum.Enum]] = {
    kind.__name__: kind
    for kind in (
        GradientAccumulationReductionMethod,
        ReplicatedMetricReductionMethod,
        pipelining.Liveness,
        pipelining.PhasedExecution,
        pipelining.PipelineSchedule,
        pipelining.RecomputationMode,
    )
}


def save(options: Options, stages: StageAssignment, folder: str) -> None:
    """Writes the options that differ from the defaults, and the stages; nothing where there are none."""
    written: dict[str, object] = {}
    for group, values in options.groups():
        changed = {name: _encode(name, value) for name, value in values.changed().items()}
        if changed:
            written[group] = changed
    if options.asynchronous_callbacks:
        written[_CALLBACKS] = True
    if stages.is_pipelined:
        written[_STAGES] = stages.named()
    if written:
        files.write(Path(folder, _FILE), json.dumps(written))


def load(stages: StageAssignment, folder: str | None) -> Options:
    """The options that `save` wrote to the folder; the defaults where it wrote none."""
    path = Path(folder or "", _FILE)
    if not folder or not path.is_file():
        return Options()
    try:
        return _read(json.loads(path.read_text()), stages)
    except (TypeError, ValueError) as exc:
        raise ValueError(
            f"the model's options cannot be read from `{_FILE}` in its file: {exc}. The rest of the file can:"
            " `keras.models.load_model` outside of `strategy.scope()` gives the model without its options, and"
            " `load_weights` of a model made in the scope takes the file too"
        ) from exc


def _read(written: object, stages: StageAssignment) -> Options:
    """The options that a file has; stages are set last, so that a faulty file changes nothing."""
    rest = _object(written)
    options, faults, unknown = Options(), Faults(), []
    for group, values in options.groups():
        setattr(options, group, _read_group(values, rest.pop(group, {}), faults, unknown))
    options.asynchronous_callbacks = rest.pop(_CALLBACKS, False)
    note_bool(_CALLBACKS, options.asynchronous_callbacks, faults)
    named = rest.pop(_STAGES, None)
    faults.raise_any()
    if named is not None:
        stages.restore(named)
    unknown += rest
    if unknown:
        names = ", ".join(f"`{name}`" for name in unknown)
        warnings.warn(f"the file has options that this version does not know, which are not set: {names}", stacklevel=9)
    return options


def _read_group(default: OptionGroup, written: object, faults: Faults, unknown: list[str]) -> OptionGroup:
    known = default.names()
    try:
        given = {name: _decode(name, value) for name, value in _object(written).items()}
        unknown += [name for name in given if name not in known]
        return default.of(**{name: value for name, value in given.items() if name in known})
    except (TypeError, ValueError) as exc:
        faults.add(ValueError, f"{default.title}: {exc}")
        return default


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"there should be a JSON object, but there is `{value!r}`")
    return dict(value)


def _encode(name: str, value: object) -> object:
    if isinstance(value, enum.Enum) and type(value).__name__ in _ENUMS:
        return {"enum": type(value).__name__, "name": value.name}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)) and not any(isinstance(part, PipelineStageOptions) for part in value):
        return [_encode(name, part) for part in value]
    if isinstance(value, dict):
        return {"dict": {key: _encode(key, part) for key, part in value.items()}}
    try:
        dtype: Any = value
        return {"dtype": tf.as_dtype(dtype).name}
    except TypeError:
        warnings.warn(
            f"the option `{name}` of the model is {value!r}, which cannot be saved; set it again", stacklevel=8
        )
        return None


def _decode(name: str, value: object) -> Any:
    """The value of an option that `_encode` wrote."""
    if isinstance(value, list):
        return [_decode(name, part) for part in value]
    if not isinstance(value, dict):
        return value
    try:
        if "enum" in value:
            return _ENUMS[value["enum"]][value["name"]]
        if "dtype" in value:
            return tf.as_dtype(value["dtype"])
        return {key: _decode(key, part) for key, part in value["dict"].items()}
    except (AttributeError, KeyError, TypeError) as exc:
        raise ValueError(f"`{name}` is `{value!r}`, which stands for no value of an option") from exc


def _called(model: keras.Model, values: Sequence[tf.Tensor]) -> Nested:
    structure = internals.input_structure(model)
    if structure is not None:
        return model(tf.nest.pack_sequence_as(structure, list(values)), training=False)
    arguments = values[0] if len(values) == 1 else list(values)
    return model(arguments, training=False) if internals.takes_training(model) else model(arguments)


def _input_specs(model: keras.Model, batch_size: int | None) -> list[tf.TensorSpec]:
    """The specs of the model's flat inputs, with static shapes."""
    if batch_size is not None and (not is_int(batch_size) or batch_size < 1):
        raise ValueError(f"`batch_size` must be a positive integer, but is {batch_size!r}")
    try:
        # Of sequential models a list, of the others a list of their structure of inputs.
        inputs = internals.input_specs(model)
    except (AttributeError, ValueError) as exc:
        raise RuntimeError(
            f"Cannot get the input signature of model `{model.name}`: it was not called yet. Call it on a batch, fit it, or"
            " make it with an `Input` layer, and export it then"
        ) from exc
    # Keras exports models for any size of batch, also those whose `Input` states one.
    stated = getattr(model, "inputs", None) or inputs
    found = []
    for at, (spec, with_batch) in enumerate(zip(inputs, stated, strict=True)):
        name, shape = spec.name or f"input_{at}", with_batch.shape
        dims = list(shape)
        if batch_size is not None and dims:
            dims[0] = batch_size
        if None in dims:
            raise ValueError(
                f"Not all dimensions of the inputs can be determined: `{name}` of model `{model.name}` has shape {shape}, and"
                " a program for an IPU has static shapes. Set `batch_size`, and state the other dimensions in the model's"
                " `Input`"
            )
        found.append(tf.TensorSpec(dims, tf.as_dtype(spec.dtype), name=name))
    return found


class FileMethods:
    """The methods that models get in addition to Keras's own, for files."""

    _ipu_extension: Extension

    def save_assets(self, dir_path: str) -> None:
        """Writes the model's options and pipeline stages to its file; Keras calls it."""
        _call_own(self, "save_assets", dir_path)
        save(self._ipu_extension.options, self._ipu_extension.stages, dir_path)

    def load_assets(self, dir_path: str | None) -> None:
        """Reads the model's options and pipeline stages from its file; Keras calls it."""
        _call_own(self, "load_assets", dir_path)
        with self._ipu_extension.changing():
            self._ipu_extension.options = load(self._ipu_extension.stages, dir_path)

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
        """Exports the model as a SavedModel for TensorFlow Serving on a CPU, and returns the function that is served.

        Args:
          export_dir: An empty folder, or one to be made.
          batch_size: How many examples a request has; needed where the model's inputs leave it open.
          output_names: The names of the outputs; `output_0` and so on if omitted.
          preprocessing_step: A function from the request's tensors to the model's inputs.
          preprocessing_step_signature: The `tf.TensorSpec` of its inputs; needed where it is no `tf.function` with a signature.
          postprocessing_step: A function from the model's outputs to those of the request.
          postprocessing_step_signature: The `tf.TensorSpec` of its inputs, to be checked.
          purge_export_dir: Whether to delete what `export_dir` has.

        Raises:
          RuntimeError: The model has not said what its inputs are.
          ValueError: A shape is not known, `export_dir` is not empty, or steps, outputs and names do not fit together.
          TypeError: A signature or name is of a wrong kind.
        """
        model = self._ipu_extension.model
        names = serving_steps.names(output_names)
        inputs = _input_specs(model, batch_size)
        takes = (
            inputs
            if preprocessing_step is None
            else serving_steps.signature("preprocessing_step", preprocessing_step, preprocessing_step_signature)
        )
        if postprocessing_step is not None and postprocessing_step_signature is not None:
            serving_steps.check_signature("postprocessing_step_signature", postprocessing_step_signature)

        def serve(*arguments: tf.Tensor) -> dict[str, tf.Tensor]:
            values: Nested = arguments
            if preprocessing_step is not None:
                values = serving_steps.checked("`preprocessing_step`", preprocessing_step(*values), inputs)
            results = serving_steps.checked("the model", _called(model, values), postprocessing_step_signature)
            if postprocessing_step is not None:
                results = serving_steps.checked("`postprocessing_step`", postprocessing_step(*results), None)
            return serving_steps.named(results, names)

        folder = serving_steps.prepared_folder(export_dir, purge_export_dir)
        archive: Any = keras.export.ExportArchive()
        archive.track(model)
        # Traced outside of any scope, so that the graph names no IPU.
        served = archive.add_endpoint("serve", serve, input_signature=takes) or archive.serve  # Keras 2 returns none.
        internals.write_archive(archive, folder)
        return served


def _call_own(model: object, name: str, dir_path: str | None) -> None:
    own = getattr(type(model), name, None)
    if own is not None:
        own(model, dir_path)
