"""Trains a digits network like scripts for `poprun`, with the names and modules of Graphcore's SDK.

    python -m tensorflow_ipu run --num-instances 2 --num-replicas 4 examples/popdist_digits.py

    instance 0: replicas 0 and 1, even images      instance 1: replicas 2 and 3, odd images
                     +------------- mean of all four gradients -------------+

`python examples/popdist_digits.py` trains with one replica, and `mpiexec -n 2 python examples/popdist_digits.py` with one
replica per instance. These two need `tensorflow_ipu.compat.install()`. `tensorflow_ipu run` finds the names of the SDK
without it.
"""

# ruff: noqa: E402
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Hides TensorFlow's messages about its build.

import tensorflow_ipu.compat

tensorflow_ipu.compat.install()  # The following imports need the names of the SDK.

import popdist
import popdist.tensorflow
import tensorflow as tf
from sklearn.datasets import load_digits
from tensorflow import keras
from tensorflow.python import ipu
from tensorflow.python.ipu.distributed.popdist_strategy import PopDistStrategy

BATCH = 96  # The batch of all replicas together.

popdist.init()
config = ipu.config.IPUConfig()
popdist.tensorflow.set_ipu_config(config, ipus_per_replica=1)
config.configure_ipu_system()

digits = load_digits()
images = (digits.images.reshape(-1, 64) / 16).astype("float32")[:1728]
labels = digits.target.astype("int32")[:1728]
dataset = tf.data.Dataset.from_tensor_slices((images, labels))
dataset = dataset.shard(popdist.getNumInstances(), popdist.getInstanceIndex())  # The part of this instance.
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
dataset = dataset.batch(BATCH // popdist.getNumTotalReplicas(), drop_remainder=True).with_options(options)

strategy = PopDistStrategy()
with strategy.scope():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input([64]), keras.layers.Dense(32, activation="tanh"), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.3), loss, metrics=["accuracy"], steps_per_execution=18)
    model.set_replication_options(replicated_metric_reduction_method="MEAN")
    history = model.fit(dataset, epochs=10, shuffle=False, verbose=0).history

print(
    f"instance {popdist.getInstanceIndex()} of {popdist.getNumInstances()}, {popdist.getNumTotalReplicas()} replicas:"
    f" loss {history['loss'][0]:.3f} to {history['loss'][-1]:.3f}, accuracy {history['accuracy'][-1]:.3f}"
)
