"""How fast the host can deliver a dataset, measured without a program and without Python in the loop."""

from __future__ import annotations

import tensorflow as tf

from tensorflow_ipu._base.checks import check_bool
from tensorflow_ipu._native.library import ops
from tensorflow_ipu._tensorflow import variables
from tensorflow_ipu.feeds import _dataset_arguments
from tensorflow_ipu.feeds.infeed import IPUInfeedQueue
from tensorflow_ipu.replicas import run_interruptibly

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

    All epochs are one pass over the dataset, which needs `number_of_epochs * elements_per_epochs` elements; `repeat()`
    makes any dataset long enough.
    The first epoch includes what the dataset does once, filling its buffers for one.

    The original returns an exception object where an argument is bad; this raises it.

    Args:
      dataset: The dataset. Its elements are dense tensors of numbers, of any shape.
      number_of_epochs: How many measurements are taken, 1 or more.
      elements_per_epochs: The elements of each, 1 or more.
      print_stats: Whether each measurement is also written to standard error, as a row of a table.
      apply_debug_options: Whether TensorFlow's debug mode for datasets applies, if it is switched on.
      do_memcpy: Whether each element is copied to a buffer, as it is on the way to a program.

    Returns:
      A string tensor of shape [1], a JSON object: `epochs` is a list with, for each measurement, `elements_processed`,
      `total_bytes_processed`, `time_elapsed` in seconds, `elements_per_second`, and `bandwidth` in GB (1e9 bytes) a
      second. In a graph, each run of the tensor measures anew.

    Raises:
      TypeError: An argument has a wrong type, or the dataset has elements that are no dense tensors of numbers.
      ValueError: `number_of_epochs` or `elements_per_epochs` is below 1.
      tf.errors.OutOfRangeError: The dataset ended too early; its own errors come as they are.
      KeyboardInterrupt: Ctrl-C was pressed; the measurement ends with the next element.
    """
    _dataset_arguments.check_dataset("dataset", dataset)
    check_bool("apply_debug_options", apply_debug_options)
    _dataset_arguments.check_elements(dataset)
    if apply_debug_options:
        dataset = variables.as_run(dataset)
    return _measure(
        dataset=dataset,
        types=[],
        shapes=[],
        queue_depth=0,
        number_of_epochs=number_of_epochs,
        elements_per_epochs=elements_per_epochs,
        print_stats=print_stats,
        do_memcpy=do_memcpy,
    )


def infeed_benchmark(
    infeed_queue: IPUInfeedQueue,
    number_of_epochs: int,
    elements_per_epochs: int,
    print_stats: bool = True,
    do_memcpy: bool = True,
) -> tf.Tensor:
    """Measures how fast an infeed queue can feed a program of one replica.

    The measurement makes a pass of its own over the queue's dataset, with a queue and a reading thread of its own, of
    the same `prefetch_depth`. So `infeed_queue` need not be initialized, its position stays where it is, and a program
    that uses it meanwhile gets every element; only the two share the host's processors.

    The original returns an exception object where an argument is bad; this raises it.

    Args:
      infeed_queue: The queue.
      number_of_epochs: How many measurements are taken, 1 or more.
      elements_per_epochs: The elements of each, 1 or more.
      print_stats: Whether each measurement is also written to standard error, as a row of a table.
      do_memcpy: Whether each element is copied to a buffer, as it is on the way to a program.

    Returns:
      The same as `dataset_benchmark`.

    Raises:
      TypeError: An argument has a wrong type.
      ValueError: `number_of_epochs` or `elements_per_epochs` is below 1, or the queue is an argument of a program that
        is being traced.
      tf.errors.FailedPreconditionError: The dataset has a dtype that an IPU does not take.
      tf.errors.OutOfRangeError: The dataset ended too early; its own errors come as they are.
      KeyboardInterrupt: Ctrl-C was pressed.
    """
    dataset = _dataset_arguments.dataset_of("infeed_queue", infeed_queue)
    element = infeed_queue._element
    element.check_types()
    return _measure(
        dataset=dataset,
        types=element.types,
        shapes=element.shapes,
        queue_depth=infeed_queue.prefetch_depth,
        number_of_epochs=number_of_epochs,
        elements_per_epochs=elements_per_epochs,
        print_stats=print_stats,
        do_memcpy=do_memcpy,
    )


def _measure(
    *,
    dataset: tf.data.Dataset,
    types: list[tf.DType],
    shapes: list[tf.TensorShape],
    queue_depth: int | None,
    number_of_epochs: int,
    elements_per_epochs: int,
    print_stats: bool,
    do_memcpy: bool,
) -> tf.Tensor:
    _dataset_arguments.check_count("number_of_epochs", number_of_epochs)
    _dataset_arguments.check_count("elements_per_epochs", elements_per_epochs)
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
