"""Datasets of elements: what a feed carries of the user's data, padded for prediction, and the batches of arrays."""

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

# The type that a feed carries instead of one that IPUs do not have.
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
    """Returns the type in which a feed carries tensors of `dtype`: the same, or the nearest that an IPU has."""
    return _STAND_INS.get(dtype, dtype)


class Elements:
    """A dataset as a feed can carry it."""

    def __init__(self, dataset: tf.data.Dataset, examples: Examples | None = None) -> None:
        self.source = dataset
        self.examples = examples
        given = dataset.element_spec
        leaves = tf.nest.flatten(given)
        carried = [at for at, leaf in enumerate(leaves) if not _is_missing(leaf)]
        flat = [leaves[at] for at in carried]
        _check(flat)
        types = [device_dtype(leaf.dtype) for leaf in flat]
        specs: list[tf.TensorSpec | None] = [None] * len(leaves)
        for at, leaf, dtype in zip(carried, flat, types, strict=True):
            specs[at] = tf.TensorSpec(leaf.shape, dtype)
        self.spec = _pack(given, specs)
        self.key = repr(self.spec)
        cast = types != [leaf.dtype for leaf in flat]
        self.unpack: Callable[[Nested], Nested] = lambda element: element
        # Casts take microseconds; a thread pool for them takes longer.
        if _is_plain(given):
            self.dataset = dataset.map(lambda *parts: _cast(parts, types), name="to_ipu") if cast else dataset
            return

        def flatten(*element: Nested) -> tuple[tf.Tensor, ...]:
            values = tf.nest.flatten(element)
            return tuple(tf.cast(values[at], dtype) for at, dtype in zip(carried, types, strict=True))

        def unpack(tensors: Sequence[tf.Tensor]) -> Nested:
            filled: list[tf.Tensor | None] = [None] * len(leaves)
            for at, tensor in zip(carried, tensors, strict=True):
                filled[at] = tensor
            return _pack(given, filled)

        self.dataset = dataset.map(flatten, name="to_ipu")
        self.unpack = unpack

    def of_parts(self, parts: Sequence[tf.Tensor]) -> Nested:
        """Returns the user's element for the tensors of one element of `dataset`."""
        return parts[0] if isinstance(self.spec, tf.TensorSpec) else self.unpack(parts)


def _cast(parts: tuple[tf.Tensor, ...], types: list[tf.DType]) -> tf.Tensor | tuple[tf.Tensor, ...]:
    cast: Any = tuple(tf.cast(part, dtype) for part, dtype in zip(parts, types, strict=True))
    return cast if len(cast) > 1 else cast[0]


def _pack(given: Nested, leaves: Sequence[object]) -> Nested:
    return tf.nest.pack_sequence_as(given, leaves)


def _is_missing(spec: object) -> bool:
    """Returns True if a leaf of an element stands for no data, as for sample weights that were not passed."""
    return isinstance(spec, (NoneSpec, tf.OptionalSpec))


def _is_plain(spec: object) -> bool:
    """Returns True if a feed takes elements of this structure as they are: a tensor, or a tuple of tensors."""
    if isinstance(spec, tf.TensorSpec):
        return True
    return type(spec) is tuple and len(spec) > 1 and all(isinstance(part, tf.TensorSpec) for part in spec)


def may_be_partial(spec: Nested) -> bool:
    """Returns True if elements are dense tensors of which only the number of rows is unknown."""
    leaves = [leaf for leaf in tf.nest.flatten(spec) if not _is_missing(leaf)]
    shapes = [leaf.shape for leaf in leaves if isinstance(leaf, tf.TensorSpec) and leaf.shape.rank]
    unknown = [shape[0] is None for shape in shapes]
    return len(shapes) == len(leaves) and any(unknown) and all(shape[1:].is_fully_defined() for shape in shapes)


def _check(leaves: list[object]) -> None:
    for leaf in leaves:
        if not isinstance(leaf, tf.TensorSpec):
            raise ValueError(
                f"the data holds {leaf}, and a feed carries dense tensors alone: convert it to them, for instance with"
                " `dataset.map`"
            )
        if leaf.dtype == tf.string:
            raise ValueError(
                f"the data holds strings ({leaf}), which no IPU has: turn them to numbers where the dataset is made"
            )
        if not leaf.shape.is_fully_defined():
            raise ValueError(
                f"the provided set of data contains a shape {leaf.shape} which is not fully defined, and a program for an"
                " IPU has static shapes. Give `batch` the argument `drop_remainder=True`, so that all batches are full; state"
                " the shapes of a generator or `py_function`"
            )


# Predictions of examples that do not fill the last batch, or the last execution.


class Examples:
    """How many of the rows of each batch are examples; the others are padding."""

    def __init__(self, size: int, total: int, rows: tf.lookup.experimental.MutableHashTable | None = None) -> None:
        """Takes the rows of a batch, the examples of all, and where batches in the midst may be partial, what they have."""
        self._size = size
        self._total = total
        self._rows = rows

    def limited(self, batches: int) -> Examples:
        """Returns the examples of the first batches: further ones are padding."""
        return Examples(self._size, min(self._total, batches * self._size), self._rows)

    def without_padding(self, predictions: Nested, first: int, batches: int) -> Nested:
        """Returns the predictions, of `batches` along one axis, that are of examples; None if none is."""
        at = np.arange(first, first + batches, dtype=np.int64)
        counts = np.clip(self._total - self._size * at, 0, self._size)
        if self._rows is not None:
            counts = np.minimum(counts, self._rows.lookup(tf.constant(at)).numpy())
        kept = (np.arange(self._size) < counts[:, None]).reshape(-1)
        if kept.all() or not kept.any():
            return predictions if kept.all() else None

        def cut(part: Any) -> tf.Tensor:
            if not part.shape.rank or part.shape[0] != len(kept):
                raise ValueError(
                    f"a prediction has the shape {part.shape} for {batches} batches of {self._size} examples, so that those"
                    " of the padding cannot be left out: give batches that are full, and fill all executions and replicas"
                )
            return tf.boolean_mask(part, kept)

        return tf.nest.map_structure(cut, predictions)


def rows_of(spec: Nested) -> int | None:
    """Returns the number of rows of a batch of this spec; None if it is unknown or there are none."""
    leaves = [leaf for leaf in tf.nest.flatten(spec) if isinstance(leaf, tf.TensorSpec)]
    return leaves[0].shape[0] if leaves and leaves[0].shape.rank else None


def known_size(dataset: tf.data.Dataset) -> int | None:
    """Returns the rows of the batches that a dataset makes; None if it is unknown. The last batch may be partial."""
    variant = tf.data.experimental.to_variant(dataset)
    size = int(tf.raw_ops.ComputeBatchSize(input_dataset=variant))
    return size if size > 0 else None


def filled(dataset: tf.data.Dataset, size: int) -> tuple[tf.data.Dataset, Examples]:
    """Fills partial batches by repeating their last example."""
    with tf.device("/device:CPU:0"):
        rows = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, default_value=size)

    def fill(number: tf.Tensor, *element: Any) -> Nested:
        given = element[0] if len(element) == 1 else element
        leaves: Sequence[Any] = tf.nest.flatten(given)
        count = next(tf.shape(leaf, tf.int64)[0] for leaf in leaves if tf.is_tensor(leaf))
        with tf.control_dependencies([rows.insert(number, count)]):
            places = tf.minimum(tf.range(size, dtype=tf.int64), count - 1)

        def full(leaf: Any) -> Any:
            if not tf.is_tensor(leaf):
                return leaf
            return tf.ensure_shape(tf.gather(leaf, places), [size, *leaf.shape[1:]])

        return tf.nest.pack_sequence_as(given, [full(leaf) for leaf in leaves])

    return dataset.enumerate().map(fill, name="filled"), Examples(size, tf.int64.max, rows)


def extended(dataset: tf.data.Dataset, batches: int, more: int) -> tf.data.Dataset:
    """Returns the first batches of a dataset, and the last of them `more` times again."""
    spec = dataset.element_spec
    given = tf.nest.flatten(spec)
    empty = tuple(tf.zeros(leaf.shape, leaf.dtype) for leaf in given if isinstance(leaf, tf.TensorSpec))

    def flat(*element: Any) -> tuple[tf.Tensor, ...]:
        return tuple(leaf for leaf in tf.nest.flatten(element) if tf.is_tensor(leaf))

    def step(last: Any, marked: Any) -> tuple[Any, Any]:
        is_real, batch = marked
        chosen = tf.cond(is_real, lambda: batch, lambda: last)
        return chosen, chosen

    def packed(*leaves: tf.Tensor) -> Nested:
        left = iter(leaves)
        return tf.nest.pack_sequence_as(
            spec, [next(left) if isinstance(leaf, tf.TensorSpec) else None for leaf in given]
        )

    real = tf.data.Dataset.zip(tf.data.Dataset.from_tensors(True).repeat(batches), dataset.take(batches).map(flat))
    padding = tf.data.Dataset.from_tensors((False, empty)).repeat(more)
    return real.concatenate(padding).scan(empty, step).map(packed)


# Arrays, in the order in which Keras would take them, with less work for each batch than Keras has.

Specs = tuple[tf.TensorSpec, ...]


def made_by(maker: functions.ConcreteFunction, arguments: Sequence[tf.Tensor], spec: Nested) -> tf.data.Dataset:
    """Returns the dataset whose variant a function returns, which is faster than its operations by themselves."""
    dataset = tf.data.experimental.from_variant(maker(*arguments), spec)
    dataset._ipu_maker = maker  # Its functions live as long.
    return dataset


def as_it_is(variant: tf.Tensor, elements: Specs) -> tf.Tensor:
    """Returns the dataset of a variant, without the optimizations and thread pools that delay its first batch."""
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    options.experimental_optimization.inject_prefetch = False
    options.autotune.enabled = False
    options.threading.private_threadpool_size = 1
    dataset = tf.data.experimental.from_variant(variant, elements)
    return tf.data.experimental.to_variant(dataset.with_options(options))


# What is gathered at once, in bytes and in batches.
_CHUNK_BYTES = 4 << 20
_MOST_BATCHES = 32

_ops = tf.raw_ops


def shuffled_dataset_of(
    arrays: Nested, batches: int, size: int, within_batches: bool, order: int | None = None, goes_on: bool = False
) -> tf.data.Dataset:
    """Makes the dataset. Each pass over it draws its order; one that goes on has the batches of many epochs."""
    parts = tf.nest.flatten(arrays)
    specs = tuple(tf.TensorSpec(part.shape, part.dtype) for part in parts)
    # What is traced keeps the seed of that moment.
    maker = _shuffled_maker(specs, batches, size, within_batches, devices.global_seed(), order is not None, goes_on)
    number = tf.constant(order or 0, tf.int64)
    return made_by(maker, [number, *parts], tf.nest.pack_sequence_as(arrays, _elements(specs, size)))


@functools.lru_cache(maxsize=64)
def _shuffled_maker(
    specs: Specs, batches: int, size: int, within_batches: bool, seed: int | None, ordered: bool, goes_on: bool
) -> functions.ConcreteFunction:
    """A function of an order's number and the arrays that returns the variant; it is traced once, of raw ops, to save time."""
    del seed
    rows_of_all, order_of_row, gather = _functions(specs, batches, size, within_batches, ordered)
    row = tf.TensorSpec([size], tf.int64)
    elements = _elements(specs, size)
    stacked = [_stacked(element) for element in elements]
    nbytes = sum(element.dtype.size * (element.shape.num_elements() or 0) for element in elements)
    at_once = max(1, min(_MOST_BATCHES, _CHUNK_BYTES // max(1, nbytes)))
    number = tf.TensorSpec([], tf.int64)

    def make(order: tf.Tensor, *parts: tf.Tensor) -> tf.Tensor:
        once = _ops.RangeDataset(start=order, stop=order + 1, step=_int64(1), **_like([number]))
        if goes_on:
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
        held = _ops.TensorDataset(components=parts, output_shapes=[spec.shape for spec in specs])
        held = _ops.RepeatDataset(input_dataset=held, count=_int64(-1), **_like(specs))
        both = _ops.ZipDataset(input_datasets=[rows, held], **_like([_stacked(row), *specs]))
        chunks = _map(both, gather, stacked)
        chunks = _ops.PrefetchDataset(input_dataset=chunks, buffer_size=_int64(1), **_like(stacked))
        made = _ops.UnbatchDataset(input_dataset=chunks, **_like(elements))
        return as_it_is(made, tuple(elements))

    return tf.function(make, autograph=False).get_concrete_function(number, *specs)


def _functions(
    specs: Specs, batches: int, size: int, within_batches: bool, ordered: bool
) -> tuple[functions.ConcreteFunction, functions.ConcreteFunction, functions.ConcreteFunction]:
    """What the dataset calls: for the indices of all batches, for the order within one, and for the examples."""

    # Where the numbers are drawn, all is as Keras has it, so that one seed gives one order.
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

    def gather(indices: tf.Tensor, *held: tf.Tensor) -> list[tf.Tensor]:
        return [tf.gather(array, indices) for array in held]

    return (
        _traced(rows_of_all, tf.TensorSpec([], tf.int64)),
        _traced(order_of_row, tf.TensorSpec([size], tf.int64)),
        _traced(gather, tf.TensorSpec([None, size], tf.int64), *specs),
    )


def _traced(function: Callable[..., Nested], *specs: tf.TensorSpec) -> functions.ConcreteFunction:
    # Functions with this attribute are on one device to TensorFlow, which has them ready in a tenth of the time: a pass
    # over a dataset begins with that.
    attributes = {"experimental_ints_on_device": True}
    return tf.function(function, autograph=False, experimental_attributes=attributes).get_concrete_function(*specs)


def _map(dataset: tf.Tensor, function: functions.ConcreteFunction, specs: list[tf.TensorSpec]) -> tf.Tensor:
    function.add_to_graph(tf.compat.v1.get_default_graph())
    options = {"use_inter_op_parallelism": False, "preserve_cardinality": True}
    return _ops.MapDataset(input_dataset=dataset, other_arguments=[], f=function, **options, **_like(specs))


def _like(specs: Iterable[tf.TensorSpec]) -> dict[str, list[tf.DType] | list[tf.TensorShape]]:
    """Returns the arguments that describe elements to ops on datasets."""
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
    maker = _maker(tuple(tf.TensorSpec(part.shape, part.dtype) for part in parts), elements)
    return made_by(maker, parts, tf.nest.pack_sequence_as(batches, elements))


@functools.lru_cache(maxsize=64)
def _maker(specs: Specs, elements: Specs) -> functions.ConcreteFunction:
    """A function of the batches that returns the variant of the dataset."""
    shapes = [element.shape for element in elements]

    def make(*parts: tf.Tensor) -> tf.Tensor:
        made = tf.raw_ops.TensorSliceDataset(components=parts, output_shapes=shapes)
        return as_it_is(made, elements)

    return tf.function(make, autograph=False).get_concrete_function(*specs)


def is_ours_to_shuffle(adapter: internals.ArrayDataAdapter) -> bool:
    """Returns True if the batches are in a random order that is drawn here."""
    return internals.is_shuffled(adapter) is True and all(map(_is_dense, tf.nest.flatten(internals.arrays_of(adapter))))


def dataset_of(adapter: internals.ArrayDataAdapter, order: int | None = None) -> tf.data.Dataset:
    """Returns batches of arrays: views in order, or gathered some at a time if shuffled, in types that an IPU has.

    A partial batch, which only prediction has, is filled by repeating its last example.
    """
    inputs = _with_tuples(internals.arrays_of(adapter))
    shuffled, goes_on = internals.is_shuffled(adapter), internals.goes_on(adapter)
    if not all(map(_is_dense, tf.nest.flatten(inputs))) or (shuffled == "batch" and goes_on):
        return adapter.get_tf_dataset()
    with tf.device("/device:CPU:0"):
        arrays = tf.nest.map_structure(_to_device_type, inputs)
        size = adapter.batch_size
        assert size is not None
        if shuffled:
            goes_on = goes_on and order is None
            return shuffled_dataset_of(arrays, adapter.num_batches, size, shuffled == "batch", order, goes_on)
        missing = adapter.num_batches * size - internals.examples_of(adapter)

        def batches(part: tf.Tensor) -> tf.Tensor:
            full = tf.concat([part, tf.repeat(part[-1:], missing, 0)], 0) if missing else part
            return tf.reshape(full, [adapter.num_batches, size, *part.shape[1:]])

        return ordered_dataset_of(tf.nest.map_structure(batches, arrays))


def _with_tuples(structure: Nested) -> Nested:
    """Returns the structure with tuples in the place of lists, of which a dataset would make tensors."""
    if isinstance(structure, dict):
        return {name: _with_tuples(part) for name, part in structure.items()}
    if type(structure) in (list, tuple):
        return tuple(_with_tuples(part) for part in structure)
    return structure


def _is_dense(array: object) -> bool:
    return isinstance(array, tf.Tensor) or (isinstance(array, np.ndarray) and array.dtype.kind in "biuf")


def _to_device_type(array: tf.Tensor | np.ndarray) -> tf.Tensor:
    """Returns the array as a tensor of a type that an IPU has."""
    wanted = device_dtype(tf.as_dtype(array.dtype))
    if isinstance(array, np.ndarray):
        return tf.constant(array.astype(wanted.as_numpy_dtype, copy=False))
    return tf.cast(array, wanted)


def checked_results(model: keras.Model, results: Nested) -> Nested:
    """Returns the results of a step, or raises an error that names a layer that computes in float64."""
    if any(tensor.dtype == tf.float64 for tensor in tf.nest.flatten(results) if tf.is_tensor(tensor)):
        layers = [one for one in internals.all_layers(model) if one is not model and one.weights]
        named = [f"layer `{one.name}` computes in it" for one in layers if one.compute_dtype == "float64"]
        raise TypeError(
            f"the results of model `{model.name}` are float64, which no IPU has: {[*named, 'its loss does'][0]}. Make the"
            " model after `keras.backend.set_floatx('float32')`, or its layers with `dtype='float32'`"
        )
    return results
