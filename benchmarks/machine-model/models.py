"""The models of published results in plain Keras, split into the pipeline stages of their published settings."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import keras
import tensorflow as tf

Stage = Callable[..., object]


@dataclass(frozen=True)
class Staged:
    """A model as pipeline stages.

    Attributes:
      stages: The stages; the last one returns the loss.
      element: An element of the infeed, which is the input of the first stage.
      mapping: The IPU of each stage.
    """

    stages: Sequence[Stage]
    element: tuple[tf.Tensor, ...]
    mapping: Sequence[int]


def _loss(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    labels = tf.reshape(labels, [-1])
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.cast(logits, tf.float32)))


def _recomputed(part: keras.Model) -> Stage:
    """Returns a function that stores only the inputs of a part, and runs the part again in the backward pass."""
    return tf.recompute_grad(functools.partial(part, training=True))


def _run(layers: Sequence[keras.Model], x: tf.Tensor) -> tf.Tensor:
    for layer in layers:
        x = _recomputed(layer)(x)
    return x


class _Dropout(keras.layers.Layer):
    """Dropout with a fixed seed. Recomputation draws the same mask, as on the machine, which stores seeds, not masks."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return tf.nn.experimental.stateless_dropout(x, 0.1, seed=[1, 2])


def _encoder_layer(x: keras.KerasTensor, heads: int, *, norm_first: bool) -> keras.KerasTensor:
    """Returns the output of an encoder layer, which is normalised before its parts (as in ViT) or after them (BERT)."""
    width = int(x.shape[-1])
    attention = keras.layers.MultiHeadAttention(heads, width // heads)
    y = keras.layers.LayerNormalization()(x) if norm_first else x
    x = _Dropout()(attention(y, y)) + x
    y = x = x if norm_first else keras.layers.LayerNormalization()(x)
    y = keras.layers.LayerNormalization()(y) if norm_first else y
    y = keras.layers.Dense(4 * width, activation=keras.activations.gelu)(y)
    x = _Dropout()(keras.layers.Dense(width)(y)) + x
    return x if norm_first else keras.layers.LayerNormalization()(x)


def _encoder(layers: int, tokens: int, width: int, heads: int, *, norm_first: bool = False) -> list[keras.Model]:
    encoder = []
    for _ in range(layers):
        x = keras.Input((tokens, width), dtype="float16")
        encoder.append(keras.Model(x, _encoder_layer(x, heads, norm_first=norm_first)))
    return encoder


def bert(layers: Sequence[int], width: int, heads: int, tokens: int, masked: int, micro_batch: int) -> Staged:
    """Returns BERT in pretraining. The first IPU has the embedding and the prediction of masked tokens, which share weights.

    Args:
      layers: The number of encoder layers on each IPU.
      width: The number of units of the hidden state.
      heads: The number of attention heads.
      tokens: The number of tokens of a sequence.
      masked: The number of masked tokens of a sequence.
      micro_batch: The number of sequences of a micro-batch.
    """
    vocabulary = 30400
    table = keras.layers.Embedding(vocabulary, width, embeddings_initializer="zeros")
    table.build()
    positions = keras.layers.Embedding(tokens, width)
    normalise = keras.layers.LayerNormalization()
    encoders = [_encoder(count, tokens, width, heads) for count in layers]
    transform = keras.layers.Dense(width, activation=keras.activations.gelu)
    transform.build((None, width))

    def first(ids: tf.Tensor, where: tf.Tensor, labels: tf.Tensor) -> object:
        x = normalise(table(ids) + positions(tf.range(tokens)))
        return _run(encoders[0], x), where, labels

    def inner(encoder: Sequence[keras.Model]) -> Stage:
        return lambda x, where, labels: (_run(encoder, x), where, labels)

    def last(x: tf.Tensor, where: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        # A product with a matrix of ones and zeros selects the masked tokens, as the machine's library does.
        chosen = tf.matmul(tf.one_hot(where, tokens, dtype=x.dtype), x)
        x = transform(tf.reshape(chosen, [-1, width]))
        return _loss(labels, tf.matmul(x, tf.convert_to_tensor(table.embeddings), transpose_b=True))

    ids, where = tf.zeros([micro_batch, tokens], tf.int32), tf.zeros([micro_batch, masked], tf.int32)
    first(ids, where, where)  # Creates the variables of the layers.
    stages = [first, *(inner(encoder) for encoder in encoders[1:]), last]
    return Staged(stages, (ids, where, where), [*range(len(layers)), 0])


def vit(micro_batch: int) -> Staged:
    """Returns ViT-B/16 on four IPUs, with three layers each. Its input images are float16, not bytes."""
    tokens, width = 197, 768
    patches = keras.layers.Conv2D(width, 16, 16)
    patches.build((None, 224, 224, 3))
    encoders = [_encoder(3, tokens, width, 12, norm_first=True) for _ in range(4)]
    head = keras.layers.Dense(1000)
    head.build((None, width))

    def first(images: tf.Tensor, labels: tf.Tensor) -> object:
        x = tf.reshape(patches(images), [-1, tokens - 1, width])
        return _run(encoders[0], tf.pad(x, [[0, 0], [1, 0], [0, 0]])), labels

    def inner(encoder: Sequence[keras.Model]) -> Stage:
        return lambda x, labels: (_run(encoder, x), labels)

    def last(x: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        return _loss(labels, head(_run(encoders[3], x)[:, 0]))

    stages = [first, inner(encoders[1]), inner(encoders[2]), last]
    return Staged(stages, _images(micro_batch, 224, tf.float16), range(4))


def _images(micro_batch: int, size: int, dtype: tf.DType = tf.uint8) -> tuple[tf.Tensor, ...]:
    return tf.zeros([micro_batch, size, size, 3], dtype), tf.zeros([micro_batch], tf.int32)


def _cut(model: keras.Model, cuts: Sequence[str], micro_batch: int, mapping: Sequence[int]) -> Staged:
    """Splits a network for images after the layers with the names in `cuts`."""
    ends = [model.input, *(model.get_layer(name).output for name in cuts), model.output]
    parts = [keras.Model(begin, end) for begin, end in itertools.pairwise(ends)]

    def stage(number: int) -> Stage:
        def run(x: tf.Tensor, labels: tf.Tensor) -> object:
            y = _recomputed(parts[number])(tf.cast(x, tf.float16))
            return (y, labels) if number < len(parts) - 1 else _loss(labels, y)

        return run

    size = int(model.input.shape[1])
    return Staged([stage(number) for number in range(len(parts))], _images(micro_batch, size), mapping)


def resnet50(micro_batch: int) -> Staged:
    """Returns ResNet-50 on one IPU, in seven stages."""
    cuts = ["conv2_block1_out", "conv2_block3_out", "conv3_block1_out", "conv3_block3_out"]
    cuts += ["conv4_block1_out", "conv4_block4_out"]
    model = keras.applications.ResNet50(weights=None, classifier_activation=None)
    return _cut(model, cuts, micro_batch, [0] * 7)


def resnext101(micro_batch: int) -> Staged:
    """Returns ResNeXt-101 (32 groups of 4 channels) on two IPUs, with group normalization."""
    x = inputs = keras.Input((224, 224, 3), dtype="float16")
    x = _normalised(keras.layers.Conv2D(64, 7, 2, "same", use_bias=False)(x))
    x = keras.layers.MaxPooling2D(3, 2, "same")(keras.layers.ReLU()(x))
    for number, blocks in enumerate((3, 4, 23, 3)):
        channels = 128 << number
        for block in range(blocks):
            strides = 2 if number and not block else 1
            short = x
            if not block:
                short = _normalised(keras.layers.Conv2D(2 * channels, 1, strides, use_bias=False)(x))
            x = keras.layers.ReLU()(_normalised(keras.layers.Conv2D(channels, 1, use_bias=False)(x)))
            x = keras.layers.Conv2D(channels, 3, strides, "same", groups=32, use_bias=False)(x)
            x = keras.layers.ReLU()(_normalised(x))
            x = _normalised(keras.layers.Conv2D(2 * channels, 1, use_bias=False)(x)) + short
            x = keras.layers.ReLU(name=f"stage{number + 1}_unit{block + 1}")(x)
    logits = keras.layers.Dense(1000)(keras.layers.GlobalAveragePooling2D()(x))
    return _cut(keras.Model(inputs, logits), ["stage3_unit4"], micro_batch, [0, 1])


# The blocks of EfficientNet-B0: kernel, channels, number, strides of the first. B4 is 1.4 times as wide, 1.8 times as deep.
_BLOCKS = ((3, 16, 1, 1), (3, 24, 2, 2), (5, 40, 2, 2), (3, 80, 3, 2), (5, 112, 3, 1), (5, 192, 4, 2), (3, 320, 1, 1))
_WIDER, _DEEPER = 1.4, 1.8


def efficientnet_b4(micro_batch: int) -> Staged:
    """Returns EfficientNet-B4 on two IPUs, in its variant G16.

    Convolutions have groups of 16 channels instead of one, and blocks are 4 times as wide inside instead of 6.
    """
    x = inputs = keras.Input((380, 380, 3), dtype="float16")
    x = keras.activations.silu(_batch_normalised(keras.layers.Conv2D(_wide(32), 3, 2, "same", use_bias=False)(x)))
    for number, (kernel, channels, count, strides) in enumerate(_BLOCKS):
        for block in range(math.ceil(_DEEPER * count)):
            name = f"block{number + 1}{chr(ord('a') + block)}"
            x = _inverted(x, kernel, _wide(channels), 1 if block else strides, 4 if number else 1, name)
    x = keras.activations.silu(_batch_normalised(keras.layers.Conv2D(_wide(1280), 1, use_bias=False)(x)))
    x = _Dropout()(keras.layers.GlobalAveragePooling2D()(x))
    return _cut(keras.Model(inputs, keras.layers.Dense(1000)(x)), ["block4a"], micro_batch, [0, 1])


def _wide(channels: int) -> int:
    """Returns the scaled number of channels, rounded to a multiple of 8 that is at least 0.9 of it."""
    scaled = _WIDER * channels
    rounded = max(8, int(scaled + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * scaled else rounded


def _inverted(
    x: keras.KerasTensor, kernel: int, channels: int, strides: int, ratio: int, name: str
) -> keras.KerasTensor:
    """Returns the output of an inverted residual block with squeeze and excitation."""
    inputs = int(x.shape[-1])
    inside = ratio * inputs
    y = x
    if ratio > 1:
        y = keras.activations.silu(_batch_normalised(keras.layers.Conv2D(inside, 1, use_bias=False)(y)))
    grouped = keras.layers.Conv2D(inside, kernel, strides, "same", groups=max(1, inside // 16), use_bias=False)
    y = keras.activations.silu(_batch_normalised(grouped(y)))
    weights = keras.layers.GlobalAveragePooling2D(keepdims=True)(y)
    weights = keras.layers.Conv2D(max(1, inputs // 4), 1, activation="silu")(weights)
    y = y * keras.layers.Conv2D(inside, 1, activation="sigmoid")(weights)
    y = _batch_normalised(keras.layers.Conv2D(channels, 1, use_bias=False)(y))
    return keras.layers.Activation("linear", name=name)(x + y if strides == 1 and inputs == channels else y)


def _batch_normalised(x: keras.KerasTensor) -> keras.KerasTensor:
    return keras.layers.BatchNormalization()(x)


def _normalised(x: keras.KerasTensor) -> keras.KerasTensor:
    return keras.layers.GroupNormalization(32)(x)
