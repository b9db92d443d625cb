"""Learns word vectors that predict the next word. Their table is on the host, because it is too large for a program.

the program:   words ---> rows of the table ---> layers (outlined, so that they share code) -> loss
^                                                               |
the host:                   table of 2 GiB  <--- stochastic gradient descent on the rows  <----+
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Hides TensorFlow's messages about its build.

import numpy as np
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.ops import embedding_ops, functional_ops

WORDS, WIDTH, USED = 1 << 24, 32, 4
STEPS = 200

strategy = ipu.IPUStrategy()
embedding = embedding_ops.create_host_embedding(
    "words",
    [WORDS, WIDTH],
    tf.float32,
    optimizer_spec=embedding_ops.HostEmbeddingOptimizerSpec(0.5),
    initializer=tf.zeros_initializer(),
)
# The corpus uses four words, which are far apart in the table. Each word is followed by the next one.
words = np.arange(USED, dtype=np.int32) * (WORDS // USED)
embedding.table[words] = np.random.default_rng(0).normal(size=[USED, WIDTH]) / 8
with strategy.scope():
    weights = [tf.Variable(tf.eye(WIDTH)) for _ in range(3)]


@tf.function(jit_compile=True)
def train():
    """Trains the layers and word vectors to predict the word that follows each word."""
    loss = 0.0
    for _ in tf.range(STEPS):
        with tf.GradientTape() as tape:
            x = rows = embedding.lookup(words)
            for weight in weights:

                @functional_ops.outlined_function
                def layer(x, weight=weight):
                    return x + tf.tanh(tf.matmul(x, weight))

                x = layer(x)
            logits = tf.matmul(x, rows, transpose_b=True)
            labels = (tf.range(USED) + 1) % USED
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        gradients = tape.gradient(loss, [*weights, *embedding.trainable_variables])
        for weight, gradient in zip(weights, gradients, strict=False):
            weight.assign_sub(0.5 * gradient)
    return loss, tf.argmax(logits, 1)


with embedding.register():
    first = float(strategy.run(train)[0])
    for _ in range(2):
        loss, followers = strategy.run(train)
print(f"a table of {embedding.table.nbytes >> 30} GiB")
print("the loss fell:", float(loss) < first < np.log(USED))
print("followers:", followers.numpy().tolist())
