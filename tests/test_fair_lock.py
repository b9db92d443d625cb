"""`FairLock`: threads in their order, again and again, and no wait or release that an exception breaks."""

import signal
import threading
import time

import pytest

from tensorflow_ipu._base.fair_lock import FairLock


def until(condition):
    """Waits for a condition of another thread, for a minute at most."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def started(function):
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    return thread


def test_threads_get_the_lock_in_the_order_in_which_they_ask():
    lock, order = FairLock(), []

    def take(number):
        with lock:
            order.append(number)

    threads = []
    with lock:
        for number in range(8):
            threads.append(started(lambda number=number: take(number)))
            until(lambda: len(lock._waiting) == len(threads))
        # Who has had it comes after all of them.
    with lock:
        order.append("again")
    for thread in threads:
        thread.join(60)
    assert order == [*range(8), "again"]


def test_one_thread_at_a_time_is_in_a_block_that_it_may_enter_again():
    lock, inside, most = FairLock(), [], []

    def work():
        for _ in range(100):
            with lock, lock:
                inside.append(None)
                most.append(len(inside))
                inside.pop()

    threads = [started(work) for _ in range(8)]
    for thread in threads:
        thread.join(60)
    assert most == [1] * 800
    assert lock._holder is None


def test_an_exception_of_a_signal_handler_ends_a_wait_and_the_next_thread_gets_the_lock():
    lock, held, leave, passed = FairLock(), threading.Event(), threading.Event(), []

    def hold():
        with lock:
            held.set()
            assert leave.wait(60)

    def pass_through():
        with lock:
            passed.append(True)

    first = started(hold)
    assert held.wait(60)
    behind = []

    def interrupt():
        until(lambda: len(lock._waiting) == 1)
        behind.append(started(pass_through))
        until(lambda: len(lock._waiting) == 2)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    interrupting = started(interrupt)
    with pytest.raises(KeyboardInterrupt), lock:
        pass
    interrupting.join(60)
    assert len(lock._waiting) == 1
    leave.set()
    for thread in (first, *behind):
        thread.join(60)
    assert passed == [True]


def test_a_block_that_was_kept_from_its_end_is_ended_by_release_all():
    lock, passed = FairLock(), threading.Event()

    def pass_through():
        with lock:
            passed.set()

    lock.__enter__()
    lock.__enter__()
    thread = started(pass_through)
    until(lambda: len(lock._waiting) == 1)
    lock.release_all()
    lock.release_all()
    assert passed.wait(60)
    thread.join(60)
