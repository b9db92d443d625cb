"""Fixtures for tests of queues: datasets that wait for the test, and calls on other threads."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._base import environment
from tensorflow_ipu._native.library import native


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignores warnings about recompilation: tests of this folder run the same programs for elements of many shapes."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::tensorflow_ipu.errors.RecompilationWarning"))


@pytest.fixture(autouse=True)
def no_flags_and_no_limit_to_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(environment.FLAGS_VARIABLE, raising=False)
    yield
    ipu.feeds.set_wait_limit(None)


@pytest.fixture
def infeed_of() -> Iterator[Callable[..., ipu.IPUInfeedQueue]]:
    """Returns a function: `infeed_of(dataset, **options)` makes an initialized queue, which ends with the test."""
    queues: weakref.WeakSet[ipu.IPUInfeedQueue] = weakref.WeakSet()

    def make(dataset: tf.data.Dataset, **options: Any) -> ipu.IPUInfeedQueue:
        queue = ipu.IPUInfeedQueue(dataset, **options)
        queue.initializer  # noqa: B018  (The access starts it.)
        queues.add(queue)
        return queue

    yield make
    for queue in queues:  # A fixture or a traceback may still refer to the queue.
        assert queue._feed is not None
        native.ipu_infeed_drop(queue._feed.number)


@tf.function(jit_compile=True)
def _echo(source: Any, sink: Any, n: Any) -> None:
    i = 0
    while i < n:  # With `tf.range(n)`, TensorFlow would compile again for each n.
        sink.enqueue(source._dequeue() if isinstance(source, ipu.IPUInfeedQueue) else next(source))
        i += 1


@pytest.fixture
def echo(strategy: ipu.IPUStrategy) -> Callable[..., None]:
    """Returns a function: `echo(source, sink, n)` runs a program that enqueues the next `n` elements of a queue or
    iterator.

    All tests share the one `tf.function`, so that each element spec is compiled once for all of them.
    """
    return lambda source, sink, n: strategy.run(_echo, (source, sink, tf.constant(n)))


@tf.function(jit_compile=True)
def _take_one(source: Any) -> Any:
    return source._dequeue() if isinstance(source, ipu.IPUInfeedQueue) else next(source)


@pytest.fixture
def take_one(strategy: ipu.IPUStrategy) -> Callable[[Any], Any]:
    """Returns a function: `take_one(source)` runs a program that returns the next element of a queue or iterator."""
    return lambda source: strategy.run(_take_one, (source,))


@pytest.fixture
def until_waiting(until: Callable[..., None]) -> Callable[..., None]:
    """Returns a function: `until_waiting(source)` returns when a program waits for an element of the queue or iterator.

    `until_waiting(source, sink, n)` also waits until the outfeed `sink` holds n elements.
    """

    def wait(source: Any, sink: Any = None, n: int = 0) -> None:
        queue = getattr(source, "_infeed_queue", source)
        if sink is not None:
            until(lambda: native.ipu_outfeed_ready(sink._feed.number) == n)
        until(lambda: native.ipu_infeed_waiting(queue._feed.number) == 1)

    return wait


@pytest.fixture
def start(in_thread: Callable[..., Future[Any]]) -> Iterator[Callable[..., Future[Any]]]:
    """Returns a function: `start(call)` runs `call` on a thread, and returns its future. After the test, waiting runs end."""
    yield in_thread
    ipu.feeds.shut_down(0)


@pytest.fixture
def numbers() -> Callable[..., tf.data.Dataset]:
    """Returns a function: `numbers(n)` is the dataset of the int32 scalars 0 to n - 1; `numbers(a, b)` starts at a."""

    def make(*bounds: int) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(np.arange(*bounds, dtype=np.int32))

    return make
