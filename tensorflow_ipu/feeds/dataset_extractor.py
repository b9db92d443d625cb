"""Writes datasets, variables and inputs to files, and reads variables back."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from tensorflow_ipu._base import files
from tensorflow_ipu._base.checks import check_bool, check_instance
from tensorflow_ipu._base.tensors import tf_variable
from tensorflow_ipu._base.types import TensorLike, Variable
from tensorflow_ipu._tensorflow import variables
from tensorflow_ipu.feeds.dataset_benchmark import check_count, check_dataset, check_elements, check_sizes, dataset_of
from tensorflow_ipu.feeds.infeed import IPUInfeedQueue

# A file is NumPy's `.npz` with the tensors by name, and JSON text that describes them:
#   {"format": "tensorflow_ipu.tensors", "version": 1, "tensors": {name: {"dtype": "float32", "shape": [2, 3]}, ...}, ...}
# A dtype that NumPy does not know, such as bfloat16, is stored as unsigned integers of the same size.
_METADATA = "__metadata__"
_FORMAT = "tensorflow_ipu.tensors"
_VERSION = 1


def _write(filename: str, tensors: Mapping[str, np.ndarray], print_stats: bool, **entries: Any) -> None:
    """Writes a file, and replaces one that is there once the new one is whole."""
    described = {
        name: {"dtype": tf.as_dtype(array.dtype).name, "shape": list(array.shape)} for name, array in tensors.items()
    }
    text = json.dumps({"format": _FORMAT, "version": _VERSION, "tensors": described, **entries})
    # Not `numpy.savez`, which cannot take a tensor named `file`.
    with files.replacing(filename) as file, zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        for name, array in (*tensors.items(), (_METADATA, np.array(text))):
            known = array.dtype.isbuiltin == 1 or array.dtype.kind == "U"
            storable = array if known else array.view(np.dtype(f"u{array.dtype.itemsize}"))
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, storable, allow_pickle=False)
    if print_stats:
        size = sum(array.nbytes for array in tensors.values())
        sys.stderr.write(f"wrote {len(tensors)} tensors, {size} bytes, to {filename!r}\n")


def _read(filename: str) -> dict[str, np.ndarray]:
    try:
        with open(filename, "rb") as file, np.load(file, allow_pickle=False) as archive:
            metadata = json.loads(str(archive[_METADATA]))
            if (metadata["format"], metadata["version"]) != (_FORMAT, _VERSION):
                raise ValueError(f"its format is {metadata['format']!r} of version {metadata['version']!r}")
            return {
                name: archive[name].view(tf.as_dtype(described["dtype"]).as_numpy_dtype)
                for name, described in metadata["tensors"].items()
            }
    except FileNotFoundError:
        raise
    except (OSError, EOFError, KeyError, TypeError, AttributeError, ValueError, zipfile.BadZipFile) as exc:
        raise ValueError(
            f"`{filename}` is no file of tensors that this package has written: {exc}. Write it with"
            " `export_variables`, `export_dataset_to_file` or `export_inputs_to_file`"
        ) from exc


def _raise_any(faults: list[str]) -> None:
    if faults:
        raise ValueError("; ".join(faults))


def _faults_of_names(argument: str, names: Iterable[object]) -> list[str]:
    faults = []
    seen = set()
    for name in names:
        if not isinstance(name, str) or not name or name == _METADATA:
            faults.append(f"`{argument}` holds {name!r}; a name is a text, not empty, and not `{_METADATA}`")
        elif name in seen:
            faults.append(f"`{argument}` holds `{name}` twice; give each tensor a name of its own")
        seen.add(name)
    return faults


_T = TypeVar("_T")

_HOST = "/device:CPU:0"


def dataset_extractor(
    dataset: tf.data.Dataset, num_elements: int, filename: str, feed_name: str, print_stats: bool = True
) -> tf.Operation | None:
    """Writes the first elements of a dataset to a file.

    Each tensor of an element becomes an array of shape [num_elements] + its own. Its name is `feed_name` and its path in
    the element, such as `"training/0"` or `"training/label"`; `feed_name` alone where an element is one tensor.

    Args:
      dataset: The dataset. Its elements are dense tensors of numbers, each of the same shape in all elements.
      num_elements: How many elements are written, 1 or more.
      filename: The file's path. A file that is there is replaced.
      feed_name: The first part of the names; none if empty.
      print_stats: Whether to report on standard error what was written.

    Returns:
      None; in a graph, the operation that writes the file each time that it runs.

    Raises:
      TypeError: An argument has a wrong type, or elements are no dense tensors of numbers.
      ValueError: `num_elements` is below 1, or `filename` is empty.
      tf.errors.OutOfRangeError: The dataset has fewer elements.
      tf.errors.InvalidArgumentError: The elements' shapes differ, or have a dimension of size 0.
      OSError: The file cannot be written.
    """
    check_dataset("dataset", dataset)
    check_count("num_elements", num_elements)
    check_instance("feed_name", feed_name, str, "a str")
    _check_filename("filename", filename)
    check_bool("print_stats", print_stats)
    check_elements(dataset)
    check_sizes(dataset)
    paths = variables.with_paths(dataset.element_spec)
    names = ["/".join(part for part in (feed_name, path) if part) or "element" for path, _ in paths]

    def write(*arrays: np.ndarray) -> None:
        if len(arrays[0]) < num_elements:
            raise tf.errors.OutOfRangeError(
                None,
                None,
                f"The dataset ended after {len(arrays[0])} elements, and `num_elements` is {num_elements}. `repeat()` the"
                " dataset, or ask for fewer.",
            )
        entries = {"kind": "dataset", "feed_name": feed_name, "num_elements": int(num_elements)}
        _write(filename, dict(zip(names, arrays, strict=True)), print_stats, **entries)

    with tf.device(_HOST):
        # An empty dataset has no batch, and gets one of no elements.
        nothing = tf.nest.map_structure(_no_elements, dataset.element_spec)
        batches = dataset.take(num_elements).batch(num_elements)
        whole = batches.concatenate(tf.data.Dataset.from_tensors(nothing)).take(1)
        return _run(write, tf.nest.flatten(whole.get_single_element()))


def get_variable_handles(variables: Sequence[Variable]) -> list[tf.Tensor]:
    """Returns the resource handles of variables of TensorFlow or Keras, which `export_variables` takes in their place.

    Raises:
      TypeError: `variables` holds something else.
    """
    return [_tf_variable("variables", variable).handle for variable in _list("variables", variables)]


def export_variables(
    variables: Sequence[Variable | tf.Tensor],
    names: Sequence[str],
    filename: str,
    metadata: object = None,
    print_stats: bool = True,
) -> tf.Operation | None:
    """Writes the values of variables to a file.

    Args:
      variables: Variables of TensorFlow or Keras, or their handles.
      names: The name of each in the file.
      filename: The file's path, used as it is. A file that is there is replaced.
      metadata: Kept in the file's metadata under `user`: anything that JSON can carry.
      print_stats: Whether to report on standard error what was written.

    Returns:
      None; in a graph, the operation that writes the file each time that it runs.

    Raises:
      TypeError: An argument has a wrong type.
      ValueError: There are more names than variables or fewer, a name is empty or there twice, or `filename` is empty.
      OSError: The file cannot be written.
    """
    listed = _list("variables", variables)
    texts = _list("names", names)
    _check_filename("filename", filename)
    check_bool("print_stats", print_stats)
    faults = _faults_of_names("names", texts)
    if len(listed) != len(texts):
        faults.append(f"`names` has {len(texts)} names for {len(listed)} `variables`; give each variable one")
    _raise_any(faults)
    try:
        json.dumps(metadata)
    except (TypeError, ValueError) as exc:
        raise TypeError(f"`metadata` must be something that JSON can carry, but is {metadata!r}: {exc}") from exc

    def write(*arrays: np.ndarray) -> None:
        entries = {"kind": "variables", "user": metadata}
        _write(filename, dict(zip(texts, arrays, strict=True)), print_stats, **entries)

    values = [_value("variables", variable) for variable in listed]
    with tf.device(_HOST):
        return _run(write, [tf.identity(value) for value in values])


def import_variables(
    variables: Sequence[Variable] | Mapping[str, Variable],
    filenames: str | Sequence[str],
    is_input: bool = True,
    strict: bool = True,
    print_stats: bool = True,
) -> tf.Operation | None:
    """Assigns variables the values that files hold under their names, once all are checked.

    Args:
      variables: Variables of TensorFlow or Keras. A dict gives their names in the files; otherwise a variable has its
        own name there (its `path` in Keras), with or without the `:0` at its end.
      filenames: One path or several, of files from `export_variables`.
      is_input: On the machine, whether they are a program's inputs. Checked; changes nothing here.
      strict: Whether every variable must be in the files. Otherwise those that are not stay as they are.
      print_stats: Whether to report on standard error what was read.

    Returns:
      None; in a graph, the operation that assigns the variables the values which the files hold now.

    Raises:
      TypeError: An argument has a wrong type.
      ValueError: A variable is missing in the files, or has another shape or dtype there; two files have the same
        name; or a file is of another format. All faults of the variables are reported at once.
      FileNotFoundError: A file is missing.
    """
    for argument, value in (("is_input", is_input), ("strict", strict), ("print_stats", print_stats)):
        check_bool(argument, value)
    named = _named(variables)
    paths = [os.fspath(filenames)] if isinstance(filenames, (str, os.PathLike)) else _list("filenames", filenames)
    values: dict[str, np.ndarray] = {}
    faults = []
    for path in paths:
        _check_filename("filenames", path)
        tensors = _read(path)
        faults += [f"`{path}` has `{name}`, which another file has too" for name in tensors if name in values]
        values.update(tensors)
    assigned = []
    for name, variable in named:
        value = values.get(name, values.get(name.removesuffix(":0")))
        if value is None:
            if strict:
                there = ", ".join(f"`{known}`" for known in sorted(values)) or "nothing"
                faults.append(f"no file has `{name}`; they have {there}. Pass `strict=False` to leave it as it is")
            continue
        if value.shape != variable.shape or tf.as_dtype(value.dtype) != variable.dtype:
            faults.append(
                f"`{name}` is a variable of shape {tuple(variable.shape)} and type {variable.dtype.name}, but has shape"
                f" {value.shape} and type {tf.as_dtype(value.dtype).name} in the file"
            )
            continue
        assigned.append((variable, value))
    _raise_any(faults)
    operations = [variable.assign(value, read_value=False) for variable, value in assigned]
    if print_stats:
        size = sum(value.nbytes for _, value in assigned)
        sources = ", ".join(map(repr, paths))
        sys.stderr.write(f"read {len(assigned)} of {len(named)} variables, {size} bytes, from {sources}\n")
    return None if tf.executing_eagerly() else tf.group(*operations)


def export_dataset_to_file(
    dataset_or_infeed: tf.data.Dataset | IPUInfeedQueue,
    output_filename: str,
    num_elements: int,
    feed_name: str = "",
    apply_debug_options: bool = True,
) -> None:
    """Writes the first elements of a dataset, or of an infeed queue's dataset, to a file at once; the queue keeps its position.

    Args:
      dataset_or_infeed: The dataset or the queue.
      output_filename: The file's path. A file that is there is replaced.
      num_elements: How many elements are written, 1 or more.
      feed_name: The first part of the arrays' names, see `dataset_extractor`; none if empty.
      apply_debug_options: Whether TensorFlow's debug mode for datasets applies, if it is switched on.

    Raises:
      TypeError, ValueError, OSError, tf.errors.OpError: As `dataset_extractor` does.
    """
    check_bool("apply_debug_options", apply_debug_options)
    if isinstance(dataset_or_infeed, IPUInfeedQueue):
        dataset = dataset_of("dataset_or_infeed", dataset_or_infeed)
    else:
        check_dataset("dataset_or_infeed", dataset_or_infeed)
        dataset = dataset_or_infeed
    if apply_debug_options:
        dataset = variables.as_run(dataset)
    operation = dataset_extractor(dataset, num_elements, output_filename, feed_name, print_stats=False)
    if operation is not None:
        _in_session(operation, {})


def export_inputs_to_file(
    inputs: Sequence[tf.Tensor | tf.TensorSpec], output_filename: str, feed_dict: Mapping[Any, TensorLike]
) -> None:
    """Writes the values of a program's inputs to a file, at once, each under its input's name (without a `:0`).

    Args:
      inputs: In a graph, placeholders and other tensors; otherwise what has a `name`, a `shape` and a `dtype`, such as
        `tf.TensorSpec` and `keras.Input`.
      output_filename: The file's path, used as it is. A file that is there is replaced.
      feed_dict: The values: in a graph, as `session.run` takes them; otherwise by the inputs' names.

    Raises:
      TypeError: An argument has a wrong type.
      ValueError: An input has no value, no name, another's name, or a value of another shape or type.
      OSError: The file cannot be written.
    """
    tensors = _list("inputs", inputs)
    check_instance("feed_dict", feed_dict, Mapping, "a dict")
    _check_filename("output_filename", output_filename)
    names = [str(getattr(tensor, "name", None) or "").removesuffix(":0") for tensor in tensors]
    faults = _faults_of_names("inputs", names)
    arrays = []
    for name, spec in zip(names, tensors, strict=True) if tf.executing_eagerly() else ():
        if name not in feed_dict:
            faults.append(f"`feed_dict` has no value for the input `{name}`")
            continue
        array = np.asarray(feed_dict[name])
        dtype = tf.as_dtype(spec.dtype)
        if not tf.TensorShape(spec.shape).is_compatible_with(array.shape):
            faults.append(f"the input `{name}` has shape {spec.shape}, but its value has shape {array.shape}")
        elif not np.can_cast(array.dtype, dtype.as_numpy_dtype, "same_kind"):
            faults.append(f"the input `{name}` has type {dtype.name}, but its value has type {array.dtype}")
        else:
            arrays.append(array.astype(dtype.as_numpy_dtype))
    _raise_any(faults)
    if not tf.executing_eagerly():
        arrays = [np.asarray(array) for array in _in_session(tensors, feed_dict)]
    _write(output_filename, dict(zip(names, arrays, strict=True)), print_stats=False, kind="inputs")


def _run(write: Callable[..., None], tensors: list[tf.Tensor]) -> tf.Operation | None:
    """Calls `write` with the tensors' values: now, or when the returned operation runs."""
    if tf.executing_eagerly():
        write(*(tensor.numpy() for tensor in tensors))
        return None

    def body(*arrays: np.ndarray) -> np.ndarray:
        try:
            write(*arrays)
        except tf.errors.OutOfRangeError as exc:
            raise StopIteration(exc.message) from exc  # The one that TensorFlow makes an `OutOfRangeError` again.
        return np.zeros([], np.int32)

    return tf.numpy_function(body, tensors, tf.int32, stateful=True).op


def _no_elements(spec: tf.TensorSpec) -> tf.Tensor:
    shape = [] if spec.shape.rank is None else [size or 0 for size in spec.shape.as_list()]
    return tf.zeros([0, *shape], spec.dtype)


def _in_session(fetches: object, feed_dict: Mapping[Any, TensorLike]) -> Any:
    session = tf.compat.v1.get_default_session()
    if session is not None:
        return session.run(fetches, feed_dict=dict(feed_dict))
    with tf.compat.v1.Session() as own:
        return own.run(fetches, feed_dict=dict(feed_dict))


def _named(variables: Sequence[Variable] | Mapping[str, Variable]) -> list[tuple[str, tf.Variable]]:
    if isinstance(variables, Mapping):
        return [(name, _tf_variable("variables", variable)) for name, variable in variables.items()]
    pairs = [(variable, _tf_variable("variables", variable)) for variable in _list("variables", variables)]
    # Keras calls all kernels of a kind the same; their paths differ.
    return [(getattr(variable, "path", inner.name), inner) for variable, inner in pairs]


def _tf_variable(argument: str, variable: Variable) -> tf.Variable:
    inner = tf_variable(variable)
    if isinstance(inner, tf.Variable):
        return inner
    raise TypeError(f"`{argument}` must hold variables of TensorFlow or Keras, but holds {variable!r}")


def _value(argument: str, variable: Variable | tf.Tensor) -> tf.Tensor:
    if tf.is_tensor(variable) and not isinstance(variable, tf.Variable) and variable.dtype == tf.resource:
        known = variables.type_behind(variable)
        if known is not None and known.is_set and len(known.shape_and_type) == 1:
            return tf.raw_ops.ReadVariableOp(resource=variable, dtype=tf.as_dtype(known.shape_and_type[0].dtype))
    return _tf_variable(argument, variable).read_value()


def _list(argument: str, value: Sequence[_T]) -> list[_T]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"`{argument}` must be a list or tuple, but is {value!r}")
    if not value:
        raise ValueError(f"`{argument}` must not be empty")
    return list(value)


def _check_filename(argument: str, value: Any) -> None:
    check_instance(argument, value, (str, os.PathLike), "a path")
    if not os.fspath(value):
        raise ValueError(f"`{argument}` must not be empty")
