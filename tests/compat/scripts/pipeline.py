# ruff: noqa: T201
"""A pipeline of two stages in a graph and a session. The learning rate is an input of the first stage."""

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python import ipu
from tensorflow.python.ipu.ops import pipelining_ops

tf.disable_v2_behavior()

inputs = np.random.RandomState(0).randn(16, 2, 1).astype(np.float32)
dataset = tf.data.Dataset.from_tensor_slices((inputs, 3 * inputs + 1)).repeat()
infeed_queue = ipu.ipu_infeed_queue.IPUInfeedQueue(dataset)
outfeed_queue = ipu.ipu_outfeed_queue.IPUOutfeedQueue()


def stage1(rate, x, y):
    with tf.variable_scope("stage1", use_resource=True):
        weight = tf.get_variable("weight", initializer=tf.constant(0.5))
    return rate, weight * x, y


def stage2(rate, x, y):
    with tf.variable_scope("stage2", use_resource=True):
        bias = tf.get_variable("bias", initializer=tf.constant(0.0))
    return rate, tf.reduce_mean(tf.square(x + bias - y))


def optimizer_function(rate, loss):
    optimizer = tf.train.GradientDescentOptimizer(learning_rate=0.05)
    return pipelining_ops.OptimizerFunctionOutput(optimizer, loss * rate)


def model(rate):
    with tf.variable_scope("vs", use_resource=True):
        return pipelining_ops.pipeline(
            computational_stages=[stage1, stage2],
            gradient_accumulation_count=8,
            repeat_count=2,
            inputs=[rate],
            infeed_queue=infeed_queue,
            outfeed_queue=outfeed_queue,
            optimizer_function=optimizer_function,
            pipeline_schedule=pipelining_ops.PipelineSchedule.Interleaved,
            outfeed_mask=[True, False],
            name="Pipeline",
        )


config = ipu.config.IPUConfig()
config.auto_select_ipus = 2
config.configure_ipu_system()

with tf.device("cpu"):
    rate = tf.placeholder(tf.float32, [])
with ipu.scopes.ipu_scope("/device:IPU:0"):
    run = ipu.ipu_compiler.compile(model, inputs=[rate])
losses = outfeed_queue.dequeue()

with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    session.run(infeed_queue.initializer)
    session.run(run, {rate: 0.5})
    print("losses", *session.run(losses)[0])
    print("variables", *session.run(tf.trainable_variables()))
