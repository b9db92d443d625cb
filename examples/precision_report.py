"""Finds out what float16 makes of a model: where it overflows, what vanishes, which loss scale and which layers to change.

python examples/precision_report.py
"""

import sys
import tempfile
from pathlib import Path

import keras
import numpy as np

import tensorflow_ipu as ipu

STEPS, BATCH_SIZE = 4, 16


def data():
    """Some batches of numbers, and a function of them."""
    random = np.random.default_rng(0)
    images = random.normal(size=(STEPS * BATCH_SIZE, 16)).astype(np.float32)
    return images, np.sin(images[:, :1])


def small_losses():
    """A model whose gradients are too small for float16: its results are scaled down a long way."""
    return keras.Sequential(
        [
            keras.Input((16,)),
            keras.layers.Dense(32, activation="tanh", name="first"),
            keras.layers.Dense(32, activation="tanh", name="second"),
            keras.layers.Dense(1, name="last"),
            keras.layers.Rescaling(2.0**-16, name="units"),
        ],
        name="small_losses",
    )


def large_sums():
    """A model whose activations are too large: a layer in the middle works on unscaled sums."""
    return keras.Sequential(
        [
            keras.Input((16,)),
            keras.layers.Dense(32, activation="relu", name="first"),
            keras.layers.Rescaling(2.0**16, name="sums"),
            keras.layers.Rescaling(2.0**-16, name="means"),
            keras.layers.Dense(1, name="last"),
        ],
        name="large_sums",
    )


def main(folder):
    """Reports on both models."""
    for made in (small_losses, large_sums):
        keras.utils.set_random_seed(1)
        with ipu.IPUStrategy().scope():
            model = made()
            model.compile(keras.optimizers.SGD(0.01), "mse")
        report = ipu.precision_report(model, data(), steps=STEPS, batch_size=BATCH_SIZE)
        print(report, end="\n\n")
        page = Path(folder, f"{model.name}.html")
        report.save(page)
        print(f"{page.name}: open it in a browser\n")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(folder)
