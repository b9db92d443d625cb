"""Eight-bit floats and generic floats against ml_dtypes, TensorFlow, and a search among the values of a format."""

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from tensorflow_ipu.config import StochasticRoundingBehaviour
from tensorflow_ipu.ops import f8_ops
from tensorflow_ipu.ops.f8_ops import Format, QuarterTensor, convert_from_f8, convert_to_f8, create_metadata
from tensorflow_ipu.ops.popfloat_cast_to_gfloat import GenericFloat

TYPES = [(Format.F143, ml_dtypes.float8_e4m3fnuz, 240), (Format.F152, ml_dtypes.float8_e5m2fnuz, 57344)]
CODES = np.arange(256, dtype=np.uint8)


def test_every_code_is_the_number_that_it_is_elsewhere_and_in_graphs_of_tensorflow_1():
    for fmt, dtype, largest in TYPES:
        numbers = convert_from_f8(QuarterTensor(tf.constant(CODES), create_metadata(fmt)), tf.float32).numpy()
        assert np.array_equal(numbers, CODES.view(dtype).astype(np.float32), equal_nan=True)
        assert np.nanmax(numbers) == largest
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            in_graph = session.run(convert_from_f8([tf.constant(CODES), create_metadata(fmt)], tf.float32))
        assert np.array_equal(in_graph, numbers, equal_nan=True)


@pytest.fixture
def converting(replicas):
    """`converting(values, fmt)` returns the codes of values; options set `floating_point_behaviour`."""

    def codes(values, fmt, scale=0, **behaviour):
        convert = tf.function(lambda x: convert_to_f8(x, create_metadata(fmt, scale)).data, jit_compile=True)
        strategy = replicas(1, **{f"floating_point_behaviour__{name}": value for name, value in behaviour.items()})
        return strategy.run(convert, (tf.constant(values),)).numpy()

    return codes


@pytest.mark.parametrize(("fmt", "dtype", "largest"), TYPES)
def test_every_half_is_rounded_as_elsewhere_and_beyond_the_largest_cut_off_or_nan(converting, fmt, dtype, largest):
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    with np.errstate(invalid="ignore"):  # ml_dtypes, too, converts larger values to NaN.
        expected = halves.astype(np.float32).astype(dtype).view(np.uint8)
    assert np.array_equal(converting(halves, fmt, nanoo=True), expected)
    within = np.abs(halves.astype(np.float32)) <= largest
    for codes in (converting(halves, fmt), convert_to_f8(tf.constant(halves), create_metadata(fmt)).data.numpy()):
        assert np.array_equal(codes[within], expected[within])
        assert set(codes[halves > largest]) == {0x7F}
        assert set(codes[halves < -largest]) == {0xFF}
        assert set(codes[np.isnan(halves)]) == {0x80}


@pytest.mark.parametrize(("fmt", "dtype", "largest"), TYPES)
def test_halves_round_to_a_neighbour_at_random_where_that_is_asked_for(converting, fmt, dtype, largest):
    numbers = np.sort(np.delete(CODES, 0x80).view(dtype).astype(np.float64))
    values = (-3.3, largest * 0.97, 1.3 * 2.0 ** (-9 if fmt == Format.F143 else -16), 2.0)
    halves = np.tile(np.array(values, np.float16), [4000, 1])
    codes = converting(halves, fmt, esr=StochasticRoundingBehaviour.ON)
    for half, got in zip(halves[0].astype(np.float64), codes.view(dtype).astype(np.float64).T, strict=True):
        index = np.searchsorted(numbers, half)
        above = numbers[index]
        below = above if above == half else numbers[index - 1]
        assert np.unique(got).tolist() == sorted({float(below), float(above)})
        share = (half - below) / (above - below) if above > below else 0
        assert abs(got.mean() - half) <= 4 * (above - below) * np.sqrt(share * (1 - share) / 4000)


def test_overflow_of_a_conversion_stops_a_program(converting):
    for fmt, scale, fits, large in (
        (Format.F143, 0, 247, 248),
        (Format.F143, -2, 60, 64),
        (Format.F152, 0, 61408, 61440),
    ):
        converting(np.array([fits, -np.inf, np.nan], np.float16), fmt, scale, oflo=True)
        with pytest.raises(tf.errors.InvalidArgumentError, match=rf"`convert_to_f8/overflow` .*was given {large}, "):
            converting(np.array([1, -large], np.float16), fmt, scale, oflo=True)


@pytest.mark.parametrize("fmt", Format)
def test_scale_is_a_power_of_two_that_numbers_are_multiplied_by(fmt):
    codes = tf.constant([0, 1, 0x20, 0x41, 0x90], tf.uint8)
    unscaled = convert_from_f8([codes, create_metadata(fmt)], tf.float32)
    for scale in (-32, 5, 31):
        half = tf.cast(unscaled * 2.0**scale, tf.float16)
        assert np.array_equal(convert_from_f8([codes, create_metadata(fmt, scale)]), half)
        if 2.0**-24 <= 2.0**scale <= 65504:
            assert convert_from_f8(convert_to_f8([2.0**scale], create_metadata(fmt, scale))).numpy() == 2.0**scale


def test_metadata_may_be_a_tensor_and_is_packed_into_eight_bits():
    packed = create_metadata(Format.F143), create_metadata(Format.F152, 31), create_metadata(Format.F143, -1)
    assert packed == (128, 31, 128 + 63)
    program = tf.function(lambda x, m: convert_from_f8(convert_to_f8(x, m)), jit_compile=True)
    for fmt in Format:
        metadata = tf.constant(create_metadata(fmt, 2), tf.uint8)
        assert program(tf.constant([1.5, -3.0]), metadata).numpy().tolist() == [1.5, -3]


def quarter(shape, fmt=Format.F143, scale=-2, seed=0):
    return convert_to_f8(np.random.default_rng(seed).normal(size=shape), create_metadata(fmt, scale))


def test_product_is_that_of_the_numbers():
    lhs, rhs = quarter([2, 3, 4]), quarter([2, 4, 5], Format.F152, seed=1)
    ones = tf.ones([2, 3, 4], tf.float16)  # One side may be a tensor of floats.

    def product():
        return f8_ops.f8_matmul(lhs, rhs), f8_ops.f8_matmul(ones, rhs)

    for results in (tf.function(product, jit_compile=True)(), product()):
        for result, factor in zip(results, (convert_from_f8(lhs, tf.float32), tf.cast(ones, tf.float32)), strict=True):
            assert result.dtype == tf.float16
            np.testing.assert_allclose(result, factor @ convert_from_f8(rhs, tf.float32), rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("function", "shape", "filter_shape"),
    [
        (f8_ops.f8_conv_1d, [2, 9, 3], [3, 3, 4]),
        (f8_ops.f8_conv_2d, [2, 9, 8, 3], [3, 2, 3, 4]),
        (f8_ops.f8_conv_3d, [2, 9, 8, 7, 3], [3, 2, 1, 3, 4]),
    ],
)
def test_convolution_is_that_of_the_numbers(function, shape, filter_shape, refused):
    x, w = quarter(shape), quarter(filter_shape, seed=1)
    wide = convert_from_f8(x, tf.float32), convert_from_f8(w, tf.float32)
    rank = len(shape)
    turned = QuarterTensor(tf.transpose(x.data, [0, rank - 1, *range(1, rank - 1)]), x.metadata)
    for stride in (1, 2):
        expected = tf.nn.convolution(*wide, stride, "SAME")
        strides = [1, 1, *[stride] * (rank - 2)]
        first = function(turned, w, strides, "SAME", data_format="NC" + "DHW"[5 - rank :])
        for result in (function(x, w, stride, "SAME"), tf.transpose(first, [0, *range(2, rank), 1])):
            assert result.dtype == tf.float16
            np.testing.assert_allclose(result, expected, rtol=2e-3, atol=2e-3)
    refused(ValueError, "`data_format` must be", function, x, w, 1, "SAME", data_format="CWN")


def test_convolution_takes_explicit_padding_and_dilations():
    x, w = quarter([2, 9, 8, 3]), quarter([3, 2, 3, 4], seed=1)
    padding = [[0, 0], [1, 2], [0, 1], [0, 0]]
    wide = convert_from_f8(x, tf.float32), convert_from_f8(w, tf.float32)
    expected = tf.nn.conv2d(*wide, 1, padding, dilations=[1, 2, 1, 1])
    result = f8_ops.f8_conv_2d(x, w, [1, 1, 1, 1], padding, dilations=[2, 1])
    np.testing.assert_allclose(result, expected, rtol=2e-3, atol=2e-3)


def test_quarter_tensor_holds_bits_and_metadata():
    tensor = quarter([3, 2])
    assert (tensor.shape, tensor.dtype, len(tensor)) == ([3, 2], tf.uint8, 3)
    data, metadata = tensor
    assert np.array_equal(data, tensor.numpy()[0])
    assert np.array_equal(tensor[1], np.asarray(data)[1])
    variable = QuarterTensor(np.zeros([3, 2], np.uint8), 0)
    assert isinstance(variable.data, tf.Variable)
    assert variable != tensor
    variable.assign(tensor.numpy())
    assert variable == tensor
    assert np.array_equal(variable.metadata, metadata)


def test_arguments_that_cannot_be_are_refused(refused):
    cast = GenericFloat().cast_native_to_gfloat
    for call, kind, message in (
        (lambda: QuarterTensor(tf.ones([2]), 0), TypeError, "`data` must be uint8, but is float32"),
        (lambda: create_metadata(2), ValueError, "`fmt`"),
        (lambda: create_metadata(Format.F143, 32), ValueError, "`scale=32`"),
        (lambda: create_metadata(Format.F143, -33), ValueError, "`scale=-33`"),
        (lambda: GenericFloat(24, 0, 200), ValueError, r"3 faults:[^$]*`man`[^$]*`exp`[^$]*`bias`"),
        (lambda: GenericFloat(3, 4, 7, calc_type="int"), RuntimeError, "`calc_type`"),
        (lambda: GenericFloat(calc_type="fp16"), RuntimeError, "use 'fp32'"),
        (lambda: GenericFloat(7, 8, 0), ValueError, "`bias=0`"),
        (lambda: GenericFloat(en_inf=1), TypeError, "`en_inf`"),
        (lambda: cast([1.0], round_mode="up", sr_bits=0), ValueError, r"2 faults:[^$]*'up'"),
        (lambda: cast([1.0], storage_type="int8"), RuntimeError, "`storage_type`"),
    ):
        refused(kind, message, call)


X = np.concatenate([
    np.random.default_rng(0).normal(size=300) * 2.0 ** np.random.default_rng(1).integers(-30, 20, 300), [0.0, -0.0, 1e30],
]).astype(np.float32)  # fmt: skip


def values_of(man, exp, bias, denorm, inf):
    """Returns all values of a format that are not negative, ascending."""
    fractions = np.arange(1 << man) / (1 << man)
    values = [0.0] + ([f * 2.0 ** (1 - bias) for f in fractions] if denorm else [])
    for e in range(1, (1 << exp) - inf):
        values += [(1 + f) * 2.0 ** (e - bias) for f in fractions]
    return np.unique(values)


def searched(x, values, mode):
    above = np.minimum(np.searchsorted(values, abs(x)), len(values) - 1)
    above = np.where(values[np.maximum(above - 1, 0)] == abs(x), above - 1, above)
    exact = values[above] == abs(x)
    below = np.where(exact | (above == 0), above, above - 1)
    low, high = values[below], values[above]
    up = {
        "RZ": np.zeros(len(x), bool), "RU": x > 0, "RD": x < 0,
        "RN": (abs(x) - low > high - abs(x)) | ((abs(x) - low == high - abs(x)) & (below % 2 == 1)),
        "RA": abs(x) - low >= high - abs(x),
    }[mode]  # fmt: skip
    return np.sign(x) * np.minimum(np.where(up, high, low), values[-1])


@pytest.mark.parametrize(
    "format_", [(3, 4, 7, True, True), (2, 5, 15, True, False), (2, 3, 3, False, True), (6, 4, 8, True, True)]
)
def test_numbers_are_the_next_of_the_format(format_):
    gfloat = GenericFloat(*format_)
    values = values_of(*format_)
    x = X[abs(X) <= values[-1]]
    for mode in ("RZ", "RN", "RA", "RU", "RD"):
        packed = gfloat.cast_native_to_gfloat(x, en_nanoo=False, round_mode=mode)
        assert packed.dtype == gfloat.get_gfloat_storage_dtype()
        assert packed.dtype.is_integer == gfloat.is_packed_float() == (format_[0] + format_[1] < 8)
        native = gfloat.cast_gfloat_to_native(packed)
        assert native.dtype == (tf.float32 if values[-1] > 65504 else tf.float16)
        np.testing.assert_array_equal(native, searched(x.astype(np.float64), values, mode))


def test_known_formats_are_tensorflows_own_in_a_program(strategy):
    formats = {tf.float16: GenericFloat(10, 5, 15), tf.bfloat16: GenericFloat(7, 8, 127)}
    x = tf.constant(X[(abs(X) < 60000) & (abs(X) > 1e-30)])

    @tf.function(jit_compile=True)
    def program(x):
        stored = [gfloat.cast_native_to_gfloat(x) for gfloat in formats.values()]
        pairs = zip(formats.values(), stored, strict=True)
        return stored, [gfloat.cast_gfloat_to_native(value, "fp32") for gfloat, value in pairs]

    for (kind, gfloat), stored, native in zip(formats.items(), *strategy.run(program, (x,)), strict=True):
        assert stored.dtype == gfloat.get_gfloat_storage_dtype() == (tf.int16 if kind == tf.bfloat16 else kind)
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
    results = gfloat.cast_gfloat_to_native(gfloat.cast_native_to_gfloat(x, round_mode="SR"))
    assert set(results.numpy()) == {1.0, 1.25}
    assert np.mean(results) == pytest.approx(1.1, abs=0.01)
    for options, expected in (
        ({"sr_density": "Bernoulli", "sr_prob": 1.0}, {1.0}),
        ({"sr_bits": 1}, {1.0}),  # The noise is 0 or 0.5 steps, and 1.1 is 0.4 steps above 1.
        ({"sr_density": "TruncatedNormal"}, {1.0, 1.25}),
    ):
        results = gfloat.cast_native_to_gfloat(x, round_mode="SR", storage_type="fp32", **options)
        assert set(results.numpy()) == expected


def test_functions_and_properties_are_those_of_the_format():
    gfloat = GenericFloat(3, 4, 7, en_denorm=False)
    assert (gfloat.get_mantissa_size(), gfloat.get_exponent_size(), gfloat.get_exponent_bias()) == (3, 4, 7)
    assert (gfloat.get_en_denorms(), gfloat.get_en_inf(), gfloat.get_gfloat_calc_dtype()) == (False, True, tf.float16)
    cast = gfloat.get_cast_native_to_gfloat_fun(round_mode="RU")
    assert gfloat.get_cast_gfloat_to_native_fun("fp32")(cast([1.01])).numpy().tolist() == [1.125]


def test_gradients_go_straight_through_a_cast_to_floats(strategy):
    gfloat, dtypes = GenericFloat(3, 4, 7), (tf.float32, tf.float16)

    def gradient(storage_type, dtype):
        x = tf.constant([0.3, -1.7, 500.0], dtype)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = gfloat.cast_gfloat_to_native(gfloat.cast_native_to_gfloat(x, storage_type=storage_type), storage_type)
            loss = tf.reduce_sum(tf.cast(y, dtype) * tf.constant([1.0, 2.0, 3.0], dtype))
        return tape.gradient(loss, x)

    program = tf.function(lambda: [gradient("fp32", dtype) for dtype in dtypes], jit_compile=True)
    for actual, dtype in zip(strategy.run(program), dtypes, strict=True):
        assert actual.dtype == dtype
        assert actual.numpy().tolist() == [1, 2, 3]
        assert gradient("auto", dtype) is None
