"""Trains on handwritten digits by `model.fit`: on one IPU, replicated, with accumulated gradients, in pipeline stages.

Flags choose the mode, and go together. However it is split, an update sees the same 64 images, so the network learns what
Keras alone learns from batches of 64; the script trains it in both ways and compares:

    --replicas 4                  --accumulate 4                  --stages 2

    IPU 0 .. 3: 16 images         16 + 16 + 16 + 16 images        IPU 0: 16 16 16 16 ->
       |     |  mean of all       one after the other,            IPU 1:    16 16 16 16  mean of all
       +-----+  gradients         mean of their gradients         the IPUs work side by side
"""

import argparse
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's remarks on how it was built.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # The same figures on every processor, as far as that goes.

import keras
import numpy as np
from sklearn.datasets import load_digits

import tensorflow_ipu as ipu

SEED = 1
TRAINING, TEST = 1280, 512
UPDATE = 64  # So many images make an update of the weights.
UPDATES_PER_EXECUTION = 4  # So many updates are one run of a program.


def load_data():
    """Returns images as float32 [n, 64] from 0 to 1 and digits as int32 [n], for training and for the test."""
    digits = load_digits()
    images, labels = (digits.data / 16).astype(np.float32), digits.target.astype(np.int32)
    order = np.random.default_rng(SEED).permutation(len(images))
    training, test = order[:TRAINING], order[TRAINING : TRAINING + TEST]
    return (images[training], labels[training]), (images[test], labels[test])


def make_model():
    """A network of four layers, 64 pixels in and ten logits out, with the same weights each time."""
    keras.utils.set_random_seed(SEED)
    widths = (64, 64, 32)
    hidden = [keras.layers.Dense(width, "relu", name=f"hidden_{number}") for number, width in enumerate(widths)]
    return keras.Sequential([keras.layers.Input([64]), *hidden, keras.layers.Dense(10, name="answer")])


def compile_model(model, learning_rate, steps_per_execution):
    """Keras's `compile`, in the scope or out of it."""
    model.compile(
        optimizer=keras.optimizers.SGD(learning_rate, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=steps_per_execution,
    )


def train(model, batch_size, epochs, callbacks=()):
    """Keras's `fit`, in the scope or out of it; returns the losses and the test accuracies [epochs]."""
    keras.utils.set_random_seed(SEED)  # For the order of the images: they are shuffled each epoch.
    (images, labels), test = load_data()
    options = {"validation_data": test, "callbacks": list(callbacks), "verbose": 0}
    history = model.fit(images, labels, batch_size=batch_size, epochs=epochs, **options).history
    return history["loss"], history["val_accuracy"]


def train_on_ipus(replicas, accumulate, stages, epochs):
    """Trains in the mode that is asked for; returns the model and what `train` returns."""
    config = ipu.IPUConfig()
    config.auto_select_ipus = replicas * stages
    config.configure_ipu_system()
    with ipu.IPUStrategy().scope():
        model = make_model()
        # Gradients are summed over the replicas: a rate divided by their number makes that a mean.
        compile_model(model, 0.05 / replicas, UPDATES_PER_EXECUTION * accumulate)
    accumulation = {
        "gradient_accumulation_steps_per_replica": accumulate,
        "gradient_accumulation_reduction_method": "mean",
    }
    if stages > 1:
        count = len(model.layers)
        model.set_pipeline_stage_assignment([number * stages // count for number in range(count)])
        model.set_pipelining_options(**accumulation)
    elif accumulate > 1:
        model.set_gradient_accumulation_options(**accumulation)
    if replicas > 1:
        model.set_replication_options("MEAN")  # Otherwise logs show the last replica's metrics.

    def print_epoch(epoch, logs):
        print(f"epoch {epoch + 1}  training loss {logs['loss']:.4f}  test accuracy {logs['val_accuracy']:.4f}")

    report = keras.callbacks.LambdaCallback(on_epoch_end=print_epoch)
    return model, train(model, UPDATE // (replicas * accumulate), epochs, [report])


def describe(model, replicas, accumulate, stages):
    """Says what an update is made of, and what the IPUs of a pipeline do in it."""
    batch = UPDATE // (replicas * accumulate)
    split = f"{replicas} replica(s) x {accumulate} batch(es) x {batch} images"
    print(f"{replicas * stages} IPU(s); an update: {split} = {UPDATE} images")
    print(f"{int(model.optimizer.iterations)} updates, {UPDATES_PER_EXECUTION} in each run of the program")
    if stages > 1:
        for assignment in model.get_pipeline_stage_assignment():
            print(f"stage {assignment.pipeline_stage}: {assignment.layer.name}")


def main():
    """Trains in the mode that is asked for and with Keras alone, and compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--replicas", type=int, choices=(1, 2, 4, 8), default=1, help="copies of the model (%(default)s)"
    )
    parser.add_argument("--accumulate", type=int, metavar="N", help="batches an update, on each replica")
    parser.add_argument("--stages", type=int, choices=(1, 2, 4), default=1, help="of the pipeline (%(default)s)")
    parser.add_argument("--epochs", type=int, default=5, help="passes over the training images (%(default)s)")
    arguments = parser.parse_args()
    replicas, stages = arguments.replicas, arguments.stages
    fill = 2 * stages if stages > 1 else 1  # A pipeline has so many batches under way at once.
    accumulate = arguments.accumulate or fill
    if accumulate < 1 or accumulate % fill or UPDATE % (replicas * accumulate):
        parser.error(
            f"--accumulate {accumulate}: {UPDATE} images an update are shared by {replicas} replica(s), so give a divisor"
            f" of {UPDATE // replicas}" + (f" that {fill} divides, to fill {stages} stages" if stages > 1 else "")
        )

    sys.stdout.reconfigure(line_buffering=True)  # Lines appear as they come, in a pipe too.
    model, (losses, accuracies) = train_on_ipus(replicas, accumulate, stages, arguments.epochs)
    describe(model, replicas, accumulate, stages)

    alone = make_model()  # Outside of the scope: Keras on the CPU.
    compile_model(alone, 0.05, UPDATES_PER_EXECUTION)
    alone_losses, alone_accuracies = train(alone, UPDATE, arguments.epochs)
    apart = [np.max(np.abs(a - b)) for a, b in zip(model.get_weights(), alone.get_weights(), strict=True)]
    print(f"test accuracy: {accuracies[-1]:.4f}, Keras alone: {alone_accuracies[-1]:.4f}")
    print(f"largest difference of an epoch's loss: {np.max(np.abs(np.subtract(losses, alone_losses))):.1e}")
    print(f"largest difference of a weight: {max(apart):.1e}")


if __name__ == "__main__":
    main()
