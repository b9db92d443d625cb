"""Uses of different queues run in the order in which they were traced."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._native.library import native

DEADLINE = 60.0


class Environment:
    """A host that answers each action with the next observation: the action and one more. The first one is 1."""

    def __init__(self, replicas: int = 1) -> None:
        self.seen: list[Any] = []
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self.actions = ipu.IPUOutfeedQueue()
        self.dataset = tf.data.Dataset.from_generator(self._observations, output_signature=tf.TensorSpec([], tf.int32))
        self._give(np.ones(replicas, np.int32))
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def _give(self, observations: Any) -> None:
        for observation in np.atleast_1d(observations):
            self._answers.put(observation)

    def _observations(self) -> Iterator[Any]:
        while (observation := self._answers.get()) is not None:
            yield observation

    def _answer(self) -> None:
        while not self._stopped.is_set():
            for action in self.actions:
                self.seen.append(action.numpy().tolist())
                self._give(action.numpy() + 1)

    def stop(self) -> None:
        self._stopped.set()
        self._answers.put(None)
        self._thread.join(DEADLINE)


@pytest.fixture
def environment() -> Iterator[Callable[..., Environment]]:
    made: list[Environment] = []

    def make(*args: Any) -> Environment:
        ipu.feeds.set_wait_limit(DEADLINE)
        made.append(Environment(*args))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def ready(sink: Any) -> int:
    return native.ipu_outfeed_ready(sink._feed.number)


def loop(act: Callable[[Any], Any], observe: Callable[[], Any], n: Any) -> Any:
    observation = observe()
    for _ in tf.range(n):
        act(2 * observation)
        observation = observe()
    return observation


def branches(act: Callable[[Any], Any], observe: Callable[[], Any], n: Any) -> Any:
    observation = observe()
    for i in tf.range(n):
        if n > 0:
            act(2 * observation)
        observation = observe() if i % 2 == 0 else tf.identity(observe())
    return observation


def one_branch_after_the_other(act: Callable[[Any], Any], observe: Callable[[], Any], n: Any) -> Any:
    observation = observe()
    i = 0
    while i < 2 * n:
        if i % 2 == 0:
            act(2 * observation)
        else:
            observation = observe()
        i += 1
    return observation


def functions_in_a_loop(act: Callable[[Any], Any], observe: Callable[[], Any], n: Any) -> Any:
    acting, observing = tf.function(lambda x: act(x) and None), tf.function(observe)
    observation = observing()
    for _ in tf.range(n):
        acting(2 * observation)
        observation = observe()
    return observation


def library_loop(act: Callable[[Any], Any], observe: Callable[[], Any], n: Any) -> Any:
    def body(observation: Any) -> Any:
        act(2 * observation)
        return observe()

    return ipu.loops.repeat(n, body, [observe()])


@pytest.mark.parametrize("episode", [loop, branches, one_branch_after_the_other, functions_in_a_loop, library_loop])
def test_environment_on_the_host_answers_each_action(
    environment: Any, infeed_of: Any, strategy: Any, episode: Callable[..., Any]
) -> None:
    host = environment()
    observations = infeed_of(host.dataset)
    converted = tf.autograph.experimental.do_not_convert if episode is library_loop else lambda function: function

    @tf.function(jit_compile=True)
    def program(observations: Any, n: Any) -> Any:
        return converted(episode)(host.actions.enqueue, observations._dequeue, n)

    # Observations are 1, 3, 7, 15, ...
    assert int(strategy.run(program, (observations, tf.constant(4)))) == 31
    assert host.seen == [2, 6, 14, 30]


def test_environment_answers_each_replica(environment: Any, infeed_of: Any) -> None:
    config = ipu.IPUConfig()
    config.auto_select_ipus = 2
    config.configure_ipu_system()
    strategy = ipu.IPUStrategy()
    host = environment(2)
    observations = infeed_of(host.dataset)

    @tf.function(jit_compile=True)
    def program(n: Any) -> Any:
        return loop(host.actions.enqueue, observations._dequeue, n)

    assert int(strategy.run(program, (tf.constant(3),))) == 15
    assert host.seen == [[2, 2], [6, 6], [14, 14]]


def test_environment_answers_each_micro_batch_of_a_sequential_pipeline(
    environment: Any, infeed_of: Any, strategy: Any
) -> None:
    host = environment()
    observations = infeed_of(host.dataset)

    @tf.function(jit_compile=True)
    def program() -> None:
        ipu.pipelining.pipeline(
            [lambda observation: observation + observation, lambda action: action],
            4,
            infeed_queue=observations,
            outfeed_queue=host.actions,
            device_mapping=[0, 0],
            pipeline_schedule=ipu.pipelining.PipelineSchedule.Sequential,
        )

    strategy.run(program)
    host.stop()
    assert host.seen == [2, 6, 14, 30]


def test_pipeline_with_several_micro_batches_under_way_comes_after_what_is_before_it(
    strategy: Any, tap: Any, infeed_of: Any, until_waiting: Any, start: Any
) -> None:
    source = infeed_of(tap.dataset)
    before, results, behind = (ipu.IPUOutfeedQueue() for _ in range(3))

    @tf.function(jit_compile=True)
    def program() -> None:
        before.enqueue(1)
        ipu.pipelining.pipeline(
            [lambda x: x + 1, lambda x: 2 * x],
            4,
            infeed_queue=source,
            outfeed_queue=results,
            device_mapping=[0, 0],
        )
        behind.enqueue(2)

    run = start(lambda: strategy.run(program))
    until_waiting(source, before, 1)
    assert ready(behind) == 0
    tap.put(0, 1, 2, 3)
    run.result(DEADLINE)
    assert results.dequeue().numpy().tolist() == [2, 4, 6, 8]
    assert behind.dequeue().numpy().tolist() == [2]


def test_nothing_behind_a_dequeue_is_seen_before_its_element_came(
    strategy: Any, tap: Any, infeed_of: Any, until_waiting: Any, start: Any
) -> None:
    source = infeed_of(tap.dataset)
    before, behind = ipu.IPUOutfeedQueue(), ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program() -> None:
        before.enqueue(1)
        source._dequeue()
        behind.enqueue(2)

    run = start(lambda: strategy.run(program))
    until_waiting(source, before, 1)
    assert ready(behind) == 0
    tap.put(0)
    run.result(DEADLINE)
    assert behind.dequeue().numpy().tolist() == [2]


def test_sessions_run_programs_in_order_again_and_again() -> None:
    with tf.Graph().as_default() as graph:
        source = ipu.IPUInfeedQueue(tf.data.Dataset.range(9).map(lambda x: tf.cast(x, tf.int32)))
        sink = ipu.IPUOutfeedQueue()

        def program() -> Any:
            first = source._dequeue()
            with tf.control_dependencies([sink.enqueue(10 * first)]):
                return first, source._dequeue()

        with ipu.scopes.ipu_scope("/device:IPU:0"):
            results = ipu.compiler.compile(program)
        taken = sink.dequeue()
        with tf.compat.v1.Session(graph=graph) as session:
            session.run(source.initializer)
            assert [session.run(results) for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
            assert session.run(taken).tolist() == [0, 20, 40]
            session.run([source.deleter, sink.deleter])
