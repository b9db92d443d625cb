"""A module in the folder of a script."""

from tensorflow.compiler.plugin.poplar.ops import gen_no_such_ops


def use():
    return gen_no_such_ops
