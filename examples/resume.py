"""Interrupts a training, and resumes it from its checkpoint with the same results.

uninterrupted   epoch 0 --> 1 --> 2 --> 3 --> 4 --> 5
interrupted     epoch 0 --> 1 --> 2 --> 3 (interrupted)
                              |
                              v checkpoint: weights, Adam's moments, number of epochs
resumed                       +------> 3 --> 4 --> 5
"""

import os
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Hides TensorFlow's messages about its build.

import tensorflow as tf
from sklearn.datasets import load_digits

import tensorflow_ipu as ipu

EPOCHS, BATCH, STEPS = 6, 48, 37

digits = load_digits()
images = (digits.images.reshape(-1, 64) / 16).astype("float32")
labels = digits.target.astype("int32")
strategy = ipu.IPUStrategy()


def train(folder, stop_in=None):
    """Trains from the latest checkpoint in a folder, as a new process would, and returns the loss of each epoch."""
    tf.keras.utils.set_random_seed(1)
    with strategy.scope():
        model = tf.keras.Sequential(
            [tf.keras.Input([64]), tf.keras.layers.Dense(32, activation="tanh"), tf.keras.layers.Dense(10)]
        )
        optimizer = tf.keras.optimizers.Adam(0.005)
        optimizer.build(model.trainable_variables)  # Creates the moments, so that a checkpoint can restore them.
    cross_entropy = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function(jit_compile=True)
    def epoch_of(iterator):
        total = tf.zeros([])
        for _ in tf.range(STEPS):
            x, y = next(iterator)
            with tf.GradientTape() as tape:
                loss = cross_entropy(y, model(x, training=True))
            optimizer.apply_gradients(
                zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
            )
            total += loss
        return total / STEPS

    done = tf.Variable(0, dtype=tf.int64)  # A variable of the host.
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, done=done)
    manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=2)
    if manager.restore_or_initialize():
        print(f"goes on after epoch {int(done) - 1}")
    losses = {}
    for epoch in range(int(done), EPOCHS):
        # The number of an epoch is its seed, so each process uses the same order of the data.
        data = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(images), seed=epoch)
        with strategy.scope():
            iterator = iter(data.batch(BATCH, drop_remainder=True))
        losses[epoch] = float(strategy.run(epoch_of, args=(iterator,)))
        print(f"epoch {epoch}: loss {losses[epoch]:.6f}")
        if epoch == stop_in:
            raise KeyboardInterrupt
        done.assign(epoch + 1)
        manager.save()
    return losses


with tempfile.TemporaryDirectory() as uninterrupted, tempfile.TemporaryDirectory() as interrupted:
    expected = train(uninterrupted)
    try:
        train(interrupted, stop_in=3)
    except KeyboardInterrupt:
        print("stopped before epoch 3 was saved")
    resumed = train(interrupted)
print("the same numbers:", all(expected[epoch] == loss for epoch, loss in resumed.items()))
