"""Trains in float16 with a loss scale that is too large: the CPU hides the overflow, and an IPU reports it.

The gradient of a loss that is scaled by 2^15 is too large for float16:

    loss ---- x 2^15 ----> gradients of float16 ---- overflow ----> IPU: stops.  CPU: infinity, or a wrong weight

With `IPUConfig.floating_point_behaviour` the emulator stops as the machine does, and reports the line of the model.
"""

import numpy as np
import tensorflow as tf

import tensorflow_ipu as ipu

STEPS = 64
TOO_LARGE, ADVISED = 2.0**15, 2.0**7


def configure(as_on_ipu):
    """Configures the device to compute float16 as an IPU does, or as XLA does."""
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 1
    if as_on_ipu:
        config.floating_point_behaviour.oflo = True
        config.floating_point_behaviour.esr = ipu.config.StochasticRoundingBehaviour.ON
    config.configure_ipu_system()
    ipu.config.reset_ipu_seed(1)


def train(loss_scale):
    """Fits a line in float16, and returns the losses of all steps."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(32, 16)).astype(np.float16)
    labels = (inputs @ rng.normal(size=(16, 1)) + 3).astype(np.float16)
    strategy = ipu.IPUStrategy()
    with strategy.scope():
        weights = tf.Variable(tf.zeros([16, 1], tf.float16))
        bias = tf.Variable(tf.zeros([1], tf.float16))

    @tf.function(jit_compile=True)
    def program(x, y):
        losses = tf.zeros([STEPS])
        for step in tf.range(STEPS):
            with tf.GradientTape() as tape:
                error = tf.matmul(x, weights) + bias - y
                loss = tf.reduce_mean(tf.square(tf.cast(error, tf.float32)))
                scaled = loss * loss_scale
            gradients = tape.gradient(scaled, [weights, bias])
            for variable, gradient in zip([weights, bias], gradients, strict=True):
                update = tf.cast(gradient, tf.float32) / loss_scale * 0.1
                update = tf.where(tf.math.is_finite(update), update, 0.0)  # On the CPU, this hides an overflow.
                variable.assign_sub(tf.cast(update, tf.float16))
            losses = tf.tensor_scatter_nd_update(losses, [[step]], [loss])
        return losses

    return strategy.run(program, (tf.constant(inputs), tf.constant(labels))).numpy()


def main():
    """Trains as on the CPU, as on an IPU, and with a smaller loss scale."""
    configure(as_on_ipu=False)
    losses = train(TOO_LARGE)
    print(f"float16 of the CPU, loss scale {TOO_LARGE:.0f}: the loss goes from {losses[0]:.1f} to {losses[-1]:.1f}")

    configure(as_on_ipu=True)
    try:
        train(TOO_LARGE)
    except tf.errors.InvalidArgumentError as error:
        print(f"float16 of the IPU, loss scale {TOO_LARGE:.0f}: {error.message}")

    losses = train(ADVISED)
    print(f"float16 of the IPU, loss scale {ADVISED:.0f}: the loss goes from {losses[0]:.1f} to {losses[-1]:.4f}")


if __name__ == "__main__":
    main()
