"""Checks that the tools for datasets share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._base.checks import as_int, is_int
from tensorflow_ipu.feeds.infeed import IPUInfeedQueue

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Nested


def check_dataset(argument: str, value: object) -> None:
    """Refuses what is no dataset."""
    if not isinstance(value, (tf.data.Dataset, tf.compat.v1.data.Dataset)):
        raise TypeError(f"`{argument}` must be a `tf.data.Dataset`, but is {value!r}")


def check_count(argument: str, value: object) -> None:
    """Refuses what is no whole number above 0 that TensorFlow can hold."""
    count = as_int(value)
    if count is None:
        raise TypeError(f"`{argument}` must be an int, but is {value!r}")
    if count < 1:
        raise ValueError(f"`{argument}` must be at least 1, but is {value}")
    if count > tf.int64.max:
        raise ValueError(f"`{argument}` must be at most {tf.int64.max}, but is {value}")


def check_elements(dataset: tf.data.Dataset) -> None:
    """Refuses a dataset whose elements are not dense tensors of numbers."""
    specs = tf.nest.flatten(dataset.element_spec)
    others = [
        str(spec)
        for spec in specs
        if not isinstance(spec, tf.TensorSpec) or spec.dtype in (tf.string, tf.resource, tf.variant)
    ]
    if others:
        raise TypeError(
            f"`dataset` must have elements of dense tensors of numbers, but its elements hold {', '.join(others)}. Map"
            " the dataset to convert them or leave them out"
        )


def check_sizes(dataset: tf.data.Dataset) -> None:
    """Refuses a dataset whose elements no feed could carry, since they hold nothing."""
    specs = tf.nest.flatten(dataset.element_spec)
    empty = [str(spec) for spec in specs if 0 in (spec.shape.as_list() if spec.shape.rank is not None else [])]
    if empty:
        raise tf.errors.InvalidArgumentError(
            None,
            None,
            f"`dataset` has elements with a dimension of size 0: {', '.join(empty)}. A feed cannot carry them: leave"
            " them out of the dataset's elements",
        )


def dataset_of(argument: str, infeed_queue: object) -> tf.data.Dataset:
    """The dataset of an infeed queue."""
    if not isinstance(infeed_queue, IPUInfeedQueue):
        raise TypeError(f"`{argument}` must be an `IPUInfeedQueue`, but is {infeed_queue!r}")
    if infeed_queue._dataset is None:
        raise ValueError(
            f"`{argument}` is an argument of a program that is being traced, which stands for any queue and has no"
            " dataset: call this with the queue itself, outside of the program"
        )
    return infeed_queue._dataset


class BufferDataset(tf.data.Dataset):
    """A dataset with as many elements as are a multiple of `buffer_size`: what is left of the last ones is dropped.

    It has so many elements at hand before it hands out the first of them, so a program that takes `buffer_size` elements a
    run finds all of them, or none.
    """

    def __init__(self, input_dataset: tf.data.Dataset, buffer_size: int) -> None:
        """Makes the dataset.

        Args:
          input_dataset: The dataset with the elements.
          buffer_size: How many elements belong together, 1 or more.

        Raises:
          TypeError: `input_dataset` is no `tf.data.Dataset`, or `buffer_size` no int.
          ValueError: `buffer_size` is below 1.
        """
        if not isinstance(input_dataset, tf.data.Dataset):
            raise TypeError(f"`input_dataset` must be a `tf.data.Dataset`, but is {input_dataset!r}")
        if not is_int(buffer_size):
            raise TypeError(f"`buffer_size` must be an int, but is {buffer_size!r}")
        if buffer_size < 1:
            raise ValueError(f"`buffer_size={buffer_size}` must be 1 or more")
        self._input_dataset = input_dataset
        windows = input_dataset.window(buffer_size, drop_remainder=True)
        # Of elements that are tuples, a window is handed over as one argument for each of their parts.
        is_tuple = isinstance(input_dataset.element_spec, tuple)
        self._whole = windows.flat_map(lambda *parts: tf.data.Dataset.zip(parts if is_tuple else parts[0]))
        super().__init__(tf.data.experimental.to_variant(self._whole))  # pyright: ignore[reportCallIssue]  # Its stub has none.

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._whole]

    @property
    def element_spec(self) -> Nested:
        """What the elements are, as specs."""
        spec: Any = self._input_dataset.element_spec
        return spec
