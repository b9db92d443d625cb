"""Converts the user's data to datasets that a feed can carry: dtypes, padding for prediction, batches of arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tensorflow_ipu._tensorflow import devices
from tensorflow_ipu._tensorflow.variables import NoneSpec
from tensorflow_ipu.keras._keras import internals, keras

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tensorflow_ipu._base.types import Nested
    from tensorflow_ipu._tensorflow import functions

# A feed converts dtypes that IPUs do not support to these.
_STAND_INS = {
    tf.float64: tf.float32,
    tf.bfloat16: tf.float32,
    tf.int64: tf.int32,
    tf.uint64: tf.int32,
    tf.uint32: tf.int32,
    tf.int16: tf.int32,
    tf.uint16: tf.int32,
}


def device_dtype(dtype: tf.DType) -> tf.DType:
    """Returns `dtype`, or the nearest dtype that IPUs support: a feed converts tensors to it."""
    return _STAND_INS.get(dtype, dtype)


class Elements:
    """A dataset in the form that a feed carries: tensors of dtypes that IPUs support, in a tuple if there are several.

    `unpack` restores the structure of the user's elements in a program, with None for missing data. Elements
    `{"a": x, "b": None}` are carried as `(x,)`.
    """

    def __init__(self, dataset: tf.data.Dataset, examples: Examples | None = None) -> None:
        self.source = dataset
        self.examples = examples
        structure = dataset.element_spec
        leaves = tf.nest.flatten(structure)
        carried = [index for index, leaf in enumerate(leaves) if not _is_missing(leaf)]
        flat = [leaves[index] for index in carried]
        _check(flat)
        types = [device_dtype(leaf.dtype) for leaf in flat]
        specs: list[tf.TensorSpec | None] = [None] * len(leaves)
        for index, leaf, dtype in zip(carried, flat, types, strict=True):
            specs[index] = tf.TensorSpec(leaf.shape, dtype)
        self.spec = _pack(structure, specs)
        self.key = repr(self.spec)
        cast = types != [leaf.dtype for leaf in flat]
        self.unpack: Callable[[Nested], Nested] = lambda element: element
        # Casts are not parallel: they take microseconds, and a thread pool takes longer.
        if _is_plain(structure):
            self.dataset = dataset.map(lambda *parts: _cast(parts, types), name="to_ipu") if cast else dataset
            return

        def flatten(*element: Nested) -> tuple[tf.Tensor, ...]:
            values = tf.nest.flatten(element)
            return tuple(tf.cast(values[index], dtype) for index, dtype in zip(carried, types, strict=True))

        def unpack(tensors: Sequence[tf.Tensor]) -> Nested:
            filled: list[tf.Tensor | None] = [None] * len(leaves)
            for index, tensor in zip(carried, tensors, strict=True):
                filled[index] = tensor
            return _pack(structure, filled)

        self.dataset = dataset.map(flatten, name="to_ipu")
        self.unpack = unpack

    def of_parts(self, parts: Sequence[tf.Tensor]) -> Nested:
        """Returns the user's element for the tensors of one element of `dataset`."""
        return parts[0] if isinstance(self.spec, tf.TensorSpec) else self.unpack(parts)


def _cast(parts: tuple[tf.Tensor, ...], types: list[tf.DType]) -> tf.Tensor | tuple[tf.Tensor, ...]:
    cast: Any = tuple(tf.cast(part, dtype) for part, dtype in zip(parts, types, strict=True))
    return cast if len(cast) > 1 else cast[0]


def _pack(structure: Nested, leaves: Sequence[object]) -> Nested:
    return tf.nest.pack_sequence_as(structure, leaves)


def _is_missing(spec: object) -> bool:
    """Returns True if a leaf of an element means missing data, such as omitted sample weights."""
    return isinstance(spec, (NoneSpec, tf.OptionalSpec))


def _is_plain(spec: object) -> bool:
    """Returns True if a feed carries elements of this structure unchanged: a tensor, or a tuple of tensors."""
    if isinstance(spec, tf.TensorSpec):
        return True
    return type(spec) is tuple and len(spec) > 1 and all(isinstance(part, tf.TensorSpec) for part in spec)


def may_be_partial(spec: Nested) -> bool:
    """Returns True if elements are dense tensors, and only the number of rows is unknown."""
    leaves = [leaf for leaf in tf.nest.flatten(spec) if not _is_missing(leaf)]
    shapes = [leaf.shape for leaf in leaves if isinstance(leaf, tf.TensorSpec) and leaf.shape.rank]
    unknown = [shape[0] is None for shape in shapes]
    return len(shapes) == len(leaves) and any(unknown) and all(shape[1:].is_fully_defined() for shape in shapes)


def _check(leaves: list[object]) -> None:
    for leaf in leaves:
        if not isinstance(leaf, tf.TensorSpec):
            raise ValueError(
                f"the data holds {leaf}, but a feed carries only dense tensors: convert it to dense tensors, for example with"
                " `dataset.map`"
            )
        if leaf.dtype == tf.string:
            raise ValueError(
                f"the data holds strings ({leaf}), which IPUs do not support: convert them to numbers in the dataset"
            )
        if not leaf.shape.is_fully_defined():
            raise ValueError(
                f"the provided set of data contains a shape {leaf.shape} which is not fully defined, but a program for an"
                " IPU has static shapes. Pass `drop_remainder=True` to `batch`, so that all batches are full; set the shapes"
                " of a generator or `py_function`"
            )


# Prediction with examples that do not fill the last batch or the last execution.


class Examples:
    """Counts the examples in each batch. The other rows of a batch are padding.

    Batches have `size` rows, and all batches together have `total` examples. If batches before the last one may be
    partial, `rows` maps the index of a batch to its count of examples.
    """

    def __init__(self, size: int, total: int, rows: tf.lookup.experimental.MutableHashTable | None = None) -> None:
        self._size = size
        self._total = total
        self._rows = rows

    def limited(self, batches: int) -> Examples:
        """Returns the examples of the first `batches` batches. The rows of later batches are padding."""
        return Examples(self._size, min(self._total, batches * self._size), self._rows)

    def without_padding(self, predictions: Nested, first: int, batches: int) -> Nested:
        """Removes padding from the predictions of `batches` batches along one axis. Returns None if all are padding."""
        indices = np.arange(first, first + batches, dtype=np.int64)
        counts = np.clip(self._total - self._size * indices, 0, self._size)
        if self._rows is not None:
            counts = np.minimum(counts, self._rows.lookup(tf.constant(indices)).numpy())
        is_example = (np.arange(self._size) < counts[:, None]).reshape(-1)
        if is_example.all() or not is_example.any():
            return predictions if is_example.all() else None

        def cut(part: Any) -> tf.Tensor:
            if not part.shape.rank or part.shape[0] != len(is_example):
                raise ValueError(
                    f"a prediction has the shape {part.shape} for {batches} batches of {self._size} examples, so the"
                    " predictions of padding cannot be removed: pass full batches that fill all executions and replicas"
                )
            return tf.boolean_mask(part, is_example)

        return tf.nest.map_structure(cut, predictions)


def rows_of(spec: Nested) -> int | None:
    """Returns the number of rows of a batch of this spec, or None if it is unknown."""
    leaves = [leaf for leaf in tf.nest.flatten(spec) if isinstance(leaf, tf.TensorSpec)]
    return leaves[0].shape[0] if leaves and leaves[0].shape.rank else None


def known_size(dataset: tf.data.Dataset) -> int | None:
    """Returns the batch size of a dataset, or None if it is unknown. The last batch may have fewer rows."""
    variant = tf.data.experimental.to_variant(dataset)
    size = int(tf.raw_ops.ComputeBatchSize(input_dataset=variant))
    return size if size > 0 else None


def filled(dataset: tf.data.Dataset, size: int) -> tuple[tf.data.Dataset, Examples]:
    """Returns a dataset with partial batches filled by repeating their last example, and the examples in it."""
    with tf.device("/device:CPU:0"):
        rows = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, default_value=size)

    def fill(number: tf.Tensor, *element: Any) -> Nested:
        batch = element[0] if len(element) == 1 else element
        leaves: Sequence[Any] = tf.nest.flatten(batch)
        count = next(tf.shape(leaf, tf.int64)[0] for leaf in leaves if tf.is_tensor(leaf))
        with tf.control_dependencies([rows.insert(number, count)]):
            places = tf.minimum(tf.range(size, dtype=tf.int64), count - 1)

        def full(leaf: Any) -> Any:
            if not tf.is_tensor(leaf):
                return leaf
            return tf.ensure_shape(tf.gather(leaf, places), [size, *leaf.shape[1:]])

        return tf.nest.pack_sequence_as(batch, [full(leaf) for leaf in leaves])

    return dataset.enumerate().map(fill, name="filled"), Examples(size, tf.int64.max, rows)


def extended(dataset: tf.data.Dataset, batches: int, more: int) -> tf.data.Dataset:
    """Returns the first `batches` batches of a dataset, followed by the last of them `more` times.

    Batches are marked as real or padding, and `scan` replaces padding by the last real batch, which it carries along.
    """
    spec = dataset.element_spec
    specs = tf.nest.flatten(spec)
    empty = tuple(tf.zeros(leaf.shape, leaf.dtype) for leaf in specs if isinstance(leaf, tf.TensorSpec))

    def flat(*element: Any) -> tuple[tf.Tensor, ...]:
        return tuple(leaf for leaf in tf.nest.flatten(element) if tf.is_tensor(leaf))

    def step(last: Any, marked: Any) -> tuple[Any, Any]:
        is_real, batch = marked
        chosen = tf.cond(is_real, lambda: batch, lambda: last)
        return chosen, chosen

    def packed(*leaves: tf.Tensor) -> Nested:
        remaining = iter(leaves)
        return tf.nest.pack_sequence_as(
            spec, [next(remaining) if isinstance(leaf, tf.TensorSpec) else None for leaf in specs]
        )

    real = tf.data.Dataset.zip(tf.data.Dataset.from_tensors(True).repeat(batches), dataset.take(batches).map(flat))
    padding = tf.data.Dataset.from_tensors((False, empty)).repeat(more)
    return real.concatenate(padding).scan(empty, step).map(packed)


# Datasets of arrays in the order of Keras's own datasets, with less work per batch.

Specs = tuple[tf.TensorSpec, ...]


def dataset_from_function(
    maker: functions.ConcreteFunction, arguments: Sequence[tf.Tensor], spec: Nested
) -> tf.data.Dataset:
    """Returns the dataset whose variant a function returns. Calling one function is faster than many operations."""
    dataset = tf.data.experimental.from_variant(maker(*arguments), spec)
    dataset._ipu_maker = maker  # Keeps the functions alive that the dataset calls.
    return dataset


def without_optimizations(variant: tf.Tensor, elements: Specs) -> tf.Tensor:
    """Returns the variant of a dataset without the optimizations and thread pools that delay its first batch."""
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    options.experimental_optimization.inject_prefetch = False
    options.autotune.enabled = False
    options.threading.private_threadpool_size = 1
    dataset = tf.data.experimental.from_variant(variant, elements)
    return tf.data.experimental.to_variant(dataset.with_options(options))


# The most that one operation gathers, in bytes and in batches.
_CHUNK_BYTES = 4 << 20
_MAX_BATCHES = 32

_ops = tf.raw_ops


def shuffled_dataset_of(
    arrays: Nested,
    batches: int,
    size: int,
    within_batches: bool,
    order: int | None = None,
    has_all_epochs: bool = False,
) -> tf.data.Dataset:
    """Returns a dataset of batches of the arrays' examples in random order. Each pass draws a new order.

    If `order` is set, this number determines the order of every pass. If `has_all_epochs`, one pass has the batches
    of all epochs.
    """
    parts = tf.nest.flatten(arrays)
    specs = tuple(tf.TensorSpec(part.shape, part.dtype) for part in parts)
    # The seed is part of the cache key, as a traced function keeps the global seed of its trace.
    maker = _shuffled_maker(
        specs, batches, size, within_batches, devices.global_seed(), order is not None, has_all_epochs
    )
    number = tf.constant(order or 0, tf.int64)
    return dataset_from_function(maker, [number, *parts], tf.nest.pack_sequence_as(arrays, _elements(specs, size)))


@functools.lru_cache(maxsize=64)
def _shuffled_maker(
    specs: Specs, batches: int, size: int, within_batches: bool, seed: int | None, ordered: bool, has_all_epochs: bool
) -> functions.ConcreteFunction:
    """Returns a function that makes a shuffled dataset: from a number and the arrays to the dataset's variant.

    If `ordered`, the number determines the order; otherwise the function ignores it.

    The dataset shuffles indices, not examples. It gathers the examples of several batches at once, which takes less
    time than a gather for each batch:

        number -> indices of all examples in random order, of shape [batches, size] (`rows_of_all`)
               -> chunks of up to 32 rows of indices, or fewer for more than 4 MiB of examples
               -> one `tf.gather` of each array for a chunk; the next chunk is prefetched
               -> single batches

    The function is traced once, with raw operations, and cached. So a new dataset costs one call.
    """
    del seed
    rows_of_all, order_of_row, gather = _shuffling_functions(specs, batches, size, within_batches, ordered)
    row = tf.TensorSpec([size], tf.int64)
    elements = _elements(specs, size)
    stacked = [_stacked(element) for element in elements]
    nbytes = sum(element.dtype.size * (element.shape.num_elements() or 0) for element in elements)
    at_once = max(1, min(_MAX_BATCHES, _CHUNK_BYTES // max(1, nbytes)))
    number = tf.TensorSpec([], tf.int64)

    def make(order: tf.Tensor, *parts: tf.Tensor) -> tf.Tensor:
        once = _ops.RangeDataset(start=order, stop=order + 1, step=_int64(1), **_like([number]))
        if has_all_epochs:
            once = _ops.RepeatDataset(input_dataset=once, count=_int64(-1), **_like([number]))
        rows = _ops.UnbatchDataset(input_dataset=_map(once, rows_of_all, [_stacked(row, batches)]), **_like([row]))
        if within_batches:
            rows = _map(rows, order_of_row, [row])
        rows = _ops.BatchDatasetV2(
            input_dataset=rows,
            batch_size=_int64(at_once),
            drop_remainder=tf.constant(False),
            **_like([_stacked(row)]),
        )
        repeated_arrays = _ops.TensorDataset(components=parts, output_shapes=[spec.shape for spec in specs])
        repeated_arrays = _ops.RepeatDataset(input_dataset=repeated_arrays, count=_int64(-1), **_like(specs))
        pairs = _ops.ZipDataset(input_datasets=[rows, repeated_arrays], **_like([_stacked(row), *specs]))
        chunks = _map(pairs, gather, stacked)
        chunks = _ops.PrefetchDataset(input_dataset=chunks, buffer_size=_int64(1), **_like(stacked))
        dataset = _ops.UnbatchDataset(input_dataset=chunks, **_like(elements))
        return without_optimizations(dataset, tuple(elements))

    return tf.function(make, autograph=False).get_concrete_function(number, *specs)


def _shuffling_functions(
    specs: Specs, batches: int, size: int, within_batches: bool, ordered: bool
) -> tuple[functions.ConcreteFunction, functions.ConcreteFunction, functions.ConcreteFunction]:
    """Returns the three functions that the dataset calls: `rows_of_all`, `order_of_row` and `gather`."""

    # Random numbers are drawn by the same operations as in Keras, so that a seed gives the same order.
    def rows_of_all(number: tf.Tensor) -> tf.Tensor:
        indices = tf.range(batches * size, dtype=tf.int64)
        if ordered:
            places = tf.random.stateless_uniform(
                [batches * size], tf.stack([number, 0]), tf.int64.min, tf.int64.max, tf.int64
            )
            indices = tf.argsort(places)
        elif not within_batches:
            indices = tf.random.shuffle(indices)
        return tf.reshape(tf.cast(indices, tf.int64), [batches, size])

    def order_of_row(indices: tf.Tensor) -> tf.Tensor:
        return tf.random.shuffle(indices)

    def gather(indices: tf.Tensor, *arrays: tf.Tensor) -> list[tf.Tensor]:
        return [tf.gather(array, indices) for array in arrays]

    return (
        _traced(rows_of_all, tf.TensorSpec([], tf.int64)),
        _traced(order_of_row, tf.TensorSpec([size], tf.int64)),
        _traced(gather, tf.TensorSpec([None, size], tf.int64), *specs),
    )


def _traced(function: Callable[..., Nested], *specs: tf.TensorSpec) -> functions.ConcreteFunction:
    # With this attribute, TensorFlow treats the function as placed on one device. It then instantiates the function in a
    # tenth of the time, which each pass over a dataset does first.
    attributes = {"experimental_ints_on_device": True}
    return tf.function(function, autograph=False, experimental_attributes=attributes).get_concrete_function(*specs)


def _map(dataset: tf.Tensor, function: functions.ConcreteFunction, specs: list[tf.TensorSpec]) -> tf.Tensor:
    function.add_to_graph(tf.compat.v1.get_default_graph())
    options = {"use_inter_op_parallelism": False, "preserve_cardinality": True}
    return _ops.MapDataset(input_dataset=dataset, other_arguments=[], f=function, **options, **_like(specs))


def _like(specs: Iterable[tf.TensorSpec]) -> dict[str, list[tf.DType] | list[tf.TensorShape]]:
    """Returns the arguments of raw dataset operations that describe elements."""
    return {"output_types": [spec.dtype for spec in specs], "output_shapes": [spec.shape for spec in specs]}


def _int64(number: int) -> tf.Tensor:
    return tf.constant(number, tf.int64)


def _elements(specs: Specs, size: int) -> list[tf.TensorSpec]:
    return [tf.TensorSpec([size, *spec.shape[1:]], spec.dtype) for spec in specs]


def _stacked(spec: tf.TensorSpec, count: int | None = None) -> tf.TensorSpec:
    return tf.TensorSpec([count, *spec.shape], spec.dtype)


def ordered_dataset_of(batches: Nested) -> tf.data.Dataset:
    parts = tf.nest.flatten(batches)
    elements = tuple(tf.TensorSpec(part.shape[1:], part.dtype) for part in parts)
    maker = _ordered_maker(tuple(tf.TensorSpec(part.shape, part.dtype) for part in parts), elements)
    return dataset_from_function(maker, parts, tf.nest.pack_sequence_as(batches, elements))


@functools.lru_cache(maxsize=64)
def _ordered_maker(specs: Specs, elements: Specs) -> functions.ConcreteFunction:
    """Returns a function from stacked batches to the variant of a dataset of the batches."""
    shapes = [element.shape for element in elements]

    def make(*parts: tf.Tensor) -> tf.Tensor:
        dataset = tf.raw_ops.TensorSliceDataset(components=parts, output_shapes=shapes)
        return without_optimizations(dataset, elements)

    return tf.function(make, autograph=False).get_concrete_function(*specs)


def is_ours_to_shuffle(adapter: internals.ArrayDataAdapter) -> bool:
    """Returns True if the batches have a random order that this module draws."""
    return internals.is_shuffled(adapter) is True and all(map(_is_dense, tf.nest.flatten(internals.arrays_of(adapter))))


def dataset_of(adapter: internals.ArrayDataAdapter, order: int | None = None) -> tf.data.Dataset:
    """Returns a dataset of batches of the adapter's arrays, in dtypes that IPUs support.

    Without shuffling, batches are views of the arrays. A partial batch, which is allowed in prediction only, is filled
    by repeating its last example. For `order`, see `shuffled_dataset_of`.
    """
    inputs = _with_tuples(internals.arrays_of(adapter))
    shuffled, has_all_epochs = internals.is_shuffled(adapter), internals.has_all_epochs(adapter)
    if not all(map(_is_dense, tf.nest.flatten(inputs))) or (shuffled == "batch" and has_all_epochs):
        return adapter.get_tf_dataset()
    with tf.device("/device:CPU:0"):
        arrays = tf.nest.map_structure(_to_device_type, inputs)
        size = adapter.batch_size
        assert size is not None
        if shuffled:
            has_all_epochs = has_all_epochs and order is None
            return shuffled_dataset_of(arrays, adapter.num_batches, size, shuffled == "batch", order, has_all_epochs)
        missing = adapter.num_batches * size - internals.examples_of(adapter)

        def batches(part: tf.Tensor) -> tf.Tensor:
            full = tf.concat([part, tf.repeat(part[-1:], missing, 0)], 0) if missing else part
            return tf.reshape(full, [adapter.num_batches, size, *part.shape[1:]])

        return ordered_dataset_of(tf.nest.map_structure(batches, arrays))


def _with_tuples(structure: Nested) -> Nested:
    """Returns the structure with tuples instead of lists, which a dataset would convert to tensors."""
    if isinstance(structure, dict):
        return {name: _with_tuples(part) for name, part in structure.items()}
    if type(structure) in (list, tuple):
        return tuple(_with_tuples(part) for part in structure)
    return structure


def _is_dense(array: object) -> bool:
    return isinstance(array, tf.Tensor) or (isinstance(array, np.ndarray) and array.dtype.kind in "biuf")


def _to_device_type(array: tf.Tensor | np.ndarray) -> tf.Tensor:
    """Returns the array as a tensor of a dtype that IPUs support."""
    dtype = device_dtype(tf.as_dtype(array.dtype))
    if isinstance(array, np.ndarray):
        return tf.constant(array.astype(dtype.as_numpy_dtype, copy=False))
    return tf.cast(array, dtype)


def checked_results(model: keras.Model, results: Nested) -> Nested:
    """Returns the results of a step. Raises `TypeError`, with the name of a layer, if one is float64."""
    if any(tensor.dtype == tf.float64 for tensor in tf.nest.flatten(results) if tf.is_tensor(tensor)):
        layers = [layer for layer in internals.all_layers(model) if layer is not model and layer.weights]
        named = [f"layer `{layer.name}` computes in it" for layer in layers if layer.compute_dtype == "float64"]
        raise TypeError(
            f"the results of model `{model.name}` are float64, which no IPU has: {[*named, 'its loss does'][0]}. Make the"
            " model after `keras.backend.set_floatx('float32')`, or its layers with `dtype='float32'`"
        )
    return results
