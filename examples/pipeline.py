"""Trains a network in four stages on four emulated IPUs, and in plain TensorFlow, with the same resulting weights.

The data are scikit-learn's 1797 digits of 8 by 8 pixels. A picture shows the execution of the stages:

    images --> infeed --> IPU 0: dense --> IPU 1: dense --> IPU 2: dense --> IPU 3: dense, loss --> outfeed --> losses
"""

import argparse
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Hides TensorFlow's messages about its build.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # Makes results depend less on the processor.

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import tensorflow_ipu as ipu
from tensorflow_ipu import pipelining

SEED = 1
BATCH = 16
MICRO_BATCHES = 16  # The number of micro-batches of a weight update.
UPDATES = 60
SCHEDULES = {schedule.name.lower(): schedule for schedule in pipelining.PipelineSchedule}


def load_data():
    """Returns images as float32 [n, 64] from 0 to 1 and digits as int32 [n], for training and for the test."""
    digits = load_digits()
    images, labels = (digits.data / 16).astype(np.float32), digits.target.astype(np.int32)
    order = np.random.default_rng(SEED).permutation(len(images))
    training, test = order[360:], order[:360]
    return images[training], labels[training], images[test], labels[test]


def dataset_of(images, labels):
    """Returns all batches of the training, in an order that is the same in each call."""
    rng = np.random.default_rng(SEED)
    count = UPDATES * MICRO_BATCHES * BATCH
    order = np.concatenate([rng.permutation(len(images)) for _ in range(-(-count // len(images)))])[:count]
    return tf.data.Dataset.from_tensor_slices((images[order], labels[order])).batch(BATCH, drop_remainder=True)


def make_layers():
    """Returns four layers, one for each stage. Their weights are the same in each call."""
    layers = [tf.keras.layers.Dense(64, "relu", kernel_initializer=_initializer(number)) for number in range(3)]
    layers.append(tf.keras.layers.Dense(10, kernel_initializer=_initializer(3)))
    for layer in layers:
        layer.build([BATCH, 64])
    return layers


def _initializer(number):
    return tf.keras.initializers.GlorotUniform(seed=SEED + number)


def loss_of(logits, labels):
    """Returns the mean cross entropy of a batch."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def make_optimizer():
    """Returns an optimizer. Gradients are summed over micro-batches, so its rate is divided by their number."""
    return tf.keras.optimizers.SGD(0.2 / MICRO_BATCHES, momentum=0.9)


def variables_of(layers):
    """Returns all weights and biases."""
    return [variable for layer in layers for variable in layer.trainable_variables]


def train_in_stages(dataset, schedule):
    """Trains on four IPUs, and returns the layers, the losses and the program."""
    config = ipu.IPUConfig()
    config.auto_select_ipus = 4
    config.configure_ipu_system()
    strategy = ipu.IPUStrategy()
    with strategy.scope():
        layers = make_layers()
        optimizer = make_optimizer()
        infeed, outfeed = ipu.IPUInfeedQueue(dataset), ipu.IPUOutfeedQueue()

        def first(x, y):
            return layers[0](x), y

        def second(x, y):
            return layers[1](x), y

        def third(x, y):
            return layers[2](x), y

        def last(x, y):
            return loss_of(layers[3](x), y)

        def optimizer_function(loss):
            return pipelining.OptimizerFunctionOutput(optimizer, loss, variables=variables_of(layers))

        @tf.function(jit_compile=True)
        def train():
            pipelining.pipeline(
                [first, second, third, last],
                gradient_accumulation_count=MICRO_BATCHES,
                repeat_count=UPDATES,
                infeed_queue=infeed,
                outfeed_queue=outfeed,
                optimizer_function=optimizer_function,
                pipeline_schedule=schedule,
            )

        infeed.initializer  # noqa: B018  (The access starts it.)
        strategy.run(train)
        (losses,) = outfeed.dequeue()
    return layers, losses.numpy(), train


def train_in_one_piece(dataset):
    """Trains the same layers in plain TensorFlow on the same batches, and returns them."""
    layers = make_layers()
    variables = variables_of(layers)
    optimizer = make_optimizer()
    optimizer.build(variables)

    @tf.function(jit_compile=True)
    def gradients(x, y):
        with tf.GradientTape() as tape:
            for layer in layers:
                x = layer(x)
            loss = loss_of(x, y)
        return tape.gradient(loss, variables)

    batches = iter(dataset)
    for _ in range(UPDATES):
        total = gradients(*next(batches))
        for _ in range(MICRO_BATCHES - 1):
            total = [a + b for a, b in zip(total, gradients(*next(batches)), strict=True)]
        optimizer.apply_gradients(zip(total, variables, strict=True))
    return layers


def main():
    """Trains in both ways, compares the weights, tests the network, and draws the plan."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", nargs="?", type=Path, default=Path("output/pipeline.png"), help="(%(default)s)")
    parser.add_argument("--schedule", choices=SCHEDULES, default="grouped", help="(%(default)s)")
    arguments = parser.parse_args()

    images, labels, test_images, test_labels = load_data()
    dataset = dataset_of(images, labels)
    layers, losses, program = train_in_stages(dataset, SCHEDULES[arguments.schedule])
    print(
        f"loss of the first update {losses[:MICRO_BATCHES].mean():.3f}, of the last {losses[-MICRO_BATCHES:].mean():.3f}"
    )

    expected = variables_of(train_in_one_piece(dataset))
    difference = max(np.abs(a.numpy() - b.numpy()).max() for a, b in zip(variables_of(layers), expected, strict=True))
    print(f"largest difference to the weights of the network in one piece: {difference:.0e}")

    x = test_images
    for number, layer in enumerate(layers):
        x = x @ layer.kernel.numpy() + layer.bias.numpy()
        x = np.maximum(x, 0) if number < 3 else x
    print(f"test accuracy: {np.mean(np.argmax(x, axis=1) == test_labels):.4f}")

    (pipeline,) = pipelining.pipelines_of(program)
    cost = pipelining.plan_cost(pipeline.plan, pipeline.stage_costs)
    depths = [pipeline.plan.stash_depth(stage) for stage in range(4)]
    print(f"stash depths {depths}, bubble {cost.bubble_share:.0%}")
    arguments.picture.parent.mkdir(parents=True, exist_ok=True)
    pipelining.draw_plan(pipeline.plan, arguments.picture, pipeline.stage_costs)
    print(f"picture of the plan: {arguments.picture.resolve()}")


if __name__ == "__main__":
    main()
