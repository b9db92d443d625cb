"""Stochastic rounding of float16 results: its distribution, seeds, operations, replicas and scopes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import scopes
from tensorflow_ipu._tensorflow import functions
from tensorflow_ipu.config import IPUConfig, StochasticRoundingBehaviour, reset_ipu_seed
from tensorflow_ipu.ops import all_to_all_op, cross_replica_ops, replication_ops
from tensorflow_ipu.programs._host_kernels import wherever_known

ON = StochasticRoundingBehaviour.ON
COUNT = 20_000


def configure(esr=ON, ipus=1, stable=False, nanoo=False):
    config = IPUConfig()
    config.auto_select_ipus = ipus
    config.floating_point_behaviour.esr = esr
    config.floating_point_behaviour.nanoo = nanoo
    config.experimental.enable_prng_stability = stable
    config.configure_ipu_system()
    reset_ipu_seed(17)


def run(function, *args):
    return ipu.IPUStrategy().run(tf.function(function, jit_compile=True), args)


def halves(*values):
    """Returns `COUNT` roundings of each value to float16."""
    x = tf.constant(np.repeat(np.array(values, np.float32)[:, np.newaxis], COUNT, 1))  # `tf.fill` has no negative zero.
    return run(lambda x: tf.cast(x, tf.float16), x).numpy().astype(np.float64)


def test_a_number_becomes_one_of_its_neighbours_in_proportion_to_how_near_they_are_whatever_others_become():
    configure()
    values = (1 + 2**-12, -(1 + 2**-12), 3.14159, 1000.123, 2**-14 - 2**-27, 2**-24 / 4, -1.75 * 2**-24, 40000.7)
    halfway, *roundings = halves(1 + 2**-11, *values)
    up = halfway > 1
    pairs = [np.mean(up[distance:] == up[:-distance]) for distance in (1, 2, 3, 16, 64, 100, 1000)]
    assert all(abs(share_of_equal - 0.5) < 4 * 0.5 / np.sqrt(COUNT - 1000) for share_of_equal in pairs), pairs
    for value, got in zip(map(np.float32, values), roundings, strict=True):
        nearest = np.float16(value)
        neighbour = float(np.nextafter(nearest, np.float16(np.inf if value > nearest else -np.inf)))
        assert set(np.unique(got)) == {float(nearest), neighbour}
        gap = abs(neighbour - float(nearest))
        # Four standard deviations of the mean of `COUNT` roundings.
        share = abs(float(value) - float(nearest)) / gap
        assert abs(got.mean() - value) < 4 * gap * np.sqrt(share * (1 - share) / COUNT)


def test_what_float16_holds_stays_what_it_is_and_overflow_gives_the_largest_number_or_a_nan():
    configure()
    values = (0.0, -0.0, 1.0, -2048.0, 2**-24, 65504.0, 2**-14)
    for value, got in zip(values, halves(*values), strict=True):
        assert (got == value).all()
        assert (np.signbit(got) == np.signbit(value)).all()
    large, small, nan = halves(1e6, -1e6, np.nan)
    assert (large == 65504).all()
    assert (small == -65504).all()
    assert np.isnan(nan).all()
    configure(nanoo=True)
    large, fits = halves(1e6, 65504.0)
    assert np.isnan(large).all()
    assert (fits == 65504).all()


def test_operations_on_tensors_and_numbers_give_neighbours_of_what_they_give_exactly():
    configure()
    rng = np.random.default_rng(8)
    x, y = (tf.constant(rng.uniform(0.5, 4, COUNT).astype(np.float16)) for _ in range(2))
    exact_x, exact_y = x.numpy().astype(np.float64), y.numpy().astype(np.float64)

    def step(x, y, number):
        return x + y, x - y, x * y, x / y, tf.sqrt(x), x * number, number - x, number / y, tf.sqrt(number), number * 3

    exact = (
        exact_x + exact_y,
        exact_x - exact_y,
        exact_x * exact_y,
        exact_x / exact_y,
        exact_x**0.5,
        exact_x * 1.5,
        1.5 - exact_x,
        1.5 / exact_y,
        1.5**0.5,
        4.5,
    )
    for got, expected in zip(run(step, x, y, tf.constant(1.5, tf.float16)), exact, strict=True):
        gap = 2 ** (np.maximum(np.floor(np.log2(np.abs(expected) + 1e-9)), -14) - 10)
        error = (got.numpy().astype(np.float64) - expected) / gap
        assert np.abs(error).max() < 1.01
        assert abs(error.mean()) < 4 * 0.5 / np.sqrt(error.size)
        assert error.size == 1 or not error.any() or np.abs(error).max() > 0.6  # Some round to the farther neighbour.


def test_a_weight_moves_by_updates_below_its_precision_on_average():
    """Loss scaling cannot do this: rounded to the nearest, 1 + 2^-13 is 1 in float16."""
    configure()
    with ipu.IPUStrategy().scope():
        weights = tf.Variable(tf.ones([500], tf.float16))

    def train():
        for _ in tf.range(256):
            weights.assign_add(tf.fill([500], tf.constant(2.0**-13, tf.float16)))

    run(train)
    values = weights.numpy().astype(np.float64)
    # Each of 500 weights gets 256 roundings, which add 2^-10 with a probability of 1/8.
    assert abs(values.mean() - 1 - 2**-5) < 4 * 2**-10 * np.sqrt(256 * 7 / 64 / 500)
    assert values.std() > 0


def test_products_accumulate_in_float32_and_round_once():
    configure()
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(64, 256)).astype(np.float16), rng.normal(size=(256, 64)).astype(np.float16)
    exact = x.astype(np.float64) @ y.astype(np.float64)
    got = run(tf.matmul, tf.constant(x), tf.constant(y)).numpy()
    large = np.abs(exact) > 1  # Small results also have rounding errors of float32.
    got, exact = got.astype(np.float64)[large], exact[large]
    error = (got - exact) / 2 ** (np.floor(np.log2(np.abs(exact))) - 10)
    assert np.abs(error).max() < 1.01  # All results are neighbours of the exact values.
    assert np.abs(error).max() > 0.6  # Some results are not the nearest neighbours.
    deviation = 0.41  # The standard deviation of a rounding, in gaps.
    assert abs(error.mean()) < 4 * deviation / np.sqrt(error.size)


def test_gradients_convolutions_and_branches_round_too():
    configure()
    images = tf.constant(np.random.default_rng(4).normal(size=(4, 8, 8, 3)).astype(np.float16))
    kernel = tf.constant(np.random.default_rng(5).normal(size=(3, 3, 3, 4)).astype(np.float16))

    def step(images, kernel):
        with tf.GradientTape() as tape:
            tape.watch(kernel)
            result = tf.nn.conv2d(images, kernel, 1, "SAME")
            if tf.reduce_sum(tf.cast(result, tf.float32)) > -1e9:
                result *= tf.constant(1 / 3, tf.float16)
            loss = tf.reduce_sum(tf.square(tf.cast(result, tf.float32)))
        gradient: Any = tape.gradient(loss, kernel)
        return gradient

    function = tf.function(step, jit_compile=True)
    strategy = ipu.IPUStrategy()
    several = np.stack([strategy.run(function, (images, kernel)).numpy() for _ in range(16)]).astype(np.float64)
    assert (several.std(axis=0) > 0).mean() > 0.5
    configure(StochasticRoundingBehaviour.OFF)
    nearest = strategy.run(function, (images, kernel)).numpy().astype(np.float64)
    assert np.abs(several.mean(axis=0) - nearest).max() < 0.01 * np.abs(nearest).max()


def test_a_seed_gives_the_same_roundings_again_and_rounding_takes_no_numbers_from_random_streams():
    @tf.function(jit_compile=True)
    def thirds(x):
        for _ in tf.range(3):
            x = x * tf.constant(1 / 3, tf.float16) + tf.constant(2 / 3, tf.float16)
        return x, tf.random.uniform([8])

    x = tf.constant(np.random.default_rng(6).normal(size=1000).astype(np.float16))
    strategy = ipu.IPUStrategy()
    configure(StochasticRoundingBehaviour.OFF)
    _, nearest = strategy.run(thirds, (x,))
    configure()
    first, second = (strategy.run(thirds, (x,)) for _ in range(2))
    reset_ipu_seed(17)
    repeated, last = (strategy.run(thirds, (x,)) for _ in range(2))
    np.testing.assert_array_equal(first[1], nearest)
    np.testing.assert_array_equal(first[0], repeated[0])
    np.testing.assert_array_equal(second[0], last[0])
    assert tf.reduce_any(first[0] != second[0])
    reset_ipu_seed(18)
    assert tf.reduce_any(strategy.run(thirds, (x,))[0] != first[0])


def all_of(x):
    """Returns for all replicas the results of a shared value, of a replica's own value, and of the sum of these."""
    shared = x * tf.constant(1 / 3, tf.float16)
    own = x * (tf.cast(replication_ops.replication_index(), tf.float16) * 0 + tf.constant(1 / 3, tf.float16))
    summed = cross_replica_ops.cross_replica_sum(own) * tf.constant(1 / 3, tf.float16)
    return all_to_all_op.all_gather(tf.cast(tf.stack([shared, own, summed]), tf.float32), 2)


@pytest.mark.parametrize(
    ("esr", "stable", "agree", "random"),
    [
        (ON, False, [False, False, False], [True, True, True]),
        (ON, True, [True, False, True], [True, True, True]),
        (StochasticRoundingBehaviour.REPLICA_IDENTICAL_ONLY, True, [True, True, True], [True, False, True]),
    ],
)
def test_replicas_round_alike_what_they_have_in_common(esr, stable, agree, random):
    configure(esr, ipus=2, stable=stable)
    function = tf.function(all_of, jit_compile=True)
    strategy = ipu.IPUStrategy()
    x = tf.constant(np.random.default_rng(7).normal(size=500).astype(np.float16))
    first, second = (strategy.run(function, (x,)).numpy() for _ in range(2))
    assert [bool((first[0, row] == first[1, row]).all()) for row in range(3)] == agree
    # The third row depends on earlier roundings, so it is not compared.
    assert [bool((first[:, row] != second[:, row]).any()) for row in range(2)] == random[:2]


@tf.function
def called(x):
    for _ in tf.range(1):
        x = tf.sigmoid(x)
    return tf.einsum("ij,kj->ik", x, x)


@pytest.mark.parametrize("rounds", [True, False])
def test_a_scope_holds_for_all_that_is_computed_in_it_and_for_nothing_else(rounds):
    """TensorFlow does not pass scopes to XLA if it lowers an operation by MLIR, or calls a function."""
    configure(StochasticRoundingBehaviour.OFF if rounds else ON)

    def step(x, images):
        def layers():
            return [x @ x, tf.nn.conv2d(images, images[:3, :3], 1, "SAME"), tf.nn.avg_pool2d(images, 3, 1, "SAME")]

        filtered, bent = images, x
        with tf.GradientTape() as tape, scopes.stochastic_rounding(rounds):
            tape.watch(x)
            results = [tf.exp(x), tf.nn.softmax(x), tf.einsum("ij,jk->ik", x, x), called(x), *layers()]
            for _ in tf.range(1):
                filtered, bent = tf.nn.conv2d(filtered, images[:3, :3], 1, "SAME"), tf.tanh(bent)
            loss = tf.reduce_sum(results[0])
        gradient: Any = tape.gradient(loss, x)
        return [*results, filtered, bent, gradient], [x / 3, *layers()]

    with wherever_known():  # Host kernels for float16 too, which do not round stochastically.
        function = tf.function(step, jit_compile=True)
        random = np.random.default_rng(9)
        shapes = ([16, 16], [4, 4, 4, 4])
        args = [tf.constant(random.normal(size=shape).astype(np.float16)) for shape in shapes]
        strategy = ipu.IPUStrategy()
        first, second = (strategy.run(function, args) for _ in range(2))
    inside, outside = tf.nest.map_structure(lambda a, b: bool(tf.reduce_any(a != b)), first, second)
    assert (inside, outside) == ([rounds] * 10, [not rounds] * 4)


def test_operations_of_one_name_of_which_scopes_say_different_things_are_told_of(caplog):
    def step(x):
        with scopes.stochastic_rounding(True):
            inside = called(x)
        return inside, called(x)

    with caplog.at_level("WARNING", "tensorflow_ipu"):
        run(step, tf.ones([2, 2], tf.float16))
    assert "operations called `while/Sigmoid`, and scopes set different options for them" in caplog.text


def test_a_program_of_which_nothing_is_asked_is_the_same():
    x = tf.constant(np.ones([4, 4], np.float16))

    def text():
        strategy = ipu.IPUStrategy()
        function = tf.function(lambda x: tf.matmul(x, x) / 3, jit_compile=True)
        strategy.run(function, (x,))
        with tf.device("/device:IPU:0"):
            concrete: Any = function.get_concrete_function(x)
            hlo: Any = functions.hlo_of(concrete, [x], "/device:IPU:0", "hlo")
        # TensorFlow numbers all functions of a process, so the numbers differ.
        return re.sub(r"[._]+\d+", "", hlo.decode() if isinstance(hlo, bytes) else hlo)

    default = text()
    assert "ipu_half" not in default
    configure(StochasticRoundingBehaviour.OFF)
    assert text() == default
    configure()
    assert "ipu_half_precision" in text()
