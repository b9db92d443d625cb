"""Runs a stored program for those who call it: a thread for the program, one that hands on its answers."""

from __future__ import annotations

import atexit
import collections
import itertools
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tensorflow_ipu import replicas
from tensorflow_ipu._native.library import native, ops
from tensorflow_ipu._tensorflow import definitions, op_errors
from tensorflow_ipu.feeds import stored as stored_feeds
from tensorflow_ipu.ops import sites as stored_states

if TYPE_CHECKING:
    from tensorflow_ipu.executables._application import Application

# How long the answers' thread waits natively for one before it looks whether the engine has been stopped.
_PATIENCE_US = 20_000

_engines: weakref.WeakSet[Engine] = weakref.WeakSet()


@dataclass(eq=False)
class _Call:
    """What a program is given at once."""

    elements: list[tuple[np.ndarray, ...]]
    future: Future | None
    taken: bool = False


class Engine:
    """A stored program that runs until it is stopped. Thread-safe: answers go to whom they belong, in the order of calls."""

    def __init__(
        self, application: Application, values: Sequence[tf.Tensor], device: str, ipus: int, timeout_us: int
    ) -> None:
        """Starts it."""
        self._application = application
        self._device = device
        self._timeout = timeout_us / 1e6
        self._condition = threading.Condition()
        # Calls that are not answered, in order, and for each infeed those of them that it has yet to take.
        self._calls: collections.deque[_Call] = collections.deque()
        self._inputs = [len(specs) for specs in application.elements("infeed")]
        self._waiting: list[collections.deque[_Call]] = [collections.deque() for _ in self._inputs]
        self._stopped = False
        self._failure: BaseException = RuntimeError()  # Where it was stopped.
        self._infeeds: list[Any] = []
        self._results: list[stored_feeds.StoredResults] = []
        used = [other._application.ipus for other in list(_engines) if other._device == device and not other._stopped]
        if ipus > 1 and sum(used) + application.ipus > ipus:  # A program does not end, and shares its IPUs with none.
            raise RuntimeError(
                f"`{device}` has {ipus} IPUs, of which other applications use {sum(used)}, and this one wants"
                f" {application.ipus}: stop one first, by `embedded_runtime_stop`"
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
        """Hands an element over; the answer comes in the future, as a list of arrays."""
        future: Future = Future()
        with self._condition:
            if self._stopped:
                raise self._failure
            self._add(values, future)
        return future

    def _add(self, values: Sequence[np.ndarray], future: Future | None) -> None:
        rest = iter(values)
        call = _Call([tuple(itertools.islice(rest, count)) for count in self._inputs], future)
        self._calls.append(call)
        for waiting in self._waiting:
            waiting.append(call)
        self._condition.notify_all()

    def stop(self) -> None:
        """Ends the program, and fails the calls that it has not answered."""
        self._end(RuntimeError("the application was stopped: start it again"))
        current = threading.current_thread()
        for thread in self._threads:
            if thread is not current:
                thread.join()
        with self._condition:
            infeeds, self._infeeds = self._infeeds, []
        for infeed in infeeds:
            infeed.deleter  # noqa: B018  (The access ends it.)

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
            self._results.append(stored_feeds.StoredResults(argument, self._device))
            return self._results[-1].state
        if kind == "infeed":
            specs = tuple(tf.TensorSpec(spec.shape, spec.dtype) for spec in stored_feeds.specs_of(argument["elements"]))
            reference: weakref.ref[Engine] = weakref.ref(self)
            number = len(self._infeeds)
            dataset = tf.data.Dataset.from_generator(lambda: _elements(reference, number), output_signature=specs)
            infeed, state = stored_feeds.infeed_of(dataset, self._device)
            self._infeeds.append(infeed)
            return state
        self._kept.append(stored_states.feed_of(kind, self._device))
        return self._kept[-1].state(self._device)

    def _next(self, infeed: int) -> tuple[np.ndarray, ...] | None:
        """The next element for the program from one of its infeeds; None at the end."""
        waiting = self._waiting[infeed]
        with self._condition:
            # A pipeline that waits for calls holds back the answers to earlier ones.
            holding = self._application.ahead and any(call.taken and call.future is not None for call in self._calls)
            self._condition.wait_for(lambda: self._stopped or waiting, self._timeout if holding else None)
            if self._stopped:
                return None
            if not waiting:
                specs = itertools.chain.from_iterable(self._application.elements("infeed"))
                self._add([tf.zeros(spec.shape, spec.dtype).numpy() for spec in specs], None)
            call = waiting.popleft()
            call.taken = True
            self._condition.notify_all()
            return call.elements[infeed]

    def _run(self) -> None:
        application = self._application
        try:
            while not self._stopped:
                with tf.device(self._device):
                    if application.by_itself:
                        definitions.call_defined(self._function, self._arguments, len(application.results))
                        continue
                    ops.ipu_replicated_run(
                        self._arguments,
                        Tout=[tf.as_dtype(one["dtype"]) for one in application.results],
                        f=self._function,
                        shards=application.shards,
                        shapes=[one["shape"] for one in application.results],
                    )
        except tf.errors.InvalidArgumentError as exc:
            reason = replicas.why_stopped(None, exc.message)
            told = op_errors.told_plainly(exc)
            self._end(told if reason is None else tf.errors.InvalidArgumentError(None, None, reason))
        except tf.errors.OpError as exc:
            self._end(op_errors.told_plainly(exc))
        except BaseException as exc:
            self._end(exc)

    def _answer(self) -> None:
        answers: list[collections.deque[list[np.ndarray]]] = [collections.deque() for _ in self._results]
        try:
            while True:
                with self._condition:
                    self._condition.wait_for(lambda: self._stopped or any(call.taken for call in self._calls))
                    if self._stopped:
                        return
                for results, rows in zip(self._results, answers, strict=True):
                    if not rows:
                        rows.extend(self._rows(results))
                while all(answers):
                    self._hand_on([one for rows in answers for one in rows.popleft()])
        except BaseException as exc:
            self._end(exc)

    def _rows(self, results: stored_feeds.StoredResults) -> Iterator[list[np.ndarray]]:
        """What has come from an outfeed, a list an element."""
        rows = [row.numpy() for row in results.take(_PATIENCE_US)]
        if not rows or not len(rows[0]):
            return iter(())
        if self._application.ipus > self._application.shards:  # A row has the results of all replicas, in order.
            rows = [row.reshape([-1, *row.shape[2:]]) for row in rows]
        return ([row[at] for row in rows] for at in range(len(rows[0])))

    def _hand_on(self, answer: list[np.ndarray]) -> None:
        with self._condition:
            future = self._calls.popleft().future if self._calls else None  # None: it was stopped.
        if future is not None:
            future.set_result(answer)

    def _end(self, failure: BaseException) -> None:
        with self._condition:
            if self._stopped:
                return
            self._stopped, self._failure = True, failure
            left = [call.future for call in self._calls if call.future is not None]
            for calls in (self._calls, *self._waiting):
                calls.clear()
            self._condition.notify_all()
        for future in left:
            future.set_exception(failure)


def _elements(reference: weakref.ref[Engine], infeed: int) -> Iterator[tuple[np.ndarray, ...]]:
    """What the program is fed; the dataset must not keep the engine."""
    while True:
        engine = reference()
        element = None if engine is None else engine._next(infeed)
        del engine
        if element is None:
            return
        yield element


@atexit.register
def _stop_all() -> None:
    for engine in list(_engines):
        engine.stop()
