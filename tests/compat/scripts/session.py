# ruff: noqa: T201
"""Linear regression in a graph and a session: `ipu_compiler`, scopes, variables and an optimizer of TensorFlow 1."""

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python import ipu
from tensorflow.python.ipu import ipu_compiler, ipu_infeed_queue, ipu_outfeed_queue, loops, scopes, utils

tf.disable_v2_behavior()

STEPS = 20
inputs = np.random.RandomState(0).randn(64, 4).astype(np.float32)
targets = inputs @ np.array([[1.0], [2.0], [3.0], [4.0]], np.float32)

dataset = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(8, drop_remainder=True).repeat()
infeed_queue = ipu_infeed_queue.IPUInfeedQueue(dataset)
outfeed_queue = ipu_outfeed_queue.IPUOutfeedQueue()


def net(rate):
    def body(loss, x, y):
        with tf.variable_scope("linear", reuse=tf.AUTO_REUSE):
            weights = tf.get_variable("weights", [4, 1], initializer=tf.zeros_initializer())
            bias = tf.get_variable("bias", initializer=tf.ones([1]))
        loss = tf.reduce_mean(tf.square(tf.matmul(x, weights) + bias - y))
        train = tf.train.GradientDescentOptimizer(rate).minimize(loss)
        with tf.control_dependencies([train]):
            return loss, outfeed_queue.enqueue(loss)

    return loops.repeat(STEPS, body, [0.0], infeed_queue)


config = ipu.utils.IPUConfig()
config.auto_select_ipus = 1
config.configure_ipu_system()

with tf.device("cpu"):
    rate = tf.placeholder(tf.float32, [])
with scopes.ipu_scope("/device:IPU:0"):
    run = ipu_compiler.compile(net, [rate])
dequeue = outfeed_queue.dequeue()
utils.move_variable_initialization_to_cpu()

with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    session.run(infeed_queue.initializer)
    for _ in range(2):
        (last,) = session.run(run, {rate: 0.05})
        losses = session.run(dequeue)
        print("losses", *losses)
        print("last", last == losses[-1])
    print("unread", session.run(dequeue).shape)
    for variable in tf.trainable_variables():
        print(variable.op.name, variable.device, *session.run(variable).ravel())
    session.run([infeed_queue.deleter, outfeed_queue.deleter])
