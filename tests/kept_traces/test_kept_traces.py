"""Traces that are kept: found where all is the same that they depend on, and nowhere else; the numbers are the same."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import _environment, _executable_cache
from tensorflow_ipu.kept_traces._reach import NotKept, Reached
from tensorflow_ipu.ops.cross_replica_ops import cross_replica_sum
from tensorflow_ipu.ops.replication_ops import replication_index

X = tf.constant([[1.0, 2.0], [3.0, 4.0]])
FACTOR = 2.0


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    ipu.executables.set_cache(tmp_path, keep_traces=True)
    yield tmp_path
    _executable_cache._asked.clear()
    _executable_cache.refresh()


def counts() -> tuple[int, int]:
    return tuple(ipu.counter_value(name) or 0 for name in ("TracesKept", "TracesFound"))  # type: ignore[return-value]


def kept_and_found(call: Any) -> tuple[int, int]:
    before = counts()
    call()
    return tuple(now - then for now, then in zip(counts(), before, strict=True))  # type: ignore[return-value]


# As another process would, each time all is made anew: a model, an optimizer that the trace builds, queues, the function.
def trained(strategy: Any, rate: float = 0.1) -> tuple[Any, list[Any]]:
    keras.utils.clear_session()  # It numbers names anew, as each process does.
    with strategy.scope():
        drop = keras.layers.Dropout(0.25, name="drop")
        layers = [
            keras.layers.Dense(3, "relu", name="one", kernel_initializer="ones"),
            drop,
            keras.layers.Dense(1, name="two"),
        ]
        model = keras.Sequential([keras.layers.Input([2]), *layers], name="model")
        model.layers[-1].kernel.assign(tf.fill([3, 1], 0.3))
        optimizer = keras.optimizers.Adam(rate, name="adam")
        outfeed = ipu.IPUOutfeedQueue()
        data = iter(tf.data.Dataset.from_tensors((X, X[:, :1])).repeat())

        @tf.function(jit_compile=True)
        def program(steps: Any, data: Any, model: Any) -> Any:
            for _ in tf.range(steps):
                x, y = next(data)
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((model(x, training=False) - y) ** 2)
                gradients = tape.gradient(loss, model.trainable_variables)
                optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
                outfeed.enqueue({"loss": loss})
            return {"steps": steps, "none": None, "last": (loss,)}  # pyright: ignore[reportPossiblyUnboundVariable]

        strategy.run(program, (tf.constant(3), data, model))
        result: Any = strategy.run(program, (tf.constant(3), data, model))
        losses = outfeed.dequeue()["loss"].numpy()
    assert result["none"] is None
    assert result["steps"].numpy() == 3
    np.testing.assert_array_equal(result["last"][0], losses[-1])
    return losses, [each.numpy() for each in (*model.weights[:4], *optimizer.variables)]


def test_found_program_trains_as_the_traced_one(strategy: Any, folder: Path) -> None:
    numbers: list[Any] = []
    assert kept_and_found(lambda: numbers.append(trained(strategy))) == (1, 0)
    assert kept_and_found(lambda: numbers.append(trained(strategy))) == (0, 1)
    assert len(list(folder.glob("*.ipu_trace"))) == 1
    (losses, state), (found_losses, found_state) = numbers
    assert losses[-1] < losses[0]
    np.testing.assert_array_equal(found_losses, losses)
    for one, other in zip(state, found_state, strict=True):
        np.testing.assert_array_equal(other, one)
    # Another learning rate is a variable's value.
    assert kept_and_found(lambda: numbers.append(trained(strategy, 0.2))) == (0, 1)
    assert numbers[-1][0][-1] < losses[-1]
    (file,) = folder.glob("*.ipu_trace")
    file.write_bytes(file.read_bytes()[:-1])
    assert kept_and_found(lambda: trained(strategy)) == (1, 0)


@pytest.mark.parametrize("kind", ["Adam", "LossScaleOptimizer", "SGD"])
def test_optimizers_that_a_loop_builds_are_found(strategy: Any, folder: Path, kind: str) -> None:
    def made() -> Any:
        if kind == "Adam":
            return keras.optimizers.Adam(0.1, name="adam")
        inner = keras.optimizers.SGD(0.1, momentum=0.5, name="sgd", use_ema=kind == "SGD")
        if kind == "SGD":
            return inner
        return keras.optimizers.LossScaleOptimizer(inner, initial_scale=4.0, dynamic_growth_steps=2, name="scaled")

    def slots() -> dict[str, Any]:
        keras.utils.clear_session()
        with strategy.scope():
            weight, optimizer = tf.Variable([1.0, 2.0], name="weight"), made()

        @tf.function(jit_compile=True)
        def program(x: Any) -> Any:
            loss = tf.constant(0.0)  # So the loop is traced once, and its slots are made in its name scope.
            for _ in tf.range(3):
                with tf.name_scope("step"), tf.GradientTape() as tape:
                    loss = tf.reduce_sum((weight - x) ** 2)
                    scaled = optimizer.scale_loss(loss)
                optimizer.apply_gradients([(tape.gradient(scaled, weight), weight)])
            return loss

        loss = strategy.run(program, (3.0,))
        values = {each.value.name: each.numpy() for each in optimizer.variables}
        return {**values, "weight": weight.numpy(), "loss": loss.numpy()}

    both: list[Any] = []
    assert kept_and_found(lambda: both.append(slots())) == (1, 0)
    assert kept_and_found(lambda: both.append(slots())) == (0, 1)
    assert any(name.startswith("while/") for name in both[0])
    assert list(both[0]) == list(both[1])
    for name, value in both[0].items():
        np.testing.assert_array_equal(both[1][name], value, err_msg=name)


def test_replicas_states_and_global_numbers_are_those_of_a_trace(replicas: Any, folder: Path) -> None:
    strategy = replicas(2)

    def results() -> Any:
        with strategy.scope():
            infeed = ipu.IPUInfeedQueue(tf.data.Dataset.range(1, 9).map(lambda x: tf.cast(x, tf.float32)))
            outfeed = ipu.IPUOutfeedQueue()
            total = tf.Variable(0.0)

        def step(x: Any) -> None:
            total.assign_add(cross_replica_sum(x))
            outfeed.enqueue((x + 100 * tf.cast(replication_index(), tf.float32), tf.random.uniform([])))

        @tf.function(jit_compile=True)
        def program() -> None:
            ipu.loops.repeat(4, step, [], infeed)

        infeed.initializer  # noqa: B018
        ipu.config.reset_ipu_seed(7)
        strategy.run(program)
        return total.numpy(), *(each.numpy() for each in outfeed.dequeue())

    both: list[Any] = []
    assert kept_and_found(lambda: both.append(results())) == (1, 0)
    assert kept_and_found(lambda: both.append(results())) == (0, 1)
    for one, other in zip(*both, strict=True):
        np.testing.assert_array_equal(one, other)
    assert both[0][0] == 36


def in_function(body: Any) -> Any:
    return tf.function(lambda x: body(x), jit_compile=True)


def once_more(x: Any) -> Any:
    return x * FACTOR


def test_all_that_a_function_reaches_tells_traces_apart(
    strategy: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(body: Any, x: Any = X) -> tuple[int, int]:
        return kept_and_found(lambda: strategy.run(in_function(body), (x,)))

    def scaled(by: Any) -> Any:
        return lambda x: x * by

    class Layer:
        scale = 1.0

        def __call__(self, x: Any) -> Any:
            return once_more(x) * self.scale

    assert run(scaled(2.0)) == (1, 0)
    assert run(scaled(2.0)) == (0, 1)
    assert run(scaled(2)) == (1, 0)  # Another type.
    assert run(scaled(tf.constant(2.0))) == (1, 0)
    assert run(scaled(np.float32(2.0))) == (1, 0)
    assert run(scaled(2.0), X[:1]) == (1, 0)  # Another shape.
    assert run(lambda x: x + 2.0) == (1, 0)  # Other code.
    assert run(Layer()) == (1, 0)
    assert run(Layer()) == (0, 1)
    monkeypatch.setattr(Layer, "scale", 3.0)
    assert run(Layer()) == (1, 0)
    monkeypatch.setitem(globals(), "FACTOR", 4.0)
    assert run(Layer()) == (1, 0)
    monkeypatch.setenv("TF_ANYTHING", "1")
    assert run(Layer()) == (1, 0)
    monkeypatch.delenv("TF_ANYTHING")
    tf.random.set_seed(3)
    try:
        assert run(Layer()) == (1, 0)
    finally:
        tf.random.set_seed(None)


def test_found_program_is_found_by_later_runs_and_others_are_traced(strategy: Any, folder: Path) -> None:
    def function() -> Any:
        return tf.function(lambda x, by: x * by, jit_compile=True)

    strategy.run(function(), (X, 2))
    found = function()
    assert kept_and_found(lambda: strategy.run(found, (X, 2))) == (0, 1)
    assert kept_and_found(lambda: strategy.run(found, (X, 2))) == (0, 0)
    assert kept_and_found(lambda: strategy.run(found, (X, 3))) == (1, 0)
    np.testing.assert_array_equal(strategy.run(found, (X, 2)), X * 2)
    np.testing.assert_array_equal(strategy.run(found, (X, 3)), X * 3)
    with tf.GradientTape() as tape:  # Only what was traced here has a gradient.
        tape.watch(X)
        y = strategy.run(function(), (X, 2))
    np.testing.assert_array_equal(tape.gradient(y, X), tf.fill([2, 2], 2.0))


def test_traces_that_may_be_others_next_time_are_not_kept(
    strategy: Any, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []
    kept: dict[str, Any] = {}
    objects = {X.ref()}
    with strategy.scope():
        weight, adam = tf.Variable(X), keras.optimizers.Adam(name="adam")

    def variable(x: Any) -> Any:
        if "variable" not in kept:
            kept["variable"] = tf.Variable(1.0)
        return x * kept["variable"]

    def explicit(x: Any) -> Any:
        if not adam.built:
            adam.build([weight])
        adam.apply_gradients([(x, weight)])
        return x

    def appended(x: Any) -> Any:
        seen.append(x.shape)
        return x

    reasons = {
        "`time`": lambda x: x * time.time(),
        "`random`": lambda x: x * random.random(),
        "asked for random numbers": lambda x: x * np.random.normal(),  # noqa: NPY002
        "`id`": lambda x: x * (id(x) % 2),
        "the trace changed something": appended,
        "changed": variable,
        "Build it before": explicit,
        "a set of objects": lambda x: x * len(objects),
    }
    for reason, body in reasons.items():
        caplog.clear()
        with caplog.at_level(logging.INFO, "tensorflow_ipu"):
            assert kept_and_found(lambda body=body: strategy.run(in_function(body), (X,))) == (0, 0), reason
        assert any("is not kept: " in text and reason in text for text in caplog.messages), (reason, caplog.messages)
    assert not list(folder.glob("*.ipu_trace"))


def test_what_cannot_be_looked_into_is_named() -> None:
    values = [(each for each in "a")]
    with pytest.raises(NotKept, match=r"`fn\.values\[0\]` is of type `builtins.generator`"):
        Reached().add("fn", lambda: values)


def test_variable_of_the_environment_switches_it_on() -> None:
    name = _environment.TRACES_VARIABLE
    assert not any(_environment.keeps_traces(each) for each in ({}, {name: "0"}))
    assert all(_environment.keeps_traces({name: each}) for each in ("1", "on"))
    with pytest.raises(ValueError, match=f"`{name}=maybe` is neither on nor off"):
        _environment.keeps_traces({name: "maybe"})
