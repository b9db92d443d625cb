"""Trains a digits network in any number of processes, each with some of the replicas, on one machine or many.

    mpiexec -n 2 python examples/many_hosts.py
    python -m tensorflow_ipu run --instances 2 --replicas 4 examples/many_hosts.py  # The same, by the launcher.

Alone, `python examples/many_hosts.py` trains the same with all four replicas in one process.

    worker 0:  replicas 0 and 1          worker 1:  replicas 2 and 3

    batches 0, 1, 4, 5, ...              batches 2, 3, 6, 7, ...
    gradient  ---- sum over the two, then over the workers ---->  gradient
    the same update                      the same update

Every worker has the same weights and the same losses at any time, and they are those of the one process.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's remarks on how it was built.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # The same figures on every processor, as far as that goes.

import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits

import tensorflow_ipu as ipu
from tensorflow_ipu.ops.cross_replica_ops import cross_replica_mean

SEED = 1
REPLICAS = 4
BATCH = 12
UPDATES = 144

strategy = ipu.IPUMultiWorkerStrategy()  # First of all: joins the other workers that MPI has started.
cluster = strategy.cluster

config = ipu.IPUConfig()
config.auto_select_ipus = REPLICAS // cluster.workers
config.configure_ipu_system()

digits = load_digits()
images = (digits.images.reshape(-1, 64) / 16).astype(np.float32)[:1728]  # 36 rounds of 4 batches.
labels = digits.target.astype(np.int32)[:1728]
dataset = tf.data.Dataset.from_tensor_slices((images, labels)).batch(BATCH, drop_remainder=True)

# Each worker is given the whole dataset, and takes its own share.
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
