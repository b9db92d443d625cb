"""The order of elements in bodies with several dequeues, branches, nested loops, several queues, several programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu


def ints(structure: Any) -> Any:
    return tf.nest.map_structure(lambda leaf: leaf.numpy().tolist(), structure)


def test_several_dequeues_in_one_body_keep_program_order(numbers: Any, infeed_of: Any, strategy: Any) -> None:
    queue, outfeed = infeed_of(numbers(100)), ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program(queue: Any) -> None:
        for _ in tf.range(20):
            first = queue._dequeue()
            second = queue._dequeue()
            outfeed.enqueue((first, second, queue._dequeue()))

    strategy.run(program, (queue,))
    assert ints(outfeed.dequeue()) == (list(range(0, 60, 3)), list(range(1, 60, 3)), list(range(2, 60, 3)))


def test_dequeue_whose_element_nobody_uses_still_takes_it(numbers: Any, infeed_of: Any, strategy: Any) -> None:
    queue = infeed_of(numbers(100))

    @tf.function(jit_compile=True)
    def program(queue: Any) -> Any:
        queue._dequeue()
        for _ in tf.range(3):
            queue._dequeue()
        return queue._dequeue()

    assert int(strategy.run(program, (queue,))) == 4


def test_dequeues_in_branches_happen_where_the_branch_is_taken(numbers: Any, infeed_of: Any, strategy: Any) -> None:
    queue, outfeed = infeed_of(numbers(100)), ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program(queue: Any) -> None:
        for i in tf.range(8):
            a = queue._dequeue()
            b = -1
            if i % 2 == 0:
                b = queue._dequeue()
            c = tf.cond(i > 5, queue._dequeue, lambda: -1)
            d = tf.switch_case(i % 3, [lambda: -1, queue._dequeue, lambda: queue._dequeue() * 100])
            outfeed.enqueue([a, b, c, d])

    strategy.run(program, (queue,))
    source, expected = iter(range(100)), []
    for i in range(8):
        a = next(source)
        b = next(source) if i % 2 == 0 else -1
        c = next(source) if i > 5 else -1
        d = -1 if i % 3 == 0 else next(source) * (100 if i % 3 == 2 else 1)
        expected.append([a, b, c, d])
    assert np.transpose(ints(outfeed.dequeue())).tolist() == expected


def test_dequeues_and_enqueues_in_nested_loops_keep_program_order(numbers: Any, infeed_of: Any, strategy: Any) -> None:
    queue, inner, outer = infeed_of(numbers(1000)), ipu.IPUOutfeedQueue(), ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program(queue: Any) -> None:
        for i in tf.range(6):
            total = queue._dequeue()
            j = 0
            while j < i:
                x = queue._dequeue()
                total += x
                inner.enqueue(x)
                j += 1
            outer.enqueue(total)

    strategy.run(program, (queue,))
    source, inners, outers = iter(range(1000)), [], []
    for i in range(6):
        total = next(source)
        for _ in range(i):
            inners.append(next(source))
            total += inners[-1]
        outers.append(total)
    assert ints(inner.dequeue()) == inners
    assert ints(outer.dequeue()) == outers


def test_loops_of_the_library_nest(numbers: Any, infeed_of: Any, strategy: Any) -> None:
    queue, outfeed = infeed_of(numbers(100)), ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True, autograph=False)
    def program() -> Any:
        def inner(total: Any, x: Any) -> Any:
            outfeed.enqueue(x)
            return total + x

        return ipu.loops.repeat(4, lambda total: ipu.loops.repeat(3, inner, [total], queue), [0])

    assert int(strategy.run(program)) == sum(range(12))
    assert ints(outfeed.dequeue()) == list(range(12))


def test_only_enqueues_that_are_executed_appear(numbers: Any, infeed_of: Any, strategy: Any) -> None:
    queue = infeed_of(numbers(100))
    cond, branch = ipu.IPUOutfeedQueue(), ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program(queue: Any) -> None:
        for _ in tf.range(10):
            x = queue._dequeue()
            tf.cond(x % 3 == 0, lambda: cond.enqueue(x), tf.no_op)  # noqa: B023  (Called at once.)
            if x % 4 == 1:
                branch.enqueue(x)

    strategy.run(program, (queue,))
    assert ints(cond.dequeue()) == [0, 3, 6, 9]
    assert ints(branch.dequeue()) == [1, 5, 9]


def test_enqueues_in_both_branches_are_one_stream(numbers: Any, infeed_of: Any, strategy: Any) -> None:
    queue, outfeed = infeed_of(numbers(100)), ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program(queue: Any) -> None:
        for _ in tf.range(6):
            x = queue._dequeue()
            if x % 2 == 0:
                outfeed.enqueue(x)
            else:
                outfeed.enqueue(-x)

    strategy.run(program, (queue,))
    assert ints(outfeed.dequeue()) == [0, -1, 2, -3, 4, -5]


def test_several_queues_in_one_program_do_not_mix(numbers: Any, infeed_of: Any, strategy: Any) -> None:
    infeeds = [infeed_of(numbers(begin, begin + 50)) for begin in (0, 100, 200)]
    outfeeds = [ipu.IPUOutfeedQueue() for _ in range(3)]

    @tf.function(jit_compile=True)
    def program(infeeds: Any, outfeeds: Any) -> None:
        for _ in tf.range(10):
            a, b, c = infeeds[0]._dequeue(), infeeds[1]._dequeue(), infeeds[2]._dequeue()
            outfeeds[0].enqueue(a)
            outfeeds[1].enqueue((b, infeeds[1]._dequeue()))
            outfeeds[2].enqueue({"sum": a + b + c})

    strategy.run(program, (infeeds, outfeeds))
    assert ints(outfeeds[0].dequeue()) == list(range(10))
    assert ints(outfeeds[1].dequeue()) == (list(range(100, 120, 2)), list(range(101, 120, 2)))
    assert ints(outfeeds[2].dequeue()) == {"sum": [i + (100 + 2 * i) + (200 + i) for i in range(10)]}


def test_one_queue_feeds_different_programs_in_turn(numbers: Any, infeed_of: Any, strategy: Any) -> None:
    queue = infeed_of(numbers(100))
    double = tf.function(lambda: queue._dequeue() * 2, jit_compile=True, autograph=False)
    pair = tf.function(lambda: (queue._dequeue(), queue._dequeue()), jit_compile=True, autograph=False)
    results = [
        ints(strategy.run(double)),
        ints(strategy.run(pair)),
        ints(strategy.run(double)),
        ints(strategy.run(pair)),
    ]
    assert results == [0, (1, 2), 6, (4, 5)]


def test_one_outfeed_collects_from_different_programs(strategy: Any) -> None:
    outfeed = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def first() -> None:
        for i in tf.range(3):
            outfeed.enqueue(i)

    @tf.function(jit_compile=True)
    def second() -> None:
        outfeed.enqueue(100)

    for program in (first, second, first):
        strategy.run(program)
    assert ints(outfeed.dequeue()) == [0, 1, 2, 100, 0, 1, 2]


def _twice_in_a_row(queue: Any) -> None:
    queue.enqueue(1)
    queue.enqueue(2)


def _before_a_loop_and_in_it(queue: Any) -> None:
    queue.enqueue(1)
    for i in tf.range(2):
        queue.enqueue(i)


def _in_a_loop_and_after_it(queue: Any) -> None:
    for i in tf.range(2):
        queue.enqueue(i)
    queue.enqueue(1)


def _in_a_branch_and_after_it(queue: Any) -> None:
    if tf.constant(1) > 0:
        queue.enqueue(1)
    queue.enqueue(2)


@pytest.mark.parametrize(
    "body", [_twice_in_a_row, _before_a_loop_and_in_it, _in_a_loop_and_after_it, _in_a_branch_and_after_it]
)
@pytest.mark.parametrize("passed", [True, False], ids=["passed", "captured"])
def test_second_enqueue_in_a_graph_or_one_around_it_is_refused(body: Any, passed: bool, strategy: Any) -> None:
    queue = ipu.IPUOutfeedQueue()
    program = tf.function(body if passed else lambda: body(queue), jit_compile=True)
    with pytest.raises(ValueError, match=r"An outfeed can only be enqueued once"):
        strategy.run(program, (queue,) if passed else ())


def test_enqueue_in_another_graph_is_allowed(strategy: Any) -> None:
    queue = ipu.IPUOutfeedQueue()
    program = tf.function(lambda x: queue.enqueue(tf.cast(x, tf.int32)) and None, jit_compile=True)
    strategy.run(program, (tf.constant(1),))
    strategy.run(program, (tf.constant(2.0),))  # A second trace of the function.
    assert ints(queue.dequeue()) == [1, 2]


def test_enqueue_can_be_traced_again_after_a_trace_that_failed(strategy: Any) -> None:
    queue = ipu.IPUOutfeedQueue()
    faulty = True

    @tf.function(jit_compile=True)
    def program() -> None:
        queue.enqueue(5)
        if faulty:
            raise KeyError("in the body")

    with pytest.raises(KeyError, match="in the body"):
        strategy.run(program)
    faulty = False
    strategy.run(program)
    assert ints(queue.dequeue()) == [5]


def test_inner_function_that_enqueues_may_be_called_twice(strategy: Any) -> None:
    queue = ipu.IPUOutfeedQueue()
    inner = tf.function(lambda x: queue.enqueue(x) and None)

    @tf.function(jit_compile=True)
    def program() -> None:
        inner(tf.constant(1))
        inner(tf.constant(2))

    strategy.run(program)
    assert ints(queue.dequeue()) == [1, 2]
