"""Numbers of eight bits against ml_dtypes, and what is computed with them against TensorFlow."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf

from tensorflow_ipu.config import StochasticRoundingBehaviour
from tensorflow_ipu.ops import f8_ops
from tensorflow_ipu.ops.f8_ops import Format, QuarterTensor, convert_from_f8, convert_to_f8, create_metadata

TYPES = [(Format.F143, ml_dtypes.float8_e4m3fnuz, 240), (Format.F152, ml_dtypes.float8_e5m2fnuz, 57344)]
CODES = np.arange(256, dtype=np.uint8)


@pytest.mark.parametrize(("fmt", "dtype", "largest"), TYPES)
def test_every_code_is_the_number_that_it_is_elsewhere(fmt, dtype, largest):
    numbers = convert_from_f8(QuarterTensor(tf.constant(CODES), create_metadata(fmt)), tf.float32).numpy()
    assert np.array_equal(numbers, CODES.view(dtype).astype(np.float32), equal_nan=True)
    assert np.nanmax(numbers) == largest


def test_what_is_no_number_is_none_in_graphs_of_tensorflow_1():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        codes = tf.constant([0x80, 0x01], tf.uint8)
        numbers = session.run(convert_from_f8([codes, create_metadata(Format.F143)], tf.float32))
    assert np.isnan(numbers).tolist() == [True, False]


@pytest.mark.parametrize(("fmt", "dtype", "largest"), TYPES)
@pytest.mark.parametrize("compiled", [False, True])
def test_every_half_is_rounded_as_elsewhere_and_cut_off_at_the_largest(fmt, dtype, largest, compiled):
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)

    def convert():
        return convert_to_f8(tf.constant(halves), create_metadata(fmt)).data

    codes = (tf.function(convert, jit_compile=True) if compiled else convert)().numpy()
    within = np.abs(halves.astype(np.float32)) <= largest
    assert np.array_equal(codes[within], halves[within].astype(np.float32).astype(dtype).view(np.uint8))
    assert set(codes[halves > largest]) == {0x7F}
    assert set(codes[halves < -largest]) == {0xFF}
    assert set(codes[np.isnan(halves)]) == {0x80}


@pytest.fixture
def converting(replicas):
    """The codes that a program makes of halves, where this is asked of floating point."""

    def codes(values, fmt, scale=0, **behaviour):
        convert = tf.function(lambda x: convert_to_f8(x, create_metadata(fmt, scale)).data, jit_compile=True)
        strategy = replicas(1, **{f"floating_point_behaviour__{name}": value for name, value in behaviour.items()})
        return strategy.run(convert, (tf.constant(values),)).numpy()

    return codes


@pytest.mark.parametrize(("fmt", "dtype", "largest"), TYPES)
def test_every_half_beyond_the_largest_becomes_nan_where_that_is_asked_for(converting, fmt, dtype, largest):
    halves = np.arange(65536, dtype=np.uint16).view(np.float16)
    codes = converting(halves, fmt, nanoo=True)
    with np.errstate(invalid="ignore"):  # There, too, what is beyond it is NaN.
        expected = halves.astype(np.float32).astype(dtype).view(np.uint8)
    assert np.array_equal(codes, expected)


@pytest.mark.parametrize(("fmt", "dtype", "largest"), TYPES)
def test_halves_round_to_a_neighbour_at_random_where_that_is_asked_for(converting, fmt, dtype, largest):
    numbers = np.sort(np.delete(CODES, 0x80).view(dtype).astype(np.float64))
    for value in (-3.3, largest * 0.97, 1.3 * 2.0 ** (-9 if fmt == Format.F143 else -16), 2.0):
        half = np.float16(value)
        codes = converting(np.full(4000, half), fmt, esr=StochasticRoundingBehaviour.ON)
        got = codes.view(dtype).astype(np.float64)
        at = np.searchsorted(numbers, float(half))
        below, above = (numbers[at], numbers[at]) if numbers[at] == half else (numbers[at - 1], numbers[at])
        assert np.unique(got).tolist() == sorted({float(below), float(above)})
        share = (float(half) - below) / (above - below) if above > below else 0
        assert abs(got.mean() - float(half)) <= 4 * (above - below) * np.sqrt(share * (1 - share) / 4000)


def test_overflow_of_a_conversion_stops_a_program(converting):
    for fmt, scale, fits, too_large in (
        (Format.F143, 0, 247, 248),
        (Format.F143, -2, 60, 64),
        (Format.F152, 0, 61408, 61440),
    ):
        converting(np.array([fits, -np.inf, np.nan], np.float16), fmt, scale, oflo=True)
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=rf"`convert_to_f8/overflow` .*was given {too_large}, "
        ):
            converting(np.array([1, -too_large], np.float16), fmt, scale, oflo=True)


@pytest.mark.parametrize("fmt", Format)
@pytest.mark.parametrize("scale", [-32, 5, 31])
def test_scale_is_a_power_of_two_that_numbers_are_multiplied_by(fmt, scale):
    codes = tf.constant([0, 1, 0x20, 0x41, 0x90], tf.uint8)
    plain = convert_from_f8([codes, create_metadata(fmt)], tf.float32)
    half = tf.cast(plain * 2.0**scale, tf.float16)
    assert np.array_equal(convert_from_f8([codes, create_metadata(fmt, scale)]), half)
    values = tf.constant([2.0**scale], tf.float16)
    exact = np.isfinite(values.numpy()[0]) and values.numpy()[0] != 0
    if exact:
        assert convert_from_f8(convert_to_f8(values, create_metadata(fmt, scale))).numpy() == values.numpy()


def test_metadata_may_be_a_tensor_and_is_packed_into_eight_bits():
    assert create_metadata(Format.F143) == 128
    assert create_metadata(Format.F152, 31) == 31
    assert create_metadata(Format.F143, -1) == 128 + 63
    program = tf.function(lambda x, m: convert_from_f8(convert_to_f8(x, m)), jit_compile=True)
    for fmt in Format:
        metadata = tf.constant(create_metadata(fmt, 2), tf.uint8)
        assert program(tf.constant([1.5, -3.0]), metadata).numpy().tolist() == [1.5, -3]


def quarter(shape, fmt=Format.F143, scale=-2, seed=0):
    return convert_to_f8(np.random.default_rng(seed).normal(size=shape), create_metadata(fmt, scale))


@pytest.mark.parametrize("compiled", [False, True])
def test_product_is_that_of_the_numbers(compiled):
    lhs, rhs = quarter([2, 3, 4]), quarter([2, 4, 5], Format.F152, seed=1)
    plain = tf.matmul(convert_from_f8(lhs, tf.float32), convert_from_f8(rhs, tf.float32))

    def product():
        return f8_ops.f8_matmul(lhs, rhs)

    result = (tf.function(product, jit_compile=True) if compiled else product)()
    assert result.dtype == tf.float16
    np.testing.assert_allclose(result, plain, rtol=2e-3, atol=1e-3)
    one = tf.ones([2, 3, 4], tf.float16)  # One side may be a plain tensor.
    np.testing.assert_allclose(f8_ops.f8_matmul(one, rhs), tf.matmul(one, convert_from_f8(rhs)), rtol=2e-3, atol=1e-3)


CONVOLUTIONS = {
    "NWC": (f8_ops.f8_conv_1d, [2, 9, 3], [3, 3, 4]),
    "NHWC": (f8_ops.f8_conv_2d, [2, 9, 8, 3], [3, 2, 3, 4]),
    "NDHWC": (f8_ops.f8_conv_3d, [2, 9, 8, 7, 3], [3, 2, 1, 3, 4]),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("stride", [1, 2])
def test_convolution_is_that_of_the_numbers(name, first, stride):
    function, shape, filter_shape = CONVOLUTIONS[name]
    x, w = quarter(shape), quarter(filter_shape, seed=1)
    plain = tf.nn.convolution(convert_from_f8(x, tf.float32), convert_from_f8(w, tf.float32), stride, "SAME")
    rank = len(name)
    if not first:
        result = function(x, w, stride, "SAME")
    else:
        turned = QuarterTensor(tf.transpose(x.data, [0, rank - 1, *range(1, rank - 1)]), x.metadata)
        strides = [1, 1, *[stride] * (rank - 2)]
        result = function(turned, w, strides, "SAME", data_format="NC" + name[1:-1])
        result = tf.transpose(result, [0, *range(2, rank), 1])
    assert result.dtype == tf.float16
    np.testing.assert_allclose(result, plain, rtol=2e-3, atol=2e-3)


def test_convolution_takes_explicit_padding_and_dilations():
    x, w = quarter([2, 9, 8, 3]), quarter([3, 2, 3, 4], seed=1)
    padding = [[0, 0], [1, 2], [0, 1], [0, 0]]
    wide = convert_from_f8(x, tf.float32), convert_from_f8(w, tf.float32)
    plain = tf.nn.conv2d(*wide, 1, padding, dilations=[1, 2, 1, 1])
    result = f8_ops.f8_conv_2d(x, w, [1, 1, 1, 1], padding, dilations=[2, 1])
    np.testing.assert_allclose(result, plain, rtol=2e-3, atol=2e-3)


def test_quarter_tensor_holds_bits_and_metadata():
    tensor = quarter([3, 2])
    assert (tensor.shape, tensor.dtype, len(tensor)) == ([3, 2], tf.uint8, 3)
    data, metadata = tensor
    assert np.array_equal(data, tensor.numpy()[0])
    assert np.array_equal(tensor[1], np.asarray(data)[1])
    other = QuarterTensor(np.zeros([3, 2], np.uint8), 0)
    assert isinstance(other.data, tf.Variable)
    assert other != tensor
    other.assign(tensor.numpy())
    assert other == tensor
    assert np.array_equal(other.metadata, metadata)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: QuarterTensor(tf.ones([2]), 0), TypeError, "`data` must be uint8, but is float32"),
        (lambda: create_metadata(2), ValueError, "`fmt`"),
        (lambda: create_metadata(Format.F143, 32), ValueError, "`scale`"),
        (lambda: create_metadata(Format.F143, -33), ValueError, "`scale`"),
        *(
            (
                lambda each=each: each(quarter([1, 2, 3]), quarter([1, 3, 4]), 1, "SAME", data_format="CWN"),
                ValueError,
                "`data_format` must be",
            )
            for each in (f8_ops.f8_conv_1d, f8_ops.f8_conv_2d, f8_ops.f8_conv_3d)
        ),
    ],
)
def test_arguments_that_cannot_be_are_refused(call, kind, message):
    with pytest.raises(kind, match=message):
        call()
