"""In what order a machine would run a computation: one that keeps little in memory."""

import tensorflow as tf

from tensorflow_ipu.machine import GC200
from tensorflow_ipu.machine._hlo import read
from tensorflow_ipu.machine._liveness import frugal_order, peak_of

ROWS, WIDTH = 512, 64
INPUT = 4 * ROWS * WIDTH  # Bytes of what a layer gets and gives; inside it is four times as wide.


def backward_pass(hlo, layers, wrapped):
    """The gradients of so many layers, added to sums that the caller holds, as are the layers' inputs."""

    @wrapped
    def layer(x, first, second):
        return x + tf.tanh(tf.tanh(x @ first) * 2.0) @ second

    def program(x, weights, sums):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            for each in weights:
                x = layer(x, *each)
            loss = tf.reduce_sum(x * x)
        return tf.nest.map_structure(tf.add, sums, tape.gradient(loss, weights))

    weights = [(tf.zeros([WIDTH, 4 * WIDTH]), tf.zeros([4 * WIDTH, WIDTH]))] * layers
    return read(hlo(program, tf.zeros([ROWS, WIDTH]), weights, weights))


def test_layers_that_recompute_are_in_memory_one_at_a_time(hlo):
    few, many = (peak_of(backward_pass(hlo, layers, tf.recompute_grad), GC200, 0.1).bytes for layers in (2, 6))
    # Each further layer keeps its input: what is inside of it comes and goes.
    assert few < many <= few + 4.1 * INPUT
    kept = [peak_of(backward_pass(hlo, layers, lambda layer: layer), GC200, 0.1).bytes for layers in (2, 6)]
    assert kept[1] >= kept[0] + 4 * 8 * INPUT


def test_an_order_has_all_operations_each_behind_its_operands(hlo):
    program = backward_pass(hlo, 3, tf.recompute_grad)
    order = frugal_order(program)
    assert set(order) == set(program.operations)
    assert len(order) == len(program.operations)
    places = {operation: at for at, operation in enumerate(order)}
    assert all(places[operand] < places[each] for each in order for operand in each.operands)
