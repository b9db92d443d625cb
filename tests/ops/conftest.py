"""What the tests of operations share: programs that run on many replicas at once, and arrays of every type."""

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
    """Waits have no limit after each test."""
    yield
    ipu.feeds.set_wait_limit(None)


@functools.cache
def _domains():
    """The functions of `domains.cc`, compiled against the sources and linked with the library that the package opened."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "domains.so")
        compiler = shlex.split(os.environ.get("CXX", "")) or ["g++"]
        flags = [*tf.sysconfig.get_compile_flags(), "-fPIC", "-shared", f"-I{ROOT}"]
        subprocess.run([*compiler, *flags, ROOT / "tests/ops/domains.cc", LIBRARY, "-o", made], check=True, timeout=300)
        library = ctypes.CDLL(str(made))
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
    """What a run tells and asks the domain of a device, for runs of replicas that a test makes by hand."""
    return _domains()


def _trace(function, *args):
    """The compiled program of a plain function for such arguments."""
    with tf.device(DEVICE):
        return tf.function(function, jit_compile=True).get_concrete_function(*args)


@pytest.fixture
def trace():
    """`trace(function, *specs)` is the compiled program of a plain function for arguments of these specs."""
    return _trace


def _captured(program, replica, replicas):
    """What a program captured, with the states of one replica in the place of those of a single one."""
    return [
        tensor._ipu_native.state(DEVICE, replica, replicas) if hasattr(tensor, "_ipu_native") else tensor
        for tensor in program.captured_inputs
    ]


class Run:
    """A run of programs, one a replica: the first is that of replica 0. Results, or errors, are in `outcomes`."""

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
        native.ipu_run_application_on_this_thread()  # Else each replica would wait for its turn on the device.
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
    """`start(programs, inputs)` starts a program on each replica; `wait()` gives what each returned or raised."""
    return Run


Replicated = Callable[..., list[Any]]


@pytest.fixture
def replicated():
    """`replicated(function, inputs)` gives, as arrays, what a program returns on as many replicas as there are tuples."""

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
    """`pipelined(strategy, stages, infeed, rate)` trains stages by gradient descent, and gives the queue of results."""

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
    """`arrays(count, shape, dtype)` makes arrays of small numbers, whose sums are exact in every type."""

    def make(count, shape, dtype=np.float32, seed=0):
        random = np.random.default_rng(seed)
        if dtype == np.bool_:
            return [random.integers(0, 2, shape).astype(bool) for _ in range(count)]
        return [random.integers(0, 8, shape).astype(dtype) for _ in range(count)]

    return make
