"""Runs a program with operations that were written for the tiles of an IPU, which TensorFlow functions emulate.

    the program, as it ran on IPUs                        the emulation

    precompiled_user_op([x, y], "libnorm.so",             register_user_op_emulation("Build", norm)
                        "norm_codelet.gp", outs=...)          norm: a function of TensorFlow operations,
                                                              which TensorFlow also differentiates
    codelet_expression_op(lambda x, y: x * x + y, ...)    not needed: the expression defines the results

The files of the operation are never opened, and need not exist.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Hides TensorFlow's messages about its build.

import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.ops import custom_ops, register_user_op_emulation

STEPS = 19


def scaled_distance(x, y, attributes):
    """Returns the distance of two points, times a factor, as `Build` of `libdistance.so` does."""
    return float(attributes) * tf.norm(x - y)


def train(point, target):
    """Moves a point towards another by the gradient of the operation. This is the program."""
    for _ in tf.range(STEPS):
        with tf.GradientTape() as tape:
            tape.watch(point)
            (distance,) = custom_ops.precompiled_user_op(
                [point, target],
                "libdistance.so",
                "distance_codelet.gp",
                outs={"output_types": [tf.float32], "output_shapes": [[]]},
                attributes="0.5",
            )
        point -= 0.5 * tape.gradient(distance, point)
    squares = custom_ops.codelet_expression_op(lambda x, y: x * x + y * y, point, target)
    return point, squares


def main():
    """Registers the emulation and runs the program."""
    register_user_op_emulation("Build", scaled_distance)
    program = tf.function(train, jit_compile=True)
    point, squares = ipu.IPUStrategy().run(program, (tf.constant([3.0, 4.0]), tf.constant([0.0, 0.0])))
    print("after", STEPS, "steps of a quarter:", point.numpy().round(2))
    print("squares:", squares.numpy().round(2))


if __name__ == "__main__":
    main()
