"""`FairLock` serves threads in order, can be entered again, and survives exceptions during a wait or a release."""

import signal
import threading
from concurrent.futures import wait

import pytest

from tensorflow_ipu._base.fair_lock import FairLock


def test_threads_get_the_lock_in_the_order_in_which_they_ask(in_thread, until):
    lock, order = FairLock(), []

    def take(number):
        with lock:
            order.append(number)

    threads = []
    with lock:
        for number in range(8):
            threads.append(in_thread(lambda number=number: take(number)))
            until(lambda: len(lock._waiting) == len(threads))
        # A thread that has had the lock gets it again after all waiting threads.
    with lock:
        order.append("again")
    wait(threads, 60)
    assert order == [*range(8), "again"]


def test_one_thread_at_a_time_is_in_a_block_that_it_may_enter_again(in_thread):
    lock, inside, counts = FairLock(), [], []

    def work():
        for _ in range(100):
            with lock, lock:
                inside.append(None)
                counts.append(len(inside))
                inside.pop()

    wait([in_thread(work) for _ in range(8)], 60)
    assert counts == [1] * 800
    assert lock._holder is None


def test_an_exception_of_a_signal_handler_ends_a_wait_and_the_next_thread_gets_the_lock(in_thread, until):
    lock, is_held, leave, passed = FairLock(), threading.Event(), threading.Event(), []

    def hold():
        with lock:
            is_held.set()
            assert leave.wait(60)

    def pass_through():
        with lock:
            passed.append(True)

    first = in_thread(hold)
    assert is_held.wait(60)
    later = []

    def interrupt():
        until(lambda: len(lock._waiting) == 1)
        later.append(in_thread(pass_through))
        until(lambda: len(lock._waiting) == 2)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    interrupting = in_thread(interrupt)
    with pytest.raises(KeyboardInterrupt), lock:
        pass
    interrupting.result(60)
    assert len(lock._waiting) == 1
    leave.set()
    wait([first, *later], 60)
    assert passed == [True]


def test_a_block_that_was_kept_from_its_end_is_ended_by_release_all(in_thread, until):
    lock, passed = FairLock(), threading.Event()

    def pass_through():
        with lock:
            passed.set()

    lock.__enter__()
    lock.__enter__()
    in_thread(pass_through)
    until(lambda: len(lock._waiting) == 1)
    lock.release_all()
    lock.release_all()
    assert passed.wait(60)
