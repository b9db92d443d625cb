"""Stops a training in its midst, and goes on from its checkpoint with the same numbers.

straight on     epoch 0 --> 1 --> 2 --> 3 --> 4 --> 5
stopped         epoch 0 --> 1 --> 2 --> 3 (stopped)
                              |
                              v checkpoint: weights, Adam's moments, epochs done
a new start                   +------> 3 --> 4 --> 5
"""

import os
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's remarks on how it was built.

import tensorflow as tf
from sklearn.datasets import load_digits

import tensorflow_ipu as ipu

EPOCHS, BATCH, STEPS = 6, 48, 37

digits = load_digits()
images = (digits.images.reshape(-1, 64) / 16).astype("float32")
labels = digits.target.astype("int32")
strategy = ipu.IPUStrategy()


def train(folder, stop_in=None):
    """Trains as a new process would, from the latest checkpoint in a folder; returns the loss of each epoch."""
    tf.keras.utils.set_random_seed(1)
    with strategy.scope():
        model = tf.keras.Sequential(
            [tf.keras.Input([64]), tf.keras.layers.Dense(32, activation="tanh"), tf.keras.layers.Dense(10)]
        )
        optimizer = tf.keras.optimizers.Adam(0.005)
        optimizer.build(model.trainable_variables)  # So that a checkpoint finds its moments.
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

    done = tf.Variable(0, dtype=tf.int64)  # The host's.
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, done=done)
    manager = tf.train.CheckpointManager(checkpoint, folder, max_to_keep=2)
    if manager.restore_or_initialize():
        print(f"goes on after epoch {int(done) - 1}")
    losses = {}
    for epoch in range(int(done), EPOCHS):
        # The order of an epoch is that of its number, whoever trains it.
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


with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as parts:
    expected = train(whole)
    try:
        train(parts, stop_in=3)
    except KeyboardInterrupt:
        print("stopped before epoch 3 was saved")
    found = train(parts)
print("the same numbers:", all(expected[epoch] == loss for epoch, loss in found.items()))
