"""Where the traceback of a fault ends: in the user's code."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import compiler, pipelining, scopes


def faulty() -> None:
    pipelining.pipeline([lambda x: x, lambda y: y], 0, inputs=[1.0])


def failing() -> None:
    def last(x: Any) -> Any:
        return tf.reshape(x, [77])

    pipelining.pipeline([lambda x: x, last], 2, inputs=[1.0], outfeed_queue=ipu.IPUOutfeedQueue())


def raised(call: Callable[[], Any]) -> tuple[str, list[traceback.FrameSummary]]:
    """What a call raises: its message, and its frames from the call on."""
    with pytest.raises(ValueError, match="gradient_accumulation_count|reshape") as caught:
        call()
    return str(caught.value), traceback.extract_tb(caught.tb)


@pytest.mark.parametrize("autograph", [True, False])
def test_a_fault_of_an_argument_ends_in_the_call_that_has_it(autograph: bool, strategy: ipu.IPUStrategy) -> None:
    with strategy.scope():
        message, frames = raised(lambda: strategy.run(tf.function(faulty, jit_compile=True, autograph=autograph)))
    if not autograph:
        assert (frames[-1].filename, frames[-1].name) == (__file__, "faulty")
    else:
        # AutoGraph says in words where the user's code is.
        assert message.count("File ") == 1
        assert "in faulty  *" in message
        assert len(frames) < 6


def test_a_fault_in_a_graph_ends_in_the_call_that_has_it() -> None:
    with scopes.ipu_scope("/device:IPU:0"):
        _, frames = raised(lambda: compiler.compile(faulty))
    assert (frames[-1].filename, frames[-1].name) == (__file__, "faulty")


def test_a_fault_in_a_stage_is_told_with_its_line(strategy: ipu.IPUStrategy) -> None:
    with strategy.scope():
        _, frames = raised(lambda: strategy.run(tf.function(failing, jit_compile=True, autograph=False)))
        assert [frame.name for frame in frames[-2:]] == ["failing", "last"]
        message, _ = raised(lambda: strategy.run(tf.function(failing, jit_compile=True)))
    assert message.count("File ") == 1
    assert "in last  *" in message


def test_all_frames_stay_where_tensorflow_keeps_its_own() -> None:
    tf.debugging.disable_traceback_filtering()
    try:
        with scopes.ipu_scope("/device:IPU:0"):
            _, frames = raised(lambda: compiler.compile(faulty))
    finally:
        tf.debugging.enable_traceback_filtering()
    assert frames[-1].name == "raise_any"
