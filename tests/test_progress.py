"""Long work reports its progress on terminals and in notebooks only."""

import contextlib
import io
import os
import select
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._base import environment, progress


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Makes all work count as long from its start, with a clock that stands still."""
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: 0.0))
    monkeypatch.setattr(progress, "AFTER_SECONDS", 0.0)
    monkeypatch.delenv("TENSORFLOW_IPU_PROGRESS", raising=False)


@pytest.fixture
def terminal(monkeypatch):
    """`terminal(text)` waits until stderr, a terminal, has received `text`, and returns its whole content."""
    reader, writer = os.openpty()
    got = bytearray()

    def until(text):
        while text not in got.decode():
            assert select.select([reader], [], [], 60)[0], got.decode()
            got.extend(os.read(reader, 4096))
        return got.decode()

    with os.fdopen(writer, "w") as stream:
        # `sys` of the module is replaced, because pytest replaces `sys.stderr` itself between fixtures and the test.
        monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stream))
        yield until
    os.close(reader)


def test_a_terminals_line_is_written_over_and_vanishes(terminal):
    with progress.of("outer", 3) as outer:
        terminal("\router, 0 of 3, 0 s")
        for _ in outer.counting(range(3)):
            with progress.of("inner"):
                terminal(f"outer, {outer.done} of 3, 0 s; inner, 0 s")
        terminal("outer, 3 of 3, 0 s  ")
    assert terminal("\r                  \r").endswith(" \r")
    with pytest.raises(pytest.fail.Exception), progress.of("stopped"):
        pytest.fail(terminal("stopped"))
    assert not [thread for thread in threading.enumerate() if thread.name == "ipu-progress"]


def test_a_notebook_keeps_the_last_line_and_a_pipe_gets_none_unasked(monkeypatch):
    cell = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})
    for stream, setting, expected in (
        (cell(), "", "\rwork, 0 s\rwork, 0 s\n"),
        (cell(), "0", ""),
        (io.StringIO(), "", ""),
        (io.StringIO(), "1", "work, 0 s\n"),
    ):
        monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stream))
        monkeypatch.setenv("TENSORFLOW_IPU_PROGRESS", setting)
        was_shown = threading.Event()
        with progress.of("work", until=lambda _, was_shown=was_shown: was_shown.set()):
            assert not expected or was_shown.wait(60)
        assert stream.getvalue() == expected


def test_only_the_first_run_of_a_program_says_that_it_is_compiled(monkeypatch, terminal):
    @tf.function(jit_compile=True)
    def train(x):
        for _ in range(20):
            x = tf.nn.softmax(tf.matmul(x, x))
        return x

    strategy, calls = ipu.IPUStrategy(), []
    begun = progress.of
    monkeypatch.setattr(progress, "of", lambda *args, **kwargs: calls.append(args) or begun(*args, **kwargs))
    for _ in range(3):
        strategy.run(train, [tf.eye(8)])
    assert calls == [("tracing `train`",), ("compiling `train`",)]
    shown = terminal("compiling `train`, 0 s")
    assert "tracing `train`, 0 s" in shown


def test_the_first_batch_of_a_pipeline_says_what_is_built_and_traced_and_counts_its_stages(monkeypatch):
    done, begun = [], progress.of

    @contextlib.contextmanager
    def noted(text, total=None, until=None):
        with begun(text, total, until) as work:
            yield work
        done.append((text, work.done, total))

    monkeypatch.setattr(progress, "of", noted)
    config = ipu.IPUConfig()
    config.auto_select_ipus = 2
    config.configure_ipu_system()
    with ipu.IPUStrategy().scope():
        layers = [tf.keras.layers.Dense(2), tf.keras.layers.Dense(1)]
        model = tf.keras.Sequential([tf.keras.Input([2]), *layers], name="model")
        model.compile("sgd", "mse", steps_per_execution=4)
        model.set_pipeline_stage_assignment([0, 1])
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    model.fit(np.ones([8, 2], np.float32), np.ones([8, 1], np.float32), batch_size=1, verbose=0)
    expected = [
        ("tracing stages", 2, 2),
        ("differentiating stages", 2, 2),
        ("tracing `train model`", 0, None),
        ("compiling `train model`", 0, None),
    ]
    built = done.index(expected[0])  # Keras 2 does not build the model before `fit`.
    assert done[built:] == expected
    assert done[:built] in ([], [("building `model`", 0, None)])


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"TENSORFLOW_IPU_PROGRESS": "0", "TF_POPLAR_FLAGS": "--show_progress_bar=true"}, False),
        ({"TENSORFLOW_IPU_PROGRESS": " ", "TF_POPLAR_FLAGS": "--show_progress_bar=True"}, True),
        ({"TF_POPLAR_FLAGS": "--show_progress_bar=false"}, False),
        ({"TF_POPLAR_FLAGS": "--show_progress_bar=auto"}, None),
    ],
)
def test_variables_switch_it(environ, expected):
    assert environment.progress(environ) is expected
