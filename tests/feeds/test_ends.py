"""The end of runs without further data: the error that they raise, in time, and the elements that stay readable."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
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
    """Returns the exception that a call raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  (The caller looks at it.)
        call()
    return caught.value


def elements(outfeed: Any) -> list[int]:
    return outfeed.dequeue().numpy().tolist()


def test_exhausted_queue_raises_out_of_range_until_it_is_restarted(numbers, infeed_of, echo, take_one):
    infeed, outfeed = infeed_of(numbers(7)), ipu.IPUOutfeedQueue()
    echo(infeed, outfeed, 2)
    for _ in range(2):
        with pytest.raises(tf.errors.OutOfRangeError, match=r"ended after 7 elements.*`repeat\(\)` the dataset"):
            echo(infeed, outfeed, 100)
    infeed.initializer  # noqa: B018
    echo(infeed, outfeed, 3)
    assert elements(outfeed) == [*range(7), 0, 1, 2]  # Enqueued elements were kept.
    with pytest.raises(tf.errors.OutOfRangeError, match="ended after 0 elements"):
        take_one(infeed_of(numbers(0)))


def test_end_in_the_middle_of_a_body_keeps_the_whole_iterations_and_variables(numbers, infeed_of, strategy, take_one):
    infeed, second_infeed, outfeed = infeed_of(numbers(5)), infeed_of(numbers(9)), ipu.IPUOutfeedQueue()
    with strategy.scope():
        variable = tf.Variable(10)

    @tf.function(jit_compile=True)
    def program(n: Any) -> None:
        for _ in tf.range(n):
            x = infeed._dequeue()
            variable.assign_add(x)
            outfeed.enqueue((x, infeed._dequeue()))
            second_infeed._dequeue()

    with pytest.raises(tf.errors.OutOfRangeError):
        strategy.run(program, (tf.constant(9),))
    assert [leaf.numpy().tolist() for leaf in outfeed.dequeue()] == [[0, 2], [1, 3]]
    assert int(variable) == 10
    assert int(take_one(second_infeed)) == 2


def _failing_map(x: Any) -> Any:
    with tf.control_dependencies([tf.debugging.assert_less(x, 3, message="three is right out")]):
        return tf.identity(x)


def _raising(kind: type[Exception], *arguments: Any) -> Any:
    def raise_at_three(x: Any) -> Any:
        if x == 3:
            raise kind(*arguments)
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
    "value error": lambda dataset: dataset.map(_raising(ValueError, "a bad value")),
    "key error": lambda dataset: dataset.map(_raising(KeyError, "no such key")),
    "memory error": lambda dataset: dataset.map(_raising(MemoryError, "too much")),
    "unimplemented": lambda dataset: dataset.map(_raising(NotImplementedError, "no kernel does it")),
    "tensorflow error": lambda dataset: dataset.map(_raising(tf.errors.DataLossError, None, None, "lost it")),
    "generator": lambda dataset: Dataset.from_generator(_failing_generator, output_signature=SCALAR),
    "parallel map": lambda dataset: dataset.map(_failing_map, num_parallel_calls=2).prefetch(2),
}


@pytest.mark.parametrize("fail", FAILING.values(), ids=FAILING)
def test_failing_dataset_raises_the_error_that_it_raises_on_the_host_until_it_is_restarted(
    fail, numbers, infeed_of, echo, take_one
):
    dataset = fail(numbers(10))
    on_host = error_of(lambda: list(dataset))
    message_lines = [line for line in str(on_host).splitlines() if line.strip() and "Traceback" not in line]
    gist = message_lines[0].rpartition("Iterator::")[2].partition(": ")[2] or message_lines[0]
    infeed, outfeed = infeed_of(dataset), ipu.IPUOutfeedQueue()
    for _ in range(2):
        on_ipu = error_of(lambda: echo(infeed, outfeed, 10))
        assert type(on_ipu) is type(on_host)
        assert gist.strip() in str(on_ipu)
    assert elements(outfeed) == [0, 1, 2]
    infeed.initializer  # noqa: B018
    assert int(take_one(infeed)) == 0


@pytest.mark.parametrize("shape", [[0], [1], [3], [4], [3, 2]], ids=str)
def test_element_that_is_not_of_the_datasets_spec_ends_the_run(shape, infeed_of, echo):
    expected_shape = [2, 3] if len(shape) > 1 else [2]  # One shape has as many values as the spec, but another rank.

    def lie(i: Any) -> Any:
        row = tf.numpy_function(lambda i: np.zeros(shape if i == 2 else expected_shape, np.float32), [i], tf.float32)
        row.set_shape(expected_shape)
        return row

    infeed, outfeed = infeed_of(Dataset.range(10).map(lie)), ipu.IPUOutfeedQueue()
    patterns = [re.escape(str(part).replace(" ", "")) for part in (shape, expected_shape)]
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=rf"yielded a tensor of shape {patterns[0]} and type float.*has shape {patterns[1]}",
    ):
        echo(infeed, outfeed, 10)
    assert outfeed.dequeue().shape == (2, *expected_shape)


@pytest.mark.parametrize("restarted", [False, True])
def test_deleting_or_restarting_the_queue_ends_a_run_that_waits(restarted, tap, infeed_of, echo, start, until_waiting):
    infeed, outfeed = infeed_of(tap.dataset), ipu.IPUOutfeedQueue()
    tap.put(1, 2, 3)
    run = start(lambda: echo(infeed, outfeed, 10))
    until_waiting(infeed, outfeed, 3)
    infeed.initializer if restarted else infeed.deleter  # noqa: B018
    with pytest.raises(tf.errors.CancelledError, match="was deleted or restarted while a program used it"):
        run.result(60)
    assert elements(outfeed) == [1, 2, 3]
    if restarted:
        tap.put(*range(100))  # The new pass gets all elements that the old pass no longer takes.
        echo(infeed, outfeed, 10)
        assert len(elements(outfeed)) == 10


@pytest.fixture
def stuck() -> Iterator[SimpleNamespace]:
    """Returns a dataset that sets `entered` in Python, waits for `released`, sets `left`, and yields an element."""
    stuck = SimpleNamespace(entered=threading.Event(), released=threading.Event(), left=threading.Event())

    def generate() -> Any:
        stuck.entered.set()
        stuck.released.wait(60)
        stuck.left.set()
        yield 1

    stuck.dataset = Dataset.from_generator(generate, output_signature=SCALAR)
    yield stuck
    stuck.released.set()


def test_deleting_the_queue_waits_for_the_element_that_is_being_read_or_for_a_second(infeed_of, stuck):
    infeed = infeed_of(stuck.dataset)
    assert stuck.entered.wait(60)
    threading.Timer(0.1, stuck.released.set).start()
    begin = time.monotonic()
    infeed.deleter  # noqa: B018
    assert stuck.left.is_set() or time.monotonic() - begin >= 1.0


def test_deleting_the_queue_does_not_wait_long_for_python_code_of_its_dataset(
    infeed_of, take_one, start, until_waiting, stuck
):
    infeed = infeed_of(stuck.dataset)
    run = start(lambda: take_one(infeed))
    until_waiting(infeed)
    infeed.deleter  # noqa: B018
    with pytest.raises(tf.errors.CancelledError):
        run.result(60)


def test_deleting_the_outfeed_ends_a_run_at_its_next_enqueue(tap, infeed_of, echo, start, until_waiting):
    infeed, outfeed = infeed_of(tap.dataset), ipu.IPUOutfeedQueue()
    tap.put(1)
    run = start(lambda: echo(infeed, outfeed, 10))
    until_waiting(infeed, outfeed, 1)
    outfeed.deleter  # noqa: B018
    tap.put(2)
    with pytest.raises(tf.errors.NotFoundError, match="The outfeed queue of this program was deleted"):
        run.result(60)


def test_wait_limit_ends_runs_that_wait_longer_alone(tap, infeed_of, echo, start, until_waiting, until):
    infeed, outfeed = infeed_of(tap.dataset), ipu.IPUOutfeedQueue()
    tap.put(1, 2)
    until(lambda: native.ipu_infeed_ready(infeed._feed.number) == 2)  # The run does not wait for these elements.
    feeds.set_wait_limit(0.05)
    with pytest.raises(tf.errors.DeadlineExceededError, match=r"waited 50 ms for an element.*`feeds.set_wait_limit`"):
        echo(infeed, outfeed, 3)
    assert elements(outfeed) == [1, 2]
    feeds.set_wait_limit(None)
    tap.put(3, 4)
    echo(infeed, outfeed, 2)
    feeds.set_wait_limit(60)
    run = start(lambda: echo(infeed, outfeed, 1))
    until_waiting(infeed)
    tap.put(5)
    run.result(60)
    assert elements(outfeed) == [3, 4, 5]


@pytest.mark.parametrize("seconds", [0, -1, "1", True, float("nan"), float("inf"), 1e300])
def test_faulty_wait_limit_is_refused(seconds):
    with pytest.raises(TypeError if seconds in ("1", True) else ValueError, match=r"`seconds` must be"):
        feeds.set_wait_limit(seconds)


def test_shut_down_ends_waiting_runs_and_says_if_a_dataset_is_stuck(tap, infeed_of, echo, start, until_waiting, stuck):
    infeed = infeed_of(tap.dataset)
    run = start(lambda: echo(infeed, ipu.IPUOutfeedQueue(), 1))
    until_waiting(infeed)
    assert feeds.shut_down(timeout=60) is True
    with pytest.raises(tf.errors.CancelledError):
        run.result(60)
    infeed = infeed_of(stuck.dataset)
    assert stuck.entered.wait(60)
    assert feeds.shut_down(timeout=0.01) is False
    stuck.released.set()
    assert feeds.shut_down(timeout=60) is True
