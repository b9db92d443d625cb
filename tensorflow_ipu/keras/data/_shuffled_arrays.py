"""Arrays as a dataset of batches in random order: the order that Keras's own dataset has for the same seed."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu._tensorflow import devices
from tensorflow_ipu.keras.data import _traced_datasets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tensorflow_ipu._tensorflow import functions
    from tensorflow_ipu._types import Nested

# What is gathered at once, in bytes and in batches.
_CHUNK_BYTES = 4 << 20
_MOST_BATCHES = 32

_ops = tf.raw_ops


def dataset_of(
    arrays: Nested, batches: int, size: int, within_batches: bool, order: int | None = None
) -> tf.data.Dataset:
    """Makes the dataset. Each pass over it draws its order.

    Args:
      arrays: A structure of tensors, of `batches * size` examples each.
      batches: How many batches there are.
      size: How many examples a batch has.
      within_batches: Whether each batch keeps its examples, and these alone change places.
      order: A number that says the order of all batches, in each pass and process the same; None for one that is drawn.
    """
    parts = tf.nest.flatten(arrays)
    specs = tuple(tf.TensorSpec(part.shape, part.dtype) for part in parts)
    # What is traced keeps the seed of that moment.
    maker = _maker(specs, batches, size, within_batches, devices.global_seed(), order is not None)
    number = tf.constant(order or 0, tf.int64)
    return _traced_datasets.made_by(maker, [number, *parts], tf.nest.pack_sequence_as(arrays, _elements(specs, size)))


@functools.lru_cache(maxsize=64)
def _maker(
    specs: _traced_datasets.Specs, batches: int, size: int, within_batches: bool, seed: int | None, ordered: bool
) -> functions.ConcreteFunction:
    """A function of the number of an order and the arrays that returns the variant of the dataset.

    The methods of `tf.data.Dataset` trace their functions at each call, which takes a hundred times as long as all else
    here. So this is traced once, of the ops that they come down to.
    """
    del seed
    rows_of_all, order_of_row, gather = _functions(specs, batches, size, within_batches, ordered)
    row = tf.TensorSpec([size], tf.int64)
    elements = _elements(specs, size)
    stacked = [_stacked(element) for element in elements]

    number = tf.TensorSpec([], tf.int64)

    def make(order: tf.Tensor, *parts: tf.Tensor) -> tf.Tensor:
        once = _ops.RangeDataset(start=order, stop=order + 1, step=_int64(1), **_like([number]))
        rows = _ops.UnbatchDataset(input_dataset=_map(once, rows_of_all, [_stacked(row, batches)]), **_like([row]))
        if within_batches:
            rows = _map(rows, order_of_row, [row])
        rows = _ops.BatchDatasetV2(
            input_dataset=rows,
            batch_size=_int64(_batches_at_once(elements)),
            drop_remainder=tf.constant(False),
            **_like([_stacked(row)]),
        )
        held = _ops.TensorDataset(components=parts, output_shapes=[spec.shape for spec in specs])
        held = _ops.RepeatDataset(input_dataset=held, count=_int64(-1), **_like(specs))
        both = _ops.ZipDataset(input_datasets=[rows, held], **_like([_stacked(row), *specs]))
        chunks = _map(both, gather, stacked)
        chunks = _ops.PrefetchDataset(input_dataset=chunks, buffer_size=_int64(1), **_like(stacked))
        made = _ops.UnbatchDataset(input_dataset=chunks, **_like(elements))
        return _traced_datasets.as_it_is(made, tuple(elements))

    return tf.function(make, autograph=False).get_concrete_function(number, *specs)


def _functions(
    specs: _traced_datasets.Specs, batches: int, size: int, within_batches: bool, ordered: bool
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
    """The arguments by which ops on datasets are told of elements."""
    return {"output_types": [spec.dtype for spec in specs], "output_shapes": [spec.shape for spec in specs]}


def _int64(number: int) -> tf.Tensor:
    return tf.constant(number, tf.int64)


def _elements(specs: _traced_datasets.Specs, size: int) -> list[tf.TensorSpec]:
    return [tf.TensorSpec([size, *spec.shape[1:]], spec.dtype) for spec in specs]


def _stacked(spec: tf.TensorSpec, count: int | None = None) -> tf.TensorSpec:
    return tf.TensorSpec([count, *spec.shape], spec.dtype)


def _batches_at_once(elements: list[tf.TensorSpec]) -> int:
    nbytes = sum(element.dtype.size * (element.shape.num_elements() or 0) for element in elements)
    return max(1, min(_MOST_BATCHES, _CHUNK_BYTES // max(1, nbytes)))
