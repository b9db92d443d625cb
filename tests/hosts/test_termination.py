"""What SIGTERM does to a process stays what it was while something of C takes the signal, as TensorFlow's runtime does."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Iterator

import pytest

from tensorflow_ipu.hosts.cluster import termination_kept

_IGNORE = ctypes.c_void_p(1)  # `SIG_IGN`


@pytest.fixture
def caught() -> Iterator[list[int]]:
    """The signals that a handler of Python's was called for."""
    found: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: found.append(number))
    yield found
    signal.signal(signal.SIGTERM, before)


def take() -> None:
    with termination_kept():
        ctypes.CDLL(None).signal(int(signal.SIGTERM), _IGNORE)


def test_handler_of_the_users_is_there_behind_the_block(caught: list[int]) -> None:
    take()
    os.kill(os.getpid(), signal.SIGTERM)
    assert caught == [signal.SIGTERM]


def test_block_may_be_on_any_thread(caught: list[int]) -> None:
    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    os.kill(os.getpid(), signal.SIGTERM)
    assert caught == [signal.SIGTERM]
