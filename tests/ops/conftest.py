"""Fixtures of the tests of operations: programs that run on many replicas at once, and arrays of every type."""

from __future__ import annotations

import ctypes
import functools
import os
import shlex
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._native.library import LIBRARY, native

DEVICE = "/device:IPU:0"
ORDINAL = 0
DEADLINE = 60.0
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_wait_limit():
    """Removes the limit of waits after each test."""
    yield
    ipu.feeds.set_wait_limit(None)


@functools.cache
def _domains():
    """Returns the functions of `domains.cc`, compiled from the sources and linked with the library of the package."""
    with tempfile.TemporaryDirectory() as folder:
        shared_object = Path(folder, "domains.so")
        compiler = shlex.split(os.environ.get("CXX", "")) or ["g++"]
        flags = [*tf.sysconfig.get_compile_flags(), "-fPIC", "-shared", f"-I{ROOT}"]
        subprocess.run(
            [*compiler, *flags, ROOT / "tests/ops/domains.cc", LIBRARY, "-o", shared_object], check=True, timeout=300
        )
        library = ctypes.CDLL(str(shared_object))
    integer = ctypes.c_int64
    for name, result, arguments in (
        ("domain_begin", None, [integer, integer]),
        ("domain_leave", None, [integer, integer]),
        ("domain_abort", None, [integer, ctypes.c_int32, ctypes.c_char_p]),
        ("domain_waiting", integer, [integer]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


@pytest.fixture
def domains():
    """Returns the functions of `domains.cc`, by which `Run` begins, leaves and aborts a run on a device."""
    return _domains()


def _trace(function, *args):
    """Returns the compiled program of a Python function for such arguments."""
    with tf.device(DEVICE):
        return tf.function(function, jit_compile=True).get_concrete_function(*args)


@pytest.fixture
def trace():
    """`trace(function, *specs)` returns the compiled program of a Python function for arguments of these specs."""
    return _trace


def _captured(program, replica, replicas):
    """Returns the captured inputs of a program, with the state variables of one replica."""
    return [
        tensor._ipu_native.state(DEVICE, replica, replicas) if hasattr(tensor, "_ipu_native") else tensor
        for tensor in program.captured_inputs
    ]


class Run:
    """A run of one program on each replica. `outcomes` has the results, or the error, of each replica."""

    def __init__(self, programs, inputs):
        replicas = len(programs)
        with tf.device(DEVICE):
            states = [_captured(program, replica, replicas) for replica, program in enumerate(programs)]
            flat = [[tf.convert_to_tensor(value) for value in values] for values in inputs]
        self.outcomes: list[Any] = [None] * replicas
        _domains().domain_begin(ORDINAL, replicas)
        self._threads = [
            threading.Thread(target=self._work, args=(replica, programs[replica], flat[replica], states[replica]))
            for replica in range(replicas)
        ]
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def _work(self, replica, program, inputs, states):
        native.ipu_run_application_on_this_thread()  # Otherwise each replica waits for its turn on the device.
        try:
            with tf.device(DEVICE):
                self.outcomes[replica] = tf.nest.map_structure(
                    lambda tensor: tensor.numpy(), program._call_flat(inputs, captured_inputs=states)
                )
        except tf.errors.OpError as exc:
            self.outcomes[replica] = exc
        finally:
            _domains().domain_leave(ORDINAL, replica)

    def wait(self):
        for thread in self._threads:
            thread.join(DEADLINE)
        if any(thread.is_alive() for thread in self._threads):
            _domains().domain_abort(ORDINAL, 13, b"the test waits no longer")
            pytest.fail(f"the replicas were not done after {DEADLINE} s")
        return self.outcomes


@pytest.fixture
def start():
    """`start(programs, inputs)` starts a program on each replica; `wait()` returns the results or the error of each."""
    return Run


Replicated = Callable[..., list[Any]]


@pytest.fixture
def replicated():
    """`replicated(function, inputs)` runs a program on a replica for each tuple, and returns the results as arrays."""

    def run(function, inputs):
        program = _trace(function, *[tf.TensorSpec(np.shape(value), np.asarray(value).dtype) for value in inputs[0]])
        outcomes = Run([program] * len(inputs), inputs).wait()
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        return outcomes

    return run


@pytest.fixture
def pipelined():
    """`pipelined(strategy, stages, infeed, rate)` trains stages by gradient descent, and returns the outfeed queue."""

    def run(strategy, stages, infeed, rate, **options):
        outfeed = ipu.IPUOutfeedQueue()
        descent = tf.compat.v1.train.GradientDescentOptimizer(rate)

        @tf.function(jit_compile=True)
        def program():
            ipu.pipelining.pipeline(
                stages,
                gradient_accumulation_count=4,
                infeed_queue=infeed,
                outfeed_queue=outfeed,
                optimizer_function=lambda loss, *_: ipu.pipelining.OptimizerFunctionOutput(descent, loss),
                **options,
            )

        infeed.initializer  # noqa: B018  (It starts the queue.)
        strategy.run(program)
        return outfeed

    return run


@pytest.fixture
def arrays():
    """`arrays(count, shape, dtype)` returns arrays of small integers, whose sums are exact in every type."""

    def make(count, shape, dtype=np.float32, seed=0):
        random = np.random.default_rng(seed)
        if dtype == np.bool_:
            return [random.integers(0, 2, shape).astype(bool) for _ in range(count)]
        return [random.integers(0, 8, shape).astype(dtype) for _ in range(count)]

    return make
