"""Environment variables are read at their use, and malformed values are rejected; one variable logs to stderr."""

import logging

import pytest

from tensorflow_ipu._base import environment
from tensorflow_ipu._base.environment import PoplarFlags, host_kernels, ipu_count, poplar_flags, report_directory


def test_values_are_read_and_empty_ones_are_defaults():
    for environ in ({}, {"TENSORFLOW_IPU_COUNT": " ", "TF_POPLAR_FLAGS": "", "TENSORFLOW_IPU_HOST_KERNELS": " "}):
        assert (ipu_count(environ), poplar_flags(environ), host_kernels(environ)) == (64, PoplarFlags(), True)
    assert ipu_count({"TENSORFLOW_IPU_COUNT": " 16 "}) == 16
    assert ipu_count({"TENSORFLOW_IPU_COUNT": "0" * 5000 + "65536"}) == 65536
    assert poplar_flags({"TF_POPLAR_FLAGS": "--use_ipu_model"}) == PoplarFlags(use_ipu_model=True)
    assert not host_kernels({"TENSORFLOW_IPU_HOST_KERNELS": " Off "})
    assert host_kernels({"TENSORFLOW_IPU_HOST_KERNELS": "1"})


def test_number_of_devices_is_read_once_and_has_a_limit_and_others_are_read_at_each_call(monkeypatch):
    environment.registered_devices.cache_clear()
    try:
        monkeypatch.setenv("TENSORFLOW_IPU_DEVICES", "1025")
        with pytest.raises(ValueError, match="`TENSORFLOW_IPU_DEVICES=1025` is too high; .* from 1 to 1024"):
            environment.registered_devices()
        for value in ("3", "5"):
            monkeypatch.setenv("TENSORFLOW_IPU_DEVICES", value)
            assert environment.registered_devices() == 3
            monkeypatch.setenv("TENSORFLOW_IPU_COUNT", value)
            assert environment.ipu_count() == int(value)
    finally:
        environment.registered_devices.cache_clear()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("--use_ipu_model", PoplarFlags(use_ipu_model=True)),
        ("--use_ipu_model=true", PoplarFlags(use_ipu_model=True)),
        ("--use_ipu_model=0", PoplarFlags()),
        ("--use_synthetic_data", PoplarFlags(use_synthetic_data=True)),
        ("--synthetic_data_categories=Infeed", PoplarFlags(synthetic_data_categories=frozenset({"infeed"}))),
        (
            "--synthetic_data_categories=seed --synthetic_data_categories='parameters, HostEmbedding'",
            PoplarFlags(synthetic_data_categories=frozenset({"seed", "parameters", "hostembedding"})),
        ),
        (
            "--executable_cache_path=/a --use_ipu_model --max_compilation_threads=4",
            PoplarFlags(use_ipu_model=True, executable_cache_path="/a", others=("--max_compilation_threads=4",)),
        ),
    ],
)
def test_flags_are_parsed(text, expected):
    assert poplar_flags({"TF_POPLAR_FLAGS": text}) == expected


def test_synthetic_data_covers_every_category():
    flags = PoplarFlags(use_synthetic_data=True)
    assert flags.synthetic("infeed")
    assert flags.synthetic("Parameters")
    assert not PoplarFlags(synthetic_data_categories=frozenset({"seed"})).synthetic("Infeed")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, None),
        (" ", None),
        ('{"debug.allowOutOfMemory":"true"}', None),
        ('{"autoReport.all":"true"}', "."),
        ('{"autoReport.all":"true","autoReport.directory":"/tmp/r","target.workerStackSizeInBytes":4}', "/tmp/r"),
        ('{"autoReport.outputExecutionProfile":true,"autoReport.outputArchive":"false"}', "."),
        ('{"autoReport.all":"false","autoReport.directory":"r"}', None),
    ],
)
def test_reports_are_asked_for(text, expected):
    assert report_directory({} if text is None else {"POPLAR_ENGINE_OPTIONS": text}) == expected


def test_what_a_launcher_says_is_read():
    assert (environment.local_replicas({}), environment.ipus_per_replica({})) == (None, None)
    environ = {"TENSORFLOW_IPU_REPLICAS": "2", "TENSORFLOW_IPU_IPUS_PER_REPLICA": "4"}
    assert [environment.default_ipus(some) for some in ({}, environ)] == [1, 8]
    with pytest.raises(ValueError, match="request 2 replicas of 4 IPUs, but there are 4 IPUs: start the program with"):
        environment.default_ipus({**environ, "TENSORFLOW_IPU_COUNT": "4"})
    assert environment.local_replicas(environ) == 2
    assert environment.ipus_per_replica(environ) == 4


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


# Some values were once reduced modulo 2**32, one ended the process, and huge numbers of devices blocked TensorFlow.
TOO_HIGH = ("65537", "2147483648", str(2**40), str(10**20), "9" * 5000)


@pytest.mark.parametrize(
    ("read", "variable", "value", "words"),
    [
        (host_kernels, "TENSORFLOW_IPU_HOST_KERNELS", "maybe", "=maybe` is neither on nor off"),
        *(
            (ipu_count, "TENSORFLOW_IPU_COUNT", value, f"={value}` is not a positive whole number")
            for value in ("0", "-1", "many", "1.5", "0x10", "²")
        ),
        *(
            (ipu_count, "TENSORFLOW_IPU_COUNT", value, f"={value[:20]}.*` is too high; .* to 65536")
            for value in TOO_HIGH
        ),
        (environment.local_replicas, "TENSORFLOW_IPU_REPLICAS", "none", "=none` is not .* to 65536, or unset it$"),
        (environment.log_level, "TENSORFLOW_IPU_LOG_LEVEL", "LOUD", "=LOUD` is not a log level; set it to"),
        (environment.log_level, "TF_POPLAR_VLOG_LEVEL", "-1", "=-1` is not a log level; set it to"),
        (poplar_flags, "TF_POPLAR_FLAGS", "--use_ipu_model=maybe", "` is neither on nor off"),
        (poplar_flags, "TF_POPLAR_FLAGS", "--synthetic_data_categories=images", "names `images`; write a .*infeed"),
        (poplar_flags, "TF_POPLAR_FLAGS", "--synthetic_data_categories", "names no category"),
        (poplar_flags, "TF_POPLAR_FLAGS", "--a='b", "=--a='b` has unbalanced quotes"),
        *(
            (report_directory, "POPLAR_ENGINE_OPTIONS", value, words)
            for value, words in {
                "{autoReport.all:true}": r"=\{autoReport.all:true\}` is not valid JSON .*; write it as in",
                "[1]": "is not a JSON object",
                '{"autoReport.al":"true"}': "`autoReport.al` in .* is not known; there are `autoReport.all`",
                '{"autoReport.all":"yes"}': """`autoReport.all` in .* must be "true" or "false", but is 'yes'""",
                '{"autoReport.all":"true","autoReport.directory":3}': "`autoReport.directory` in .* a folder, but is 3",
            }.items()
        ),
    ],
)
def test_malformed_value_is_refused_by_name_value_and_limit(read, variable, value, words, refused):
    refused(ValueError, words, read, {variable: value})
    refused(ValueError, f"`{variable}", read, {variable: value})


@pytest.fixture
def logger():
    """A logger of the package, whose settings are restored after the test."""
    root = logging.getLogger(environment.ROOT)
    original = root.level, root.propagate, root.handlers[:]
    yield logging.getLogger(f"{environment.ROOT}.feeds")
    root.setLevel(original[0])
    root.propagate, root.handlers[:] = original[1], original[2]


def test_log_of_the_level_and_above_reaches_stderr(logger, capsys):
    assert logger.parent is not None
    handlers = logger.parent.handlers[:]
    environment.install_logging({})
    assert logger.parent.handlers == handlers
    environment.install_logging({"TENSORFLOW_IPU_LOG_LEVEL": "DEBUG"})
    logger.log(environment.TRACE, "one")
    logger.debug("two")
    logger.error("three")
    lines = [line.split("] ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["[tensorflow_ipu.feeds] [DEBUG] two", "[tensorflow_ipu.feeds] [ERROR] three"]
    environment.install_logging({"TENSORFLOW_IPU_LOG_LEVEL": "OFF"})
    logger.critical("one")
    assert capsys.readouterr().err == ""


def test_life_of_a_program_is_logged(strategy, replicas, caplog):
    import tensorflow as tf

    with caplog.at_level(environment.TRACE, logger=environment.ROOT):
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
        return next(
            index for index, (of, text) in enumerate(lines) if of == level and all(part in text for part in parts)
        )

    assert (
        logged("INFO", "configured 1 device(s) with these numbers of IPUs: [1]")
        < logged("DEBUG", "starts to read")
        < logged("INFO", "traced `program (test_environment.py:", "its first call")
        < logged("TRACE", "runs on `/device:IPU:0`")
        < logged("INFO", "XLA compiled for `program`: 1 programs, ")
        < logged("TRACE", "`program` ran for ")
        < logged("INFO", "ended with OutOfRangeError: ")
    )
    name = next(text for _, text in lines if "starts to read" in text).split("`")[1]
    ended, failed = (
        next(entry for entry in caplog.records if message in entry.getMessage())
        for message in (f"the pump of `{name}` ends: its dataset had 1 elements", "ended with OutOfRangeError")
    )
    assert (ended.levelname, ended.name) == ("DEBUG", "tensorflow_ipu._native.journal")
    assert ended.created <= failed.created  # The log message has the time of the event.
