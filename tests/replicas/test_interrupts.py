"""Signals while a program runs: their handlers run, what these raise ends the run, and leaves all fit for more."""

from __future__ import annotations

import gc
import itertools
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._base import active_runs
from tensorflow_ipu.replicas import run

DEADLINE = 60.0
SOON = 0.05  # Seconds to a signal. Nothing fails where it comes too early: the program waits for it, or is long.


@pytest.fixture
def alarm() -> Iterator[Any]:
    """`alarm(handler)` has SIGALRM come again and again, soon, until the test ends or `signal.setitimer` stops it."""
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("Python handles signals on the main thread alone")
    before = signal.getsignal(signal.SIGALRM)
    ipu.feeds.set_wait_limit(DEADLINE)

    def start(handler: Any) -> None:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, SOON, SOON)

    yield start
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    ipu.feeds.set_wait_limit(None)


class ExpiredError(Exception):
    pass


def expire(*_: Any) -> None:
    if not active_runs.active():
        return  # The next one may find the program running.
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert threading.current_thread() is threading.main_thread()
    raise ExpiredError


@tf.function(jit_compile=True)
def take(iterator: Any) -> Any:
    return next(iterator)


@pytest.mark.parametrize("ipus", [1, 2])
def test_alarm_is_a_limit_to_a_run_that_waits_for_data(alarm, ipus, replicas, tap):
    strategy = replicas(ipus)
    with strategy.scope():
        iterator = iter(tap.dataset)
        alarm(expire)
        with pytest.raises(ExpiredError):
            strategy.run(take, (iterator,))
        # The infeed is as it was.
        tap.put(*range(1, ipus + 1))
        assert int(strategy.run(take, (iterator,))) == 1


def test_handler_runs_while_the_program_waits_for_what_it_gives(alarm, strategy, tap):
    def give(*_: Any) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        tap.put(7)

    before = signal.signal(signal.SIGINT, give)
    try:
        with strategy.scope():
            iterator = iter(tap.dataset)
        for handler in (give, lambda *_: signal.raise_signal(signal.SIGINT)):
            alarm(handler)
            assert int(strategy.run(take, (iterator,))) == 7
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_a_handler_raises_in_a_program_without_feeds_is_raised_when_it_returns(alarm, strategy):
    with strategy.scope():
        counter: Any = tf.Variable(tf.constant(0))

    @tf.function(jit_compile=True)
    def program(n: Any) -> None:
        x = tf.constant(0.5)
        i = 0
        while i < n:
            x = tf.cos(x)
            i += 1
        counter.assign_add(1 + tf.cast(x, tf.int32))

    strategy.run(program, (tf.constant(1),))
    runs = 1
    steps = 1_000_000

    alarm(expire)

    def run_on_and_on() -> None:
        nonlocal runs
        while True:  # A program may be over when the alarm comes.
            runs += 1
            strategy.run(program, (tf.constant(steps),))

    with pytest.raises(ExpiredError):
        run_on_and_on()
    assert runs - 1 <= int(counter) <= runs


def raised_at(place: int) -> Any:
    """What `sys.setprofile` takes to raise at such a place of the code that runs programs: where Python calls handlers."""
    places = itertools.count()
    folder = str(Path(sys.modules[run.__module__].__file__ or "").parent)

    def profile(frame: Any, event: str, _: Any) -> None:
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(folder) and next(places) == place:
            sys.setprofile(None)
            raise ExpiredError

    return profile


# A handler raised between the count of a run and its `try`, and from then on each configuration waited for that run. In
# `Thread.start` it left a thread that said "Exception ignored", or one that waited for ever.
@pytest.mark.parametrize("signals", [(), (signal.SIGUSR1,)])
def test_a_handler_may_raise_anywhere_in_a_run(signals, strategy, replicas):
    one = tf.constant(1)
    program = tf.function(lambda x: x + 1, jit_compile=True)
    strategy.run(program, (one,))
    before = {number: signal.signal(number, lambda *_: None) for number in signals}
    place = 0
    gc.collect()
    gc.disable()  # What is raised in the collector goes nowhere, and its callbacks are code of that folder too.
    try:
        for place in itertools.count():
            sys.setprofile(raised_at(place))
            try:
                strategy.run(program, (one,))
                break  # There are no further places.
            except ExpiredError:
                pass
            finally:
                sys.setprofile(None)
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
            assert signal.set_wakeup_fd(-1) == -1
            assert active_runs.wait_until_idle(DEADLINE)
            assert int(strategy.run(program, (one,))) == 2
    finally:
        gc.enable()
        for number, handler in before.items():
            signal.signal(number, handler)
    assert place > 10
    replicas(2)


def test_what_a_run_beside_the_main_thread_raises_is_what_runs_raise(alarm, strategy):
    alarm(lambda *_: None)
    with strategy.scope(), pytest.raises(tf.errors.OutOfRangeError):
        strategy.run(take, (iter(tf.data.Dataset.from_tensors(1).take(0)),))
    with strategy.scope():
        variable: Any = tf.Variable(tf.constant(2.0))
    with tf.GradientTape() as tape:
        y = strategy.run(tf.function(lambda: variable * variable, jit_compile=True))
    gradient: Any = tape.gradient(y, variable)
    assert float(gradient) == 4.0
