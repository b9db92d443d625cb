"""How runs end that get no more data: which error they raise, in time, and what stays readable."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import feeds
from tensorflow_ipu._native.library import native

Dataset = tf.data.Dataset
SCALAR = tf.TensorSpec([], tf.int32)


def error_of(call: Any) -> Exception:
    """The exception that a call raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  (The caller looks at it.)
        call()
    return caught.value


def elements(outfeed: Any) -> list[int]:
    return outfeed.dequeue().numpy().tolist()


def test_exhausted_dataset_raises_out_of_range_and_keeps_what_was_enqueued(
    numbers: Any, infeed_of: Any, echo: Any
) -> None:
    infeed, outfeed = infeed_of(numbers(7)), ipu.IPUOutfeedQueue()
    echo(infeed, outfeed, 2)
    with pytest.raises(tf.errors.OutOfRangeError, match=r"ended after 7 elements.*`repeat\(\)` the dataset"):
        echo(infeed, outfeed, 100)
    assert elements(outfeed) == list(range(7))


def test_exhausted_queue_stays_exhausted_until_it_is_restarted(numbers: Any, infeed_of: Any, echo: Any) -> None:
    infeed, outfeed = infeed_of(numbers(3)), ipu.IPUOutfeedQueue()
    echo(infeed, outfeed, 3)
    for _ in range(2):
        with pytest.raises(tf.errors.OutOfRangeError):
            echo(infeed, outfeed, 1)
    infeed.initializer  # noqa: B018
    echo(infeed, outfeed, 3)
    assert elements(outfeed) == [0, 1, 2, 0, 1, 2]


def test_empty_dataset_raises_out_of_range(numbers: Any, infeed_of: Any, take_one: Any) -> None:
    with pytest.raises(tf.errors.OutOfRangeError, match="ended after 0 elements"):
        take_one(infeed_of(numbers(0)))


def test_end_in_the_middle_of_a_body_keeps_the_whole_iterations(numbers: Any, infeed_of: Any, strategy: Any) -> None:
    infeed, outfeed = infeed_of(numbers(5)), ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program() -> None:
        for _ in tf.range(10):
            x = infeed._dequeue()
            outfeed.enqueue((x, infeed._dequeue()))

    with pytest.raises(tf.errors.OutOfRangeError):
        strategy.run(program)
    assert [leaf.numpy().tolist() for leaf in outfeed.dequeue()] == [[0, 2], [1, 3]]


def test_variables_keep_their_values_where_a_run_fails(numbers: Any, infeed_of: Any, strategy: Any) -> None:
    infeed = infeed_of(numbers(3))
    with strategy.scope():
        variable = tf.Variable(10)

    @tf.function(jit_compile=True)
    def program(n: Any) -> None:
        for _ in tf.range(n):
            variable.assign_add(infeed._dequeue())

    with pytest.raises(tf.errors.OutOfRangeError):
        strategy.run(program, (tf.constant(9),))
    assert int(variable) == 10


def _failing_map(x: Any) -> Any:
    with tf.control_dependencies([tf.debugging.assert_less(x, 3, message="three is right out")]):
        return tf.identity(x)


def _raising(error: Exception) -> Any:
    def raise_at_three(x: Any) -> Any:
        if x == 3:
            raise error
        return x

    def function(x: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(raise_at_three, [x], tf.int32), [])

    return function


def _failing_generator() -> Any:
    yield from range(3)
    raise RuntimeError("the generator broke")


def _missing_file(x: Any) -> Any:
    return tf.cond(x < 3, lambda: x, lambda: tf.strings.length(tf.io.read_file("/nowhere/at/all")))


FAILING = {
    "assertion": lambda dataset: dataset.map(_failing_map),
    "missing file": lambda dataset: dataset.map(_missing_file),
    "value error": lambda dataset: dataset.map(_raising(ValueError("a bad value"))),
    "key error": lambda dataset: dataset.map(_raising(KeyError("no such key"))),
    "memory error": lambda dataset: dataset.map(_raising(MemoryError("too much"))),
    "not implemented": lambda dataset: dataset.map(_raising(NotImplementedError("not yet"))),
    "tensorflow error": lambda dataset: dataset.map(_raising(tf.errors.DataLossError(None, None, "lost it"))),
    "generator": lambda dataset: Dataset.from_generator(_failing_generator, output_signature=SCALAR),
    "parallel map": lambda dataset: dataset.map(_failing_map, num_parallel_calls=2).prefetch(2),
}


@pytest.mark.parametrize("fail", FAILING.values(), ids=FAILING)
def test_failing_dataset_raises_the_error_that_it_raises_on_the_host(
    fail: Any, numbers: Any, infeed_of: Any, echo: Any
) -> None:
    dataset = fail(numbers(10))
    on_host = error_of(lambda: list(dataset))
    outfeed = ipu.IPUOutfeedQueue()
    on_ipu = error_of(lambda: echo(infeed_of(dataset), outfeed, 10))
    assert type(on_ipu) is type(on_host)
    said = [line for line in str(on_host).splitlines() if line.strip() and "Traceback" not in line]
    gist = said[0].rpartition("Iterator::")[2].partition(": ")[2] or said[0]
    assert gist.strip() in str(on_ipu)
    assert elements(outfeed) == [0, 1, 2]


def test_failed_queue_raises_its_error_again(numbers: Any, infeed_of: Any, echo: Any, take_one: Any) -> None:
    infeed, outfeed = infeed_of(numbers(10).map(_failing_map)), ipu.IPUOutfeedQueue()
    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError, match="three is right out"):
            echo(infeed, outfeed, 10)
    infeed.initializer  # noqa: B018
    assert int(take_one(infeed)) == 0


@pytest.mark.parametrize("size", [0, 1, 3, 4], ids="size {}".format)
def test_element_that_is_not_of_the_datasets_spec_ends_the_run(size: int, infeed_of: Any, echo: Any) -> None:
    def lie(i: Any) -> Any:
        row = tf.numpy_function(lambda i: np.zeros(size if i == 2 else 2, np.float32), [i], tf.float32)
        row.set_shape([2])
        return row

    infeed, outfeed = infeed_of(Dataset.range(10).map(lie)), ipu.IPUOutfeedQueue()
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"yielded a tensor of shape \[{size}\].*has shape \[2\]"):
        echo(infeed, outfeed, 10)
    assert outfeed.dequeue().shape == (2, 2)


def test_element_of_the_same_size_and_another_shape_ends_the_run(infeed_of: Any, echo: Any) -> None:
    def lie(i: Any) -> Any:
        row = tf.numpy_function(lambda i: np.zeros((3, 2), np.float32), [i], tf.float32)
        row.set_shape([2, 3])
        return row

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"shape \[3,2\] and type float.*has shape \[2,3\]"):
        echo(infeed_of(Dataset.range(10).map(lie)), ipu.IPUOutfeedQueue(), 1)


def test_deleting_the_queue_ends_a_run_that_waits(
    tap: Any, infeed_of: Any, echo: Any, start: Any, until_waiting: Any
) -> None:
    infeed, outfeed = infeed_of(tap.dataset), ipu.IPUOutfeedQueue()
    tap.put(1, 2, 3)
    run = start(lambda: echo(infeed, outfeed, 10))
    until_waiting(infeed, outfeed, 3)
    infeed.deleter  # noqa: B018
    with pytest.raises(tf.errors.CancelledError, match="was deleted or restarted while a program used it"):
        run.result(60)
    assert elements(outfeed) == [1, 2, 3]


def test_restarting_the_queue_ends_a_run_that_waits(
    tap: Any, infeed_of: Any, echo: Any, start: Any, until_waiting: Any
) -> None:
    infeed, outfeed = infeed_of(tap.dataset), ipu.IPUOutfeedQueue()
    run = start(lambda: echo(infeed, outfeed, 10))
    until_waiting(infeed)
    infeed.initializer  # noqa: B018
    with pytest.raises(tf.errors.CancelledError, match="was deleted or restarted while a program used it"):
        run.result(60)
    tap.put(*range(100))  # Whatever the old pass still takes, the new one gets the rest.
    echo(infeed, outfeed, 10)
    assert len(elements(outfeed)) == 10


def test_deleting_the_queue_waits_for_the_element_that_is_being_read_or_for_a_second(infeed_of: Any) -> None:
    entered, released, left = (threading.Event() for _ in range(3))

    def generate() -> Any:
        entered.set()
        assert released.wait(60)
        left.set()
        yield 1

    infeed = infeed_of(Dataset.from_generator(generate, output_signature=SCALAR))
    assert entered.wait(60)
    threading.Timer(0.1, released.set).start()
    begin = time.monotonic()
    infeed.deleter  # noqa: B018
    assert left.is_set() or time.monotonic() - begin >= 1.0


def test_deleting_the_queue_does_not_wait_for_long_for_python_code_of_its_dataset(
    infeed_of: Any, echo: Any, start: Any, until_waiting: Any
) -> None:
    released = threading.Event()

    def generate() -> Any:
        yield 1
        released.wait(60)
        yield 2

    infeed = infeed_of(Dataset.from_generator(generate, output_signature=SCALAR))
    outfeed = ipu.IPUOutfeedQueue()
    run = start(lambda: echo(infeed, outfeed, 2))
    until_waiting(infeed, outfeed, 1)
    infeed.deleter  # noqa: B018
    try:
        with pytest.raises(tf.errors.CancelledError):
            run.result(60)
    finally:
        released.set()
    assert elements(outfeed) == [1]


def test_deleting_the_outfeed_ends_a_run_at_its_next_enqueue(
    tap: Any, infeed_of: Any, echo: Any, start: Any, until_waiting: Any
) -> None:
    infeed, outfeed = infeed_of(tap.dataset), ipu.IPUOutfeedQueue()
    tap.put(1)
    run = start(lambda: echo(infeed, outfeed, 10))
    until_waiting(infeed, outfeed, 1)
    outfeed.deleter  # noqa: B018
    tap.put(2)
    with pytest.raises(tf.errors.NotFoundError, match="The outfeed queue of this program was deleted"):
        run.result(60)


def test_run_that_ends_leaves_other_queues_alone(tap: Any, numbers: Any, infeed_of: Any, strategy: Any) -> None:
    short, long = infeed_of(numbers(2)), infeed_of(numbers(100))

    @tf.function(jit_compile=True)
    def both() -> None:
        for _ in tf.range(5):
            x = short._dequeue()
            tf.cond(x >= 0, long._dequeue, lambda: 0)

    with pytest.raises(tf.errors.OutOfRangeError):
        strategy.run(both)
    assert int(strategy.run(tf.function(long._dequeue, jit_compile=True))) == 2


def test_wait_limit_ends_a_run_that_waits_longer(tap: Any, infeed_of: Any, echo: Any, until: Any) -> None:
    infeed, outfeed = infeed_of(tap.dataset), ipu.IPUOutfeedQueue()
    tap.put(1, 2)
    until(lambda: native.ipu_infeed_ready(infeed._feed.number) == 2)  # For these the run does not wait.
    feeds.set_wait_limit(0.05)
    with pytest.raises(tf.errors.DeadlineExceededError, match=r"waited 50 ms for an element.*`feeds.set_wait_limit`"):
        echo(infeed, outfeed, 3)
    assert elements(outfeed) == [1, 2]
    feeds.set_wait_limit(None)
    tap.put(3, 4)
    echo(infeed, outfeed, 2)
    assert elements(outfeed) == [3, 4]


def test_wait_limit_lets_runs_pass_that_wait_less(
    tap: Any, infeed_of: Any, echo: Any, start: Any, until_waiting: Any
) -> None:
    feeds.set_wait_limit(60)
    infeed, outfeed = infeed_of(tap.dataset), ipu.IPUOutfeedQueue()
    run = start(lambda: echo(infeed, outfeed, 1))
    until_waiting(infeed)
    tap.put(5)
    run.result(60)
    assert elements(outfeed) == [5]


@pytest.mark.parametrize(("seconds", "kind"), [(0, ValueError), (-1, ValueError), ("1", TypeError), (True, TypeError)])
def test_faulty_wait_limit_is_refused(seconds: Any, kind: Any) -> None:
    with pytest.raises(kind, match=r"`seconds` must be"):
        feeds.set_wait_limit(seconds)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 1e300])
def test_wait_limit_that_is_no_time_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match=r"`seconds` must be"):
        feeds.set_wait_limit(seconds)


def test_shut_down_ends_waiting_runs_and_pumps(
    tap: Any, infeed_of: Any, echo: Any, start: Any, until_waiting: Any
) -> None:
    infeed = infeed_of(tap.dataset)
    run = start(lambda: echo(infeed, ipu.IPUOutfeedQueue(), 1))
    until_waiting(infeed)
    assert feeds.shut_down(timeout=60) is True
    with pytest.raises(tf.errors.CancelledError):
        run.result(60)


def test_shut_down_says_where_a_dataset_is_stuck(infeed_of: Any, until: Any) -> None:
    entered, released = threading.Event(), threading.Event()

    def generate() -> Any:
        entered.set()
        released.wait(60)
        yield 1

    infeed = infeed_of(Dataset.from_generator(generate, output_signature=SCALAR))
    until(entered.is_set)
    assert feeds.shut_down(timeout=0.01) is False
    released.set()
    assert feeds.shut_down(timeout=60) is True
    del infeed
