"""Trains a digits network on four replicas with gradient accumulation, and on one IPU with an equally large batch.

    one IPU, batches of 96:            four IPUs, three batches of 8 per update:

    +------------------+               +----------------+  +----------------+
    | 96 images        |               | 8 + 8 + 8      |  | 8 + 8 + 8      |  ... four times
    | gradient, update |               | mean, update <----> mean, update   |
    +------------------+               +----------------+  +----------------+

Both start with the same weights, use the same 96 images in an update, and compute the mean of the gradients. So they learn the
same weights, up to the rounding of sums that are added in another order.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Hides TensorFlow's messages about its build.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # Makes results depend less on the processor.

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import tensorflow_ipu as ipu
from tensorflow_ipu import optimizers

SEED = 1
REPLICAS = 4
ACCUMULATED = 3
BATCH = 8
UPDATES = 120


def load_data():
    """Returns images as float32 [n, 64] from 0 to 1 and digits as int32 [n], for training and for the test."""
    digits = load_digits()
    images = (digits.images.reshape(-1, 64) / 16).astype(np.float32)
    labels = digits.target.astype(np.int32)
    return train_test_split(images, labels, test_size=360, stratify=labels, random_state=SEED)


def make_model():
    """Returns a network of one hidden layer, with inputs of 64 pixels and ten logits."""
    return tf.keras.Sequential(
        [tf.keras.layers.Input([64]), tf.keras.layers.Dense(64, activation="tanh"), tf.keras.layers.Dense(10)]
    )


cross_entropy = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def train(ipus, batch, accumulated, images, labels):
    """Trains for `UPDATES` updates, and returns the model and its losses [updates], each the mean over 96 images."""
    tf.keras.utils.set_random_seed(SEED)  # Determines the order of the images and the initial weights.
    ipu.config.reset_ipu_configuration()
    config = ipu.IPUConfig()
    config.auto_select_ipus = ipus
    config.configure_ipu_system()
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    dataset = dataset.shuffle(len(images), seed=SEED).repeat().batch(batch, drop_remainder=True)

    strategy = ipu.IPUStrategy()
    with strategy.scope():
        model = make_model()
        variables = [
            weight.value for weight in model.trainable_variables
        ]  # Optimizers of TensorFlow 1 need TensorFlow's variables, not Keras's.
        # Computes the mean of the gradients over the batches of an update, and then over the replicas.
        optimizer = optimizers.CrossReplicaGradientAccumulationOptimizerV2(
            tf.compat.v1.train.MomentumOptimizer(0.1, 0.9), accumulated, reduction_method="mean"
        )
        iterator = iter(dataset)
        losses = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program(iterator):
        for _ in tf.range(UPDATES * accumulated):
            x, y = next(iterator)
            with tf.GradientTape() as tape:
                loss = cross_entropy(y, model(x, training=True))
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            losses.enqueue(loss)

    strategy.run(program, args=(iterator,))
    # The shape of the losses is [updates * accumulated, replicas], or [updates * accumulated] with one replica.
    return model, np.reshape(losses.dequeue(), [UPDATES, -1]).mean(axis=1)


def main():
    """Trains in both ways and compares the results."""
    training_images, test_images, training_labels, test_labels = load_data()
    models = []
    for ipus, batch, accumulated in ((1, REPLICAS * ACCUMULATED * BATCH, 1), (REPLICAS, BATCH, ACCUMULATED)):
        model, losses = train(ipus, batch, accumulated, training_images, training_labels)
        answers = np.argmax(model(test_images), axis=-1)
        print(
            f"{ipus} replica(s), {accumulated} batch(es) of {batch} an update: loss {losses[0]:.4f} to {losses[-1]:.4f},"
            f" test accuracy {np.mean(answers == test_labels):.4f}"
        )
        models.append((model, losses))
    (single, single_losses), (replicated, replicated_losses) = models
    print(f"largest difference of a loss: {np.max(np.abs(single_losses - replicated_losses)):.1e}")
    differences = [np.max(np.abs(a - b)) for a, b in zip(single.get_weights(), replicated.get_weights(), strict=True)]
    print(f"largest difference of a weight: {max(differences):.1e}")


if __name__ == "__main__":
    main()
