"""Packs sequences of different lengths into one without padding, computes with it, and unpacks the results.

padded [batch * longest, size]            packed [total, size]

a a . .   unpack                          a a b b b c
b b b .   ------------------------------> the program does not compute padding
c . . .   <------------------------------ f(a) f(a) f(b) f(b) f(b) f(c)
          pack
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Hides TensorFlow's messages about its build.

import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.ops import slicing_ops, statistics_ops

BATCH, LONGEST, SIZE, TOTAL = 3, 4, 2, 6

lengths = tf.constant([2, 3, 1])
begins = tf.range(BATCH) * LONGEST
padded = tf.reshape(tf.range(BATCH * LONGEST * SIZE, dtype=tf.float32), [-1, SIZE])


@tf.function(jit_compile=True)
def program(padded, lengths):
    """Returns the squares of all rows without padding, in their original positions, and a histogram of the squares."""
    packed = slicing_ops.sequence_slice_unpack(padded, lengths, begins, TOTAL)
    squares = packed * packed
    counts = statistics_ops.histogram(tf.reshape(squares, [-1]), [1.0, 10.0, 100.0])
    return slicing_ops.sequence_slice_pack(padded, squares, lengths, begins, zero_unused=True), counts


strategy = ipu.IPUStrategy()
squares, counts = strategy.run(program, [padded, lengths])
for sequence in tf.reshape(squares, [BATCH, LONGEST, SIZE]):
    print(sequence[:, 0].numpy().tolist())
print("below 1, 10, 100, and from there on:", counts.numpy().astype(int).tolist())
