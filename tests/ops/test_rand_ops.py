"""Random operations in programs: dropout, equality with TensorFlow without XLA, and streams of replicas."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.config import reset_ipu_seed
from tensorflow_ipu.ops.rand_ops import dropout

ONES = tf.ones([30, 40])


def test_elements_are_dropped_at_the_rate_and_the_others_scaled():
    out = dropout(ONES, 0.2).numpy()
    assert set(np.unique(out)) == {0, np.float32(1 / 0.8)}
    assert np.mean(out == 0) == pytest.approx(0.2, abs=0.05)
    assert np.array_equal(dropout(ONES, 0), ONES)
    for dtype in (tf.float16, tf.bfloat16, tf.float64):
        assert dropout(tf.ones([4], dtype)).dtype == dtype


def test_same_seed_gives_the_same_mask_and_without_one_each_call_and_step_has_another():
    @tf.function(jit_compile=True)
    def program():
        masks = tf.TensorArray(tf.float32, 3)
        for i in tf.range(3):
            masks = masks.write(i, dropout(ONES))
        return masks.stack(), dropout(ONES, 0.5, seed=[1, 2])

    (first, compiled), (second, _) = program(), program()
    assert len({mask.tobytes() for mask in [*first.numpy(), *second.numpy()]}) == 6
    assert not np.array_equal(dropout(ONES), dropout(ONES))
    assert np.array_equal(dropout(ONES, seed=[1, 2]), compiled)
    assert not np.array_equal(dropout(ONES, seed=[1, 2]), dropout(ONES, seed=[2, 1]))
    assert np.array_equal(dropout(ONES, seed=[1, 2], ref=True), dropout(ONES, seed=[1, 2], ref=False))


def test_gradient_has_the_mask_of_the_result_which_is_the_same_along_dimensions_of_size_one():
    for options in ({}, {"seed": [3, 4]}, {"noise_shape": []}):
        with tf.GradientTape() as tape:
            tape.watch(ONES)
            out = dropout(ONES, **options)
        assert np.array_equal(tape.gradient(out, ONES), out)
    out = dropout(ONES, noise_shape=[1, None], seed=[1, 2]).numpy()
    assert np.array_equal(out, np.repeat(out[:1], 30, axis=0))
    assert len(np.unique(out)) == 2


def test_empty_noise_shape_drops_elements_one_by_one_as_none_does():
    empty = ([], tf.TensorShape([]), tf.constant([], tf.int32))

    def dropped():
        return [dropout(ONES, 0.5, shape, [1, 2]) for shape in empty]

    expected = dropout(ONES, seed=[1, 2])
    assert set(np.unique(expected)) == {0, 2}
    for mask in (*dropped(), *tf.function(dropped, jit_compile=True)()):
        np.testing.assert_array_equal(mask, expected)
    assert dropout(tf.ones([]), noise_shape=[]).shape == []


def test_sizes_of_noise_may_be_tensors():
    def all_of(x):
        shapes = (
            [tf.shape(x)[0], 1],
            [None, tf.constant(1, tf.int64)],
            tf.concat([tf.shape(x)[:1], [1]], 0),
            tf.constant([30, 1], tf.int64),
            np.array([30, 1]),
            tf.TensorShape([None, 1]),
        )
        return [dropout(x, 0.5, shape, [1, 2]) for shape in shapes]

    expected = dropout(ONES, 0.5, [None, 1], [1, 2])
    assert len(np.unique(expected, axis=1)[0]) == 1
    of_any_size = tf.function(all_of, [tf.TensorSpec([None, 40])])
    for mask in (*of_any_size(ONES), *tf.function(all_of)(ONES), *all_of(ONES)):
        np.testing.assert_array_equal(mask, expected)


def test_arguments_that_cannot_be_are_refused(refused):
    for options, kind, message in (
        *(({"rate": rate}, ValueError, "`rate` must be from 0 to below 1") for rate in (-0.1, 1, 2)),
        *(({"seed": seed}, ValueError, "`seed` must be two integers") for seed in (1, [1], [1, 2, 3], [[1, 2]])),
        ({"seed": [1, 2**64]}, ValueError, r"two integers of 64 bits, but is \[1, 18446744073709551616\]"),
        ({"seed": [0.5, 1.5]}, TypeError, "`seed` must be two integers"),
        ({"x": [1, 2]}, TypeError, "`x` must hold floating-point numbers"),
        ({"ratio": 0.5}, TypeError, "no argument `ratio`"),
        ({"ref": 1}, TypeError, "`ref` must be True or False, but is 1"),
        *(
            ({"noise_shape": shape}, TypeError, "`noise_shape` must be a list of integers and Nones, or a vector")
            for shape in (4, "ab", [1.0, 40], tf.constant([1.0, 40]), [[30], 40], tf.TensorShape(None))
        ),
        ({"noise_shape": [40]}, ValueError, "must have the rank of `x`"),
        *(
            ({"noise_shape": shape}, ValueError, "must have a size of 1")
            for shape in ([30, 2], [-1, 40], tf.constant([2, 1]))
        ),
    ):
        refused(kind, message, dropout, **{"x": ONES, **options})


SEED = [3, 4]

# Host kernels compute all of them, so they can be in one program.
DRAWS = {
    "uniform": lambda: tf.random.stateless_uniform([5, 3], SEED),
    "uniform of half precision": lambda: tf.cast(tf.random.stateless_uniform([5], SEED, dtype=tf.bfloat16), tf.float32),
    "integers": lambda: tf.random.stateless_uniform([7], SEED, 3, 1000, tf.int32),
    "integers of all bits": lambda: tf.random.stateless_uniform([7], SEED, None, None, tf.int64),
    "normal": lambda: tf.random.stateless_normal([7], SEED, 2.0, 3.0),
    "truncated normal": lambda: tf.random.stateless_truncated_normal([7], SEED),
    "by philox": lambda: tf.random.stateless_normal([7], SEED, alg="philox"),
    "categorical": lambda: tf.random.stateless_categorical(tf.zeros([2, 50]), 5, SEED),
    "gamma": lambda: tf.random.stateless_gamma([7], SEED, tf.range(1.0, 8.0)),
    "poisson": lambda: tf.random.stateless_poisson([7], SEED, tf.range(1.0, 8.0)),
    "binomial": lambda: tf.random.stateless_binomial([7], SEED, 9.0, 0.4),
    "shuffle": lambda: tf.random.experimental.stateless_shuffle(tf.range(20), SEED),  # pyright: ignore[reportAttributeAccessIssue]
    "dropout": lambda: tf.nn.experimental.stateless_dropout(tf.ones([64]), 0.5, SEED),
    "split seeds": lambda: tf.random.experimental.stateless_split(SEED, 3),  # pyright: ignore[reportAttributeAccessIssue]  # The stubs lack it.
    "an initializer": lambda: keras.initializers.GlorotNormal(seed=5)([4, 3]),
}


def test_draws_are_those_of_tensorflow_without_xla_also_in_a_loop(strategy):
    @tf.function(jit_compile=True)
    def program():
        looped = tf.TensorArray(tf.float32, 3, element_shape=[4])
        for i in tf.range(3):
            looped = looped.write(i, tf.random.stateless_normal([4], [i, 7]))
        drawn = {name: draw() for name, draw in DRAWS.items()}
        return drawn, looped.stack()

    drawn, looped = strategy.run(program)
    for name, draw in DRAWS.items():
        np.testing.assert_array_equal(drawn[name], draw(), err_msg=name)
    np.testing.assert_array_equal(looped, [tf.random.stateless_normal([4], [i, 7]) for i in range(3)])
    # XLA computes algorithms that the host kernels do not support.
    threefry = tf.function(lambda: tf.random.stateless_uniform([4], SEED, alg="threefry"), jit_compile=True)
    np.testing.assert_array_equal(strategy.run(threefry), threefry())


# Calls of a `tf.random.Generator` with the Philox algorithm.
OF_GENERATORS = {
    "normal": lambda g: g.normal([3, 5], 2.0, 3.0),
    "normal of float16": lambda g: g.normal([7], dtype=tf.float16),
    "normal of bfloat16": lambda g: g.normal([7], dtype=tf.bfloat16),
    "uniform": lambda g: g.uniform([3, 5], -1.0, 7.0),
    "uniform of float16": lambda g: g.uniform([7], dtype=tf.float16),
    "whole numbers": lambda g: g.uniform([7], 2, 77, tf.int32),
    "long whole numbers": lambda g: g.uniform([7], -(2**60), 2**60, tf.int64),
    "all whole numbers": lambda g: g.uniform_full_int([7], tf.uint64),
    "truncated normal": lambda g: g.truncated_normal([9]),
    "seeds": lambda g: g.make_seeds(3),
    "after a skip": lambda g: (g.skip(7), g.normal([2]))[1],
    "many": lambda g: g.normal([1000, 33]),
    "key": lambda g: g.key,
}
# Calls with Keras's `SeedGenerator`.
OF_SEEDS = {
    "normal": lambda g: keras.random.normal([3, 5], seed=g),
    "uniform": lambda g: keras.random.uniform([7], dtype="float16", seed=g),
    "whole numbers": lambda g: keras.random.randint([7], 2, 9, seed=g),
    "categorical": lambda g: keras.random.categorical(tf.zeros([2, 9]), 5, seed=g),
    "truncated normal": lambda g: keras.random.truncated_normal([9], seed=g),
    "dropout": lambda g: keras.random.dropout(tf.ones([30]), 0.3, seed=g),
    "shuffle": lambda g: keras.random.shuffle(tf.reshape(tf.range(10), [2, 5]), axis=1, seed=g),
    "gamma": lambda g: keras.random.gamma([3], 2.0, seed=g),
    "beta": lambda g: keras.random.beta([3], 2.0, 3.0, seed=g),
    "binomial": lambda g: keras.random.binomial([3], 5.0, 0.3, seed=g),
}


# TensorFlow derives a key for each replica of a strategy, so the first replica drew different values than without one.
@pytest.mark.parametrize(
    ("draws", "seeded"), [(OF_GENERATORS, tf.random.Generator.from_seed), (OF_SEEDS, keras.random.SeedGenerator)]
)
def test_generators_draw_the_numbers_of_tensorflow_without_xla_and_end_in_its_state(draws, seeded, strategy):
    with strategy.scope():
        generator = seeded(5)
    plain_generator = seeded(5)

    def draw_all(generator):
        return {name: draw(generator) for name, draw in draws.items()}

    def looped(generator):
        return tf.while_loop(
            lambda i, _: i < 3,
            lambda i, maximum: (i + 1, tf.maximum(maximum, draws["normal"](generator))),
            [0, tf.zeros([3, 5])],
        )[1]

    looped = tf.function(looped, autograph=False) if draws is OF_GENERATORS else draw_all
    program = tf.function(lambda: (draw_all(generator), looped(generator)), jit_compile=True)
    for _ in range(2):
        results = tf.nest.flatten(strategy.run(program))
        references = tf.nest.flatten((draw_all(plain_generator), looped(plain_generator)))
        for result, reference in zip(results, references, strict=True):
            np.testing.assert_array_equal(result, reference)
        np.testing.assert_array_equal(generator.state, plain_generator.state)


def test_generator_of_an_algorithm_that_the_host_lacks_draws_as_in_any_function_that_xla_compiles(strategy):
    def draws(generator):
        return generator.normal([4]), generator.uniform([4], 2, 99, tf.int32)

    with strategy.scope():
        generator = tf.random.Generator.from_seed(5, alg="threefry")
    plain_generator = tf.random.Generator.from_seed(5, alg="threefry")
    program, compiled = (tf.function(lambda g=g: draws(g), jit_compile=True) for g in (generator, plain_generator))
    for _ in range(2):
        for result, reference in zip(strategy.run(program), compiled(), strict=True):
            np.testing.assert_array_equal(result, reference)
        np.testing.assert_array_equal(generator.state, plain_generator.state)


# XLA:CPU drew a random tensor again for each of its uses.
def test_a_number_is_drawn_once_for_all_of_its_uses(compiled_text, strategy):
    @tf.function(jit_compile=True)
    def program(seed, x):
        noise = tf.random.stateless_uniform([64, 16], seed)
        return tf.reduce_sum(x * noise, 0), tf.sin(noise) @ tf.transpose(x), tf.where(noise > 0.5, x, 0.0)

    text = compiled_text(strategy, program, tf.constant([1, 2]), tf.ones([64, 16]))
    assert len(re.findall(r" custom-call\(.*StatelessRandomUniformV2", text)) == 1
    assert "shift-right-logical" not in text


def test_random_layers_of_keras_draw_what_they_draw_without_xla(strategy):
    images = tf.random.stateless_uniform([4, 6, 5, 3], [1, 2])

    def create_layers():
        kinds = ("Dropout", "GaussianNoise", "GaussianDropout", "SpatialDropout2D")
        layers = [getattr(keras.layers, kind)(0.3, seed=3) for kind in kinds]
        return [*layers, keras.layers.RandomFlip("horizontal", seed=3)]

    plain_layers = create_layers()
    with strategy.scope():
        layers_in_scope = create_layers()
    program = tf.function(lambda: [layer(images, training=True) for layer in layers_in_scope], jit_compile=True)
    for _ in range(2):
        for layer, result in zip(plain_layers, strategy.run(program), strict=True):
            np.testing.assert_allclose(result, layer(images, training=True), rtol=1e-5, atol=1e-6)


STREAMS = {
    "uniform": lambda: tf.random.uniform([8]),
    "integers": lambda: tf.random.uniform([8], 0, 1000, tf.int32),
    "normal": lambda: tf.random.normal([8]),
    "truncated normal": lambda: tf.random.truncated_normal([8]),
    "shuffle": lambda: tf.random.shuffle(tf.range(32)),
    "categorical": lambda: tf.random.categorical(tf.zeros([1, 1000]), 8),
    "dropout": lambda: tf.nn.dropout(tf.ones([64]), 0.5),
}


def drawn(strategy, draw, times=3):
    """Returns the values that a program draws, of shape [times, replicas, ...]."""
    queue = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program():
        for _ in tf.range(times):
            queue.enqueue(draw())

    with strategy.scope():
        strategy.run(program)
    return queue.dequeue().numpy()


def test_replicas_draw_their_own_numbers_again_from_the_same_seed(replicas):
    strategy, queue = replicas(3), ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program():
        for _ in tf.range(3):
            queue.enqueue({name: draw() for name, draw in STREAMS.items()})

    def draw_with(seed):
        reset_ipu_seed(seed)
        strategy.run(program)
        return queue.dequeue()

    first, same_seed, other_seed = draw_with(5), draw_with(5), draw_with(6)
    for name in STREAMS:
        flat = first[name].numpy().reshape([9, -1])
        assert len(np.unique(flat, axis=0)) == 9, f"each draw of {name} of each replica is another one"
        np.testing.assert_array_equal(same_seed[name], first[name], err_msg=name)
        assert not np.array_equal(other_seed[name], first[name]), name


def test_identical_replicas_draw_the_same(replicas):
    strategy = replicas(3)

    def draw_with(identical):
        with strategy.scope():
            generator = tf.random.Generator.from_seed(1)
        reset_ipu_seed(5, experimental_identical_replicas=identical)
        return drawn(strategy, lambda: tf.concat([generator.uniform([4]), tf.random.uniform([8])], 0), times=2)

    separate = draw_with(False)
    assert len(np.unique(separate[:, :, :4].reshape([6, -1]), axis=0)) == 6
    plain_generator = tf.random.Generator.from_seed(1)  # The first replica draws the same values as without a strategy.
    np.testing.assert_array_equal(separate[:, 0, :4], [plain_generator.uniform([4]) for _ in range(2)])
    np.testing.assert_array_equal(draw_with(True), np.repeat(separate[:, :1], 3, axis=1))


def test_runs_go_on_in_the_stream(strategy):
    queue = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program():
        queue.enqueue(tf.random.uniform([]))

    def draw(runs):
        for _ in range(runs):
            strategy.run(program)
        return queue.dequeue().numpy()

    reset_ipu_seed(1)
    first = draw(4)
    assert len(np.unique(first)) == 4
    reset_ipu_seed(1)
    np.testing.assert_array_equal(np.concatenate([draw(1), draw(3)]), first)


def test_a_number_has_the_distribution_that_it_should_have(replicas):
    strategy, order = replicas(2), tf.range(20000.0)
    reset_ipu_seed(3)

    def draw():
        return tf.stack([tf.random.uniform([20000]), tf.random.normal([20000], 2.0, 3.0), tf.random.shuffle(order)])

    uniform, normal, shuffled = drawn(strategy, draw, 1)[0].swapaxes(0, 1)
    assert (uniform.mean(), uniform.std()) == pytest.approx((0.5, 12**-0.5), abs=0.01)
    assert (normal.mean(), normal.std()) == pytest.approx((2.0, 3.0), abs=0.1)
    np.testing.assert_array_equal(np.sort(shuffled[0]), order)


def test_keras_drops_other_units_out_on_each_replica_and_on_the_first_those_of_plain_keras(replicas):
    plain_layer = keras.layers.Dropout(0.5, seed=7)
    plain_layer.build([64])
    plain_masks = np.stack([plain_layer(tf.ones([64]), training=True) for _ in range(2)])
    strategy = replicas(3)
    with strategy.scope():
        layer = keras.layers.Dropout(0.5, seed=7)
    masks = drawn(strategy, lambda: layer(tf.ones([64]), training=True), times=2)
    np.testing.assert_array_equal(masks[:, 0], plain_masks)
    assert len(np.unique(masks.reshape([6, -1]), axis=0)) == 6
