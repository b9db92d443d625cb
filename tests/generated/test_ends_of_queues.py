"""Queues that end at random moments and in all ways lose no element, repeat no element and never hang."""

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
# A run of this many steps is usually still active when another thread disturbs it.
LONG = 4000


@tf.function(jit_compile=True, autograph=False)
def echo(source: Any, sink: Any, count: Any) -> None:
    """Enqueues the next `count` elements of the queue `source` to `sink`."""

    def body(i: Any) -> Any:
        sink.enqueue(source._dequeue())
        return i + 1

    tf.while_loop(lambda i: i < count, body, [0])


class Session:
    """An infeed of the elements 0, 1, 2, ... and an outfeed, with the rows that the outfeed must have next.

    A row has the elements of all replicas. With two replicas, row 3 has the elements 6 and 7.
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
        self.next: int | None = None  # The first row of the next run; None if the queue must start first.
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
        self.unread: list[int] = []  # The rows in the outfeed.
        self.is_known = False  # True after the first element; before, the outfeed has no element spec.

    def call(self, count: int) -> None:
        self.strategy.run(echo, (self.infeed, self.outfeed, tf.constant(count)))

    def read(self, limit: int | None = None) -> list[int]:
        """Dequeues at most `limit` rows, checks the order of the elements of each, and returns the rows' numbers."""
        try:
            taken = self.outfeed.dequeue() if limit is None else self.outfeed.dequeue(max_elements=limit)
        except ValueError:
            assert not self.is_known
            return []
        self.is_known = True
        rows = np.asarray(taken).reshape([-1, self.replicas])
        numbers = rows[:, 0] // self.replicas
        np.testing.assert_array_equal(rows, numbers[:, None] * self.replicas + np.arange(self.replicas))
        return numbers.tolist()

    def in_order(self, first: int) -> list[int]:
        """Reads the unread rows and then the rows of a run, which must be in order from `first`; returns the latter."""
        rows = self.read()
        earlier, self.unread = self.unread, []
        assert rows[: len(earlier)] == earlier
        new = rows[len(earlier) :]
        assert new == list(range(first, first + len(new)))
        return new

    # The actions.

    def run(self) -> None:
        """Runs the program without a disturbance, at most to the end of the data."""
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
        # The end of the data at one replica also ends replicas that are not as far.
        new = self.in_order(first)
        assert len(new) == self.next - first if self.replicas == 1 else len(new) <= self.next - first

    def take(self) -> None:
        """Reads a part of the outfeed or all of it."""
        limit = self.random.choice([None, 1, 3])
        count = len(self.unread) if limit is None else limit
        assert self.read(limit) == self.unread[:count]
        del self.unread[:count]

    def restart(self) -> None:
        self.start()

    def delete(self) -> None:
        if self.next is not None:
            self.infeed.deleter  # noqa: B018
            self.next = None

    def another_outfeed(self) -> None:
        """Deletes the outfeed with its elements, and creates another one."""
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
            new, self.unread = rows[len(self.unread) :], []
            # The run may have started after the restart of the queue. It never mixes elements from before and after it.
            begin = 0 if what == "restart" and new[:1] == [0] else first
            assert new == list(range(begin, begin + len(new)))
            assert len(new) <= LONG
        self.start()

    def interrupt(self) -> None:
        """Sends Ctrl-C at a random moment of a run on the main thread."""
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
        new = self.in_order(first)
        if self.replicas > 1 or first + len(new) == self.rows:
            self.start()
            return
        # The run may have dequeued an element that it did not enqueue.
        self.next = first + len(new)
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
        """Waits for the signal if the run ended before it arrived."""
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
    new_session = Session(seed, strategy, replicas)
    try:
        yield new_session
    finally:
        for queue in (new_session.infeed, new_session.outfeed):
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
        with session(seed, strategy, count) as case:
            note(f"{case.rows} rows, which {'fail' if case.fails else 'end'}")
            for _ in range(12):
                done.add(case.step())
            if case.next is None:
                case.start()
            case.take()

    check()
    assert done == set(Session.ACTIONS)
