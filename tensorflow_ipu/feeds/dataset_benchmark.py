"""Measures how fast the host reads a dataset; checks datasets for exports."""

from __future__ import annotations

import itertools
import json
import sys
import time
from typing import Any

import tensorflow as tf

from tensorflow_ipu._base.checks import as_int, check_bool, check_instance, check_int
from tensorflow_ipu._base.types import Nested
from tensorflow_ipu._tensorflow import variables
from tensorflow_ipu.feeds.infeed import IPUInfeedQueue


def check_dataset(argument: str, value: object) -> None:
    check_instance(argument, value, tf.data.Dataset, "a `tf.data.Dataset`")


def check_count(argument: str, value: object) -> None:
    """Raises an error unless `value` is an integer from 1 to the largest int64."""
    count = as_int(value)
    if count is None:
        raise TypeError(f"`{argument}` must be an int, but is {value!r}")
    if count < 1:
        raise ValueError(f"`{argument}` must be at least 1, but is {value}")
    if count > tf.int64.max:
        raise ValueError(f"`{argument}` must be at most {tf.int64.max}, but is {value}")


def check_elements(dataset: tf.data.Dataset) -> None:
    """Raises `TypeError` if the elements of a dataset are not dense numeric tensors."""
    specs = tf.nest.flatten(dataset.element_spec)
    unsupported = [
        str(spec)
        for spec in specs
        if not isinstance(spec, tf.TensorSpec) or spec.dtype in (tf.string, tf.resource, tf.variant)
    ]
    if unsupported:
        raise TypeError(
            f"`dataset` must have elements of dense tensors of numbers, but its elements hold {', '.join(unsupported)}."
            " Map the dataset to convert or remove them"
        )


def check_sizes(dataset: tf.data.Dataset) -> None:
    """Raises `tf.errors.InvalidArgumentError` for a dataset with empty tensors, which feeds do not support."""
    specs = tf.nest.flatten(dataset.element_spec)
    empty = [str(spec) for spec in specs if 0 in (spec.shape.as_list() if spec.shape.rank is not None else [])]
    if empty:
        raise tf.errors.InvalidArgumentError(
            None,
            None,
            f"`dataset` has elements with a dimension of size 0: {', '.join(empty)}. A feed cannot carry them: remove"
            " them from the dataset's elements",
        )


def dataset_of(argument: str, infeed_queue: object) -> tf.data.Dataset:
    check_instance(argument, infeed_queue, IPUInfeedQueue, "an `IPUInfeedQueue`")
    assert isinstance(infeed_queue, IPUInfeedQueue)
    if infeed_queue._dataset is None:
        raise ValueError(
            f"`{argument}` is an argument of a program that is being traced. It may be any queue, so it has no dataset:"
            " call this with the queue itself, outside of the program"
        )
    return infeed_queue._dataset


class BufferDataset(tf.data.Dataset):
    """A dataset that reads its elements in groups of `buffer_size`, and drops an incomplete group at its end.

    Each group is complete before its first element is returned. So a program that takes `buffer_size` elements gets all
    of them or none.
    """

    def __init__(self, input_dataset: tf.data.Dataset, buffer_size: int) -> None:
        """Creates the dataset.

        Args:
          input_dataset: The dataset with the elements.
          buffer_size: The number of elements in a group, 1 or more.

        Raises:
          TypeError: `input_dataset` is not a `tf.data.Dataset`, or `buffer_size` is not an int.
          ValueError: `buffer_size` is below 1.
        """
        check_dataset("input_dataset", input_dataset)
        check_int("buffer_size", buffer_size, 1)
        self._input_dataset = input_dataset
        windows = input_dataset.window(buffer_size, drop_remainder=True)
        # `flat_map` passes the parts of a tuple as separate arguments.
        is_tuple = isinstance(input_dataset.element_spec, tuple)
        self._groups = windows.flat_map(lambda *parts: tf.data.Dataset.zip(parts if is_tuple else parts[0]))
        super().__init__(tf.data.experimental.to_variant(self._groups))  # pyright: ignore[reportCallIssue]  # The stub has no arguments.

    def _inputs(self) -> list[tf.data.Dataset]:
        return [self._groups]

    @property
    def element_spec(self) -> Nested:
        """The structure of an element, with a `tf.TensorSpec` for each tensor."""
        spec: Any = self._input_dataset.element_spec
        return spec


def dataset_benchmark(
    dataset: tf.data.Dataset,
    number_of_epochs: int,
    elements_per_epochs: int,
    print_stats: bool = True,
    apply_debug_options: bool = True,
    do_memcpy: bool = True,
) -> tf.Tensor:
    """Measures how fast Python reads a dataset.

        report = dataset_benchmark(dataset, 10, 512)
        json.loads(report.numpy()[0])  # in a graph: json.loads(session.run(report)[0])

    All epochs together are one pass over the dataset, which needs `number_of_epochs * elements_per_epochs` elements.
    The first epoch includes work that the dataset does once, such as filling its buffers.

    Args:
      dataset: The dataset. Its elements are dense numeric tensors of any shape.
      number_of_epochs: The number of measurements, 1 or more.
      elements_per_epochs: The number of elements in each measurement, 1 or more.
      print_stats: Whether each measurement is also written to standard error, as a row of a table.
      apply_debug_options: Whether TensorFlow's debug mode for datasets applies, if it is enabled.
      do_memcpy: Whether each element is copied, as it would be for a program.

    Returns:
      A string tensor of shape [1] with a JSON object. Its `epochs` lists `elements_processed`, `total_bytes_processed`,
      `time_elapsed` in seconds, `elements_per_second`, and `bandwidth` in GB (1e9 bytes) per second for each
      measurement. In a graph, each run of the tensor measures again.

    Raises:
      TypeError: An argument has a wrong type, or elements are not dense numeric tensors.
      ValueError: `number_of_epochs` or `elements_per_epochs` is below 1.
      tf.errors.OutOfRangeError: The dataset has too few elements.
      tf.errors.OpError: The dataset failed.
      KeyboardInterrupt: Ctrl-C was pressed. Outside of graphs, the measurement ends with the next element.
    """
    check_dataset("dataset", dataset)
    check_bool("apply_debug_options", apply_debug_options)
    check_elements(dataset)
    if apply_debug_options:
        dataset = variables.as_run(dataset)
    return _measure(dataset, number_of_epochs, elements_per_epochs, print_stats, do_memcpy)


def infeed_benchmark(
    infeed_queue: IPUInfeedQueue,
    number_of_epochs: int,
    elements_per_epochs: int,
    print_stats: bool = True,
    do_memcpy: bool = True,
) -> tf.Tensor:
    """Measures how fast Python reads the dataset of an infeed queue.

    The dataset is read from its first element. `infeed_queue` need not be initialized, and keeps its position. The
    other arguments, the result and the errors are those of `dataset_benchmark`.

    Raises:
      ValueError: The queue is an argument of a program being traced.
      tf.errors.FailedPreconditionError: The dataset has a dtype that an IPU does not support.
      tf.errors.InvalidArgumentError: The dataset's tensors have a dimension of size 0.
    """
    dataset = dataset_of("infeed_queue", infeed_queue)
    infeed_queue._element.check_types()
    check_sizes(dataset)
    return _measure(dataset, number_of_epochs, elements_per_epochs, print_stats, do_memcpy)


def _measure(
    dataset: tf.data.Dataset, number_of_epochs: int, elements_per_epochs: int, print_stats: bool, do_memcpy: bool
) -> tf.Tensor:
    check_count("number_of_epochs", number_of_epochs)
    check_count("elements_per_epochs", elements_per_epochs)
    check_bool("print_stats", print_stats)
    check_bool("do_memcpy", do_memcpy)

    def row(epoch: int, size: int, seconds: float) -> str:
        seconds = max(1e-9, float(seconds))  # The speed stays finite if the clock has not advanced.
        speed, bandwidth = elements_per_epochs / seconds, int(size) / seconds * 1e-9
        if print_stats:
            if epoch == 0:
                sys.stderr.write("epoch     elements           bytes     seconds   elements/s       GB/s\n")
            columns = f"{seconds:11.6f} {speed:12.1f} {bandwidth:10.4f}"
            sys.stderr.write(f"{epoch + 1:5} {elements_per_epochs:12} {size:15} {columns}\n")
        measured = {
            "elements_processed": elements_per_epochs,
            "total_bytes_processed": int(size),
            "time_elapsed": seconds,
            "elements_per_second": speed,
            "bandwidth": bandwidth,
        }
        return json.dumps(measured)

    def rows() -> list[str]:
        iterator = variables.OwnedIterator(dataset)
        texts = []
        for epoch in range(number_of_epochs):
            count = size = 0
            start = time.perf_counter()
            for element in itertools.islice(iterator, elements_per_epochs):
                count += 1
                for tensor in tf.nest.flatten(element):
                    size += tensor.numpy().nbytes if do_memcpy else tensor.shape.num_elements() * tensor.dtype.size
            seconds = time.perf_counter() - start
            if count < elements_per_epochs:
                raise tf.errors.OutOfRangeError(
                    None,
                    None,
                    f"The dataset ended after {epoch * elements_per_epochs + count} elements, and the benchmark needs"
                    f" {number_of_epochs * elements_per_epochs}: {number_of_epochs} epochs (`number_of_epochs`) of"
                    f" {elements_per_epochs} elements (`elements_per_epochs`). `repeat()` the dataset, or ask for fewer.",
                )
            texts.append(row(epoch, size, seconds))
        return texts

    @tf.function(autograph=False)
    def rows_in_graph() -> tf.Tensor:
        iterator = variables.OwnedIterator(dataset)

        def element(count: tf.Tensor, size: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            tensors = tf.nest.flatten(iterator.get_next())
            if do_memcpy:
                tensors = [tf.raw_ops.DeepCopy(x=tensor) for tensor in tensors]
            sizes = [tf.size(tensor, tf.int64) * tensor.dtype.size for tensor in tensors]
            return count + 1, tf.add_n([size, *sizes])

        def epoch(number: tf.Tensor) -> tf.Tensor:
            start = tf.timestamp()
            with tf.control_dependencies([start]):
                zero = tf.zeros([], tf.int64)
            _, size = tf.while_loop(lambda count, _: count < elements_per_epochs, element, [zero, zero])
            with tf.control_dependencies([size]):
                seconds = tf.timestamp() - start
            return tf.numpy_function(row, [number, size, seconds], tf.string)

        return tf.map_fn(epoch, tf.range(number_of_epochs), parallel_iterations=1, fn_output_signature=tf.string)

    with tf.device("/device:CPU:0"):
        texts = rows() if tf.executing_eagerly() else rows_in_graph()
        report = tf.strings.join(['{"epochs": [', tf.strings.reduce_join([texts], 1, separator=", "), "]}"])
        return tf.ensure_shape(report, [1])
