"""Trains a small convolutional network on handwritten digits, in one run of one program on the emulated IPU.

The data are scikit-learn's 1797 digits of 8 by 8 pixels. The program contains the loops over epochs and steps:

    training images --> infeed --> +-------------------------+ --> losses --> a thread that prints them
    test images ------> infeed --> | epochs * (train + test) | --> right ---> while the program runs
                                   +-------------------------+
"""

import argparse
import os
import sys
import threading
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Hides TensorFlow's messages about its build.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # Makes results depend less on the processor.

import matplotlib as mpl
import numpy as np
import tensorflow as tf
from matplotlib import pyplot as plt
from matplotlib import ticker
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import tensorflow_ipu as ipu

SEED = 1
NO_DIGIT = -1


def load_data():
    """Returns images as float32 [n, 8, 8, 1] from 0 to 1 and digits as int32 [n], for training and for the test."""
    digits = load_digits()
    images = (digits.images[..., np.newaxis] / 16).astype(np.float32)
    labels = digits.target.astype(np.int32)
    return train_test_split(images, labels, test_size=360, stratify=labels, random_state=SEED)


def training_dataset(images, labels, batch_size):
    """Returns a dataset that is shuffled in each epoch, and its steps per epoch. An incomplete last batch is dropped."""
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    dataset = dataset.shuffle(len(images), seed=SEED).batch(batch_size, drop_remainder=True)
    return dataset.repeat(), len(images) // batch_size


def test_dataset(images, labels, batch_size):
    """Returns a dataset of all images, and its steps. All batches must be full, so blank images complete the last one."""
    missing = -len(images) % batch_size
    images = np.pad(images, [(0, missing), (0, 0), (0, 0), (0, 0)])
    labels = np.pad(labels, (0, missing), constant_values=NO_DIGIT)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).batch(batch_size, drop_remainder=True)
    return dataset.repeat(), len(images) // batch_size


def make_model():
    """Returns a network of two convolutions, with inputs of 8 by 8 pixels and ten logits."""
    return tf.keras.Sequential(
        [
            tf.keras.layers.Input([8, 8, 1]),
            tf.keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(10),
        ]
    )


cross_entropy = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@tf.function(jit_compile=True)
def train_and_test(model, optimizer, *, training, test, losses, right, epochs, training_steps, test_steps):
    """Trains and tests in each epoch. This is the program.

    It enqueues the loss of each training step to `losses`, and the number of right answers in each epoch to `right`.
    """
    for _ in tf.range(epochs):
        for _ in tf.range(training_steps):
            images, labels = next(training)
            with tf.GradientTape() as tape:
                loss = cross_entropy(labels, model(images, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            losses.enqueue(loss)
        count = 0
        for _ in tf.range(test_steps):
            images, labels = next(test)
            answers = tf.argmax(model(images, training=False), axis=-1, output_type=tf.int32)
            count += tf.reduce_sum(tf.cast(answers == labels, tf.int32))
        right.enqueue(count)


class Reader(threading.Thread):
    """A thread that reads both outfeeds while the program runs. It shows the steps in a bar, and prints each epoch."""

    def __init__(self, losses, right, epochs, training_steps, test_size):
        """Creates the thread for two outfeeds with the results of `epochs` epochs."""
        super().__init__(name="reader")
        self.loss_curve, self.accuracies = [], []
        self._losses, self._right = losses, right
        self._epochs, self._training_steps, self._test_size = epochs, training_steps, test_size
        self._run_ended = threading.Event()

    def run(self):
        """Reads the outfeeds ten times a second, and once more after the run has ended."""
        total = self._epochs * self._training_steps
        with tqdm(total=total, unit="step", disable=None) as bar:  # None: shows the bar only on a terminal.
            is_last = False
            while not is_last:
                is_last = self._run_ended.wait(0.1)
                # The program enqueues the losses of an epoch before its test result. In this order, none is missed.
                results = [int(count) / self._test_size for count in self._right]
                losses = [float(loss) for loss in self._losses]
                self.loss_curve += losses
                bar.update(len(losses))
                for accuracy in results:
                    self.accuracies.append(accuracy)
                    tqdm.write(self._describe(len(self.accuracies)))

    def _describe(self, epoch):
        steps = slice((epoch - 1) * self._training_steps, epoch * self._training_steps)
        loss = np.mean(self.loss_curve[steps])
        return f"epoch {epoch:2}  training loss {loss:.3f}  test accuracy {self.accuracies[epoch - 1]:.3f}"

    def finish(self):
        """Notifies the thread that the run has ended, and waits until it has read the last results."""
        self._run_ended.set()
        self.join()


def draw(losses, accuracies, training_steps, path):
    """Draws the loss of each step, and below it the test accuracy after each epoch."""
    mpl.use("Agg")  # Opens no window.
    figure, (top, bottom) = plt.subplots(2, 1, sharex=True, figsize=(7, 6), layout="constrained")
    steps = np.arange(1, len(losses) + 1) / training_steps
    epochs = np.arange(1, len(accuracies) + 1)
    means = np.reshape(losses, [-1, training_steps]).mean(axis=1)
    top.plot(steps, losses, color="tab:blue", alpha=0.35, linewidth=0.8, label="each step")
    top.plot(epochs - 0.5, means, color="tab:blue", marker="o", markersize=4, label="mean of each epoch")
    top.set(ylabel="training loss", yscale="log", title="Handwritten digits on the emulated IPU")
    top.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    top.legend(frameon=False)
    bottom.plot(epochs, accuracies, color="tab:orange", marker="o", markersize=4)
    last = (epochs[-1], accuracies[-1])
    bottom.annotate(f"{accuracies[-1]:.1%}", last, (8, 0), textcoords="offset points", va="center")
    bottom.set(xlabel="epoch", ylabel="test accuracy", xlim=(0, len(accuracies) * 1.1))
    bottom.yaxis.set_major_formatter(ticker.PercentFormatter(1))
    bottom.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    for axes in (top, bottom):
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def positive(text):
    """Returns the positive integer in a text of the command line."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def main():
    """Trains and tests the network, and draws its learning curve."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=positive, default=10, help="passes over the training images (%(default)s)")
    parser.add_argument("--batch-size", type=positive, default=32, help="images a step (%(default)s)")
    parser.add_argument("--output", type=Path, default=Path("output"), help="folder for the picture (%(default)s)")
    parser.add_argument("--cache", type=Path, help="folder for compiled programs, so that the next start is faster")
    arguments = parser.parse_args()

    if arguments.cache is not None:
        ipu.executables.set_cache(arguments.cache)
    tf.keras.utils.set_random_seed(SEED)
    training_images, test_images, training_labels, test_labels = load_data()
    if arguments.batch_size > len(training_images):
        parser.error(f"--batch-size must be at most {len(training_images)}, the number of training images")
    training, training_steps = training_dataset(training_images, training_labels, arguments.batch_size)
    test, test_steps = test_dataset(test_images, test_labels, arguments.batch_size)
    sys.stdout.reconfigure(line_buffering=True)  # Prints each line at once, also to a pipe.
    print(f"{len(training_images)} images to train on, {len(test_images)} for the test; compiling ...")

    config = ipu.IPUConfig()
    config.auto_select_ipus = 1
    config.configure_ipu_system()
    strategy = ipu.IPUStrategy()
    with strategy.scope():
        model = make_model()
        optimizer = tf.keras.optimizers.Adam(0.003)
        losses, right = ipu.IPUOutfeedQueue(), ipu.IPUOutfeedQueue()
        reader = Reader(losses, right, arguments.epochs, training_steps, len(test_images))
        begin = time.perf_counter()
        reader.start()
        try:
            strategy.run(
                train_and_test,
                args=(model, optimizer),
                kwargs={
                    "training": iter(training),
                    "test": iter(test),
                    "losses": losses,
                    "right": right,
                    "epochs": arguments.epochs,
                    "training_steps": training_steps,
                    "test_steps": test_steps,
                },
            )
        finally:
            reader.finish()
    seconds = time.perf_counter() - begin

    picture = arguments.output / "digits.png"
    draw(reader.loss_curve, reader.accuracies, training_steps, picture)
    print(f"{len(reader.loss_curve)} steps in one run of {seconds:.1f} s, compilation included")
    print(f"learning curve: {picture.resolve()}")
    print(f"test accuracy: {reader.accuracies[-1]:.4f}")


if __name__ == "__main__":
    main()
