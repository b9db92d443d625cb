"""Trains a recurrent layer of TensorFlow 1's style in a session, to predict the sign of sums of sequences.

A `BufferDataset` drops the last elements if they are too few for a run. At the end, the weights are rounded to eight bits to
measure the error.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Hides TensorFlow's messages about its build.

import numpy as np
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.ops.popfloat_cast_to_gfloat import GenericFloat
from tensorflow_ipu.ops.rnn_ops import PopnnDynamicLSTM

TIME, BATCH, UNITS, STEPS = 6, 16, 8, 60

random = np.random.default_rng(0)
x = random.normal(size=[100, TIME, BATCH, 1]).astype(np.float32)
lengths = random.integers(1, TIME + 1, [100, BATCH]).astype(np.int32)
runs = np.arange(TIME)[:, np.newaxis] < lengths[:, np.newaxis]
labels = (np.sum(x[..., 0] * runs, axis=1) > 0).astype(np.float32)
eight_bits = GenericFloat(man=3, exp=4, bias=7)

with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    dataset = tf.data.Dataset.from_tensor_slices((x, lengths, labels))
    # The dataset has 100 elements. A run takes 60, and the other 40 are too few for another run.
    infeed = ipu.IPUInfeedQueue(ipu.feeds.BufferDataset(dataset, STEPS))
    outfeed = ipu.IPUOutfeedQueue()
    lstm = PopnnDynamicLSTM(UNITS, seed=1)

    def logits_of(x, lengths):
        """Returns the logits of the sequences, of shape [batch]."""
        _, state = lstm(x, lengths)
        return tf.reduce_sum(state.h, axis=1)

    def body(x, lengths, labels):
        """Runs a training step."""
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits_of(x, lengths)))
        train = tf.compat.v1.train.AdamOptimizer(0.05).minimize(loss)
        return outfeed.enqueue(loss), train

    with ipu.scopes.ipu_scope("/device:IPU:0"):
        run = ipu.compiler.compile(lambda: ipu.loops.repeat(STEPS, body, [], infeed))
    losses = outfeed.dequeue()
    rounded = eight_bits.cast_gfloat_to_native(eight_bits.cast_native_to_gfloat(lstm.kernel, en_nanoo=False))
    error = tf.reduce_max(tf.abs(tf.cast(rounded, tf.float32) - lstm.kernel)) / tf.reduce_max(tf.abs(lstm.kernel))
    session.run(tf.compat.v1.global_variables_initializer())
    session.run(infeed.initializer)
    session.run(run)
    first, *_, last = session.run(losses)
    print("variables:", ", ".join(variable.op.name for variable in lstm.variables))
    print("the loss halved:", bool(last < first / 2))
    print("eight bits cost at most a sixteenth of the largest weight:", bool(session.run(error) <= 1 / 16))
