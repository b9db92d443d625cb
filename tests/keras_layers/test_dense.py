"""Dense layers, in parts and of eight bits, and embeddings: parts, masks, lengths, conversions, and errors."""

import re
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.keras import layers
from tensorflow_ipu.ops.f8_ops import Format, convert_from_f8, create_metadata

DIMENSIONS = ["input_columns", "input_rows_kernel_columns", "kernel_rows"]


def test_product_is_computed_in_as_many_parts_as_asked_for(normal):
    dense_layers = [layers.SerialDense(4, 4, dimension) for dimension in DIMENSIONS]
    program = tf.function(lambda x: [layer(x) for layer in dense_layers], jit_compile=True)
    assert [layer(normal([8, 12])).shape for layer in dense_layers] == [[8, 4]] * 3
    hlo = program.experimental_get_compiler_ir(normal([8, 12]))(stage="hlo")
    assert len(re.findall(r" dot\(", hlo)) == 3 * 4


def test_batches_of_unknown_size_are_split_when_they_come(normal):
    layer = layers.SerialDense(3, 2, "input_columns")
    program = tf.function(lambda x: layer(x), input_signature=[tf.TensorSpec([None, None, 4])])
    assert program(normal([3, 2, 4])).shape == [3, 2, 3]
    with pytest.raises(tf.errors.InvalidArgumentError):
        program(normal([3, 1, 4]))


def test_losses_constraints_and_bias_are_those_of_dense(normal, twins):
    losses = {"kernel_regularizer": "l2", "bias_regularizer": "l1", "activity_regularizer": "l2"}
    losses |= {"bias_initializer": "ones", "kernel_constraint": "non_neg", "bias_constraint": "unit_norm"}
    layer: Any = layers.SerialDense(4, 2, "kernel_rows", **losses)
    layer, plain = twins(layer, keras.layers.Dense(4, **losses), normal([2, 3]))
    for dense in (layer, plain):
        dense(normal([2, 3]))
    assert sorted(map(float, layer.losses)) == pytest.approx(sorted(map(float, plain.losses)))
    assert type(layer.kernel.constraint) is keras.constraints.NonNeg
    assert type(layer.bias.constraint) is keras.constraints.UnitNorm
    bare = layers.SerialDense(4, 2, "kernel_rows", use_bias=False)
    bare(normal([2, 3]))
    assert [variable.name for variable in bare.variables] == ["kernel"]


def test_bad_arguments_and_inputs_are_refused(normal, refused):
    layer = layers.SerialDense(2, 1, "kernel_rows")
    refused(TypeError, "`inputs` must be dense", layer.call, tf.sparse.from_dense([[1.0, 0.0]]))
    for arguments, error, message in (
        ((4, 0, "kernel_rows"), ValueError, "`serialization_factor`"),
        ((4, 2, "rows"), ValueError, "`serialization_dimension` must be one of 'input_columns'"),
        ((0, 1, "kernel_rows"), ValueError, "`units`"),
        ((4, "2", "kernel_rows"), TypeError, "`serialization_factor` must be a whole number"),
    ):
        refused(error, message, layers.SerialDense, *arguments)
    for dimension in DIMENSIONS:
        layer = layers.SerialDense(4, 3, dimension)
        refused(ValueError, "`serialization_factor=3` must divide .* the size 4", layer, normal([4, 4]))


WORDS = tf.constant([[1, 2, 0], [3, 0, 0]])


def test_zero_stands_for_padding_if_so_wished():
    out = layers.Embedding(4, 2, mask_zero=True)(WORDS)
    assert out._keras_mask.numpy().tolist() == (WORDS.numpy() != 0).tolist()
    assert not hasattr(layers.Embedding(4, 2)(WORDS), "_keras_mask")
    # The recurrent layer skips masked ids.
    table, recurrent = layers.Embedding(4, 2, mask_zero=True), layers.PopnnLSTM(3)
    padded = recurrent(table(WORDS))
    assert np.allclose(padded[1], recurrent(table(tf.constant([[3]])))[0], atol=1e-6)


def test_embeddings_take_numbers_lengths_tables_and_regularizers(refused):
    layer = layers.Embedding(4, 2, embeddings_regularizer="l2", activity_regularizer="l2")
    for dtype in (tf.float32, tf.int64):
        assert np.array_equal(layer(WORDS), layer(tf.cast(WORDS, dtype)))
    ascending = tf.constant([0, 1, 3])
    assert np.array_equal(layer(ascending, inputs_are_sorted=True), layer(ascending))
    assert len(layer.losses) == 2
    for length in (3, [3], (None,)):
        assert layers.Embedding(4, 2, input_length=length)(WORDS).shape == [2, 3, 2]
    for length in (4, [3, 1]):
        refused(ValueError, "`input_length=", layers.Embedding(4, 2, input_length=length), WORDS)
    for factor in (0, 3):
        refused(ValueError, "`serialization_factor", layers.Embedding, 4, 2, serialization_factor=factor)
    table = np.arange(8, dtype=np.float32).reshape(4, 2)
    assert np.array_equal(layers.Embedding(4, 2, weights=[table])(WORDS), table[WORDS.numpy()])


METADATA = create_metadata(Format.F143, -1)


def test_numbers_go_to_eight_bits_and_back(normal):
    x = normal([3, 4])
    bits, metadata = layers.ConvertToF8()(x, METADATA)
    assert (bits.dtype, metadata.dtype) == (tf.uint8, tf.uint8)
    for dtype in (tf.float16, "float32"):
        back = layers.ConvertFromF8(dtype)([bits, metadata])
        assert back.dtype == dtype
        np.testing.assert_allclose(back, x, rtol=0.07)


def test_dense_layer_of_plain_inputs_is_that_of_keras_and_of_eight_bits_bias_alone_trains(normal):
    layer, plain = layers.Dense(4, activation="tanh"), keras.layers.Dense(4, activation="tanh")
    layer(normal([2, 3]))
    plain.build([2, 3])
    plain.set_weights(layer.get_weights())
    np.testing.assert_allclose(layer(normal([2, 3])), plain(normal([2, 3])), rtol=1e-5, atol=1e-6)
    layer = layers.Dense(2)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(layers.ConvertToF8()(normal([4, 3]), METADATA)))
    assert [variable.name for variable in layer.trainable_variables] == ["bias"]
    gradient: Any = tape.gradient(loss, layer.trainable_variables)[0]
    assert gradient.numpy().tolist() == [4, 4]


def test_weights_of_eight_bits_are_set_and_given():
    bits = np.arange(6, dtype=np.uint8).reshape(3, 2)
    layer = layers.Dense(2, kernel_data_initializer=keras.initializers.Constant(bits), use_bias=False)
    layer(layers.ConvertToF8()(tf.ones([1, 3]), METADATA))
    assert np.array_equal(layer.get_weights()[0], bits)
    layer.set_weights([bits + 1, np.uint8(3)])
    assert [weight.tolist() for weight in layer.get_weights()] == [(bits + 1).tolist(), 3]


@pytest.mark.parametrize("shape", [[2, 3], [2, 5, 3]])
def test_dense_layer_of_eight_bits_multiplies_the_numbers_that_they_are(normal, shape):
    layer = layers.Dense(4, Format.F152, 2, bias_initializer="normal", activation="relu")
    packed = layers.ConvertToF8()(normal(shape), METADATA)
    result = layer(packed)
    data, metadata, bias = layer.get_weights()
    assert metadata == create_metadata(Format.F152, 2)
    assert (data.dtype, bias.dtype, result.dtype) == (np.uint8, np.float16, tf.float16)
    assert 0x80 not in data
    kernel = convert_from_f8([data, metadata], tf.float32)
    expected = tf.nn.relu(tf.tensordot(convert_from_f8(packed, tf.float32), kernel, 1) + bias.astype(np.float32))
    np.testing.assert_allclose(result, expected, rtol=5e-3, atol=5e-3)


def test_model_of_eight_bits_runs_on_the_ipu_and_is_saved_and_loaded(tmp_path, normal):
    def make():
        inputs = keras.Input([3])
        packed = layers.ConvertToF8()(inputs, metadata=METADATA)
        return keras.Model(inputs, [layers.Dense(4)(packed), layers.ConvertFromF8()(packed)])

    x = normal([2, 3])
    plain = make()
    assert [(output.shape, output.dtype) for output in plain.outputs] == [
        ((None, 4), "float16"),
        ((None, 3), "float16"),
    ]
    strategy = ipu.IPUStrategy()
    with strategy.scope():
        model = make()
        model.set_weights(plain.get_weights())
        program = tf.function(lambda x: model(x), jit_compile=True)
        for actual, expected in zip(strategy.run(program, args=(x,)), plain(x), strict=True):
            np.testing.assert_allclose(actual, expected, rtol=2e-3, atol=1e-3)
    plain.save(tmp_path / "model.keras")
    loaded: Any = keras.models.load_model(tmp_path / "model.keras")
    for actual, expected in zip(loaded(x), plain(x), strict=True):
        assert np.array_equal(actual, expected)


def test_configuration_recreates_the_layers_and_a_kernel_that_does_not_exist_is_refused(refused):
    dense = layers.Dense(2, Format.F152, 3, "zeros", activation="relu")
    for layer in (dense, layers.ConvertToF8(name="to"), layers.ConvertFromF8(tf.float32)):
        assert type(layer).from_config(layer.get_config()).get_config() == layer.get_config()
    for name, value in (("kernel_scale", 32), ("kernel_scale", -33), ("kernel_format", 2)):
        message = "`kernel_format` must be a `Format`, and `kernel_scale`"
        refused(ValueError, message, layers.Dense, 2, **{name: value})
