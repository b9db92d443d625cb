"""Generic floats against TensorFlow's own types, and against a search through all numbers of a format."""

import numpy as np
import pytest
import tensorflow as tf

from tensorflow_ipu.ops.popfloat_cast_to_gfloat import GenericFloat

X = np.concatenate([
    np.random.default_rng(0).normal(size=300) * 2.0 ** np.random.default_rng(1).integers(-30, 20, 300), [0.0, -0.0, 1e30],
]).astype(np.float32)  # fmt: skip


def numbers(man, exp, bias, denorm, inf):
    """All numbers of a format that are not negative, ascending."""
    fractions = np.arange(1 << man) / (1 << man)
    found = [0.0] + ([f * 2.0 ** (1 - bias) for f in fractions] if denorm else [])
    for e in range(1, (1 << exp) - inf):
        found += [(1 + f) * 2.0 ** (e - bias) for f in fractions]
    return np.unique(found)


def searched(x, known, mode):
    above = np.minimum(np.searchsorted(known, abs(x)), len(known) - 1)
    above = np.where(known[np.maximum(above - 1, 0)] == abs(x), above - 1, above)
    exact = known[above] == abs(x)
    below = np.where(exact | (above == 0), above, above - 1)
    low, high = known[below], known[above]
    up = {
        "RZ": np.zeros(len(x), bool), "RU": x > 0, "RD": x < 0,
        "RN": (abs(x) - low > high - abs(x)) | ((abs(x) - low == high - abs(x)) & (below % 2 == 1)),
        "RA": abs(x) - low >= high - abs(x),
    }[mode]  # fmt: skip
    return np.sign(x) * np.minimum(np.where(up, high, low), known[-1])


@pytest.mark.parametrize(
    "format_", [(3, 4, 7, True, True), (2, 5, 15, True, False), (2, 3, 3, False, True), (6, 4, 8, True, True)]
)
def test_numbers_are_the_next_of_the_format(format_):
    gfloat = GenericFloat(*format_)
    known = numbers(*format_)
    x = X[abs(X) <= known[-1]]
    for mode in ("RZ", "RN", "RA", "RU", "RD"):
        packed = gfloat.cast_native_to_gfloat(x, en_nanoo=False, round_mode=mode)
        assert packed.dtype == gfloat.get_gfloat_storage_dtype()
        assert packed.dtype.is_integer == gfloat.is_packed_float() == (format_[0] + format_[1] < 8)
        native = gfloat.cast_gfloat_to_native(packed)
        assert native.dtype == (tf.float32 if known[-1] > 65504 else tf.float16)
        np.testing.assert_array_equal(native, searched(x.astype(np.float64), known, mode))


@pytest.mark.parametrize(
    ("format_", "kind", "storage"), [((10, 5, 15), tf.float16, tf.float16), ((7, 8, 127), tf.bfloat16, tf.int16)]
)
def test_known_formats_are_tensorflows_own_in_a_program(format_, kind, storage, strategy):
    gfloat = GenericFloat(*format_)
    x = X[(abs(X) < 60000) & (abs(X) > 1e-30)]

    @tf.function(jit_compile=True)
    def program(x):
        stored = gfloat.cast_native_to_gfloat(x)
        return stored, gfloat.cast_gfloat_to_native(stored, "fp32")

    stored, native = strategy.run(program, (tf.constant(x),))
    assert stored.dtype == storage == gfloat.get_gfloat_storage_dtype()
    np.testing.assert_array_equal(tf.cast(native, tf.float32), tf.cast(tf.cast(x, kind), tf.float32))


def test_what_is_too_large_and_no_number_becomes_what_was_asked_for(refused):
    x = [1e9, -1e9, float("inf"), float("nan")]

    def cast(gfloat, nanoo):
        return gfloat.cast_gfloat_to_native(gfloat.cast_native_to_gfloat(x, nanoo)).numpy().tolist()

    full, without = GenericFloat(3, 4, 7), GenericFloat(3, 4, 7, en_inf=False)
    assert np.all(np.isnan(cast(full, True)))
    assert cast(full, False)[:3] == [240, -240, 240]
    assert np.isnan(cast(full, False)[3])
    assert cast(without, False) == [480, -480, 0, 0]
    refused(RuntimeWarning, "`en_nanoo=False`", cast, without, True)


def test_chance_rounds_to_both_sides_and_to_the_mean():
    gfloat = GenericFloat(2, 3, 3)
    tf.random.set_seed(1)
    x = tf.fill([4000], 1.1)
    found = gfloat.cast_gfloat_to_native(gfloat.cast_native_to_gfloat(x, round_mode="SR"))
    assert set(found.numpy()) == {1.0, 1.25}
    assert np.mean(found) == pytest.approx(1.1, abs=0.01)
    down = gfloat.cast_native_to_gfloat(x, round_mode="SR", sr_density="Bernoulli", sr_prob=1.0, storage_type="fp32")
    assert set(down.numpy()) == {1.0}
    few = gfloat.cast_native_to_gfloat(x, round_mode="SR", sr_bits=1, storage_type="fp32")
    assert set(few.numpy()) == {1.0}  # The noise is 0 or 0.5, and 0.4 of a step more is not the next.
    normal = gfloat.cast_native_to_gfloat(x, round_mode="SR", sr_density="TruncatedNormal", storage_type="fp32")
    assert set(normal.numpy()) == {1.0, 1.25}


def test_functions_and_properties_are_those_of_the_format():
    gfloat = GenericFloat(3, 4, 7, en_denorm=False)
    assert (gfloat.get_mantissa_size(), gfloat.get_exponent_size(), gfloat.get_exponent_bias()) == (3, 4, 7)
    assert (gfloat.get_en_denorms(), gfloat.get_en_inf(), gfloat.get_gfloat_calc_dtype()) == (False, True, tf.float16)
    cast = gfloat.get_cast_native_to_gfloat_fun(round_mode="RU")
    assert gfloat.get_cast_gfloat_to_native_fun("fp32")(cast([1.01])).numpy().tolist() == [1.125]


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: GenericFloat(24, 0, 200), ValueError, r"3 faults:[^$]*`man`[^$]*`exp`[^$]*`bias`"),
        (lambda: GenericFloat(3, 4, 7, calc_type="int"), RuntimeError, "`calc_type`"),
        (lambda: GenericFloat(calc_type="fp16"), RuntimeError, "use 'fp32'"),
        (lambda: GenericFloat(7, 8, 0), ValueError, "`bias=0`"),
        (lambda: GenericFloat(en_inf=1), TypeError, "`en_inf`"),
        (
            lambda: GenericFloat().cast_native_to_gfloat([1.0], round_mode="up", sr_bits=0),
            ValueError,
            r"2 faults:[^$]*'up'",
        ),
        (lambda: GenericFloat().cast_native_to_gfloat([1.0], storage_type="int8"), RuntimeError, "`storage_type`"),
    ],
)
def test_arguments_that_cannot_be_are_refused(call, kind, message, refused):
    refused(kind, message, call)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float16])
def test_gradients_go_straight_through_a_cast_to_floats(strategy, dtype):
    gfloat = GenericFloat(3, 4, 7)
    x = tf.constant([0.3, -1.7, 500.0], dtype)

    def gradient(storage_type):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = gfloat.cast_gfloat_to_native(gfloat.cast_native_to_gfloat(x, storage_type=storage_type), storage_type)
            loss = tf.reduce_sum(tf.cast(y, dtype) * tf.constant([1.0, 2.0, 3.0], dtype))
        return tape.gradient(loss, x)

    found = strategy.run(tf.function(lambda: gradient("fp32"), jit_compile=True))
    assert found.dtype == dtype
    assert found.numpy().tolist() == [1, 2, 3]
    assert gradient("auto") is None
