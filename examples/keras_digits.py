"""Trains on handwritten digits by `model.fit`: on one IPU, replicated, with accumulated gradients, in pipeline stages.

Options select the mode, and can be combined. In each mode, an update uses the same 64 images. So the network learns the same
weights as in plain Keras with batches of 64. The script trains it in both ways and compares:

    --replicas 4                  --accumulate 4                  --stages 2

    IPU 0 .. 3: 16 images         16 + 16 + 16 + 16 images        IPU 0: 16 16 16 16 ->
       |     |  mean of all       in turn,                        IPU 1:    16 16 16 16  mean of all
       +-----+  gradients         mean of their gradients         the IPUs work in parallel
"""

import argparse
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Hides TensorFlow's messages about its build.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # Makes results depend less on the processor.

import keras
import numpy as np
from sklearn.datasets import load_digits

import tensorflow_ipu as ipu

SEED = 1
TRAINING, TEST = 1280, 512
UPDATE = 64  # The number of images in an update of the weights.
UPDATES_PER_EXECUTION = 4  # The number of updates in a run of a program.


def load_data():
    """Returns images as float32 [n, 64] from 0 to 1 and digits as int32 [n], for training and for the test."""
    digits = load_digits()
    images, labels = (digits.data / 16).astype(np.float32), digits.target.astype(np.int32)
    order = np.random.default_rng(SEED).permutation(len(images))
    training, test = order[:TRAINING], order[TRAINING : TRAINING + TEST]
    return (images[training], labels[training]), (images[test], labels[test])


def make_model():
    """Returns a network of four layers, with inputs of 64 pixels and ten logits. Its weights are the same in each call."""
    keras.utils.set_random_seed(SEED)
    widths = (64, 64, 32)
    hidden = [keras.layers.Dense(width, "relu", name=f"hidden_{number}") for number, width in enumerate(widths)]
    return keras.Sequential([keras.layers.Input([64]), *hidden, keras.layers.Dense(10, name="answer")])


def compile_model(model, learning_rate, steps_per_execution):
    """Compiles a model that was created in the scope or outside of it."""
    model.compile(
        optimizer=keras.optimizers.SGD(learning_rate, momentum=0.9),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=steps_per_execution,
    )


def train(model, batch_size, epochs, callbacks=()):
    """Trains a model by `fit`, and returns the losses and the test accuracies [epochs]."""
    keras.utils.set_random_seed(SEED)  # Determines the order of the images, which are shuffled in each epoch.
    (images, labels), test = load_data()
    options = {"validation_data": test, "callbacks": list(callbacks), "verbose": 0}
    history = model.fit(images, labels, batch_size=batch_size, epochs=epochs, **options).history
    return history["loss"], history["val_accuracy"]


def train_on_ipus(replicas, accumulate, stages, epochs):
    """Trains a model on IPUs, and returns the model and the result of `train`."""
    config = ipu.IPUConfig()
    config.auto_select_ipus = replicas * stages
    config.configure_ipu_system()
    with ipu.IPUStrategy().scope():
        model = make_model()
        # Gradients are summed over the replicas. Dividing the rate by their number makes the sum a mean.
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
        model.set_replication_options("MEAN")  # By default, logs show the metrics of the last replica.

    def print_epoch(epoch, logs):
        print(f"epoch {epoch + 1}  training loss {logs['loss']:.4f}  test accuracy {logs['val_accuracy']:.4f}")

    report = keras.callbacks.LambdaCallback(on_epoch_end=print_epoch)
    return model, train(model, UPDATE // (replicas * accumulate), epochs, [report])


def describe(model, replicas, accumulate, stages):
    """Prints how the images of an update are split, and the layers of each pipeline stage."""
    batch = UPDATE // (replicas * accumulate)
    split = f"{replicas} replica(s) x {accumulate} batch(es) x {batch} images"
    print(f"{replicas * stages} IPU(s); an update: {split} = {UPDATE} images")
    print(f"{int(model.optimizer.iterations)} updates, {UPDATES_PER_EXECUTION} in each run of the program")
    if stages > 1:
        for assignment in model.get_pipeline_stage_assignment():
            print(f"stage {assignment.pipeline_stage}: {assignment.layer.name}")


def main():
    """Trains in the mode that the options select and in plain Keras, and compares the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--replicas", type=int, choices=(1, 2, 4, 8), default=1, help="copies of the model (%(default)s)"
    )
    parser.add_argument("--accumulate", type=int, metavar="N", help="batches per update on each replica")
    parser.add_argument("--stages", type=int, choices=(1, 2, 4), default=1, help="pipeline stages (%(default)s)")
    parser.add_argument("--epochs", type=int, default=5, help="passes over the training images (%(default)s)")
    arguments = parser.parse_args()
    replicas, stages = arguments.replicas, arguments.stages
    fill = 2 * stages if stages > 1 else 1  # The number of batches that a pipeline processes at the same time.
    accumulate = arguments.accumulate or fill
    if accumulate < 1 or accumulate % fill or UPDATE % (replicas * accumulate):
        parser.error(
            f"--accumulate {accumulate}: {UPDATE} images an update are shared by {replicas} replica(s), so give a divisor"
            f" of {UPDATE // replicas}" + (f" that {fill} divides, to fill {stages} stages" if stages > 1 else "")
        )

    sys.stdout.reconfigure(line_buffering=True)  # Prints each line at once, also to a pipe.
    model, (losses, accuracies) = train_on_ipus(replicas, accumulate, stages, arguments.epochs)
    describe(model, replicas, accumulate, stages)

    plain = make_model()  # Outside of the scope, Keras trains on the CPU.
    compile_model(plain, 0.05, UPDATES_PER_EXECUTION)
    plain_losses, plain_accuracies = train(plain, UPDATE, arguments.epochs)
    differences = [np.max(np.abs(a - b)) for a, b in zip(model.get_weights(), plain.get_weights(), strict=True)]
    print(f"test accuracy: {accuracies[-1]:.4f}, Keras alone: {plain_accuracies[-1]:.4f}")
    print(f"largest difference of an epoch's loss: {np.max(np.abs(np.subtract(losses, plain_losses))):.1e}")
    print(f"largest difference of a weight: {max(differences):.1e}")


if __name__ == "__main__":
    main()
