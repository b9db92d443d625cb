"""What the package logs, and which variable has it reach stderr."""

import logging

import pytest

from tensorflow_ipu._base import environment, log


@pytest.mark.parametrize(
    ("environ", "level"),
    [
        ({}, None),
        ({"TENSORFLOW_IPU_LOG_LEVEL": " "}, None),
        ({"TENSORFLOW_IPU_LOG_LEVEL": "info"}, "INFO"),
        ({"TENSORFLOW_IPU_LOG_LEVEL": "OFF", "TF_POPLAR_VLOG_LEVEL": "3"}, "OFF"),
        ({"TF_POPLAR_VLOG_LEVEL": "0"}, "WARN"),
        ({"TF_POPLAR_VLOG_LEVEL": "1"}, "INFO"),
        ({"TF_POPLAR_VLOG_LEVEL": "2"}, "DEBUG"),
        ({"TF_POPLAR_VLOG_LEVEL": "9" * 5000}, "TRACE"),
    ],
)
def test_level_is_that_of_the_first_variable_that_says_one(environ, level):
    assert environment.log_level(environ) == level


@pytest.mark.parametrize(("variable", "value"), [("TENSORFLOW_IPU_LOG_LEVEL", "LOUD"), ("TF_POPLAR_VLOG_LEVEL", "-1")])
def test_malformed_level_is_refused_by_name_and_value(variable, value, refused):
    refused(ValueError, f"`{variable}={value}` is no level; set it to", environment.log_level, {variable: value})


@pytest.fixture
def logger():
    """A logger of the package, which is as it was after the test."""
    root = logging.getLogger(log.ROOT)
    before = root.level, root.propagate, root.handlers[:]
    yield logging.getLogger(f"{log.ROOT}.feeds")
    root.setLevel(before[0])
    root.propagate, root.handlers[:] = before[1], before[2]


def test_log_of_the_level_and_above_reaches_stderr(logger, capsys):
    assert logger.parent is not None
    before = logger.parent.handlers[:]
    log.install({})
    assert logger.parent.handlers == before
    log.install({"TENSORFLOW_IPU_LOG_LEVEL": "DEBUG"})
    logger.log(log.TRACE, "one")
    logger.debug("two")
    logger.error("three")
    lines = [line.split("] ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["[tensorflow_ipu.feeds] [DEBUG] two", "[tensorflow_ipu.feeds] [ERROR] three"]
    log.install({"TENSORFLOW_IPU_LOG_LEVEL": "OFF"})
    logger.critical("one")
    assert capsys.readouterr().err == ""


def test_life_of_a_program_is_logged(strategy, replicas, caplog):
    import tensorflow as tf

    with caplog.at_level(log.TRACE, logger=log.ROOT):
        strategy = replicas(1)
        with strategy.scope():
            iterator = iter(tf.data.Dataset.range(1).map(lambda i: tf.cast(i, tf.float32)))

        @tf.function(jit_compile=True)
        def program(iterator):
            return next(iterator)

        strategy.run(program, (iterator,))
        with pytest.raises(tf.errors.OutOfRangeError):
            strategy.run(program, (iterator,))
    lines = [(record.levelname, record.getMessage()) for record in caplog.records]

    def logged(level, *parts):
        return next(at for at, (of, text) in enumerate(lines) if of == level and all(part in text for part in parts))

    assert (
        logged("INFO", "configured 1 device(s), of so many IPUs each: [1]")
        < logged("DEBUG", "starts to read")
        < logged("INFO", "traced `program (test_logging.py:", "its first call")
        < logged("TRACE", "runs on `/device:IPU:0`")
        < logged("INFO", "XLA compiled for `program`: 1 programs, ")
        < logged("TRACE", "`program` ran for ")
        < logged("INFO", "ended with OutOfRangeError: ")
    )
    name = next(text for _, text in lines if "starts to read" in text).split("`")[1]
    ended, failed = (
        next(one for one in caplog.records if words in one.getMessage())
        for words in (f"the pump of `{name}` ends: its dataset had 1 elements", "ended with OutOfRangeError")
    )
    assert (ended.levelname, ended.name) == ("DEBUG", "tensorflow_ipu._native.journal")
    assert ended.created <= failed.created  # It is logged with the time when it was.
