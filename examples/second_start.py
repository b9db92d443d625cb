"""Starts a program twice: the second start does not compile it.

first start      trace ----> compile ----> run
                                |
                                v
                              a folder of executables
                                |
second start     trace ---------+--------> run

Here, two calls represent two processes with the same folder.
"""

import os
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Hides TensorFlow's messages about its build.

import tensorflow as tf

import tensorflow_ipu as ipu

COUNTERS = ("ExecutablesStored", "ExecutablesLoaded")

LAYERS = 24

strategy = ipu.IPUStrategy()


def start():
    """Creates a program and runs it, as a new process would; prints the counters of the cache and the times."""
    with strategy.scope():
        weights = [tf.Variable(tf.eye(64)) for _ in range(LAYERS)]
        data = iter(tf.data.Dataset.from_tensors(tf.ones([8, 64])).repeat())

    @tf.function(jit_compile=True)
    def program(steps):
        for _ in tf.range(steps):
            with tf.GradientTape() as tape:
                x = next(data)
                for matrix in weights:
                    x = tf.nn.softmax(tf.nn.gelu(x @ matrix) + x)
                loss = tf.reduce_sum(x**2)
            for matrix, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
                matrix.assign_sub(0.1 * gradient)

    ipu.clear_metrics()
    strategy.run(program, (tf.constant(4),))
    traced, run = (ipu.metric_data(name)[1] for name in ("TraceTime", "RunTime"))
    print(
        {name: ipu.counter_value(name) for name in COUNTERS}, f"traced in {traced:.2f} s, ready and run in {run:.2f} s"
    )
    return run


with tempfile.TemporaryDirectory() as folder:
    ipu.executables.set_cache(folder)
    cold, warm = start(), start()
    ipu.executables.set_cache(None)

print(f"cold {cold:.2f} s, warm {warm:.2f} s: {cold / warm:.0f} times as fast")
