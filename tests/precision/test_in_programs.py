"""Numbers of the machine where programs are made by others: pipelines, Keras policies, accumulation, other processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import scopes
from tensorflow_ipu.config import IPUConfig, StochasticRoundingBehaviour, reset_ipu_seed
from tensorflow_ipu.pipelining import OptimizerFunctionOutput, pipeline
from tensorflow_ipu.replicas import _host_kernels

HALF = tf.float16
STOPPED = "Floating point exception: .* gave"


def configure(rounds: bool = False, stops: bool = False, ipus: int = 1) -> None:
    config = IPUConfig()
    config.auto_select_ipus = ipus
    config.floating_point_behaviour.esr = StochasticRoundingBehaviour.ON if rounds else StochasticRoundingBehaviour.OFF
    config.floating_point_behaviour.oflo = stops
    config.configure_ipu_system()
    reset_ipu_seed(5)


def train_pipeline(values: list[float], scale: float, weights: list[tf.Variable]) -> None:
    """Two stages, each with weights whose gradients are the data times the scale. Updates are means of four."""
    strategy = ipu.IPUStrategy()
    with strategy.scope():
        infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(tf.constant(values, HALF)))
        outfeed = ipu.IPUOutfeedQueue()

        def last(x: Any, same: Any) -> Any:
            return scale * tf.reduce_sum(tf.cast(x, tf.float32) + tf.cast(weights[1] * same, tf.float32))

        def train() -> None:
            optimizer = tf.compat.v1.train.GradientDescentOptimizer(1.0)
            pipeline(
                [lambda x: (weights[0] * x, x), last],
                gradient_accumulation_count=4,
                repeat_count=len(values) // 4,
                infeed_queue=infeed,
                outfeed_queue=outfeed,
                optimizer_function=lambda loss: OptimizerFunctionOutput(optimizer, loss),
                device_mapping=[0, 0],
                reduction_method="mean",
            )

        infeed.initializer  # noqa: B018  (The access starts it.)
        try:
            strategy.run(tf.function(train, jit_compile=True))
        finally:
            infeed.deleter  # noqa: B018


def weights_of(count: int) -> list[tf.Variable]:
    with ipu.IPUStrategy().scope():
        return [tf.Variable(tf.ones([count], HALF)) for _ in range(2)]


def test_pipelines_round_their_updates_at_random() -> None:
    configure(rounds=True)
    weights = weights_of(400)
    train_pipeline([1.0] * 32, 2**-13, weights)
    for one in weights:
        # Eight updates of 2^-13, a quarter of the distance to the number below.
        moved = 1 - one.numpy().astype(np.float64)
        assert abs(moved.mean() - 2**-10) < 4 * 2**-11 * np.sqrt(8 * 3 / 16 / 400)
        assert moved.std() > 0


def test_pipelines_stop_with_the_weights_of_before_the_step() -> None:
    configure(stops=True)
    weights = weights_of(2)
    with pytest.raises(tf.errors.InvalidArgumentError, match=STOPPED):
        train_pipeline([1, 1, 1, 1, 1, 1, 1, 1, 1, 40000, 1, 1], -1, weights)  # The weights have become 3 by then.
    assert all((one.numpy() == 3).all() for one in weights)


def mixed_model(gain: float) -> Any:
    inputs = keras.Input([4])
    hidden = keras.layers.Dense(300, use_bias=False, kernel_initializer=keras.initializers.Constant(gain))(inputs)
    outputs = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", dtype="float32", name="sum")(hidden)
    return keras.Model(inputs, outputs)


@pytest.fixture
def mixed() -> Any:
    before = keras.mixed_precision.dtype_policy()
    keras.mixed_precision.set_dtype_policy("mixed_float16")
    yield
    keras.mixed_precision.set_dtype_policy(before)


@pytest.mark.parametrize("accumulated", [1, 2])
def test_fit_of_a_mixed_policy_stops_with_the_weights_of_before_the_step(mixed: Any, accumulated: int) -> None:
    configure(stops=True)
    x = np.ones([4, 4], np.float32)
    x[3] = 30000  # In the last micro-batch.
    with ipu.IPUStrategy().scope():
        model = mixed_model(1)
        model.compile(keras.optimizers.SGD(1e-4), "mse", steps_per_execution=4, auto_scale_loss=False)
        if accumulated > 1:
            model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=accumulated)
        with pytest.raises(tf.errors.InvalidArgumentError, match=STOPPED):
            model.fit(x, np.zeros([4, 1]), batch_size=1, shuffle=False, verbose=0)
        stopped = model.get_weights()
    configure()
    with ipu.IPUStrategy().scope():
        model = mixed_model(1)
        model.compile(keras.optimizers.SGD(1e-4), "mse", steps_per_execution=4 - accumulated, auto_scale_loss=False)
        if accumulated > 1:
            model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=accumulated)
        model.fit(x[: 4 - accumulated], np.zeros([4 - accumulated, 1]), batch_size=1, shuffle=False, verbose=0)
        for weights, expected in zip(stopped, model.get_weights(), strict=True):
            assert (weights != 1).any()
            np.testing.assert_allclose(weights, expected, rtol=1e-6)


def test_a_mixed_policy_rounds_at_random(mixed: Any) -> None:
    configure(rounds=True)
    with ipu.IPUStrategy().scope():
        model = mixed_model(1 + 2**-12)  # Between two numbers of float16.
        model.compile(steps_per_execution=1)
        sums = model.predict(np.ones([8, 4], np.float32), batch_size=8, verbose=0)
    # The weights are cast once a step, a quarter of them up, to 2^-10 more: each of 1200 in the sum.
    deviation = 2**-10 * np.sqrt(1200 * 3 / 16) + 300 * 2**-9 / 16
    assert abs(sums.mean() - 1200 * (1 + 2**-12)) < 4 * deviation
    assert sums.std() > 0  # The products round by themselves.


def test_an_accumulating_optimizer_rounds_at_random_and_stops() -> None:
    configure(rounds=True, stops=True)
    strategy = ipu.IPUStrategy()
    with strategy.scope():
        weights = tf.Variable(tf.ones([400], HALF))
        optimizer = ipu.optimizers.GradientAccumulationOptimizerV2(
            tf.compat.v1.train.GradientDescentOptimizer(1.0), 2, dtype=HALF, reduction_method="sum"
        )

        @tf.function(jit_compile=True)
        def train(gradient: tf.Tensor) -> None:
            def step() -> None:
                optimizer.apply_gradients([(tf.fill([400], gradient), weights)])

            ipu.loops.repeat(16, step, [])

        strategy.run(train, (tf.constant(-(2.0**-14), HALF),))
        before = weights.numpy()
        moved = before.astype(np.float64) - 1
        assert abs(moved.mean() - 2**-10) < 4 * 2**-10 * np.sqrt(8 * 7 / 64 / 400)
        with pytest.raises(tf.errors.InvalidArgumentError, match=STOPPED):
            strategy.run(train, (tf.constant(40000, HALF),))  # Two add up to more than there is.
        assert (weights.numpy() == before).all()


@pytest.mark.parametrize("layer", ["matmul", "conv", "pool"])
def test_layers_of_a_scope_round_at_random_where_kernels_of_the_host_would_compute_them(layer: str) -> None:
    configure()
    images = tf.constant(np.random.default_rng(1).normal(size=(2, 8, 8, 16)).astype(np.float16))
    kernel = tf.constant(np.random.default_rng(2).normal(size=(3, 3, 16, 16)).astype(np.float16))

    def compute() -> tf.Tensor:
        if layer == "matmul":
            return tf.matmul(images[0, 0], kernel[0, 0])
        if layer == "conv":
            return tf.nn.conv2d(images, kernel, 1, "SAME")
        return tf.nn.avg_pool2d(images, 3, 1, "SAME")

    def both() -> tuple[tf.Tensor, tf.Tensor]:
        with scopes.stochastic_rounding(True):
            inside = compute()
        return inside, compute()

    function = tf.function(both, jit_compile=True)
    with _host_kernels.wherever_known():
        runs = [ipu.IPUStrategy().run(function) for _ in range(2)]
    inside, outside = ([run[i].numpy() for run in runs] for i in range(2))
    assert (inside[0] != inside[1]).any()
    assert (outside[0] == outside[1]).all()


def test_another_process_rounds_at_random_and_stops(run_script: Any, tmp_path: Path) -> None:
    """By a program that it did not compile."""
    script = """
        import sys
        import numpy as np
        import tensorflow as tf
        import tensorflow_ipu as ipu
        from tensorflow_ipu.config import StochasticRoundingBehaviour, reset_ipu_seed

        ipu.executables.set_cache(sys.argv[1])
        config = ipu.IPUConfig()
        config.floating_point_behaviour.esr = StochasticRoundingBehaviour.ON
        config.floating_point_behaviour.oflo = True
        config.configure_ipu_system()
        reset_ipu_seed(3)
        step = tf.function(lambda x: x * tf.constant(1 / 3, tf.float16) * 3, jit_compile=True)
        strategy = ipu.IPUStrategy()
        ones = strategy.run(step, (tf.ones([100], tf.float16),)).numpy()
        try:
            strategy.run(step, (tf.fill([100], tf.constant(65504, tf.float16)),))
        except tf.errors.InvalidArgumentError as error:
            print(error.message)
        print(ones.tolist(), len(np.unique(ones)), ipu.counter_value("ExecutablesLoaded"))
        """
    first, second = (run_script(script, str(tmp_path)).stdout.splitlines()[-1] for _ in range(2))
    assert first.rpartition("] ")[0] == second.rpartition("] ")[0]
    assert int(first.split()[-2]) > 1
    assert [first.split()[-1], second.split()[-1]] == ["0", "1"]
