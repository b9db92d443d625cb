"""The measured networks, which run with each backend of Keras, and arrays to train them on."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

# TensorFlow selects Keras 2 with `TF_USE_LEGACY_KERAS=1`. An environment for JAX may have no TensorFlow.
if importlib.util.find_spec("tensorflow"):
    import tensorflow as tf

    keras = tf.keras
else:
    import keras

layers = keras.layers

_rng = np.random.default_rng(0)


def images(count: int, *shape: int):
    """Returns `count` images of random numbers, and one of ten classes for each."""
    return _rng.random((count, *shape), np.float32), classes(count)


def classes(count: int):
    """Returns one of ten classes for each of `count` examples."""
    return _rng.integers(0, 10, [count]).astype(np.int32)


def pixels(count: int):
    """Returns images of 64 x 64 pixels, and one of ten classes for each pixel."""
    return images(count, 64, 64, 3)[0], classes(count * 64 * 64).reshape(count, 64, 64)


def same_images(count: int):
    """Returns the same images of 28 x 28 pixels as inputs and as targets."""
    pictures, _ = images(count, 28, 28, 1)
    return pictures, pictures


def words(count: int, length: int = 64):
    """Returns texts of random words, padded with 0 to one length, and one of ten classes for each."""
    text = _rng.integers(1, WORDS, [count, length])
    text[np.arange(length) >= _rng.integers(length // 2, length + 1, [count, 1])] = 0
    return text.astype(np.int32), classes(count)


WORDS = 5000


def mlp():
    """Returns an MLP of 784, 128 and 10 units."""
    return keras.Sequential([layers.Input([784]), layers.Dense(128, activation="relu"), layers.Dense(10)])


def small_convolutions():
    """Returns two small convolutions with strides, followed by a dense layer."""
    return keras.Sequential(
        [
            layers.Input([28, 28, 1]),
            layers.Conv2D(8, 3, strides=2, activation="relu"),
            layers.Conv2D(16, 3, strides=2, activation="relu"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


def convolutions():
    """Returns the network of the MNIST tutorial: two convolutions with pooling, dropout, and a dense layer."""
    return keras.Sequential(
        [
            layers.Input([28, 28, 1]),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(10),
        ]
    )


def _convolution(x, filters: int, strides: int = 1, relu: bool = True):
    x = layers.Conv2D(filters, 3, strides=strides, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization()(x)
    return layers.ReLU()(x) if relu else x


def resnet_20():
    """Returns ResNet-20 for images of 32 x 32 pixels (https://arxiv.org/abs/1512.03385, section 4.2)."""
    x = inputs = layers.Input([32, 32, 3])
    x = _convolution(x, 16)
    for filters, strides in ((16, 1), (32, 2), (64, 2)):
        for block in range(3):
            first = strides if block == 0 else 1
            y = _convolution(_convolution(x, filters, first), filters, relu=False)
            if x.shape[-1] != filters:
                x = layers.Conv2D(filters, 1, strides=first)(x)
            x = layers.ReLU()(x + y)
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def mobilenet_v2():
    """Returns Keras's MobileNetV2 for images of 96 x 96 pixels."""
    return keras.applications.MobileNetV2([96, 96, 3], weights=None, classes=10, classifier_activation=None)


def resnet_50():
    """Returns Keras's ResNet-50 for images of 64 x 64 pixels."""
    return keras.applications.ResNet50(weights=None, input_shape=[64, 64, 3], classes=10, classifier_activation=None)


def u_net():
    """Returns a U-Net of three levels, which classifies each pixel."""
    x = inputs = layers.Input([64, 64, 3])
    passed = []
    for filters in (16, 32):
        x = _convolution(_convolution(x, filters), filters)
        passed.append(x)
        x = layers.MaxPooling2D()(x)
    x = _convolution(_convolution(x, 64), 64)
    for filters in (32, 16):
        x = layers.Conv2DTranspose(filters, 2, strides=2)(x)
        x = layers.Concatenate()([passed.pop(), x])
        x = _convolution(_convolution(x, filters), filters)
    return keras.Model(inputs, layers.Conv2D(10, 1)(x))


def masked_gru():
    """Returns a bidirectional GRU over texts, whose padding is masked."""
    return keras.Sequential(
        [
            layers.Input([64], dtype="int32"),
            layers.Embedding(WORDS, 64, mask_zero=True),
            layers.Bidirectional(layers.GRU(64)),
            layers.Dense(10),
        ]
    )


class _Sampled(layers.Layer):
    """Samples from the distribution that the encoder computes, and adds its distance from the normal one as a loss."""

    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, inputs):
        mean, log_variance = inputs
        distance = 1 + log_variance - keras.ops.square(mean) - keras.ops.exp(log_variance)
        self.add_loss(-0.5 * keras.ops.mean(keras.ops.sum(keras.ops.cast(distance, "float32"), axis=1)))
        noise = keras.random.normal(keras.ops.shape(mean), dtype=mean.dtype, seed=self.seeds)
        return mean + keras.ops.exp(0.5 * log_variance) * noise


def autoencoder():
    """Returns a variational autoencoder of convolutions."""
    x = inputs = layers.Input([28, 28, 1])
    for filters in (32, 64):
        x = layers.Conv2D(filters, 3, strides=2, padding="same", activation="relu")(x)
    x = layers.Dense(16, activation="relu")(layers.Flatten()(x))
    x = _Sampled()([layers.Dense(2)(x), layers.Dense(2)(x)])
    x = layers.Reshape([7, 7, 64])(layers.Dense(7 * 7 * 64, activation="relu")(x))
    for filters in (64, 32):
        x = layers.Conv2DTranspose(filters, 3, strides=2, padding="same", activation="relu")(x)
    return keras.Model(inputs, layers.Conv2DTranspose(1, 3, padding="same", activation="sigmoid")(x))


class _Positions(layers.Layer):
    """Adds a trained vector to each position."""

    def build(self, shape):
        self.table = self.add_weight(name="table", shape=tuple(shape[1:]), initializer="uniform")

    def call(self, inputs):
        return inputs + self.table


def _encoder(blocks: int, width: int, heads: int, inner: int, activation: Any):
    inputs = layers.Input([64], dtype="int32")
    x = _Positions(name="positions")(layers.Embedding(WORDS, width)(inputs))
    for _ in range(blocks):
        attended = layers.MultiHeadAttention(heads, width // heads)(x, x)
        x = layers.LayerNormalization()(layers.Add()([x, layers.Dropout(0.1)(attended)]))
        y = layers.Dense(width)(layers.Dense(inner, activation=activation)(x))
        x = layers.LayerNormalization()(layers.Add()([x, layers.Dropout(0.1)(y)]))
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


def transformer():
    """Returns two blocks of a transformer over texts of 64 words."""
    return _encoder(2, 64, 4, 128, "relu")


def bert_base(blocks: int = 12):
    """Returns the twelve blocks of BERT base, narrowed to 128 units and two heads, over texts of 64 words."""
    return _encoder(blocks, 128, 2, 512, lambda x: keras.activations.gelu(x, approximate=True))


def lstm():
    """Returns an LSTM over texts of 64 words."""
    return keras.Sequential(
        [layers.Input([64], dtype="int32"), layers.Embedding(WORDS, 64), layers.LSTM(64), layers.Dense(10)]
    )


class Network(NamedTuple):
    """A network, and the settings of its training.

    Attributes:
      model: Creates the network.
      data: Returns inputs and targets of a number of examples.
      batch: The number of examples per step.
      steps: The number of steps per execution, if an execution has more than one step.
      loss: The class of the loss; None for the cross-entropy of ten classes.
    """

    model: Callable[[], Any]
    data: Callable[[int], Any]
    batch: int
    steps: int
    loss: Any = None

    def arrays(self, steps: int) -> Any:
        """Returns the inputs and targets of `steps` steps."""
        return self.data(steps * self.batch)

    def compiled(self, steps: int = 1, dtype: str = "float32", **options: Any) -> Any:
        """Returns a new model with a type policy, compiled to run `steps` steps per execution."""
        keras.mixed_precision.set_global_policy(dtype)
        model = self.model()
        loss = self.loss() if self.loss else keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        # In float16, the squares of small gradients are 0. With Adam's default epsilon, updates would be infinite.
        optimizer = keras.optimizers.Adam(1e-3, epsilon=1e-3 if dtype == "float16" else 1e-7)
        model.compile(optimizer, loss, steps_per_execution=steps, **options)
        keras.mixed_precision.set_global_policy("float32")
        return model


def pipelined(model: Any, stages: int, batches: int) -> Any:
    """Splits the layers of a model evenly into pipeline stages, with `batches` micro-batches per update."""
    assignments = model.get_pipeline_stage_assignment()
    for index, assignment in enumerate(assignments):
        assignment.pipeline_stage = index * stages // len(assignments)
    model.set_pipeline_stage_assignment(assignments)
    model.set_pipelining_options(batches, gradient_accumulation_reduction_method="mean")
    return model


NETWORKS = {
    "mlp": Network(mlp, lambda count: images(count, 784), 32, 100),
    "small-convolutions": Network(small_convolutions, lambda count: images(count, 28, 28, 1), 32, 100),
    "convolutions": Network(convolutions, lambda count: images(count, 28, 28, 1), 64, 30),
    "resnet-20": Network(resnet_20, lambda count: images(count, 32, 32, 3), 32, 10),
    "resnet-50": Network(resnet_50, lambda count: images(count, 64, 64, 3), 8, 5),
    "mobilenet-v2": Network(mobilenet_v2, lambda count: images(count, 96, 96, 3), 8, 10),
    "u-net": Network(u_net, pixels, 8, 10),
    "masked-gru": Network(masked_gru, words, 32, 20),
    "autoencoder": Network(autoencoder, same_images, 64, 20, keras.losses.BinaryCrossentropy),
    "transformer": Network(transformer, words, 32, 20),
    "bert-base": Network(bert_base, words, 8, 10),
    "lstm": Network(lstm, words, 32, 20),
}
