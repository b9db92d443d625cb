"""Queues that end at random moments, and in any way: nothing is lost, nothing comes twice, and nothing hangs."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, note
from hypothesis import strategies as st

import tensorflow_ipu as ipu

DEADLINE = 60.0
ENDLESS = 10**8
# A run that long is going on when something happens beside it, mostly.
LONG = 4000


@tf.function(jit_compile=True, autograph=False)
def echo(source: Any, sink: Any, count: Any) -> None:
    """Enqueues the next elements of a queue."""

    def body(i: Any) -> Any:
        sink.enqueue(source._dequeue())
        return i + 1

    tf.while_loop(lambda i: i < count, body, [0])


class Session:
    """A queue of elements 0, 1, 2, ..., what was done with it, and what has to come of that.

    A row has the elements of all replicas: with two, row 3 has 6 and 7.
    """

    def __init__(self, seed: int, strategy: ipu.IPUStrategy, replicas: int) -> None:
        self.random = random.Random(seed)
        self.strategy, self.replicas = strategy, replicas
        self.rows = self.random.choice([0, 1, 7, 40, ENDLESS, ENDLESS])
        self.fails = self.rows < ENDLESS and self.random.random() < 0.5
        dataset = tf.data.Dataset.range(ENDLESS if self.fails else self.rows * replicas).map(self._element)
        if self.random.random() < 0.3:
            dataset = dataset.prefetch(2)
        with strategy.scope():
            self.infeed = ipu.IPUInfeedQueue(dataset, prefetch_depth=self.random.choice([1, 3, 20]))
        self.make_outfeed()
        self.next: int | None = None  # The row that the next run begins with; None if the queue has to start first.
        self.start()

    def _element(self, i: tf.Tensor) -> tf.Tensor:
        if self.fails:
            with tf.control_dependencies([tf.debugging.assert_less(i, tf.cast(self.rows * self.replicas, tf.int64))]):
                i = tf.identity(i)
        return tf.cast(i, tf.int32)

    def start(self) -> None:
        self.infeed.initializer  # noqa: B018  (The access starts it.)
        self.next = 0

    def make_outfeed(self) -> None:
        self.outfeed = ipu.IPUOutfeedQueue()
        self.unread: list[int] = []  # Rows that it has.
        self.is_known = False  # Whether it had an element: before, it does not know what they are.

    def call(self, count: int) -> None:
        self.strategy.run(echo, (self.infeed, self.outfeed, tf.constant(count)))

    def read(self, most: int | None = None) -> list[int]:
        """Reads rows of the outfeed, and checks that each has its elements in order; returns their numbers."""
        try:
            taken = self.outfeed.dequeue() if most is None else self.outfeed.dequeue(max_elements=most)
        except ValueError:
            assert not self.is_known
            return []
        self.is_known = True
        rows = np.asarray(taken).reshape([-1, self.replicas])
        numbers = rows[:, 0] // self.replicas
        np.testing.assert_array_equal(rows, numbers[:, None] * self.replicas + np.arange(self.replicas))
        return numbers.tolist()

    def in_order(self, first: int) -> list[int]:
        """Reads all rows: those that are known, and after them a run's own, in order from `first`; returns the latter."""
        rows = self.read()
        known, self.unread = self.unread, []
        assert rows[: len(known)] == known
        own = rows[len(known) :]
        assert own == list(range(first, first + len(own)))
        return own

    # What may happen.

    def run(self) -> None:
        """A run on its own, to the end of the data at most."""
        count = self.random.choice([1, 2, 5, 30])
        if self.next is None:
            with pytest.raises(tf.errors.FailedPreconditionError):
                self.call(count)
            return
        first, self.next = self.next, min(self.next + count, self.rows)
        if self.next == first + count:
            self.call(count)
            self.unread += range(first, self.next)
            return
        with pytest.raises(tf.errors.InvalidArgumentError if self.fails else tf.errors.OutOfRangeError):
            self.call(count)
        # Replicas that had not come so far are ended.
        own = self.in_order(first)
        assert len(own) == self.next - first if self.replicas == 1 else len(own) <= self.next - first

    def take(self) -> None:
        """Reads a part of the outfeed, or all."""
        most = self.random.choice([None, 1, 3])
        count = len(self.unread) if most is None else most
        assert self.read(most) == self.unread[:count]
        del self.unread[:count]

    def restart(self) -> None:
        self.start()

    def delete(self) -> None:
        if self.next is not None:
            self.infeed.deleter  # noqa: B018
            self.next = None

    def another_outfeed(self) -> None:
        """Deletes the outfeed with what it has."""
        self.outfeed.deleter  # noqa: B018
        with pytest.raises((tf.errors.NotFoundError, ValueError)):
            self.outfeed.dequeue()
        self.make_outfeed()

    def disturb(self) -> None:
        """Deletes or restarts a queue at a random moment of a run, on another thread."""
        if self.next is None:
            return
        errors: list[BaseException] = []
        ended = threading.Event()

        def work() -> None:
            try:
                self.call(LONG)
            except BaseException as error:
                errors.append(error)
            finally:
                ended.set()

        first, thread = self.next, threading.Thread(target=work, daemon=True)
        what = self.random.choice(["delete", "restart", "outfeed"])
        note(f"disturb by {what}")
        thread.start()
        ended.wait(self.random.random() * 0.02)
        allowed: tuple[type[Exception], ...] = (tf.errors.CancelledError, tf.errors.FailedPreconditionError)
        if what == "outfeed":
            outfeed, allowed = self.outfeed, (tf.errors.NotFoundError,)
            outfeed.deleter  # noqa: B018
        elif what == "delete":
            self.infeed.deleter  # noqa: B018
        else:
            self.infeed.initializer  # noqa: B018
        thread.join(DEADLINE)
        assert not thread.is_alive(), "the run hangs"
        of_data = (tf.errors.InvalidArgumentError if self.fails else tf.errors.OutOfRangeError,)
        for error in errors:
            assert isinstance(error, allowed + of_data), error
        if what == "outfeed":
            self.make_outfeed()
        else:
            rows = self.read()
            assert rows[: len(self.unread)] == self.unread
            own, self.unread = rows[len(self.unread) :], []
            # The run may have begun after the queue had restarted. It never goes from the one pass to the other.
            begin = 0 if what == "restart" and own[:1] == [0] else first
            assert own == list(range(begin, begin + len(own)))
            assert len(own) <= LONG
        self.start()

    def interrupt(self) -> None:
        """Ctrl-C at a random moment of a run, on the main thread."""
        if self.next is None:
            return
        first = self.next
        timer = threading.Timer(self.random.random() * 0.02, os.kill, (os.getpid(), signal.SIGINT))
        of_data = tf.errors.InvalidArgumentError if self.fails else tf.errors.OutOfRangeError
        try:
            with contextlib.suppress(of_data):
                timer.start()
                self.call(LONG)
            timer.join(DEADLINE)
            self._wait_for_interrupt()
        except KeyboardInterrupt:
            pass
        timer.join(DEADLINE)
        own = self.in_order(first)
        if self.replicas > 1 or first + len(own) == self.rows:
            self.start()
            return
        # The run may have had an element that it could not enqueue any more.
        self.next = first + len(own)
        try:
            self.call(1)
        except of_data:
            assert self.next + 1 == self.rows
            self.start()
            return
        (begin,) = self.read()
        assert begin in (self.next, self.next + 1)
        self.next = begin + 1

    @staticmethod
    def _wait_for_interrupt() -> None:
        """Waits for the signal of a run that ended before it came."""
        threading.Event().wait(DEADLINE)
        raise AssertionError("no signal came")

    ACTIONS = ("run", "run", "run", "take", "take", "restart", "delete", "another_outfeed", "disturb", "interrupt")

    def step(self) -> str:
        name = self.random.choice(self.ACTIONS)
        note(f"{name}: next row {self.next} of {self.rows}, {len(self.unread)} unread")
        getattr(self, name)()
        return name


@contextlib.contextmanager
def session(seed: int, strategy: ipu.IPUStrategy, replicas: int) -> Iterator[Session]:
    one = Session(seed, strategy, replicas)
    try:
        yield one
    finally:
        for queue in (one.infeed, one.outfeed):
            with contextlib.suppress(tf.errors.NotFoundError):
                queue.deleter  # noqa: B018


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.filterwarnings("ignore::tensorflow_ipu.errors.RecompilationWarning")
def test_random_ends_of_queues_lose_nothing_repeat_nothing_and_hang_nowhere(
    count: int, examples: Callable[[int], Any], replicas: Callable[..., ipu.IPUStrategy]
) -> None:
    strategy, done = replicas(count), set()

    @examples(60)
    @given(seed=st.integers(0, 10**6))
    def check(seed: int) -> None:
        with session(seed, strategy, count) as one:
            note(f"{one.rows} rows, which {'fail' if one.fails else 'end'}")
            for _ in range(12):
                done.add(one.step())
            if one.next is None:
                one.start()
            one.take()

    check()
    assert done == set(Session.ACTIONS)
