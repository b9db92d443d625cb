"""The order of elements in one queue, and of the uses of several queues: the order of the trace."""

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


def ints(structure: Any) -> Any:
    return tf.nest.map_structure(lambda leaf: leaf.numpy().tolist(), structure)


def test_several_dequeues_keep_program_order_though_nobody_uses_an_element(numbers, infeed_of, strategy):
    queue, outfeed, previous = infeed_of(numbers(100)), ipu.IPUOutfeedQueue(), ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program(queue: Any) -> Any:
        for _ in tf.range(3):
            queue._dequeue()
        last = queue._dequeue()
        for _ in tf.range(20):
            previous.enqueue(last)  # The element that the previous step took.
            first, second = queue._dequeue(), queue._dequeue()
            queue._dequeue()
            last = queue._dequeue()
            outfeed.enqueue((first, second, last))
        return queue._dequeue()

    assert int(strategy.run(program, (queue,))) == 84
    assert ints(outfeed.dequeue()) == (list(range(4, 84, 4)), list(range(5, 84, 4)), list(range(7, 84, 4)))
    assert ints(previous.dequeue()) == list(range(3, 83, 4))


def test_dequeues_in_branches_happen_where_the_branch_is_taken(numbers, infeed_of, strategy):
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


def test_dequeues_and_enqueues_in_nested_loops_keep_program_order(numbers, infeed_of, strategy):
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


def test_only_enqueues_that_are_executed_appear_in_one_stream(numbers, infeed_of, strategy):
    queue = infeed_of(numbers(100))
    cond, branch, joint = (ipu.IPUOutfeedQueue() for _ in range(3))

    @tf.function(jit_compile=True)
    def program(queue: Any) -> None:
        for _ in tf.range(10):
            x = queue._dequeue()
            tf.cond(x % 3 == 0, lambda: cond.enqueue(x), tf.no_op)  # noqa: B023  (Called at once.)
            if x % 4 == 1:
                branch.enqueue(x)
            if x % 2 == 0:
                joint.enqueue(x)
            else:
                joint.enqueue(-x)

    strategy.run(program, (queue,))
    assert ints(cond.dequeue()) == [0, 3, 6, 9]
    assert ints(branch.dequeue()) == [1, 5, 9]
    assert ints(joint.dequeue()) == [0, -1, 2, -3, 4, -5, 6, -7, 8, -9]


def once(queue: Any) -> None:
    queue.enqueue(1)


def in_a_loop(queue: Any) -> None:
    for i in tf.range(2):
        queue.enqueue(i)


def in_a_branch(queue: Any) -> None:
    if tf.constant(1) > 0:
        queue.enqueue(1)


@pytest.mark.parametrize(("first", "second"), [(once, once), (once, in_a_loop), (in_a_loop, once), (in_a_branch, once)])
@pytest.mark.parametrize("passed", [True, False], ids=["passed", "captured"])
def test_second_enqueue_in_a_graph_or_one_around_it_is_refused(first, second, passed, strategy):
    def body(queue: Any) -> None:
        first(queue)
        second(queue)

    queue = ipu.IPUOutfeedQueue()
    program = tf.function(body if passed else lambda: body(queue), jit_compile=True)
    with pytest.raises(ValueError, match=r"An outfeed can only be enqueued once"):
        strategy.run(program, (queue,) if passed else ())


def test_enqueue_can_be_traced_again_after_a_trace_that_failed(strategy):
    queue = ipu.IPUOutfeedQueue()
    faulty = True
    inner = tf.function(lambda x: queue.enqueue(x) and None)

    @tf.function(jit_compile=True)
    def program() -> None:
        inner(tf.constant(1))
        inner(tf.constant(2))  # An inner function may be called twice.
        if faulty:
            raise KeyError("in the body")

    with pytest.raises(KeyError, match="in the body"):
        strategy.run(program)
    faulty = False
    strategy.run(program)
    second_program = tf.function(lambda x: queue.enqueue(tf.cast(x, tf.int32)) and None, jit_compile=True)
    strategy.run(second_program, (tf.constant(3),))  # Other graphs may enqueue too.
    strategy.run(second_program, (tf.constant(4.0),))
    assert ints(queue.dequeue()) == [1, 2, 3, 4]


DEADLINE = 60.0


class Environment:
    """A host that answers each action with the next observation, the action plus 1. The first observation is 1."""

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
    environments: list[Environment] = []

    def make(*args: Any) -> Environment:
        ipu.feeds.set_wait_limit(DEADLINE)
        environments.append(Environment(*args))
        return environments[-1]

    yield make
    for host in environments:
        host.stop()


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


@pytest.mark.parametrize(
    ("episode", "ipus"),
    [(loop, 1), (branches, 1), (one_branch_after_the_other, 1), (functions_in_a_loop, 1), (library_loop, 1), (loop, 2)],
)
def test_environment_on_the_host_answers_each_action(environment, infeed_of, replicas, episode, ipus):
    strategy, host = replicas(ipus), environment(ipus)
    observations = infeed_of(host.dataset)
    converted = tf.autograph.experimental.do_not_convert if episode is library_loop else lambda function: function

    @tf.function(jit_compile=True)
    def program(observations: Any, n: Any) -> Any:
        return converted(episode)(host.actions.enqueue, observations._dequeue, n)

    # Observations are 1, 3, 7, 15, ...
    assert int(strategy.run(program, (observations, tf.constant(4)))) == 31
    assert host.seen == [action if ipus == 1 else [action] * ipus for action in (2, 6, 14, 30)]


def test_environment_answers_each_micro_batch_of_a_sequential_pipeline(environment, infeed_of, strategy):
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


@pytest.mark.parametrize("pipelined", [False, True])
def test_nothing_behind_a_dequeue_is_seen_before_its_element(pipelined, strategy, tap, infeed_of, until_waiting, start):
    source = infeed_of(tap.dataset)
    early, results, late = (ipu.IPUOutfeedQueue() for _ in range(3))
    stages = [lambda x: x + 1, lambda x: 2 * x]

    @tf.function(jit_compile=True)
    def program() -> None:
        early.enqueue(1)
        if pipelined:  # Several micro-batches are in flight.
            ipu.pipelining.pipeline(stages, 4, infeed_queue=source, outfeed_queue=results, device_mapping=[0, 0])
        else:
            source._dequeue()
        late.enqueue(2)

    run = start(lambda: strategy.run(program))
    until_waiting(source, early, 1)
    assert ready(late) == 0
    tap.put(0, 1, 2, 3)
    run.result(DEADLINE)
    assert late.dequeue().numpy().tolist() == [2]
    if pipelined:
        assert results.dequeue().numpy().tolist() == [2, 4, 6, 8]


def test_enqueue_of_what_xla_knows_ahead_still_comes_after_the_dequeue(strategy, tap, infeed_of, until_waiting, start):
    source = infeed_of(tap.dataset)
    sink: Any = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program() -> None:
        for _ in tf.range(3):
            sink.enqueue(0 * source._dequeue())

    running = start(lambda: strategy.run(program))
    for element in range(3):
        until_waiting(source, sink, element)
        assert ready(sink) == element
        tap.put(7)
    running.result(DEADLINE)
    assert sink.dequeue().numpy().tolist() == [0, 0, 0]
