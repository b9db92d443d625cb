"""Signals while a program runs: a handler may raise anywhere in a run, and later runs still work."""

from __future__ import annotations

import gc
import itertools
import signal
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf

from tensorflow_ipu._base import active_runs
from tensorflow_ipu.programs import Program

DEADLINE = 60.0


class ExpiredError(Exception):
    pass


def raised_at(place: int) -> Any:
    """Returns a function for `sys.setprofile` that raises at one place where Python may call handlers during a run."""
    places = itertools.count()
    folder = str(Path(sys.modules[Program.__module__].__file__ or "").parent)

    def profile(frame: Any, event: str, _: Any) -> None:
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(folder) and next(places) == place:
            sys.setprofile(None)
            raise ExpiredError

    return profile


# A handler raised between the count of a run and its `try`. Then every configuration waited for that run.
def test_a_handler_may_raise_anywhere_in_a_run(strategy, replicas):
    scalar = tf.constant(1)
    program = tf.function(lambda x: x + 1, jit_compile=True)
    strategy.run(program, (scalar,))
    place = 0
    gc.collect()
    gc.disable()  # Errors in the garbage collector are lost, and its callbacks are code of that folder too.
    try:
        for place in itertools.count():
            sys.setprofile(raised_at(place))
            try:
                strategy.run(program, (scalar,))
                break  # All places are covered.
            except ExpiredError:
                pass
            finally:
                sys.setprofile(None)
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
            assert signal.set_wakeup_fd(-1) == -1
            assert active_runs.wait_until_idle(DEADLINE)
            assert int(strategy.run(program, (scalar,))) == 2
    finally:
        gc.enable()
    assert place > 10
    replicas(2)
