"""Lowers the momentum of an optimizer between runs of one program, and scales a float16 velocity to avoid underflow."""

from __future__ import annotations

import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import scopes
from tensorflow_ipu.keras.optimizers import SGDIpuOptimizer

STEPS = 50


def main() -> None:
    """Prints the loss at the end of each run, and the number of traces of the program."""
    strategy = ipu.IPUStrategy()
    with strategy.scope():
        weights = tf.Variable(tf.zeros([8]))
        optimizer = SGDIpuOptimizer(
            1e-3,
            momentum=0.98,
            momentum_accum_dtype="float16",
            velocity_scaling=1024.0,
            variable_attributes=["momentum"],
        )
        optimizer.build([weights])
    traced = []

    @tf.function
    def train() -> tf.Tensor:
        traced.append(scopes.is_on_ipu())
        scales, targets = tf.range(1.0, 9.0), tf.ones([8])
        loss = tf.constant(0.0)
        for _ in tf.range(STEPS):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((scales * weights - targets) ** 2)
            optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
        return loss

    for momentum in (0.98, 0.9, 0.5):
        optimizer.momentum = momentum
        print(f"momentum {momentum}: loss {strategy.run(train):.6f}")
    print(f"traced {len(traced)} time(s), for the IPU: {all(traced)}")


if __name__ == "__main__":
    main()
