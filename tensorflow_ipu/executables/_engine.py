"""Runs a stored program for those who call it: a thread for the program, one that hands on its answers."""

from __future__ import annotations

import atexit
import collections
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tensorflow_ipu._library import native, ops
from tensorflow_ipu._tensorflow import definitions
from tensorflow_ipu.feeds import stored as stored_feeds
from tensorflow_ipu.ops import stored as stored_states

if TYPE_CHECKING:
    from tensorflow_ipu.executables._application import Application

# How long the answers' thread waits natively for one before it looks whether the engine has been stopped.
_PATIENCE_US = 20_000

_engines: weakref.WeakSet[Engine] = weakref.WeakSet()

# The operation that a program has which is asked for the machine's numbers, in its serialized functions.
_NUMBERS = b"IpuHalfPrecision"


class Engine:
    """A stored program that runs until it is stopped. Thread-safe: answers go to whom they belong, in the order of calls."""

    def __init__(self, application: Application, values: Sequence[tf.Tensor], device: str, timeout_us: int) -> None:
        """Starts it.

        Args:
          application: The program.
          values: What it is started with: `application.inputs`.
          device: The IPU device.
          timeout_us: How long a pipeline waits for the next call before it goes on without, in microseconds.
        """
        self._application = application
        self._device = device
        self._timeout = timeout_us / 1e6
        self._condition = threading.Condition()
        self._waiting: collections.deque[tuple[list[np.ndarray], Future]] = collections.deque()
        # What the program has got and not answered, in order; None for what fills up a pipeline.
        self._taken: collections.deque[Future | None] = collections.deque()
        self._stopped = False
        self._failure: BaseException = RuntimeError()  # Where it was stopped.
        self._has_infeed = True
        if application.ipus > 1:  # Such a device runs one program after the other, and this one does not end.
            for other in list(_engines):
                if other._device == device and other._application.ipus > 1 and not other._stopped:
                    raise RuntimeError(
                        f"`{device}` of {application.ipus} IPUs runs another application: stop that one first, by"
                        " `embedded_runtime_stop`"
                    )
        self._define(values)
        self._threads = [
            threading.Thread(target=target, name=f"ipu-application-{name}", daemon=True)
            for name, target in (("program", self._run), ("answers", self._answer))
        ]
        for thread in self._threads:
            thread.start()
        _engines.add(self)

    def call(self, values: list[np.ndarray]) -> Future:
        """Hands an element over; the answer comes in the future, as a list of arrays.

        Raises:
          RuntimeError: The engine was stopped.
        """
        future: Future = Future()
        with self._condition:
            if self._stopped:
                raise self._failure
            self._waiting.append((values, future))
            self._condition.notify_all()
        return future

    def stop(self) -> None:
        """Ends the program, and fails the calls that it has not answered."""
        self._end(RuntimeError("the application was stopped: start it again"))
        current = threading.current_thread()
        for thread in self._threads:
            if thread is not current:
                thread.join()
        with self._condition:
            first, self._has_infeed = self._has_infeed, False
        if first:
            self._infeed.deleter  # noqa: B018  (The access ends it.)

    def _define(self, values: Sequence[tf.Tensor]) -> None:
        application = self._application
        folder = tempfile.mkdtemp(prefix="ipu_application_")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        for name, contents in application.executables.items():
            Path(folder, name).write_bytes(contents)
        native.ipu_add_executables(folder.encode(), application.key.encode())
        self._function = definitions.define(application.functions, application.name)
        given = dict(zip(application.started_with, values, strict=True))
        self._kept: list[Any] = []
        self._arguments: list[tf.Tensor] = []
        for at, argument in enumerate(application.arguments):
            self._arguments.append(self._argument(at, argument, given))

    def _argument(self, at: int, argument: dict[str, Any], given: dict[int, tf.Tensor]) -> tf.Tensor:
        kind = argument["kind"]
        if kind == "variable":
            with tf.device(self._device):
                value: Any = given[at] if at in given else self._application.weights[at]
                self._kept.append(tf.Variable(value, dtype=argument["dtype"], shape=argument["shape"]))
            return self._kept[-1].handle
        if kind == "input":
            return given[at]
        if kind == "order":
            return stored_feeds.order(self._device)
        if kind == "outfeed":
            self._results = stored_feeds.Results(argument, self._device)
            return self._results.state
        if kind == "infeed":
            specs = tuple(tf.TensorSpec(spec.shape, spec.dtype) for spec in stored_feeds.specs_of(argument["elements"]))
            reference: weakref.ref[Engine] = weakref.ref(self)
            dataset = tf.data.Dataset.from_generator(lambda: _elements(reference), output_signature=specs)
            self._infeed, state = stored_feeds.infeed_of(dataset, self._device)
            return state
        self._kept.append(stored_states.feed_of(kind, self._device))
        return self._kept[-1].state(self._device)

    def _next(self) -> tuple[np.ndarray, ...] | None:
        """The next element for the program; None at the end."""
        with self._condition:
            # A pipeline that waits for calls holds back the answers to earlier ones.
            holding = self._application.ahead and any(self._taken)
            self._condition.wait_for(lambda: self._stopped or self._waiting, self._timeout if holding else None)
            if self._stopped:
                return None
            if self._waiting:
                values, future = self._waiting.popleft()
                self._taken.append(future)
                self._condition.notify_all()
                return tuple(values)
            self._taken.append(None)
            return tuple(tf.zeros(spec.shape, spec.dtype).numpy() for spec in self._application.elements("infeed"))

    def _run(self) -> None:
        application = self._application
        # Where its numbers may stop a program, a run tells so when it has ended.
        by_itself = application.ipus == 1 and _NUMBERS not in application.functions
        try:
            while not self._stopped:
                with tf.device(self._device):
                    if by_itself:
                        definitions.call_defined(self._function, self._arguments, len(application.results))
                        continue
                    ops.ipu_replicated_run(
                        self._arguments,
                        Tout=[tf.as_dtype(one["dtype"]) for one in application.results],
                        f=self._function,
                        shards=application.shards,
                        shapes=[one["shape"] for one in application.results],
                    )
        except BaseException as exc:
            self._end(exc)

    def _answer(self) -> None:
        try:
            while True:
                with self._condition:
                    self._condition.wait_for(lambda: self._stopped or self._taken)
                    if self._stopped:
                        return
                self._hand_on([row.numpy() for row in self._results.take(_PATIENCE_US)])
        except BaseException as exc:
            self._end(exc)

    def _hand_on(self, rows: list[np.ndarray]) -> None:
        if not rows or not len(rows[0]):
            return
        if self._application.ipus > self._application.shards:  # A row has the results of all replicas, in order.
            rows = [row.reshape([-1, *row.shape[2:]]) for row in rows]
        for at in range(len(rows[0])):
            with self._condition:
                future = self._taken.popleft()
            if future is not None:
                future.set_result([row[at] for row in rows])

    def _end(self, failure: BaseException) -> None:
        with self._condition:
            if self._stopped:
                return
            self._stopped, self._failure = True, failure
            left = [*(one for one in self._taken if one is not None), *(future for _, future in self._waiting)]
            self._taken.clear()
            self._waiting.clear()
            self._condition.notify_all()
        for future in left:
            future.set_exception(failure)


def _elements(reference: weakref.ref[Engine]) -> Iterator[tuple[np.ndarray, ...]]:
    """What the program is fed; the dataset must not keep the engine."""
    while True:
        engine = reference()
        element = None if engine is None else engine._next()
        del engine
        if element is None:
            return
        yield element


@atexit.register
def _stop_all() -> None:
    for engine in list(_engines):
        engine.stop()
