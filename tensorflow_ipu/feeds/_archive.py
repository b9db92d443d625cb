"""Files of named tensors: NumPy's `.npz`, with a JSON text beside the arrays that describes them.

`numpy.load(filename)` opens such a file. Each tensor is an array under its name. The text under `METADATA` is a string:

    {"format": "tensorflow_ipu.tensors", "version": 1,
     "tensors": {name: {"dtype": "float32", "shape": [2, 3]}, ...}, ...}

with more entries as the writer has them. A dtype that NumPy itself does not know (bfloat16, say) is stored as its
bytes, in an array of unsigned integers of the same size.
"""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

METADATA = "__metadata__"
_FORMAT = "tensorflow_ipu.tensors"
_VERSION = 1


def write(filename: str, tensors: Mapping[str, np.ndarray], **entries: Any) -> int:
    """Writes a file. One that is there is replaced once the new one is whole."""
    described = {
        name: {"dtype": tf.as_dtype(array.dtype).name, "shape": list(array.shape)} for name, array in tensors.items()
    }
    text = json.dumps({"format": _FORMAT, "version": _VERSION, "tensors": described, **entries})
    folder = os.path.dirname(os.path.abspath(filename))
    handle, unfinished = tempfile.mkstemp(dir=folder, prefix=os.path.basename(filename), suffix=".unfinished")
    try:
        # Not `numpy.savez`, which cannot take a tensor named `file`.
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w", allowZip64=True) as archive:
            for name, array in (*tensors.items(), (METADATA, np.array(text))):
                with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, _storable(array), allow_pickle=False)
        os.replace(unfinished, filename)
    except BaseException:
        os.unlink(unfinished)
        raise
    return sum(array.nbytes for array in tensors.values())


def read(filename: str) -> dict[str, np.ndarray]:
    """Reads the tensors of a file by name."""
    try:
        with open(filename, "rb") as file, np.load(file, allow_pickle=False) as archive:
            metadata = json.loads(str(archive[METADATA]))
            if (metadata["format"], metadata["version"]) != (_FORMAT, _VERSION):
                raise ValueError(f"its format is {metadata['format']!r} of version {metadata['version']!r}")
            return {
                name: _restored(archive[name], tf.as_dtype(described["dtype"]).as_numpy_dtype)
                for name, described in metadata["tensors"].items()
            }
    except FileNotFoundError:
        raise
    except (OSError, EOFError, KeyError, TypeError, AttributeError, ValueError, zipfile.BadZipFile) as exc:
        raise ValueError(
            f"`{filename}` is no file of tensors that this package has written: {exc}. Write it with"
            " `export_variables`, `export_dataset_to_file` or `export_inputs_to_file`"
        ) from exc


def faults_of_names(argument: str, names: Iterable[object]) -> list[str]:
    """What keeps names from being those of a file's tensors."""
    faults = []
    seen = set()
    for name in names:
        if not isinstance(name, str) or not name or name == METADATA:
            faults.append(f"`{argument}` holds {name!r}; a name is a text, not empty, and not `{METADATA}`")
        elif name in seen:
            faults.append(f"`{argument}` holds `{name}` twice; give each tensor a name of its own")
        seen.add(name)
    return faults


def _storable(array: np.ndarray) -> np.ndarray:
    if array.dtype.isbuiltin == 1 or array.dtype.kind == "U":
        return array
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))


def _restored(array: np.ndarray, dtype: type[np.generic]) -> np.ndarray:
    return array if array.dtype == dtype else array.view(dtype)
