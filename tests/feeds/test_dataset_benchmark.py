"""What the benchmarks of datasets and infeeds report, print and refuse."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import feeds

DEADLINE = 60.0


def _epochs(report: Any) -> list[dict[str, float]]:
    content = json.loads(report.numpy()[0])
    assert list(content) == ["epochs"]
    return content["epochs"]


@pytest.fixture(params=["dataset", "infeed"])
def benchmark(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`dataset_benchmark`, and `infeed_benchmark` of a queue over the same dataset."""
    if request.param == "dataset":
        return feeds.dataset_benchmark
    return lambda dataset, *args, **options: feeds.infeed_benchmark(ipu.IPUInfeedQueue(dataset), *args, **options)


@pytest.fixture
def pairs() -> tf.data.Dataset:
    """Endless elements of 4 * 4 + 1 = 17 bytes."""
    return tf.data.Dataset.from_tensors({"x": tf.zeros([4]), "y": tf.constant(True)}).repeat()


def test_each_epoch_counts_elements_bytes_and_time(benchmark: Any, pairs: Any) -> None:
    epochs = _epochs(benchmark(pairs, 3, 200, print_stats=False))
    assert len(epochs) == 3
    for epoch in epochs:
        assert list(epoch) == [
            "elements_processed",
            "total_bytes_processed",
            "time_elapsed",
            "elements_per_second",
            "bandwidth",
        ]
        assert epoch["elements_processed"] == 200
        assert epoch["total_bytes_processed"] == 200 * 17
        assert epoch["time_elapsed"] > 0
        assert epoch["elements_per_second"] == pytest.approx(200 / epoch["time_elapsed"], rel=1e-6)
        assert epoch["bandwidth"] == pytest.approx(200 * 17 / epoch["time_elapsed"] * 1e-9, rel=1e-6)


def test_copying_is_optional(benchmark: Any, pairs: Any) -> None:
    assert _epochs(benchmark(pairs, 1, 10, print_stats=False, do_memcpy=False))[0]["total_bytes_processed"] == 170


def test_all_epochs_are_one_pass_over_the_dataset(benchmark: Any, numbers: Any) -> None:
    assert len(_epochs(benchmark(numbers(30), 3, 10, print_stats=False))) == 3
    with pytest.raises(
        tf.errors.OutOfRangeError,
        match=r"after 30 elements.*needs 40: 4 epochs \(`number_of_epochs`\) of 10.*`repeat\(\)`",
    ):
        benchmark(numbers(30), 4, 10, print_stats=False)


def test_elements_may_differ_in_shape(numbers: Any) -> None:
    dataset = numbers(1, 5).map(lambda n: tf.zeros([n]))
    assert _epochs(feeds.dataset_benchmark(dataset, 1, 4, print_stats=False))[0]["total_bytes_processed"] == 4 * 10


def test_elements_that_an_ipu_does_not_take_can_be_measured() -> None:
    dataset = tf.data.Dataset.range(8)
    assert _epochs(feeds.dataset_benchmark(dataset, 1, 8, print_stats=False))[0]["total_bytes_processed"] == 64
    with pytest.raises(tf.errors.FailedPreconditionError, match="Unsupported datatype int64"):
        feeds.infeed_benchmark(ipu.IPUInfeedQueue(dataset), 1, 8)


def test_error_of_the_dataset_comes_as_it_is(benchmark: Any, numbers: Any) -> None:
    dataset = numbers(5).map(lambda n: tf.debugging.check_numerics(1.0 / tf.cast(n - 3, tf.float32), "oops"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="oops"):
        benchmark(dataset, 1, 5, print_stats=False)


def test_statistics_are_printed_on_request(benchmark: Any, pairs: Any, capfd: pytest.CaptureFixture[str]) -> None:
    benchmark(pairs, 2, 10)
    lines = [line.split() for line in capfd.readouterr().err.splitlines()]
    assert ["epoch", "elements", "bytes", "seconds", "elements/s", "GB/s"] in lines
    assert [line[:3] for line in lines if line[-5:-3] == ["10", "170"]] == [["1", "10", "170"], ["2", "10", "170"]]
    benchmark(pairs, 2, 10, print_stats=False)
    assert "elements/s" not in capfd.readouterr().err


def test_graph_measures_anew_with_each_run(benchmark: Any) -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        dataset = tf.data.Dataset.from_tensor_slices(np.zeros([12, 3], np.float32))
        report = benchmark(dataset, 2, 6, print_stats=False)
        assert report.shape == [1]
        for _ in range(2):  # One pass each: the dataset has no more.
            epochs = json.loads(session.run(report)[0])["epochs"]
            assert [epoch["total_bytes_processed"] for epoch in epochs] == [72, 72]


def test_tf_function_measures_anew_with_each_call(pairs: Any) -> None:
    measure = tf.function(lambda: feeds.dataset_benchmark(pairs, 1, 10, print_stats=False))
    assert [_epochs(measure())[0]["elements_processed"] for _ in range(2)] == [10, 10]


def test_works_inside_the_scope_of_a_strategy(benchmark: Any, pairs: Any, strategy: Any) -> None:
    with strategy.scope():
        assert len(_epochs(benchmark(pairs, 1, 10, print_stats=False))) == 1


def test_infeed_keeps_its_position_and_needs_no_initializer(numbers: Any, take_one: Any) -> None:
    queue = ipu.IPUInfeedQueue(numbers(20))
    feeds.infeed_benchmark(queue, 1, 20, print_stats=False)
    queue.initializer  # noqa: B018
    assert [int(take_one(queue)) for _ in range(3)] == [0, 1, 2]
    feeds.infeed_benchmark(queue, 1, 20, print_stats=False)
    assert [int(take_one(queue)) for _ in range(3)] == [3, 4, 5]


def test_program_that_runs_meanwhile_gets_every_element(numbers: Any, infeed_of: Any, echo: Any, start: Any) -> None:
    n = 20000
    queue, outfeed = infeed_of(numbers(n)), ipu.IPUOutfeedQueue()
    run = start(lambda: echo(queue, outfeed, n))
    feeds.infeed_benchmark(queue, 2, n // 2, print_stats=False)
    run.result()
    np.testing.assert_array_equal(outfeed.dequeue(), np.arange(n))


def test_closed_session_ends_a_benchmark(benchmark: Any, start: Any) -> None:
    with tf.Graph().as_default():
        session = tf.compat.v1.Session()
        read = threading.Event()

        def element(n: Any) -> Any:
            read.set()
            return np.int32(n)

        dataset = tf.data.Dataset.range(10**9).map(
            lambda n: tf.ensure_shape(tf.numpy_function(element, [n], tf.int32), [])
        )
        report = benchmark(dataset, 1, 10**9, print_stats=False)
        run = start(lambda: session.run(report))
        assert read.wait(DEADLINE)
        session.close()
        with pytest.raises(tf.errors.CancelledError):
            run.result(DEADLINE)


def test_ctrl_c_ends_a_benchmark(run_script: Any) -> None:
    script = """
    import os, signal
    import numpy as np
    import tensorflow_ipu as ipu
    import tensorflow as tf

    def element(n):
        if n == 20:
            os.kill(os.getpid(), signal.SIGINT)
        return np.int32(n)

    dataset = tf.data.Dataset.range(10**9).map(lambda n: tf.ensure_shape(tf.numpy_function(element, [n], tf.int32), []))
    queue = ipu.IPUInfeedQueue(dataset)
    for benchmark, source in ((ipu.feeds.dataset_benchmark, dataset), (ipu.feeds.infeed_benchmark, queue)):
        try:
            benchmark(source, 1, 10**9, print_stats=False)
        except KeyboardInterrupt:
            print("interrupted")
    """
    assert run_script(script).stdout == "interrupted\ninterrupted\n"


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((0, 10), ValueError, "`number_of_epochs` must be at least 1, but is 0"),
        ((1, -1), ValueError, "`elements_per_epochs` must be at least 1, but is -1"),
        ((10**20, 1), ValueError, f"`number_of_epochs` must be at most {2**63 - 1}, but is {10**20}"),
        ((1.0, 1), TypeError, "`number_of_epochs` must be an int, but is 1.0"),
        ((1, True), TypeError, "`elements_per_epochs` must be an int, but is True"),
        ((1, 1, 1), TypeError, "`print_stats` must be True or False, but is 1"),
    ],
)
def test_bad_arguments_raise_where_the_original_returns_the_error(
    benchmark: Any, pairs: Any, arguments: Any, error: Any, words: str
) -> None:
    with pytest.raises(error, match=words):
        benchmark(pairs, *arguments)


def test_bad_options_are_refused(pairs: Any) -> None:
    with pytest.raises(TypeError, match="`apply_debug_options` must be True or False"):
        feeds.dataset_benchmark(pairs, 1, 1, apply_debug_options=0)
    with pytest.raises(TypeError, match="`do_memcpy` must be True or False"):
        feeds.infeed_benchmark(ipu.IPUInfeedQueue(pairs), 1, 1, do_memcpy="yes")


def test_what_is_no_dataset_or_queue_is_refused(pairs: Any) -> None:
    with pytest.raises(TypeError, match=r"`dataset` must be a `tf.data.Dataset`, but is \[1, 2\]"):
        feeds.dataset_benchmark([1, 2], 1, 1)
    with pytest.raises(TypeError, match="`infeed_queue` must be an `IPUInfeedQueue`"):
        feeds.infeed_benchmark(pairs, 1, 1)


def test_elements_that_are_no_dense_numbers_are_refused() -> None:
    dataset = tf.data.Dataset.from_tensors({"text": "a", "rows": tf.ragged.constant([[1], [2, 3]])})
    with pytest.raises(TypeError, match=r"dense tensors of numbers.*RaggedTensorSpec.*tf.string"):
        feeds.dataset_benchmark(dataset, 1, 1)


def test_dataset_of_elements_without_content_is_measured_though_no_queue_takes_it() -> None:
    dataset = tf.data.Dataset.from_tensors((tf.ones([3]), tf.zeros([2, 0]))).repeat(8)
    (epoch,) = _epochs(feeds.dataset_benchmark(dataset, 1, 8, print_stats=False))
    assert (epoch["elements_processed"], epoch["total_bytes_processed"]) == (8, 8 * 12)


def test_queue_that_is_an_argument_of_a_program_is_refused(pairs: Any, infeed_of: Any, strategy: Any) -> None:
    @tf.function(jit_compile=True)
    def program(queue: Any) -> None:
        with pytest.raises(ValueError, match="`infeed_queue` is an argument of a program"):
            feeds.infeed_benchmark(queue, 1, 1)

    strategy.run(program, (infeed_of(pairs),))
