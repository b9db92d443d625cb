"""Programs of several threads at once, and what is known of the runs under way."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import replicas
from tensorflow_ipu.config import reset_ipu_configuration

DEADLINE = 60.0


class Gate:
    """A dataset of one element, which comes when the test lets it."""

    def __init__(self) -> None:
        self._values = tf.queue.FIFOQueue(1, [tf.int32], [[]])
        self.dataset = tf.data.Dataset.range(1).map(lambda _: self._values.dequeue())

    def open(self, value: int = 0) -> None:
        self._values.enqueue(value)


def test_threads_run_one_function_at_once(strategy: Any) -> None:
    with strategy.scope():
        variables = [tf.Variable(0) for _ in range(4)]
    traces = []

    @tf.function(jit_compile=True)
    def program(variable: Any, n: Any) -> Any:
        traces.append(1)
        return ipu.loops.repeat(n, lambda x: variable.assign_add(x + 1), [0])

    start = threading.Barrier(len(variables))

    def work(variable: Any) -> list[int]:
        start.wait(DEADLINE)
        return [int(strategy.run(program, (variable, tf.constant(1)))) for _ in range(50)]

    with ThreadPoolExecutor(len(variables)) as pool:
        results = list(pool.map(work, variables))
    # Each thread has its variable to itself: it grows by 1 a run, whatever the others do.
    assert results == [list(range(1, 51))] * len(variables)
    assert [variable.numpy() for variable in variables] == [50] * len(variables)
    assert len(traces) == 1


def test_strategies_of_two_devices_run_at_once(configure: Any) -> None:
    configure(1, 1)
    strategies = [ipu.IPUStrategy(f"/device:IPU:{i}") for i in range(2)]
    gate = Gate()
    with strategies[0].scope():
        iterator = iter(gate.dataset)
    waits = tf.function(lambda iterator: next(iterator))
    adds = tf.function(lambda x: x + 1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(strategies[0].run, waits, (iterator,))
        try:
            assert strategies[1].run(adds, (tf.constant(1),)).numpy() == 2
            assert not waiting.done()
        finally:
            gate.open(7)
        assert waiting.result(DEADLINE).numpy() == 7


def test_scope_of_one_thread_is_not_that_of_another(strategy: Any) -> None:
    dataset = tf.data.Dataset.range(3)
    with strategy.scope(), ThreadPoolExecutor(1) as pool:
        assert tf.distribute.get_strategy() is strategy
        assert not pool.submit(tf.distribute.has_strategy).result(DEADLINE)
        assert pool.submit(lambda: next(iter(dataset)).numpy()).result(DEADLINE) == 0
        assert pool.submit(lambda: tf.Variable(1.0).device).result(DEADLINE).endswith("CPU:0")


def test_run_under_way_is_active_and_keeps_the_configuration(strategy: Any, configure: Any) -> None:
    configure(1)
    gate = Gate()
    with strategy.scope():
        iterator = iter(gate.dataset)
    program = tf.function(lambda iterator: next(iterator))
    assert not replicas.active()
    assert replicas.wait_until_idle(0.0)
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(strategy.run, program, (iterator,))
        try:
            while not replicas.active() and not running.done():
                pass
            assert replicas.active()
            assert not replicas.wait_until_idle(0.001)
            reset = pool.submit(reset_ipu_configuration)
            assert not reset.done()
        finally:
            gate.open()
        running.result(DEADLINE)
        reset.result(DEADLINE)
    assert not replicas.active()
    assert replicas.wait_until_idle()
