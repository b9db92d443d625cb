"""Layers and their counterparts in Keras have equal outputs and gradients: eagerly, compiled, and on the IPU."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from tensorflow_ipu.keras import layers
from tensorflow_ipu.keras._keras import keras


class Case(NamedTuple):
    layer: Callable[..., Any]
    plain: Callable[..., Any]
    shape: list[int]
    integers: int = 0  # If not 0, the inputs are integers below it.
    options: dict[str, Any] = {}  # noqa: RUF012

    def inputs(self, dtype=np.float32):
        random = np.random.default_rng(3)
        if self.integers:
            return tf.constant(random.integers(0, self.integers, self.shape), tf.int32)
        return tf.constant(random.normal(size=self.shape), dtype)


def serial_dense(dimension, factor):
    return lambda **kw: layers.SerialDense(6, factor, dimension, "tanh", bias_initializer="normal", **kw)


def plain_dense(**kw):
    return keras.layers.Dense(6, "tanh", bias_initializer="normal", **kw)


def made(kind, *args, **options):
    return lambda **kw: kind(*args, **options, **kw)


def norm(kind, *args, **options):
    return made(kind, *args, beta_initializer="normal", gamma_initializer="normal", **options)


def recurrent(kind, **options):
    return made(kind, 5, bias_initializer=keras.initializers.RandomNormal(seed=5), **options)


def wrapped(**kw):
    return layers.Recompute(plain_dense(**kw), **kw)


ALL = {"return_sequences": True, "return_state": True}
RELU = {"activation": "relu", "unit_forget_bias": False}
BLOCKS = {"strided_channel_grouping": False}
MIDDLE = {"epsilon": 0.1, "center": False}
Group, PlainGroup = layers.GroupNormalization, keras.layers.GroupNormalization
Norm, PlainNorm = layers.LayerNormalization, keras.layers.LayerNormalization
PLAIN_TABLE = made(keras.layers.Embedding, 12, 5)
CASES = {
    "dense-columns": Case(serial_dense("input_columns", 2), plain_dense, [4, 8]),
    "dense-rows-columns": Case(serial_dense("input_rows_kernel_columns", 4), plain_dense, [4, 8]),
    "dense-rows": Case(serial_dense("kernel_rows", 3), plain_dense, [4, 8]),
    "dense-whole": Case(serial_dense("kernel_rows", 1), plain_dense, [4, 8]),
    "dense-of-sequences": Case(serial_dense("input_columns", 6), plain_dense, [4, 3, 8]),
    "embedding": Case(made(layers.Embedding, 12, 5), PLAIN_TABLE, [3, 4], 12),
    "embedding-in-parts": Case(made(layers.Embedding, 12, 5, serialization_factor=4), PLAIN_TABLE, [3, 4], 12),
    "group-norm": Case(norm(Group, 3, **BLOCKS), norm(PlainGroup, 3), [2, 4, 5, 6]),
    "group-norm-channels-first": Case(
        norm(Group, 3, channels_axis=1, **BLOCKS), norm(PlainGroup, 3, axis=1), [2, 6, 4, 5]
    ),
    "group-norm-of-vectors": Case(norm(Group, **BLOCKS), norm(PlainGroup, 2), [3, 6]),
    "instance-norm": Case(norm(layers.InstanceNormalization), norm(PlainGroup, 6), [2, 4, 5, 6]),
    "instance-norm-channels-first": Case(
        norm(layers.InstanceNormalization, channels_axis=1), norm(PlainGroup, 6, axis=1), [2, 6, 7]
    ),
    "layer-norm": Case(norm(Norm), norm(PlainNorm), [3, 4, 6]),
    "layer-norm-of-many": Case(norm(Norm, [1, 3]), norm(PlainNorm, [1, 3]), [3, 4, 2, 6]),
    "layer-norm-of-the-middle": Case(norm(Norm, 1, **MIDDLE), norm(PlainNorm, 1, **MIDDLE), [3, 4, 2]),
    "lstm": Case(recurrent(layers.PopnnLSTM), recurrent(keras.layers.LSTM), [3, 4, 2]),
    "lstm-all": Case(recurrent(layers.PopnnLSTM, **ALL), recurrent(keras.layers.LSTM, **ALL), [3, 4, 2]),
    "lstm-relu": Case(recurrent(layers.PopnnLSTM, **RELU), recurrent(keras.layers.LSTM, **RELU), [3, 4, 2]),
    "gru": Case(recurrent(layers.PopnnGRU), recurrent(keras.layers.GRU), [3, 4, 2]),
    "gru-all": Case(recurrent(layers.PopnnGRU, **ALL), recurrent(keras.layers.GRU, **ALL), [3, 4, 2]),
    "gru-reset-before": Case(
        recurrent(layers.PopnnGRU, reset_after=False), recurrent(keras.layers.GRU, reset_after=False), [3, 4, 2]
    ),
    "assume-equal": Case(layers.AssumeEqualAcrossReplicas, keras.layers.Identity, [3, 4]),
    "checkpoint": Case(layers.RecomputationCheckpoint, keras.layers.Identity, [3, 4]),
    "recompute": Case(wrapped, plain_dense, [4, 8]),
    "dropout-at-rest": Case(made(layers.Dropout, 0.5), keras.layers.Identity, [3, 4], options={"training": False}),
}

# A few cases of each kind, for tests that are slow.
COMPILED = ["dense-rows-columns", "embedding-in-parts", "group-norm-channels-first"]
ON_IPU = ["assume-equal", "dense-columns", "dense-rows", "gru-all", "instance-norm", "layer-norm-of-many", "lstm-all"]
ON_IPU += ["recompute", *COMPILED]


@pytest.fixture
def pair(twins):
    """`pair(case, **options)` returns the layer and its counterpart, with the same weights."""
    return lambda case, **options: twins(
        case.layer(**options), case.plain(**options), case.inputs(options.get("dtype", np.float32))
    )


def plain_options(case, plain):
    return {} if isinstance(plain, keras.layers.Identity) else case.options


@pytest.mark.parametrize("name", CASES)
def test_layer_computes_what_the_plain_one_does(eager, on_ipu, pair, assert_close, name):
    case = CASES[name]
    layer, plain = pair(case)
    expected = eager(plain, case.inputs(), **plain_options(case, plain))
    assert_close(eager(layer, case.inputs(), **case.options), expected)
    if name in ON_IPU:
        assert_close(on_ipu(case.layer, case.inputs(), layer.get_weights()), expected)


@pytest.mark.parametrize("name", [*ON_IPU, "dropout-at-rest"])
def test_half_precision_gives_half_precision_near_the_plain_result(eager, compiled, pair, assert_close, name):
    case = CASES[name]
    layer, plain = pair(case, dtype="float16")
    inputs = case.inputs(np.float16)
    expected, _ = eager(plain, inputs, **plain_options(case, plain))
    for compute in (eager, compiled) if name in COMPILED else (eager,):
        actual, gradients = compute(layer, inputs, **case.options)
        assert all(out.dtype == np.float16 for out in actual)
        assert all(np.isfinite(gradient).all() for gradient in gradients)
        assert_close(actual, expected, 2e-2, 2e-2)


@pytest.mark.parametrize("name", CASES)
def test_symbolic_outputs_are_those_of_the_plain_layer_and_a_model_is_saved_and_recreated(tmp_path, assert_close, name):
    case = CASES[name]
    dtype = "int32" if case.integers else "float32"
    inputs = keras.Input(case.shape[1:], dtype=dtype)
    for symbol in (keras.Input(batch_shape=case.shape, dtype=dtype), inputs):
        of_layer, of_plain = (tf.nest.flatten(make()(symbol)) for make in (case.layer, case.plain))
        assert [(x.shape, x.dtype) for x in of_layer] == [(x.shape, x.dtype) for x in of_plain]
    model = keras.Model(inputs, case.layer()(inputs))
    model.save(tmp_path / "model.keras")
    loaded: Any = keras.models.load_model(tmp_path / "model.keras")
    assert_close(loaded(case.inputs()), model(case.inputs()), 0, 0)
    layer, loaded_layer = model.layers[-1], loaded.layers[-1]
    assert type(loaded_layer) is type(layer)
    for key, value in layer.get_config().items():
        # The configuration of an inner layer differs, as it includes the shape for which it was built.
        assert loaded_layer.get_config()[key] == value or key == "layer"
    named = case.layer(name="mine")
    copy = type(named).from_config(named.get_config())
    assert (copy.name, copy.get_config()) == ("mine", named.get_config())
