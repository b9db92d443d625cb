"""Rounding and exceptions in what programs are made of: pipelines, mixed precision, accumulation, replicas, executables."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import pipelining
from tensorflow_ipu.config import IPUConfig, StochasticRoundingBehaviour, reset_ipu_seed
from tensorflow_ipu.executables.application_compile_op import experimental_application_compile_op
from tensorflow_ipu.ops import replication_ops
from tensorflow_ipu.optimizers import CrossReplicaGradientAccumulationOptimizerV2, GradientAccumulationOptimizerV2

HALF = tf.float16
SIZE = 256


def configure(ipus: int, *, rounds: bool = False, oflo: bool = False) -> ipu.IPUStrategy:
    config = IPUConfig()
    config.auto_select_ipus = ipus
    if rounds:
        config.floating_point_behaviour.esr = StochasticRoundingBehaviour.ON
    config.floating_point_behaviour.oflo = oflo
    config.configure_ipu_system()
    reset_ipu_seed(17)
    return ipu.IPUStrategy()


def weights(strategy: Any, count: int, value: float = 1) -> list[tf.Variable]:
    with strategy.scope():
        return [tf.Variable(tf.fill([SIZE], tf.constant(value, HALF))) for _ in range(count)]


def check_moved_on_average(weight: tf.Variable, distance: float, steps: int) -> None:
    """By four standard deviations of a mean of as many throws, each of which is of the gap between 1 and its neighbour."""
    moved = weight.numpy().astype(np.float64) - 1
    share = distance / steps / 2**-10
    assert abs(moved.mean() - distance) < 4 * 2**-10 * np.sqrt(steps * share * (1 - share) / SIZE)
    assert moved.std() > 0


def stages(one: tf.Variable, other: tf.Variable) -> Callable[[], None]:
    """A training program of two stages and four micro-batches; each of eight updates is of 2^-13 where weights are 1."""
    dataset = tf.data.Dataset.from_tensors(tf.ones([SIZE], HALF)).repeat()
    infeed = ipu.IPUInfeedQueue(dataset)
    infeed.initializer  # noqa: B018  (The access starts it.)

    def loss(x: Any) -> Any:
        return tf.reduce_sum(tf.cast(x * other, tf.float32)) * -(2.0**-15)

    def program() -> None:
        pipelining.pipeline(
            [lambda x: x * one, loss],
            gradient_accumulation_count=4,
            repeat_count=8,
            infeed_queue=infeed,
            outfeed_queue=ipu.IPUOutfeedQueue(),
            optimizer_function=lambda loss: pipelining.OptimizerFunctionOutput(
                tf.compat.v1.train.GradientDescentOptimizer(1.0), loss
            ),
        )

    return program


def test_weights_of_a_pipeline_round() -> None:
    strategy = configure(2, rounds=True)
    one, other = weights(strategy, 2)
    strategy.run(tf.function(stages(one, other), jit_compile=True))
    for weight in (one, other):
        # Its gradients are products with what the other weight has become, 1 + 2^-10 at most, most of the time.
        check_moved_on_average(weight, 8 * 2**-13, 8)


def test_a_stage_stops_its_pipeline_on_the_line_of_the_stage() -> None:
    strategy = configure(2, oflo=True)
    one, other = weights(strategy, 2, 300)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        strategy.run(tf.function(stages(one, other), jit_compile=True))
    line = stages.__code__.co_firstlineno + 7
    assert f"(test_kinds_of_programs.py:{line}) gave 90000" in caught.value.message, caught.value.message
    for weight in (one, other):
        assert (weight.numpy() == 300).all()


def accumulating(optimizer: Any, weight: tf.Variable, count: tf.Variable, bad: int) -> Callable[[], None]:
    """32 micro-batches, four a step, of which one overflows."""
    made = optimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0), 4)

    def step() -> None:
        scale = tf.where((count == bad) & (replication_ops.replication_index() == 0), 2.0**16, 1.0)
        count.assign_add(1)
        made.apply_gradients([(tf.cast(tf.fill([SIZE], 2.0**-15) * scale, HALF) * 2**15, weight)])

    return repeated(step)


def repeated(step: Callable[[], None]) -> Callable[[], None]:
    def program() -> None:
        ipu.loops.repeat(32, step)

    return program


@pytest.mark.parametrize(
    ("optimizer", "ipus"), [(GradientAccumulationOptimizerV2, 1), (CrossReplicaGradientAccumulationOptimizerV2, 2)]
)
def test_accumulation_stops_and_keeps_the_weights_of_whole_steps(optimizer: Any, ipus: int) -> None:
    strategy = configure(ipus, oflo=True)
    [weight] = weights(strategy, 1)
    with strategy.scope():
        count = tf.Variable(0)
    words = "on replica 0, in iteration 18" if ipus > 1 else "in iteration 18"
    with pytest.raises(tf.errors.InvalidArgumentError, match=rf"gave 65536, .*{words} of the loop `while`"):
        strategy.run(tf.function(accumulating(optimizer, weight, count, 18), jit_compile=True))
    assert (weight.numpy() == 1 - 16).all()  # Its mean over replicas, four times.
    assert count.numpy() == 18


@pytest.mark.parametrize(
    ("optimizer", "ipus"), [(GradientAccumulationOptimizerV2, 1), (CrossReplicaGradientAccumulationOptimizerV2, 2)]
)
def test_updates_of_accumulated_gradients_round(optimizer: Any, ipus: int) -> None:
    strategy = configure(ipus, rounds=True)
    [weight] = weights(strategy, 1)
    made = optimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0), 4)

    def step() -> None:
        made.apply_gradients([(tf.fill([SIZE], tf.constant(-(2.0**-15), HALF)), weight)])

    strategy.run(tf.function(repeated(step), jit_compile=True))
    check_moved_on_average(weight, 32 * 2**-15, 8)


def mixed(strategy: Any, *, accumulate: int) -> keras.Model:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        layers = [keras.layers.Dense(4, activation="relu", dtype="mixed_float16", name="first")]
        layers.append(keras.layers.Dense(1, dtype="mixed_float16"))
        model = keras.Sequential([keras.Input([8]), *layers])
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(2.0**-5), initial_scale=4.0)
        model.compile(optimizer, "mse", steps_per_execution=2)
        model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=accumulate)
    return model


def trained(model: keras.Model, x: Any) -> Any:
    model.fit(x, np.ones([len(x), 1], np.float32), batch_size=2, shuffle=False, verbose=0)
    return np.concatenate([np.ravel(weight) for weight in model.get_weights()])


@pytest.mark.parametrize("ipus", [1, 2])
def test_models_of_mixed_precision_round_and_stop(ipus: int) -> None:
    x = np.random.default_rng(0).normal(size=(16 * ipus, 8)).astype(np.float32)
    nearest = trained(mixed(configure(ipus), accumulate=2), x)
    first, again = (trained(mixed(configure(ipus, rounds=True), accumulate=2), x) for _ in range(2))
    assert (first == again).all()
    assert (first != nearest).any()
    np.testing.assert_allclose(first, nearest, atol=2e-3)
    model = mixed(configure(ipus, oflo=True), accumulate=2)
    before = trained(model, x)
    x[0] = 1e5
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Floating point exception: Cast .* gave 1e\+05"):
        trained(model, x)
    assert (np.concatenate([np.ravel(weight) for weight in model.get_weights()]) == before).all()


def test_another_process_rounds_and_stops_as_it_was_compiled_to(run_script: Any, tmp_path: Path) -> None:
    with configure(1, rounds=True, oflo=True).scope():
        infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensors({"x": tf.zeros([SIZE])}).repeat())
        infeed.initializer  # noqa: B018  (The access starts it.)
        outfeed = ipu.IPUOutfeedQueue()

        def program() -> Any:
            return ipu.loops.repeat(2, lambda x: outfeed.enqueue({"y": tf.cast(x, HALF)}), [], infeed)

        path: Any = experimental_application_compile_op(program, [], tmp_path / "app")
        infeed.deleter  # noqa: B018
    done = run_script(
        """
        import sys
        import numpy as np
        import tensorflow as tf
        from tensorflow_ipu.executables import embedded_runtime as runtime

        def call(value):
            return runtime.embedded_runtime_call([tf.fill([256], np.float32(value))], context)[0].numpy()

        context = runtime.embedded_runtime_start(sys.argv[1], [], "app")
        print(*np.unique((call(1 + 2**-11) - 1) * 2**10))
        try:
            for _ in range(3):  # An answer may come before its run has ended, and the next call fails then.
                call(1e5)
        except tf.errors.OpError as error:
            print(error.message)
        """,
        path.numpy().decode(),
    )
    steps, message = done.stdout.splitlines()[:2]
    assert steps == "0.0 1.0"
    assert re.match(r"Floating point exception: Cast `while/Cast` gave 1(\.\d+)?e\+05", message), message


def test_a_program_that_makes_its_variables_rounds() -> None:
    strategy = configure(1, rounds=True)
    made: list[tf.Variable] = []

    def step() -> tf.Tensor:
        if not made:
            made.append(tf.Variable(lambda: tf.fill([SIZE], 1 + 2**-11)))
        return tf.cast(made[0], HALF)

    with strategy.scope():
        assert set((strategy.run(tf.function(step, jit_compile=True)).numpy() - 1) * 2**10) == {0, 1}
