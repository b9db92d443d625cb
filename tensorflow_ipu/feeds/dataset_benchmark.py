"""Measures how fast the host can deliver a dataset."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensorflow_ipu._base.checks import as_int, check_bool, is_int
from tensorflow_ipu._base.types import Nested
from tensorflow_ipu._native.library import ops
from tensorflow_ipu._tensorflow import variables
from tensorflow_ipu.feeds.infeed import IPUInfeedQueue
from tensorflow_ipu.replicas import run_interruptibly


def check_dataset(argument: str, value: object) -> None:
    """Refuses what is no dataset."""
    if not isinstance(value, tf.data.Dataset):
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
    """A dataset whose elements come in groups of `buffer_size`; an incomplete group at its end is dropped.

    A group is complete before its first element is handed out: a program that takes `buffer_size` elements finds all or none.
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
        check_dataset("input_dataset", input_dataset)
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


_HOST = "/device:CPU:0"


def dataset_benchmark(
    dataset: tf.data.Dataset,
    number_of_epochs: int,
    elements_per_epochs: int,
    print_stats: bool = True,
    apply_debug_options: bool = True,
    do_memcpy: bool = True,
) -> tf.Tensor:
    """Measures how fast a dataset can be read.

        report = dataset_benchmark(dataset, 10, 512)
        json.loads(report.numpy()[0])  # in a graph: json.loads(session.run(report)[0])

    All epochs are one pass over the dataset, which needs `number_of_epochs * elements_per_epochs` elements. The first
    epoch includes what the dataset does once, such as filling its buffers.

    Args:
      dataset: The dataset. Its elements are dense tensors of numbers, of any shape.
      number_of_epochs: How many measurements are taken, 1 or more.
      elements_per_epochs: The elements of each, 1 or more.
      print_stats: Whether each measurement is also written to standard error, as a row of a table.
      apply_debug_options: Whether TensorFlow's debug mode for datasets applies, if it is switched on.
      do_memcpy: Whether each element is copied to a buffer, as on the way to a program.

    Returns:
      A string tensor of shape [1], a JSON object: `epochs` lists for each measurement `elements_processed`,
      `total_bytes_processed`, `time_elapsed` in seconds, `elements_per_second`, and `bandwidth` in GB (1e9 bytes) a
      second. In a graph, each run of the tensor measures anew.

    Raises:
      TypeError: An argument has a wrong type, or elements are no dense tensors of numbers.
      ValueError: `number_of_epochs` or `elements_per_epochs` is below 1.
      tf.errors.OutOfRangeError: The dataset ended too early; its own errors come as they are.
      KeyboardInterrupt: Ctrl-C was pressed; the measurement ends with the next element.
    """
    check_dataset("dataset", dataset)
    check_bool("apply_debug_options", apply_debug_options)
    check_elements(dataset)
    if apply_debug_options:
        dataset = variables.as_run(dataset)
    return _measure(dataset, [], [], 0, number_of_epochs, elements_per_epochs, print_stats, do_memcpy)


def infeed_benchmark(
    infeed_queue: IPUInfeedQueue,
    number_of_epochs: int,
    elements_per_epochs: int,
    print_stats: bool = True,
    do_memcpy: bool = True,
) -> tf.Tensor:
    """Measures how fast an infeed queue can feed a program of one replica.

    It reads the queue's dataset anew, by a queue of its own with the same `prefetch_depth`: `infeed_queue` need not be
    initialized, and keeps its position. Other arguments, the result and errors are those of `dataset_benchmark`.

    Raises:
      ValueError: The queue is a traced argument.
      tf.errors.FailedPreconditionError: The dataset has a dtype that an IPU does not take.
    """
    dataset = dataset_of("infeed_queue", infeed_queue)
    infeed_queue._element.check_types()
    types, shapes = infeed_queue._element.types, infeed_queue._element.shapes
    depth = infeed_queue.prefetch_depth
    return _measure(dataset, types, shapes, depth, number_of_epochs, elements_per_epochs, print_stats, do_memcpy)


def _measure(
    dataset: tf.data.Dataset,
    types: list[tf.DType],
    shapes: list[tf.TensorShape],
    queue_depth: int | None,
    number_of_epochs: int,
    elements_per_epochs: int,
    print_stats: bool,
    do_memcpy: bool,
) -> tf.Tensor:
    check_count("number_of_epochs", number_of_epochs)
    check_count("elements_per_epochs", elements_per_epochs)
    check_bool("print_stats", print_stats)
    check_bool("do_memcpy", do_memcpy)

    def measure() -> tf.Tensor:
        with tf.device(_HOST):
            return ops.ipu_dataset_benchmark(
                tf.data.experimental.to_variant(dataset),
                tf.constant(number_of_epochs, tf.int64),
                tf.constant(elements_per_epochs, tf.int64),
                types=types,
                shapes=shapes,
                queue_depth=queue_depth,
                copy=do_memcpy,
                print_stats=print_stats,
            )

    return run_interruptibly(measure) if tf.executing_eagerly() else measure()
