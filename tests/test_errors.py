"""The hierarchy of errors, the end of tracebacks, and warnings of AutoGraph."""

import logging
import traceback
import warnings

import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import compiler, errors, pipelining, scopes


def test_every_error_is_of_one_kind_and_recoverable_ones_say_what_recovers():
    kinds = (errors.ApplicationError, errors.RecoverableError, errors.UnrecoverableError)
    for error in (getattr(errors, name) for name in errors.__all__):
        if issubclass(error, Exception) and error not in (errors.IpuError, errors.RecompilationWarning):
            assert issubclass(error, errors.IpuError)
            assert issubclass(error, RuntimeError)
            assert sum(issubclass(error, kind) for kind in kinds) == 1, error

    def all_below(kind):
        return [error_type for below in kind.__subclasses__() for error_type in (below, *all_below(below))]

    recoverable = all_below(errors.RecoverableError)
    assert errors.ForkedProcessError in recoverable
    assert all(error.recovery_action.isupper() for error in recoverable)


def faulty():
    pipelining.pipeline([lambda x: x, lambda y: y], 0, inputs=[1.0])


def failing():
    def last(x):
        return tf.reshape(x, [77])

    pipelining.pipeline([lambda x: x, last], 2, inputs=[1.0], outfeed_queue=ipu.IPUOutfeedQueue())


def raised(call):
    """Returns the message of the error that a call raises, and its frames from the call on."""
    with pytest.raises(ValueError, match="gradient_accumulation_count|reshape") as caught:
        call()
    return str(caught.value), traceback.extract_tb(caught.tb)


@pytest.mark.parametrize("autograph", [True, False])
def test_a_fault_of_an_argument_ends_in_the_call_that_has_it(autograph, strategy):
    with strategy.scope():
        message, frames = raised(lambda: strategy.run(tf.function(faulty, jit_compile=True, autograph=autograph)))
    if not autograph:
        assert (frames[-1].filename, frames[-1].name) == (__file__, "faulty")
    else:
        # AutoGraph adds the place of the user's code to the message.
        assert message.count("File ") == 1
        assert "in faulty  *" in message
        assert len(frames) < 6


def test_a_fault_in_a_graph_ends_in_the_call_that_has_it_and_has_all_frames_where_tensorflow_keeps_its_own():
    with scopes.ipu_scope("/device:IPU:0"):
        _, frames = raised(lambda: compiler.compile(faulty))
        tf.debugging.disable_traceback_filtering()
        try:
            _, all_frames = raised(lambda: compiler.compile(faulty))
        finally:
            tf.debugging.enable_traceback_filtering()
    assert (frames[-1].filename, frames[-1].name) == (__file__, "faulty")
    assert all_frames[-1].name == "raise_any"


def test_a_fault_in_a_stage_is_told_with_its_line(strategy):
    with strategy.scope():
        _, frames = raised(lambda: strategy.run(tf.function(failing, jit_compile=True, autograph=False)))
        assert [frame.name for frame in frames[-2:]] == ["failing", "last"]
        message, _ = raised(lambda: strategy.run(tf.function(failing, jit_compile=True)))
    assert message.count("File ") == 1
    assert "in last  *" in message
    assert "stage 1 of the pipeline was called with what stage 0 returned: float32[]" in message


def test_an_error_of_a_run_shows_the_users_lines_alone_unless_all_are_asked_for(strategy, monkeypatch):
    def program(x):
        return tf.strings.as_string(x + 1)

    def frames():
        with pytest.raises(tf.errors.InvalidArgumentError, match="strings") as caught:
            strategy.run(tf.function(lambda x: tf.strings.to_number(program(x)), autograph=False), (tf.constant(1.0),))
        return caught.value, [frame.filename for frame in traceback.extract_tb(caught.tb)]

    error, files = frames()
    assert [file.rpartition("/")[2] for file in files] == ["test_errors.py", "test_errors.py", "tracebacks.py"][1:]
    assert error.__cause__ is None
    monkeypatch.setenv("TENSORFLOW_IPU_FULL_TRACEBACKS", "1")
    error, files = frames()
    assert len(files) > 5
    assert error.__cause__ is not None


# Python 3.13 warns about how AutoGraph copies syntax trees, which failed hundreds of programs if warnings are errors.
def test_loop_of_a_program_is_rewritten_where_all_warnings_but_one_are_errors(strategy, caplog):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # docs/emulation.md shows the same.
        warnings.filterwarnings(
            "ignore", r"\w+\.__init__ got an unexpected keyword argument '___pyct_anno'", DeprecationWarning
        )

        @tf.function(jit_compile=True)
        def program(n):
            total = 0
            for i in tf.range(n):
                if i % 2 == 0:
                    total += i
            return total

        with caplog.at_level(logging.WARNING):
            assert strategy.run(program, (tf.constant(7),)).numpy() == 12
    assert "could not transform" not in caplog.text
