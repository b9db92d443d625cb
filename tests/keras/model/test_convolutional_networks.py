"""A convolutional network with dropout trains as in plain Keras without jit, weight for weight."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import tensorflow_ipu as ipu

STEPS, BATCH = 100, 8
RANDOM = np.random.default_rng(1)
IMAGES = RANDOM.uniform(size=[STEPS * BATCH, 12, 12, 1]).astype(np.float32)
LABELS = RANDOM.integers(0, 10, [STEPS * BATCH]).astype(np.int32)


def trained(**options: Any) -> list[np.ndarray]:
    keras.utils.set_random_seed(7)
    model = keras.Sequential(
        [
            keras.Input([12, 12, 1]),
            layers.Conv2D(8, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(16, 3, activation="relu"),
            layers.AveragePooling2D(2),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05), loss, **options)
    model.fit(IMAGES, LABELS, batch_size=BATCH, shuffle=False, verbose=0)
    return model.get_weights()


@pytest.mark.parametrize("steps_per_execution", [1, 20])
def test_network_with_dropout_trains_as_in_plain_keras_without_jit(
    steps_per_execution: int, strategy: ipu.IPUStrategy
) -> None:
    plain = trained(jit_compile=False)
    with strategy.scope():
        mine = trained(steps_per_execution=steps_per_execution)
    for one, other in zip(mine, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
