"""The garbage collector pauses while programs are traced, and its setting is restored afterwards."""

import gc

import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.programs import _trace_context


@pytest.fixture(autouse=True)
def restored():
    """Enables the collector before and after each test."""
    assert gc.isenabled()
    yield
    gc.enable()


@pytest.mark.parametrize("is_on", [True, False])
def test_collector_is_off_until_the_last_trace_ends_and_then_as_the_user_left_it(is_on):
    if not is_on:
        gc.disable()
    for traces, during in ((1, False), (1, False), (-1, False), (-1, is_on)):
        _trace_context.pause_garbage_collector(traces)
        assert gc.isenabled() is during


def test_collector_runs_again_after_a_trace_that_failed():
    states = []

    @tf.function(jit_compile=True)
    def program(x, fails):
        states.append(gc.isenabled())
        if fails:
            raise KeyError("as asked")
        return x + 1.0

    strategy = ipu.IPUStrategy()
    with pytest.raises(KeyError):
        strategy.run(program, (tf.constant(1.0), True))
    assert gc.isenabled()
    assert strategy.run(program, (tf.constant(1.0), False)).numpy() == 2.0
    assert gc.isenabled()
    assert not any(states)
