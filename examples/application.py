"""Compiles a program into a file, starts it with new weights, and calls it from several threads.

    compile:  function --> experimental_application_compile_op --> a file: functions and executable, no weights

    start:    file, weights --> +--------------------------------+
                                | forever:                       |
    call:     thread 1 -- x --> |   infeed -> program -> outfeed | --> each y to the thread that sent its x
              thread 2 -- x --> |                                |
                                +--------------------------------+

The start and the calls may be in another process, because they use only the file.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Hides TensorFlow's messages about its build.

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.executables import application_compile_op, embedded_runtime

CALLS = 8


def write(path):
    """Compiles a layer with two by two weights into a file."""
    with ipu.IPUStrategy().scope():
        weights = tf.Variable(tf.zeros([2, 2]), name="weights")
        infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensors({"x": tf.zeros([2])}).repeat())
        infeed.initializer  # noqa: B018  (The access starts it.)
        outfeed = ipu.IPUOutfeedQueue()

        def predict(scale):
            def step(x):
                return outfeed.enqueue({"y": scale * tf.linalg.matvec(weights, x)})

            return ipu.loops.repeat(100, step, [], infeed)

        application_compile_op.experimental_application_compile_op(predict, [tf.constant(0.0)], path)
        infeed.deleter  # noqa: B018  (The access ends it.)


def main():
    """Writes the file, starts it and calls it."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "layer.poplar_exec"))
        write(path)
        inputs = {"scale": 10.0, "weights": tf.constant([[1.0, 0.0], [1.0, 1.0]])}
        context = embedded_runtime.embedded_runtime_start(path, inputs, "layer")
    for kind in ("inputs", "streamed_inputs", "streamed_outputs"):
        print(f"{kind}:", ", ".join(f"{spec.name} {spec.shape}" for spec in getattr(context.signature(), kind)))

    def call(number):
        (y,) = embedded_runtime.embedded_runtime_call([tf.constant([number, 1.0])], context, timeout_seconds=60)
        return y.numpy().tolist()

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(call, map(float, range(CALLS))))
    print("answers:", answers[0], "to", answers[-1])
    embedded_runtime.embedded_runtime_stop(context)


if __name__ == "__main__":
    main()
