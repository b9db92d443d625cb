"""Queues that are captured and passed: which traces and compilations they need, and who keeps whom alive."""

from __future__ import annotations

import gc
import re
import weakref
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._native.library import native


def counted(body: Any) -> tuple[Any, list[None]]:
    """The body as a compiled function, and a list that grows with each trace."""
    traces: list[None] = []

    def noted(*args: Any) -> Any:
        traces.append(None)
        return body(*args)

    return tf.function(noted, jit_compile=True, autograph=False), traces


def test_passed_queues_of_one_spec_share_a_trace(numbers: Any, infeed_of: Any, strategy: Any) -> None:
    program, traces = counted(lambda infeed, outfeed: outfeed.enqueue(infeed._dequeue()) and None)
    for begin in range(4):
        infeed, outfeed = infeed_of(numbers(begin, 10)), ipu.IPUOutfeedQueue()
        strategy.run(program, (infeed, outfeed))
        np.testing.assert_array_equal(outfeed.dequeue(), [begin])
    assert len(traces) == 1


def test_restarted_queue_needs_no_new_trace(numbers: Any, infeed_of: Any, strategy: Any) -> None:
    queue = infeed_of(numbers(10))
    program, traces = counted(queue._dequeue)
    for _ in range(3):
        assert int(strategy.run(program)) == 0
        queue.initializer  # noqa: B018
    assert len(traces) == 1


@pytest.mark.parametrize(
    "other",
    [np.float32([1]), np.int32(1), np.int32([1, 2]), (np.int32([1]),), {"x": np.int32([1])}],
    ids=["type", "rank", "size", "tuple", "dict"],
)
def test_passed_queue_of_another_spec_is_traced_anew(other: Any, infeed_of: Any, strategy: Any) -> None:
    program, traces = counted(lambda infeed: infeed._dequeue())
    for element in (np.int32([1]), other, np.int32([1])):
        taken = strategy.run(program, (infeed_of(tf.data.Dataset.from_tensors(element)),))
        tf.nest.assert_same_structure(taken, element)
    assert len(traces) == 2


def test_outfeed_of_another_mode_is_traced_anew(strategy: Any) -> None:
    program, traces = counted(lambda outfeed: outfeed.enqueue(tf.constant(3)) and None)
    for mode in ipu.IPUOutfeedMode:
        outfeed = ipu.IPUOutfeedQueue(mode)
        strategy.run(program, (outfeed,))
        assert int(tf.reshape(outfeed.dequeue(), [])) == 3
    assert len(traces) == 2


def test_outfeed_options_that_tune_transfers_need_no_new_trace(strategy: Any) -> None:
    program, traces = counted(lambda outfeed: outfeed.enqueue(tf.constant(3)) and None)
    for depth in (1, 2, 3):
        strategy.run(program, (ipu.IPUOutfeedQueue(buffer_depth=depth),))
    assert len(traces) == 1


def test_same_compiled_program_serves_many_queues(strategy: Any, compilations: Any) -> None:
    traces = []

    @tf.function(jit_compile=True)
    def program(iterator: Any, infeed: Any, outfeed: Any, n: Any) -> None:
        traces.append(None)
        i = 0
        while i < n:
            outfeed.enqueue(next(iterator) + infeed._dequeue())
            i += 1

    def run_with_new_queues(begin: int, n: int) -> None:
        numbers = tf.data.Dataset.range(begin, 100).map(lambda x: tf.cast(x, tf.int32))
        infeed, outfeed = ipu.IPUInfeedQueue(numbers), ipu.IPUOutfeedQueue()
        infeed.initializer  # noqa: B018  (The access starts it.)
        with strategy.scope():
            strategy.run(program, (iter(numbers), infeed, outfeed, tf.constant(n)))
        assert outfeed.dequeue().numpy().tolist() == [2 * x for x in range(begin, begin + n)]

    with compilations() as first:
        run_with_new_queues(0, 1)
    assert (len(traces), len(first)) == (1, 1)
    with compilations() as later:
        for begin in range(1, 6):
            run_with_new_queues(begin, begin)
            gc.collect()
    assert (len(traces), later) == (1, [])


def test_queue_outlives_its_program(numbers: Any, infeed_of: Any, strategy: Any) -> None:
    infeed, outfeed = infeed_of(numbers(10)), ipu.IPUOutfeedQueue()

    def run_once() -> weakref.ref[Any]:
        program = tf.function(lambda: outfeed.enqueue(infeed._dequeue()) and None, jit_compile=True, autograph=False)
        strategy.run(program)
        return weakref.ref(program)

    for _ in range(3):
        program = run_once()
        gc.collect()
        assert program() is None
    np.testing.assert_array_equal(outfeed.dequeue(), [0, 1, 2])


def test_program_may_be_run_within_a_function_of_the_host(numbers: Any, infeed_of: Any, strategy: Any) -> None:
    infeed, outfeed = infeed_of(numbers(10)), ipu.IPUOutfeedQueue()
    program = tf.function(lambda: outfeed.enqueue(infeed._dequeue()) and None, jit_compile=True, autograph=False)

    @tf.function
    def on_host() -> Any:
        strategy.run(program)
        strategy.run(program)

    on_host()
    np.testing.assert_array_equal(outfeed.dequeue(), [0, 1])
    on_host()
    read = tf.function(lambda: outfeed.dequeue() * 10, autograph=False)
    np.testing.assert_array_equal(read(), [20, 30])


def test_input_signature_may_name_a_queues_spec(numbers: Any, infeed_of: Any, strategy: Any) -> None:
    spec = infeed_of(numbers(3))._type_spec
    program = tf.function(lambda queue: queue._dequeue(), jit_compile=True, input_signature=[spec])
    assert int(strategy.run(program, (infeed_of(numbers(5, 9)),))) == 5


def test_program_outlives_its_queues(numbers: Any, infeed_of: Any, strategy: Any) -> None:
    def program_alone() -> tuple[Any, int, int]:
        infeed, outfeed = infeed_of(numbers(10)), ipu.IPUOutfeedQueue()

        @tf.function(jit_compile=True)
        def program() -> Any:
            x = infeed._dequeue()
            outfeed.enqueue(x)
            return x

        assert outfeed._feed is not None
        return program.get_concrete_function(), infeed._feed.number, outfeed._feed.number

    program, infeed, outfeed = program_alone()
    gc.collect()
    assert [int(strategy.run(program)) for _ in range(4)] == [0, 1, 2, 3]
    assert native.ipu_outfeed_ready(outfeed) == 4  # Nobody can read them, and nothing breaks.
    del program
    gc.collect()
    assert native.ipu_infeed_ready(infeed) == -1
    assert native.ipu_outfeed_drop(outfeed) == 0


def test_python_code_of_a_dataset_lives_as_long_as_the_program_that_reads_it(infeed_of: Any, strategy: Any) -> None:
    def program_alone() -> Any:
        def generate() -> Any:
            yield from range(10)

        dataset = tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec([], tf.int32))
        infeed = infeed_of(dataset, prefetch_depth=1)
        return tf.function(infeed._dequeue, jit_compile=True, autograph=False).get_concrete_function()

    program = program_alone()
    gc.collect()
    assert [int(strategy.run(program)) for _ in range(10)] == list(range(10))


def test_queues_that_are_gone_leave_nothing_on_the_device(numbers: Any, echo: Any, infeed_of: Any) -> None:
    infeed, outfeed = infeed_of(numbers(10)), ipu.IPUOutfeedQueue()
    echo(infeed, outfeed, 1)
    names = [re.findall(r'ResourceHandle\(name="([^"]+)"', repr(queue._state()))[0] for queue in (infeed, outfeed)]

    def exist() -> list[bool]:
        with tf.device("/device:IPU:0"):
            handles = [tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[4], shared_name=name) for name in names]
            return [bool(tf.raw_ops.VarIsInitializedOp(resource=handle)) for handle in handles]

    assert exist() == [True, True]
    del infeed, outfeed
    gc.collect()
    assert exist() == [False, False]


@pytest.mark.parametrize("how", ["passed twice", "captured and passed"])
def test_program_that_gets_a_queue_twice_is_refused_in_words(
    how: str, numbers: Any, infeed_of: Any, strategy: Any
) -> None:
    # XLA's own words were of a duplicate variable.
    infeed = infeed_of(numbers(10))
    both = tf.function(lambda a, b: (a._dequeue(), b._dequeue()), jit_compile=True, autograph=False)
    capturing = tf.function(lambda a: (a._dequeue(), infeed._dequeue()), jit_compile=True, autograph=False)
    program, args = (both, (infeed, infeed)) if how == "passed twice" else (capturing, (infeed,))
    with pytest.raises(ValueError, match=r"gets the same queue twice.*Pass it once, or capture it alone"):
        strategy.run(program, args)
    other = infeed_of(numbers(50, 60))
    assert [int(x) for x in strategy.run(both, (infeed, other))] == [0, 50]


def test_thousand_queues_come_and_go(numbers: Any, infeed_of: Any, take_one: Any) -> None:
    dataset = numbers(3)
    for _ in range(1000):
        ipu.IPUOutfeedQueue()
    for _ in range(100):
        assert int(take_one(infeed_of(dataset))) == 0
