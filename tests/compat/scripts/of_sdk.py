# ruff: noqa: T201
# The compatibility layer provides these names.
# pyright: reportAttributeAccessIssue=false
"""Code for the SDK with the Keras of 2021 that uses only names and arguments that Keras 3 has too."""

import os
import sys

import numpy as np
import tensorflow as tf
from tensorflow.python import ipu

v1 = tf.compat.v1

config = ipu.config.IPUConfig()
config.auto_select_ipus = 1
config.configure_ipu_system()
print("rate", float(tf.keras.optimizers.Adam(tf.constant(0.5)).learning_rate))


class Cell(tf.keras.layers.Layer):
    """A cell whose state and output are images."""

    state_size = tf.TensorShape([2, 2])
    output_size = tf.TensorShape([2, 2])

    def call(self, inputs, states):
        total = states[0] + inputs
        return total, [total]


print("cell", tf.keras.layers.RNN(Cell())(tf.ones([1, 3, 2, 2])).numpy().tolist())

with ipu.ipu_strategy.IPUStrategy().scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones", input_shape=(2,))])
    model.compile("sgd", "mse")
    model.fit(np.zeros([4, 2], np.float32), np.zeros([4, 1], np.float32), batch_size=2, verbose=0)
    model.save(sys.argv[1])
loaded = tf.keras.models.load_model(sys.argv[1])
print("saved", os.path.isdir(sys.argv[1]), loaded(tf.ones([1, 2])).numpy().tolist())

with tf.Graph().as_default():
    x = v1.placeholder(tf.float32, [1, 2])

    def net(x):
        with v1.variable_scope("net"):
            return v1.layers.dense(x, 1, kernel_initializer=v1.ones_initializer())

    with ipu.scopes.ipu_scope("/device:IPU:0"):
        run = ipu.ipu_compiler.compile(net, [x])
    tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))]).summary(print_fn=lambda line: None)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        print("layers", session.run(run, {x: [[1.0, 2.0]]})[0].tolist())
