"""Reports on a language model that is too large for an IPU, and prints code that makes it fit."""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Hides TensorFlow's messages about its build.

import keras
import tensorflow as tf

import tensorflow_ipu as ipu


class Decoder(keras.layers.Layer):
    """A layer of a decoder: causal attention and two dense layers."""

    def __init__(self, width: int, heads: int) -> None:
        """Creates the layers for a hidden state of `width` units, and `heads` attention heads."""
        super().__init__()
        self._norms = [keras.layers.LayerNormalization() for _ in range(2)]
        self._attention = keras.layers.MultiHeadAttention(heads, width // heads)
        self._wide, self._narrow = keras.layers.Dense(4 * width, "gelu"), keras.layers.Dense(width)

    def build(self, shape: tuple[int | None, ...]) -> None:
        """Creates the weights."""
        for norm in self._norms:
            norm.build(shape)
        self._attention.build(shape, shape)
        self._wide.build(shape)
        self._narrow.build((*shape[:-1], 4 * int(shape[-1] or 0)))

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Returns the next hidden states. They and `x` have the shape [batch, tokens, width]."""
        y = self._norms[0](x)
        x += self._attention(y, y, use_causal_mask=True)
        return x + self._narrow(self._wide(self._norms[1](x)))


def make_model(layers: int, width: int, tokens: int, words: int) -> keras.Model:
    """Returns a compiled model that predicts the next word: an embedding, decoders, and a dense layer."""
    ids = keras.Input([tokens], dtype="int32")
    x = keras.layers.Embedding(words, width)(ids)
    for _ in range(layers):
        x = Decoder(width, max(1, width // 64))(x)
    x = keras.layers.LayerNormalization()(x)
    model = keras.Model(ids, keras.layers.Dense(words, use_bias=False)(x), name="language_model")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-4), loss, steps_per_execution=8)
    return model


def main() -> None:
    """Prints the report on the model, with a recipe. To find the recipe, the model is traced again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=3072)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--words", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=4, help="sequences of a micro-batch")
    parser.add_argument("--machine", default="Bow Pod16")
    parser.add_argument("--save", metavar="FILE", help="a file for the report: .json, or .html for a browser")
    options = parser.parse_args()
    with ipu.IPUStrategy().scope():
        model = make_model(options.layers, options.width, options.tokens, options.words)
    report = model.ipu_report(options.batch, machine=options.machine)
    report.advice(retrace=True)
    print(report)
    if options.save:
        report.save(options.save)


if __name__ == "__main__":
    main()
