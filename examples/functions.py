"""Compiles the equal layers of a network as one function, which each layer calls with different weights.

x --> block --> block --> ... --> block --> y        in Python: 24 calls with different weights
        |         |                 |
        +---------+------ ... ------+                in the program: one function forward, one backward
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Hides TensorFlow's messages about its build.

import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.ops.control_flow_ops import barrier
from tensorflow_ipu.ops.functional_ops import outlined_function

SIZE, LAYERS = 16, 24

strategy = ipu.IPUStrategy()
with strategy.scope():
    weights = [tf.Variable(tf.eye(SIZE) * 0.9) for _ in range(LAYERS)]


def stack(x, decorator):
    """Applies the layers to `x`, and returns a loss and its gradients with respect to all weights."""

    def layer(matrix):
        return decorator(lambda x: tf.nn.softmax(tf.nn.gelu(x @ matrix) + tf.tanh(x)))

    with tf.GradientTape() as tape:
        for matrix in weights:
            x = layer(matrix)(x)
        loss = tf.reduce_mean(x**2)
    return barrier([loss, *tape.gradient(loss, weights)])  # The loss is available only after all gradients.


plain = tf.function(lambda x: stack(x, lambda function: function), jit_compile=True)
outlined = tf.function(lambda x: stack(x, outlined_function), jit_compile=True)
x = tf.ones([4, SIZE])
results = []
for name, function in (("plain", plain), ("outlined", outlined)):
    ipu.clear_metrics()
    results.append(strategy.run(function, (x,)))
    operations = function.get_concrete_function(x).graph.get_operations()
    calls = [operation.get_attr("f").name for operation in operations if operation.type == "IpuOutlined"]
    shared = f"{len(calls)} calls of {len(set(calls))} functions" if calls else "nothing shared"
    print(f"{name}: {len(operations)} operations, {shared}; compiled in {ipu.metric_data('CompileTime')[1]:.2f} s")

same = all(bool(tf.reduce_all(tf.abs(a - b) < 1e-5)) for a, b in zip(*results, strict=True))
print("the same loss and gradients:", same)
