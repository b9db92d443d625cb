"""Runs two parts of a network at the same time, as a pipeline stage of two functions on two IPUs.

The sum of two small networks learns the distance of a point from the origin. Both functions of a stage get the same
arguments. The arguments of the next stage are the results of the first function, then the results of the second:

                      +--> IPU 1: tanh of dense --+
    points --> IPU 0 -+                           +--> IPU 3: sum, loss
                      +--> IPU 2: relu of dense --+
"""

import argparse
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Hides TensorFlow's messages about its build.

import numpy as np
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import pipelining

BATCH, MICRO_BATCHES, UPDATES = 32, 12, 200


def points():
    """Returns batches of points in the plane with their distances from the origin."""
    x = np.random.default_rng(0).uniform(-1, 1, (4096, 2)).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((x, np.linalg.norm(x, axis=1, keepdims=True)))
    return dataset.batch(BATCH, drop_remainder=True).repeat()


def main():
    """Trains the network, and draws the plan if the command line names a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("picture", nargs="?", type=Path, help="a file for a picture of the plan")
    arguments = parser.parse_args()

    config = ipu.IPUConfig()
    config.auto_select_ipus = 4
    config.configure_ipu_system()
    strategy = ipu.IPUStrategy()
    tf.keras.utils.set_random_seed(1)
    with strategy.scope():
        smooth, edged, joined = (tf.keras.layers.Dense(width) for width in (16, 16, 1))
        smooth.build([BATCH, 2])
        edged.build([BATCH, 2])
        joined.build([BATCH, 32])
        variables = [variable for layer in (smooth, edged, joined) for variable in layer.trainable_variables]
        optimizer = tf.keras.optimizers.Adam(0.01)
        infeed, outfeed = ipu.IPUInfeedQueue(points()), ipu.IPUOutfeedQueue()

        def scaled(x, distance):
            return 2 * x, distance

        def first_part(x, _):
            return tf.tanh(smooth(x))

        def second_part(x, distance):
            return tf.nn.relu(edged(x)), distance

        def loss(a, b, distance):
            return tf.reduce_mean((joined(tf.concat([a, b], axis=1)) - distance) ** 2)

        def optimizer_function(loss):
            return pipelining.OptimizerFunctionOutput(optimizer, loss, variables=variables)

        @tf.function(jit_compile=True)
        def train():
            pipelining.pipeline(
                [scaled, [first_part, second_part], loss],
                device_mapping=[0, [1, 2], 3],
                gradient_accumulation_count=MICRO_BATCHES,
                reduction_method="mean",
                repeat_count=UPDATES,
                infeed_queue=infeed,
                outfeed_queue=outfeed,
                optimizer_function=optimizer_function,
                accumulate_outfeed=True,  # The outfeed gets one value per update, not one per micro-batch.
            )

        infeed.initializer  # noqa: B018  (The access starts it.)
        strategy.run(train)
        (sums,) = outfeed.dequeue()
        infeed.deleter  # noqa: B018
    losses = sums.numpy() / MICRO_BATCHES
    print(f"mean squared error: {losses[0]:.4f} at first, {losses[-1]:.6f} after {UPDATES} updates")

    plan = pipelining.last_pipeline().plan
    headline, first_steps, *_, legend = pipelining.plan_text(plan, width=78).split("\n\n")
    print(headline, first_steps, legend, sep="\n")
    if arguments.picture:
        pipelining.draw_plan(plan, arguments.picture)


if __name__ == "__main__":
    main()
