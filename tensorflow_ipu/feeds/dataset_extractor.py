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

# A file is a NumPy `.npz` archive of the tensors by name, with JSON text that describes them:
#   {"format": "tensorflow_ipu.tensors", "version": 1, "tensors": {name: {"dtype": "float32", "shape": [2, 3]}, ...}, ...}
# Types that NumPy lacks, such as bfloat16, are stored as unsigned integers of the same size.
_METADATA = "__metadata__"
_FORMAT = "tensorflow_ipu.tensors"
_VERSION = 1


def _write(filename: str, tensors: Mapping[str, np.ndarray], print_stats: bool, **entries: Any) -> None:
    """Writes a file. An existing file is replaced when the new one is complete."""
    described = {
        name: {"dtype": tf.as_dtype(array.dtype).name, "shape": list(array.shape)} for name, array in tensors.items()
    }
    text = json.dumps({"format": _FORMAT, "version": _VERSION, "tensors": described, **entries})
    # `numpy.savez` cannot store a tensor named `file`.
    with files.replacing(filename) as file, zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        for name, array in (*tensors.items(), (_METADATA, np.array(text))):
            is_numpy_type = array.dtype.isbuiltin == 1 or array.dtype.kind == "U"
            storable = array if is_numpy_type else array.view(np.dtype(f"u{array.dtype.itemsize}"))
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
            f"`{filename}` is not a file of tensors that this package has written: {exc}. Write it with"
            " `export_variables`, `export_dataset_to_file` or `export_inputs_to_file`"
        ) from exc


def _raise_any(errors: list[str]) -> None:
    if errors:
        raise ValueError("; ".join(errors))


def _name_errors(argument: str, names: Iterable[object]) -> list[str]:
    errors = []
    checked_names = set()
    for name in names:
        if not isinstance(name, str) or not name or name == _METADATA:
            errors.append(
                f"`{argument}` holds {name!r}; a name must be a string that is not empty and not `{_METADATA}`"
            )
        elif name in checked_names:
            errors.append(f"`{argument}` holds `{name}` twice; give each tensor a different name")
        checked_names.add(name)
    return errors


_T = TypeVar("_T")

_HOST = "/device:CPU:0"


def dataset_extractor(
    dataset: tf.data.Dataset, num_elements: int, filename: str, feed_name: str, print_stats: bool = True
) -> tf.Operation | None:
    """Writes the first elements of a dataset to a file.

    Each tensor of an element becomes an array of shape [num_elements] + the tensor's shape. Its name is `feed_name` and
    the path in the element, such as `"training/0"` or `"training/label"`. If an element is one tensor, the name is
    `feed_name`.

    Args:
      dataset: The dataset. Its elements are dense numeric tensors, with the same shapes in all elements.
      num_elements: The number of elements to write, 1 or more.
      filename: The path of the file. An existing file is replaced.
      feed_name: The first part of the names, or an empty string for names without it.
      print_stats: Whether to report on standard error what was written.

    Returns:
      None; in a graph, the operation that writes the file each time that it runs.

    Raises:
      TypeError: An argument has a wrong type, or elements are not dense numeric tensors.
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
        # An empty dataset gets a batch of no elements, because `get_single_element` needs one batch.
        empty = tf.nest.map_structure(_no_elements, dataset.element_spec)
        batches = dataset.take(num_elements).batch(num_elements)
        first_batch = batches.concatenate(tf.data.Dataset.from_tensors(empty)).take(1)
        return _run(write, tf.nest.flatten(first_batch.get_single_element()))


def get_variable_handles(variables: Sequence[Variable]) -> list[tf.Tensor]:
    """Returns the resource handles of variables of TensorFlow or Keras. `export_variables` accepts them as variables.

    Raises:
      TypeError: `variables` holds a value that is not a variable.
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
      names: The name of each variable in the file.
      filename: The path of the file, without an added suffix. An existing file is replaced.
      metadata: A value that JSON can represent, for the entry `user` of the file's metadata.
      print_stats: Whether to report on standard error what was written.

    Returns:
      None; in a graph, the operation that writes the file each time that it runs.

    Raises:
      TypeError: An argument has a wrong type.
      ValueError: The numbers of names and variables differ, a name is empty or repeated, or `filename` is empty.
      OSError: The file cannot be written.
    """
    listed = _list("variables", variables)
    texts = _list("names", names)
    _check_filename("filename", filename)
    check_bool("print_stats", print_stats)
    errors = _name_errors("names", texts)
    if len(listed) != len(texts):
        errors.append(f"`names` has {len(texts)} names for {len(listed)} `variables`; pass one name per variable")
    _raise_any(errors)
    try:
        json.dumps(metadata)
    except (TypeError, ValueError) as exc:
        raise TypeError(f"`metadata` must be a value that JSON can represent, but is {metadata!r}: {exc}") from exc

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
    """Assigns values from files to variables, after checking all of them.

    Args:
      variables: Variables of TensorFlow or Keras. The keys of a dict are the names in the files. For a list, the
        name in the files is the variable's name (its `path` in Keras), with or without a final `:0`.
      filenames: One path or several, of files from `export_variables`.
      is_input: On the machine, whether the variables are inputs of a program. It is checked, and has no effect here.
      strict: Whether every variable must be in the files. Otherwise, missing variables are not changed.
      print_stats: Whether to report on standard error what was read.

    Returns:
      None; in a graph, the operation that assigns the values. The values are read from the files now.

    Raises:
      TypeError: An argument has a wrong type.
      ValueError: A variable is missing in the files, or has another shape or dtype there; two files have the same
        name; or a file has another format. One error reports the problems of all variables.
      FileNotFoundError: A file is missing.
    """
    for argument, value in (("is_input", is_input), ("strict", strict), ("print_stats", print_stats)):
        check_bool(argument, value)
    named = _named(variables)
    paths = [os.fspath(filenames)] if isinstance(filenames, (str, os.PathLike)) else _list("filenames", filenames)
    values: dict[str, np.ndarray] = {}
    errors = []
    for path in paths:
        _check_filename("filenames", path)
        tensors = _read(path)
        errors += [f"`{path}` has `{name}`, which another file has too" for name in tensors if name in values]
        values.update(tensors)
    assigned = []
    for name, variable in named:
        value = values.get(name, values.get(name.removesuffix(":0")))
        if value is None:
            if strict:
                available = ", ".join(f"`{stored}`" for stored in sorted(values)) or "nothing"
                errors.append(f"no file has `{name}`; they have {available}. Pass `strict=False` to keep its value")
            continue
        if value.shape != variable.shape or tf.as_dtype(value.dtype) != variable.dtype:
            errors.append(
                f"`{name}` is a variable of shape {tuple(variable.shape)} and type {variable.dtype.name}, but has shape"
                f" {value.shape} and type {tf.as_dtype(value.dtype).name} in the file"
            )
            continue
        assigned.append((variable, value))
    _raise_any(errors)
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
    """Writes the first elements of a dataset, or of an infeed queue's dataset, to a file, also while a graph is built.

    Args:
      dataset_or_infeed: The dataset or the queue. The queue keeps its position.
      output_filename: The path of the file. An existing file is replaced.
      num_elements: The number of elements to write, 1 or more.
      feed_name: The first part of the arrays' names, as in `dataset_extractor`, or an empty string.
      apply_debug_options: Whether TensorFlow's debug mode for datasets applies, if it is enabled.

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
    """Writes the values of a program's inputs to a file, with the names of the inputs without `:0`.

    Args:
      inputs: In a graph, placeholders and other tensors. Otherwise, objects with a `name`, a `shape` and a `dtype`,
        such as `tf.TensorSpec` and `keras.Input`.
      output_filename: The path of the file, without an added suffix. An existing file is replaced.
      feed_dict: The values: in a graph, the `feed_dict` of `session.run`; otherwise, a dict by the inputs' names.

    Raises:
      TypeError: An argument has a wrong type.
      ValueError: An input has no value, no name, the name of another input, or a value of another shape or type.
      OSError: The file cannot be written.
    """
    tensors = _list("inputs", inputs)
    check_instance("feed_dict", feed_dict, Mapping, "a dict")
    _check_filename("output_filename", output_filename)
    names = [str(getattr(tensor, "name", None) or "").removesuffix(":0") for tensor in tensors]
    errors = _name_errors("inputs", names)
    arrays = []
    for name, spec in zip(names, tensors, strict=True) if tf.executing_eagerly() else ():
        if name not in feed_dict:
            errors.append(f"`feed_dict` has no value for the input `{name}`")
            continue
        array = np.asarray(feed_dict[name])
        dtype = tf.as_dtype(spec.dtype)
        if not tf.TensorShape(spec.shape).is_compatible_with(array.shape):
            errors.append(f"the input `{name}` has shape {spec.shape}, but its value has shape {array.shape}")
        elif not np.can_cast(array.dtype, dtype.as_numpy_dtype, "same_kind"):
            errors.append(f"the input `{name}` has type {dtype.name}, but its value has type {array.dtype}")
        else:
            arrays.append(array.astype(dtype.as_numpy_dtype))
    _raise_any(errors)
    if not tf.executing_eagerly():
        arrays = [np.asarray(array) for array in _in_session(tensors, feed_dict)]
    _write(output_filename, dict(zip(names, arrays, strict=True)), print_stats=False, kind="inputs")


def _run(write: Callable[..., None], tensors: list[tf.Tensor]) -> tf.Operation | None:
    """Calls `write` with the tensors' values at once, or returns an operation that does so."""
    if tf.executing_eagerly():
        write(*(tensor.numpy() for tensor in tensors))
        return None

    def body(*arrays: np.ndarray) -> np.ndarray:
        try:
            write(*arrays)
        except tf.errors.OutOfRangeError as exc:
            raise StopIteration(exc.message) from exc  # TensorFlow converts it back to an `OutOfRangeError`.
        return np.zeros([], np.int32)

    return tf.numpy_function(body, tensors, tf.int32, stateful=True).op


def _no_elements(spec: tf.TensorSpec) -> tf.Tensor:
    shape = [] if spec.shape.rank is None else [size or 0 for size in spec.shape.as_list()]
    return tf.zeros([0, *shape], spec.dtype)


def _in_session(fetches: object, feed_dict: Mapping[Any, TensorLike]) -> Any:
    session = tf.compat.v1.get_default_session()
    if session is not None:
        return session.run(fetches, feed_dict=dict(feed_dict))
    with tf.compat.v1.Session() as new_session:
        return new_session.run(fetches, feed_dict=dict(feed_dict))


def _named(variables: Sequence[Variable] | Mapping[str, Variable]) -> list[tuple[str, tf.Variable]]:
    if isinstance(variables, Mapping):
        return [(name, _tf_variable("variables", variable)) for name, variable in variables.items()]
    pairs = [(variable, _tf_variable("variables", variable)) for variable in _list("variables", variables)]
    # Several variables of Keras may have the same name, such as `kernel`, but their paths differ.
    return [(getattr(variable, "path", inner.name), inner) for variable, inner in pairs]


def _tf_variable(argument: str, variable: Variable) -> tf.Variable:
    inner = tf_variable(variable)
    if isinstance(inner, tf.Variable):
        return inner
    raise TypeError(f"`{argument}` must hold variables of TensorFlow or Keras, but holds {variable!r}")


def _value(argument: str, variable: Variable | tf.Tensor) -> tf.Tensor:
    if tf.is_tensor(variable) and not isinstance(variable, tf.Variable) and variable.dtype == tf.resource:
        handle_data = variables.handle_data(variable)
        if handle_data is not None and handle_data.is_set and len(handle_data.shape_and_type) == 1:
            return tf.raw_ops.ReadVariableOp(resource=variable, dtype=tf.as_dtype(handle_data.shape_and_type[0].dtype))
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
