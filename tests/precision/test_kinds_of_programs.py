"""Rounding and exceptions in pipelines, mixed precision, accumulation, replicas, and executables of other processes."""

from __future__ import annotations

import collections
import re
import textwrap
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.compiler.xla.service import hlo_pb2

import tensorflow_ipu as ipu
from tensorflow_ipu import pipelining
from tensorflow_ipu.config import IPUConfig, StochasticRoundingBehaviour, reset_ipu_seed
from tensorflow_ipu.executables.application_compile_op import experimental_application_compile_op
from tensorflow_ipu.ops import replication_ops
from tensorflow_ipu.optimizers import CrossReplicaGradientAccumulationOptimizerV2

HALF = tf.float16
SIZE = 256


def configure(ipus, *, rounds=False, oflo=False):
    config = IPUConfig()
    config.auto_select_ipus = ipus
    if rounds:
        config.floating_point_behaviour.esr = StochasticRoundingBehaviour.ON
    config.floating_point_behaviour.oflo = oflo
    config.configure_ipu_system()
    reset_ipu_seed(17)
    return ipu.IPUStrategy()


def weights(strategy, count, value=1):
    with strategy.scope():
        return [tf.Variable(tf.fill([SIZE], tf.constant(value, HALF))) for _ in range(count)]


def check_moved_on_average(weight, distance, steps):
    """Checks that stochastic rounding moved a weight from 1 by `distance` on average, in `steps` roundings.

    Each rounding adds 0 or 2 ** -10, the gap above 1. The mean may differ by four standard deviations.
    """
    moved = weight.numpy().astype(np.float64) - 1
    share = distance / steps / 2**-10
    assert abs(moved.mean() - distance) < 4 * 2**-10 * np.sqrt(steps * share * (1 - share) / SIZE)
    assert moved.std() > 0


def stages(first_weight, second_weight, values, scale):
    """Returns a training program of two stages with four micro-batches a step, and the line of its first stage."""
    infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(np.array([[x] * SIZE for x in values], np.float16)))
    infeed.initializer  # noqa: B018  (The access starts it.)

    def first(x):
        return x * first_weight

    def loss(x):
        return tf.reduce_sum(tf.cast(x * second_weight, tf.float32)) * scale

    def program():
        pipelining.pipeline(
            [first, loss],
            gradient_accumulation_count=4,
            repeat_count=len(values) // 4,
            infeed_queue=infeed,
            outfeed_queue=ipu.IPUOutfeedQueue(),
            optimizer_function=lambda loss: pipelining.OptimizerFunctionOutput(
                tf.compat.v1.train.GradientDescentOptimizer(1.0), loss
            ),
        )

    return program, first.__code__.co_firstlineno + 1


def test_a_stage_stops_its_pipeline_on_its_line_with_the_weights_of_before_the_step():
    strategy = configure(2, oflo=True)
    first, second = weights(strategy, 2)
    program, line = stages(first, second, [1, 1, 1, 1, 1, 1, 1, 1, 1, 40000, 1, 1], -1)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        strategy.run(tf.function(program, jit_compile=True))
    assert f"(test_kinds_of_programs.py:{line}) gave 1e+06" in caught.value.message, caught.value.message
    for weight in (first, second):
        assert (weight.numpy() == 1 + 4 + 4 * 5).all()


def test_weights_of_a_pipeline_round():
    strategy = configure(2, rounds=True)
    first, second = weights(strategy, 2)
    strategy.run(tf.function(stages(first, second, [1] * 32, -(2.0**-15))[0], jit_compile=True))
    for weight in (first, second):
        # Each of eight updates is 2^-13 times the other weight, which is usually 1 + 2^-10 at most.
        check_moved_on_average(weight, 8 * 2**-13, 8)


def test_accumulation_rounds_and_stops_with_the_weights_of_whole_steps(refused):
    strategy = configure(2, rounds=True, oflo=True)
    weight, rounded = weights(strategy, 2)
    with strategy.scope():
        count = tf.Variable(0)
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(1.0)
    stopping, rounding = (CrossReplicaGradientAccumulationOptimizerV2(optimizer, 4) for _ in range(2))

    def step():
        """Runs a micro-batch. A step has four, and in the second run one of them overflows."""
        scale = tf.where((count == 34) & (replication_ops.replication_index() == 0), 2.0**16, 1.0)
        count.assign_add(1)
        stopping.apply_gradients([(tf.cast(tf.fill([SIZE], 2.0**-15) * scale, HALF) * 2**15, weight)])
        rounding.apply_gradients([(tf.fill([SIZE], tf.constant(-(2.0**-15), HALF)), rounded)])

    @tf.function(jit_compile=True)
    def program():
        ipu.loops.repeat(32, step)

    strategy.run(program)
    assert (weight.numpy() == 1 - 32).all()
    check_moved_on_average(rounded, 32 * 2**-15, 8)
    message = "gave 65536, .*on replica 0, in iteration 2 of the loop `while`"
    refused(tf.errors.InvalidArgumentError, message, strategy.run, program)
    assert (weight.numpy() == 1 - 32).all()
    assert count.numpy() == 34


def mixed(rate, **options):
    layers = [keras.layers.Dense(4, activation="relu", dtype="mixed_float16", name="first")]
    layers.append(keras.layers.Dense(1, dtype="mixed_float16"))
    model = keras.Sequential([keras.Input([8]), *layers])
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(rate), initial_scale=4.0)
    model.compile(optimizer, "mse", **options)
    return model


def trained(model, x, begin, batch_size=2):
    reset_ipu_seed(17)
    model.set_weights(begin)
    model.fit(x, np.ones([len(x), 1], np.float32), batch_size=batch_size, shuffle=False, verbose=0)
    return np.concatenate([np.ravel(weight) for weight in model.get_weights()])


def test_models_of_mixed_precision_round_and_stop():
    x = np.random.default_rng(0).normal(size=(32, 8)).astype(np.float32)
    keras.utils.set_random_seed(1)
    reference = mixed(2.0**-3, jit_compile=False)
    begin = reference.get_weights()
    nearest = trained(reference, x, begin, batch_size=8)
    with configure(2, rounds=True, oflo=True).scope():
        model = mixed(2.0**-5, steps_per_execution=2)  # The gradients are sums of four.
        model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
    first, second = (trained(model, x, begin) for _ in range(2))
    assert (first == second).all()
    assert (first != nearest).any()
    np.testing.assert_allclose(first, nearest, atol=2e-3)
    x[0] = 1e5
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Floating point exception: Cast .* gave 1(\.\d+)?e\+05"):
        trained(model, x, begin)
    for weight, original in zip(model.get_weights(), begin, strict=True):
        np.testing.assert_array_equal(weight, original)


CACHED = """
    import sys
    import numpy as np
    import tensorflow as tf
    import tensorflow_ipu as ipu
    from tensorflow_ipu.config import StochasticRoundingBehaviour, reset_ipu_seed
    from tensorflow_ipu.executables import embedded_runtime as runtime

    ipu.executables.set_cache(sys.argv[1])
    config = ipu.IPUConfig()
    config.floating_point_behaviour.esr = StochasticRoundingBehaviour.ON
    config.floating_point_behaviour.oflo = True
    config.configure_ipu_system()
    reset_ipu_seed(3)
    step = tf.function(lambda x: x * tf.constant(1 / 3, tf.float16) * 3, jit_compile=True)
    strategy = ipu.IPUStrategy()
    ones = strategy.run(step, (tf.ones([100], tf.float16),)).numpy()
    print(ones.tolist())
    print(len(np.unique(ones)), ipu.counter_value("ExecutablesLoaded"))
    try:
        strategy.run(step, (tf.fill([100], tf.constant(65504, tf.float16)),))
    except tf.errors.InvalidArgumentError as error:
        print(error.message)
    """
APPLICATION = """
    def call(value):
        return runtime.embedded_runtime_call([tf.fill([256], np.float32(value))], context)[0].numpy()

    context = runtime.embedded_runtime_start(sys.argv[2], [], "app")
    print(*np.unique((call(1 + 2**-11) - 1) * 2**10))
    try:
        for _ in range(3):  # An answer may come before its run has ended, and the next call fails then.
            call(1e5)
    except tf.errors.OpError as error:
        print(error.message)
    """


def test_another_process_rounds_and_stops_by_programs_that_it_did_not_compile(run_script, run_here, tmp_path):
    file = tmp_path / "script.py"
    file.write_text(textwrap.dedent(CACHED))
    try:
        numbers, kinds, stopped = run_here(file, str(tmp_path / "cache"))
    finally:
        ipu.executables.set_cache(None)
    assert stopped.startswith("Floating point exception: ")
    ipu.config.reset_ipu_configuration()
    with configure(1, rounds=True, oflo=True).scope():
        infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensors({"x": tf.zeros([SIZE])}).repeat())
        infeed.initializer  # noqa: B018  (The access starts it.)
        outfeed = ipu.IPUOutfeedQueue()

        def program():
            return ipu.loops.repeat(2, lambda x: outfeed.enqueue({"y": tf.cast(x, HALF)}), [], infeed)

        path: Any = experimental_application_compile_op(program, [], tmp_path / "app")
        infeed.deleter  # noqa: B018
    script = textwrap.dedent(CACHED) + textwrap.dedent(APPLICATION)
    lines = run_script(script, str(tmp_path / "cache"), path.numpy().decode()).stdout.splitlines()
    loaded_numbers, loaded, stopped_again, steps, message = lines
    assert (loaded_numbers, stopped_again) == (numbers, stopped)
    assert int(kinds.split()[0]) > 1
    assert loaded == f"{kinds.split()[0]} 1"
    assert steps == "0.0 1.0"
    assert re.match(r"Floating point exception: Cast `while/Cast` gave 1(\.\d+)?e\+05", message), message


def test_fit_of_a_mixed_policy_stops_with_the_weights_of_before_the_step(refused):
    x = np.ones([4, 4], np.float32)
    x[3] = 30000  # In the last micro-batch.

    def model(steps):
        kernels = {"use_bias": False, "kernel_initializer": "ones"}
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(300, dtype="mixed_float16", **kernels)])
        model.add(keras.layers.Dense(1, dtype="float32", **kernels))
        model.compile(keras.optimizers.SGD(1e-4), "mse", steps_per_execution=steps, auto_scale_loss=False)
        model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
        return model

    def fit(model, count):
        model.fit(x[:count], np.zeros([count, 1]), batch_size=1, shuffle=False, verbose=0)
        return model.get_weights()

    with configure(1, oflo=True).scope():
        stopping = model(4)
        refused(tf.errors.InvalidArgumentError, "Floating point exception: .* gave", fit, stopping, 4)
        stopped = stopping.get_weights()
    ipu.config.reset_ipu_configuration()
    with configure(1).scope():
        for weights, expected in zip(stopped, fit(model(2), 2), strict=True):
            assert (weights != 1).any()
            np.testing.assert_allclose(weights, expected, rtol=1e-6)


def test_a_program_that_makes_its_variables_rounds():
    strategy = configure(1, rounds=True)
    variables = []

    def step():
        if not variables:
            variables.append(tf.Variable(lambda: tf.fill([SIZE], 1 + 2**-11)))
        return tf.cast(variables[0], HALF)

    with strategy.scope():
        assert set((strategy.run(tf.function(step, jit_compile=True)).numpy() - 1) * 2**10) == {0, 1}


def compiled_instructions(strategy, folder, function, *args):
    """Returns the counts of the instructions that XLA compiled for a function, by opcode or target of a custom call."""
    ipu.executables.set_cache(folder)
    try:
        strategy.run(tf.function(function, jit_compile=True), args)
    finally:
        ipu.executables.set_cache(None)
    [file] = (file for file in folder.iterdir() if file.stat().st_size > 1000)
    data, size, index = file.read_bytes()[16:], 0, 1  # A magic number and a checksum come first.
    assert data[0] == 0x0A, "the first field of the executable is no longer its module"
    while True:
        size |= (data[index] & 0x7F) << (7 * (index - 1))
        index += 1
        if data[index - 1] < 0x80:
            break
    message: Any = hlo_pb2.HloProto  # pyright: ignore[reportAttributeAccessIssue]
    computations = message.FromString(data[index : index + size]).hlo_module.computations
    return collections.Counter(
        instruction.custom_call_target or instruction.opcode
        for computation in computations
        for instruction in computation.instructions
    )


def test_each_operation_is_one_call_with_its_rounding_and_has_no_kernel_of_xla(tmp_path):
    """In an earlier version, kernels before and after each rounding doubled the compile time of a program with Adam."""

    def step(x, y):
        for _ in range(3):
            x = tf.sqrt((x + y) * 0.5 - y) / 3
        return x

    ones = tf.ones([40], HALF)
    counts = compiled_instructions(configure(1, rounds=True), tmp_path, step, ones, 0.1 * ones)
    assert counts.pop("ipu_half_round") == 3 * 5
    assert set(counts) <= {"parameter", "constant", "get-tuple-element", "tuple", "bitcast", "ipu_half_precision"}, (
        counts
    )


def test_all_values_of_a_stopped_program_are_restored_by_one_call(tmp_path):
    """In an earlier version, a fifth of the kernels of such programs were selections, one for each variable."""
    strategy = configure(1, oflo=True)
    variables = weights(strategy, 5)

    def step(x):
        for weight in variables:
            weight.assign_add(x * weight)

    counts = compiled_instructions(strategy, tmp_path, step, tf.constant(1, HALF))
    assert (counts["ipu_half_restore"], counts["ipu_half_check"], counts["select"]) == (1, 1, 0)


def test_values_that_sums_and_products_share_are_rounded_and_widened_once(tmp_path):
    """In an earlier version, each sum of a batch normalization rounded its input, and each product widened it."""

    def step(x, weight, other):
        wide = tf.cast(tf.matmul(x, weight), tf.float32)
        centred = wide - tf.reduce_mean(wide, 0)
        shared = tf.cast(centred * tf.math.rsqrt(tf.reduce_mean(centred * centred, 0)), HALF)
        return tf.matmul(shared, other), tf.matmul(shared, shared, transpose_a=True)

    shapes = [64, 64], [64, 128], [128, 64]
    args = [tf.ones(shape, HALF) for shape in shapes]
    counts = compiled_instructions(configure(1), tmp_path, step, *args)
    # To float32: three arguments. To float16 and back: the first product and `shared`. To float16: both results.
    assert counts["convert"] == 3 + 2 * 2 + 2, counts
