"""Starts a program twice: the second start does not compile it.

first start      trace ----> compile ----> run
                                |
                                v
                              a folder, by all that an executable depends on
                                |
second start     trace ---------+--------> run

Two calls stand for two processes here; the folder is the same to both.
"""

import os
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's remarks on how it was built.

import tensorflow as tf

import tensorflow_ipu as ipu

COUNTERS = ("ExecutablesStored", "ExecutablesLoaded")

strategy = ipu.IPUStrategy()


def start():
    """Makes all anew and runs it, as a process would; prints what was kept and what was found."""
    before = [ipu.counter_value(name) for name in COUNTERS]
    with strategy.scope():
        total = tf.Variable(0.0)
        data = iter(tf.data.Dataset.range(1, 5).map(lambda x: tf.cast(x, tf.float32)))

    @tf.function(jit_compile=True)
    def program(steps):
        for _ in tf.range(steps):
            total.assign_add(next(data) ** 2)

    strategy.run(program, (tf.constant(4),))
    counts = [ipu.counter_value(name) - then for name, then in zip(COUNTERS, before, strict=True)]
    print(total.numpy(), dict(zip(COUNTERS, counts, strict=True)))


with tempfile.TemporaryDirectory() as folder:
    ipu.executables.set_cache(folder)
    start()
    start()
    ipu.executables.set_cache(None)
