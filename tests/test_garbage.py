"""The garbage collector pauses while programs are traced, and is afterwards as it was."""

import gc

import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._base import garbage


@pytest.fixture(autouse=True)
def restored():
    """The collector is on before and after each test."""
    assert gc.isenabled()
    yield
    gc.enable()


def test_collector_is_off_in_blocks_and_on_after_the_last():
    first, second = garbage.paused(), garbage.paused()
    first.__enter__()
    second.__enter__()  # On another thread, say: it ends later.
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_collector_that_the_user_switched_off_stays_off():
    gc.disable()
    with garbage.paused():
        pass
    assert not gc.isenabled()


def test_collector_runs_again_after_a_trace_that_failed():
    seen = []

    @tf.function(jit_compile=True)
    def program(x, fails):
        seen.append(gc.isenabled())
        if fails:
            raise KeyError("as asked")
        return x + 1.0

    strategy = ipu.IPUStrategy()
    with pytest.raises(KeyError):
        strategy.run(program, (tf.constant(1.0), True))
    assert gc.isenabled()
    assert strategy.run(program, (tf.constant(1.0), False)).numpy() == 2.0
    assert gc.isenabled()
    assert not any(seen)
