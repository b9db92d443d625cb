"""Python loops over `tf.range`, and `while` over tensors, which stay on the device as `repeat` does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu

COMPILED = pytest.mark.parametrize("jit_compile", [None, False, True])


@pytest.fixture
def iterator_of(strategy: Any) -> Any:
    """`iterator_of(dataset)` is an iterator that programs read."""

    def make(dataset: tf.data.Dataset) -> Any:
        with strategy.scope():
            return iter(dataset)

    return make


@COMPILED
def test_loop_takes_and_gives_an_element_an_iteration(
    jit_compile: bool | None, strategy: Any, iterator_of: Any, numbers: Any
) -> None:
    queue = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=jit_compile)
    def program(iterator: Any, n: Any) -> Any:
        total = 0
        for i in tf.range(n):
            x = next(iterator)
            queue.enqueue((i, x * x))
            total += x
        return total

    iterator = iterator_of(numbers)
    assert strategy.run(program, (iterator, tf.constant(4))).numpy() == 6
    i, square = queue.dequeue()
    np.testing.assert_array_equal(i, [0, 1, 2, 3])
    np.testing.assert_array_equal(square, [0, 1, 4, 9])
    # The second run goes on with the data, and a loop of no iterations takes none.
    assert strategy.run(program, (iterator, tf.constant(0))).numpy() == 0
    assert strategy.run(program, (iterator, tf.constant(2))).numpy() == 9
    np.testing.assert_array_equal(queue.dequeue()[1], [16, 25])


def test_number_of_iterations_may_be_static(run: Any, iterator_of: Any, numbers: Any) -> None:
    def program(iterator: Any) -> Any:
        total = 0
        for _ in tf.range(3):
            total += next(iterator)
        for _ in range(2):
            total += 100 * next(iterator)
        return total

    assert run(program, iterator_of(numbers)).numpy() == 3 + 700


def test_condition_in_the_loop_enqueues_some(run: Any, iterator_of: Any, numbers: Any) -> None:
    queue = ipu.IPUOutfeedQueue()

    def program(iterator: Any) -> None:
        for _ in tf.range(10):
            x = next(iterator)
            if x % 3 == 0:
                queue.enqueue(x)

    run(program, iterator_of(numbers))
    np.testing.assert_array_equal(queue.dequeue(), [0, 3, 6, 9])


def test_element_taken_in_a_branch_is_taken_where_the_branch_runs(run: Any, iterator_of: Any, numbers: Any) -> None:
    def program(iterator: Any) -> Any:
        last = 0
        for i in tf.range(6):
            if i % 2 == 0:
                last = next(iterator)
        return last, next(iterator)

    assert [x.numpy() for x in run(program, iterator_of(numbers))] == [2, 3]


def test_break_and_continue_leave_the_data_where_they_are(run: Any, iterator_of: Any, numbers: Any) -> None:
    def program(iterator: Any) -> Any:
        total = 0
        for _ in tf.range(100):
            x = next(iterator)
            if x == 2:
                continue
            if x == 5:
                break
            total += x
        return total

    iterator = iterator_of(numbers)
    assert run(program, iterator).numpy() == 0 + 1 + 3 + 4
    assert run(lambda iterator: next(iterator), iterator).numpy() == 6


def test_while_over_tensors_takes_elements(run: Any, iterator_of: Any, numbers: Any) -> None:
    def program(iterator: Any) -> Any:
        x = tf.constant(0)
        count = tf.constant(0)
        while x < 7:
            x = next(iterator)
            count += 1
        return x, count

    assert [x.numpy() for x in run(program, iterator_of(numbers))] == [7, 8]


def test_loops_nest(run: Any, iterator_of: Any, numbers: Any) -> None:
    queue = ipu.IPUOutfeedQueue()

    def program(iterator: Any) -> None:
        for _ in tf.range(3):
            first = next(iterator)
            total = 0
            for _ in tf.range(2):
                total += next(iterator)
            queue.enqueue({"first": first, "total": total})

    run(program, iterator_of(numbers))
    result = queue.dequeue()
    np.testing.assert_array_equal(result["first"], [0, 3, 6])
    np.testing.assert_array_equal(result["total"], [1 + 2, 4 + 5, 7 + 8])


# XLA wanted to know the length of the inner range, which nothing uses, when it compiled.
def test_inner_loop_may_run_as_often_as_the_outer_one_says(run: Any, iterator_of: Any, numbers: Any) -> None:
    def program(iterator: Any) -> Any:
        total = 0
        for i in tf.range(next(iterator), next(iterator) + 3):
            for _ in tf.range(i):
                total += next(iterator)
        return total

    # The outer loop runs over 0, 1, 2 and 3.
    assert run(program, iterator_of(numbers)).numpy() == 2 + (3 + 4) + (5 + 6 + 7)


def test_range_that_is_used_is_a_tensor_as_ever(run: Any) -> None:
    def program(x: Any) -> Any:
        steps = tf.range(4)
        total = 0
        for i in steps:
            total += i * x
        return total, steps, tf.range(3)

    total, steps, other = run(program, tf.constant(10))
    assert total.numpy() == 60
    np.testing.assert_array_equal(steps, [0, 1, 2, 3])
    np.testing.assert_array_equal(other, [0, 1, 2])


@pytest.mark.parametrize("step", [1, 2, -1])
def test_loop_over_a_range_with_a_start_and_a_step_runs_its_numbers(step: int, run: Any) -> None:
    queue = ipu.IPUOutfeedQueue()

    def program(start: Any, limit: Any, step: Any) -> None:
        for i in tf.range(start, limit, step):
            queue.enqueue(i)

    start, limit = (2, 7) if step > 0 else (7, 2)
    run(program, tf.constant(start), tf.constant(limit), tf.constant(step))
    np.testing.assert_array_equal(queue.dequeue(), range(start, limit, step))


def test_several_iterators_and_queues_serve_one_loop(run: Any, iterator_of: Any, numbers: Any) -> None:
    queues = ipu.IPUOutfeedQueue(), ipu.IPUOutfeedQueue(ipu.IPUOutfeedMode.LAST)

    def program(first: Any, second: Any) -> None:
        for _ in tf.range(4):
            x, y, z = next(first), next(second), next(first)
            queues[0].enqueue(x * 100 + z)
            queues[1].enqueue(y)

    run(program, iterator_of(numbers), iterator_of(numbers.map(lambda x: -x)))
    np.testing.assert_array_equal(queues[0].dequeue(), [1, 203, 405, 607])
    assert queues[1].dequeue().numpy() == -3


def test_elements_keep_their_structure(run: Any, iterator_of: Any, numbers: Any) -> None:
    def program(iterator: Any) -> Any:
        total = tf.zeros([2])
        for _ in tf.range(2):
            element = next(iterator)
            total += element["pair"]["a"] + tf.cast(element["x"], tf.float32)
        return total

    dataset = numbers.map(lambda x: {"x": x, "pair": {"a": tf.ones([2]) * tf.cast(x, tf.float32)}})
    np.testing.assert_array_equal(run(program, iterator_of(dataset)), [2, 2])


def test_loop_over_a_range_has_a_gradient(run: Any) -> None:
    def program(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in tf.range(3):
                y = y * x
        return tape.gradient(y, x)

    assert run(program, tf.constant(2.0)).numpy() == 32


def test_iterating_over_an_iterator_in_a_program_says_what_to_do(run: Any, iterator_of: Any, numbers: Any) -> None:
    def program(iterator: Any) -> Any:
        total = 0
        for x in iterator:
            total += x
        return total

    with pytest.raises(NotImplementedError, match=r"`tf.range\(n\)` and call `next\(iterator\)`"):
        run(program, iterator_of(numbers))
