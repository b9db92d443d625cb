"""A model's options and pipeline stages in its file, beside what plain Keras reads there."""

from __future__ import annotations

import dataclasses
import enum
import json
import warnings
from pathlib import Path
from typing import Any

import tensorflow as tf

from tensorflow_ipu import pipelining
from tensorflow_ipu.keras._metrics import ReplicatedMetricReductionMethod
from tensorflow_ipu.keras._options import Options
from tensorflow_ipu.keras._pipeline_graph import StageAssignment
from tensorflow_ipu.optimizers import GradientAccumulationReductionMethod

_FILE = "ipu_options.json"
_STAGES = "pipeline_stages"
_CALLBACKS = "asynchronous_callbacks"
_ENUMS: dict[str, type[enum.Enum]] = {
    kind.__name__: kind
    for kind in (
        GradientAccumulationReductionMethod,
        ReplicatedMetricReductionMethod,
        pipelining.PhasedExecution,
        pipelining.PipelineSchedule,
        pipelining.RecomputationMode,
    )
}


def save(options: Options, stages: StageAssignment, folder: str) -> None:
    """Writes the options that differ from the defaults, and the stages; nothing where there are none.

    Args:
      options: The options.
      stages: The pipeline stages.
      folder: An existing folder.
    """
    written: dict[str, Any] = {}
    for group, values in options.groups():
        changed = {name: _encode(name, value) for name, value in values.changed().items()}
        if changed:
            written[group] = changed
    if options.asynchronous_callbacks:
        written[_CALLBACKS] = True
    if stages.is_pipelined:
        written[_STAGES] = stages.named()
    if written:
        Path(folder, _FILE).write_text(json.dumps(written))


def load(stages: StageAssignment, folder: str | None) -> Options:
    """The options that `save` wrote to the folder; the defaults where it wrote none.

    Args:
      stages: Gets the pipeline stages that it wrote.
      folder: The folder; None where the file has none for the model.
    """
    options = Options()
    path = Path(folder or "", _FILE)
    if not folder or not path.exists():
        return options
    written = json.loads(path.read_text())
    stage_names = written.pop(_STAGES, None)
    if stage_names is not None:
        stages.restore(stage_names)
    unknown: list[str] = []
    for group, values in options.groups():
        given = {name: _decode(value) for name, value in written.pop(group, {}).items()}
        known = {name: given.pop(name) for name in values.names() if name in given}
        setattr(options, group, dataclasses.replace(values, **known))
        unknown += given
    options.asynchronous_callbacks = written.pop(_CALLBACKS, False)
    unknown += written
    if unknown:
        names = ", ".join(f"`{name}`" for name in unknown)
        warnings.warn(f"the file has options that this version does not know, which are not set: {names}", stacklevel=8)
    return options


def _encode(name: str, value: Any) -> Any:
    if isinstance(value, enum.Enum) and type(value).__name__ in _ENUMS:
        return {"enum": type(value).__name__, "name": value.name}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
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


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(part) for part in value]
    if isinstance(value, dict):
        if "enum" in value:
            return _ENUMS[value["enum"]][value["name"]]
        if "dtype" in value:
            return tf.as_dtype(value["dtype"])
        return {key: _decode(part) for key, part in value["dict"].items()}
    return value
