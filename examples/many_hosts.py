"""Trains a digits network in any number of processes on one host or several. Each process has some of the replicas.

    mpiexec -n 2 python examples/many_hosts.py
    python -m tensorflow_ipu run --instances 2 --replicas 4 examples/many_hosts.py  # The same, by the launcher.

`python examples/many_hosts.py` trains the same network with all four replicas in one process.

    worker 0:  replicas 0 and 1          worker 1:  replicas 2 and 3

    batches 0, 1, 4, 5, ...              batches 2, 3, 6, 7, ...
    gradient  ---- sum over the two, then over the workers ---->  gradient
    the same update                      the same update

All workers always have the same weights and losses. A single process gets these weights and losses too.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Hides TensorFlow's messages about its build.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # Makes results depend less on the processor.

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import tensorflow_ipu as ipu
from tensorflow_ipu.ops.cross_replica_ops import cross_replica_mean

SEED = 1
REPLICAS = 4
BATCH = 12
UPDATES = 144

strategy = ipu.IPUMultiWorkerStrategy()  # Joins the other workers that MPI has started. This must come first.
cluster = strategy.cluster

config = ipu.IPUConfig()
config.auto_select_ipus = REPLICAS // cluster.workers
config.configure_ipu_system()

digits = load_digits()
images = (digits.images.reshape(-1, 64) / 16).astype(np.float32)[:1728]  # 36 rounds of 4 batches.
labels = digits.target.astype(np.int32)[:1728]
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).batch(BATCH, drop_remainder=True)

# Each worker passes the whole dataset, and gets its share of the batches.
dataset = strategy.experimental_distribute_dataset(dataset.repeat())

with strategy.scope():
    tf.keras.utils.set_random_seed(SEED)
    model = tf.keras.Sequential(
        [tf.keras.layers.Input([64]), tf.keras.layers.Dense(64, activation="tanh"), tf.keras.layers.Dense(10)]
    )
    cross_entropy = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    iterator = iter(dataset)

    @tf.function(jit_compile=True)
    def train(iterator):
        """Returns the mean loss of the last update, over all replicas of all workers."""
        loss = tf.zeros([])
        for _ in tf.range(UPDATES):
            x, y = next(iterator)
            with tf.GradientTape() as tape:
                loss = cross_entropy(y, model(x, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            for weight, gradient in zip(model.trainable_variables, gradients, strict=True):
                weight.assign_sub(0.5 * cross_replica_mean(gradient))
        return cross_replica_mean(loss)

    loss = strategy.run(train, args=(iterator,))

checksum = sum(float(tf.reduce_sum(tf.abs(weight))) for weight in model.weights)
print(
    f"worker {cluster.worker} of {cluster.workers}, {strategy.num_replicas_in_sync} replicas: loss {float(loss):.4f},"
    f" sum of weights {checksum:.2f}"
)
