"""Reports the effect of float16 on a model: overflow, underflow, a loss scale, and layers to change.

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
    """Returns some batches of random inputs, and a function of them as labels."""
    random = np.random.default_rng(0)
    images = random.normal(size=(STEPS * BATCH_SIZE, 16)).astype(np.float32)
    return images, np.sin(images[:, :1])


def small_losses():
    """Returns a model whose gradients are too small for float16, because its results are scaled down by 2^16."""
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
    """Returns a model whose activations are too large for float16, because a layer scales them up by 2^16."""
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
    for make_model in (small_losses, large_sums):
        keras.utils.set_random_seed(1)
        with ipu.IPUStrategy().scope():
            model = make_model()
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
