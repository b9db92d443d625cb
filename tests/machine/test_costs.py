"""Costs of operations against closed forms."""

import dataclasses
import math

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorflow_ipu import scopes
from tensorflow_ipu.machine import GC200
from tensorflow_ipu.machine._costs import best_grid
from tensorflow_ipu.machine._hlo import Product

HZ = GC200.clock_hz


def only(report, kind):
    (row,) = [row for row in report.operations if row.kind == kind]
    return row


def test_an_elementwise_operation_shares_its_elements_among_the_tiles(report):
    row = only(report(tf.exp, tf.zeros([1472 * 10])), "exponential")
    assert row.compute == pytest.approx(10 / GC200.float_functions / HZ)
    assert row.exchange == 0
    assert row.sync == pytest.approx(GC200.sync_cycles / HZ)
    half = only(report(tf.exp, tf.zeros([1472 * 10], tf.float16)), "exponential")
    assert half.compute == pytest.approx(row.compute / 2)


def test_a_chain_of_elementwise_operations_synchronises_once(report):
    made = report(lambda x: tf.tanh(tf.exp(x) * 2.0), tf.zeros([1000]))
    assert made.part_seconds("sync") == pytest.approx(GC200.sync_cycles / HZ)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float16])
def test_a_product_counts_its_multiply_adds(report, dtype):
    row = only(report(tf.matmul, tf.zeros([64, 96], dtype), tf.zeros([96, 32], dtype)), "dot")
    assert row.flops == 2 * 64 * 96 * 32
    batched = only(report(tf.matmul, tf.zeros([5, 64, 96], dtype), tf.zeros([5, 96, 32], dtype)), "dot")
    assert batched.flops == 5 * row.flops


@pytest.mark.parametrize(("stride", "size"), [(1, 14), (2, 7)])
def test_a_convolution_counts_what_it_is_as_a_product(report, stride, size):
    image, kernel = tf.zeros([8, 16, 16, 4]), tf.zeros([3, 3, 4, 6])
    made = report(lambda x, w: tf.nn.conv2d(x, w, stride, "VALID"), image, kernel)
    assert only(made, "convolution").flops == 2 * 8 * size * size * 6 * 3 * 3 * 4


def test_a_gradient_of_a_strided_convolution_does_not_count_the_zeros_between(report):
    kernel = tf.zeros([2, 2, 4, 6])

    def gradient(g):
        return tf.nn.conv2d_transpose(g, kernel, [8, 16, 16, 4], 2, "VALID")

    row = only(report(gradient, tf.zeros([8, 8, 8, 6])), "convolution")
    assert row.flops == 2 * 8 * 16 * 16 * 4 * 6 * 2 * 2 / 4


def test_the_best_of_a_large_product_is_near_the_peak():
    grid = best_grid(Product(1, 3584, 3584, 3584, 4), GC200, 0.6)
    cycles = grid.compute + grid.exchange + grid.phases * GC200.sync_cycles
    share = 3584**3 / GC200.tiles / GC200.float_macs / cycles
    # Published for this size: 44 of 62.5 TFLOP/s.
    assert 0.5 < share < 0.9


sizes = st.integers(1, 5000)


@settings(deadline=None, max_examples=60)
@given(groups=st.integers(1, 16), rows=sizes, columns=sizes, depth=sizes, item=st.sampled_from([2, 4]))
def test_no_grid_uses_more_tiles_than_there_are_or_computes_less_than_it_must(groups, rows, columns, depth, item):
    product = Product(groups, rows, columns, depth, item)
    grid = best_grid(product, GC200, 0.6)
    assert grid.rows * grid.columns * grid.depth <= GC200.tiles
    assert grid.compute >= product.macs / GC200.tiles / GC200.macs(item) * (1 - 1e-9)
    assert not grid.fits or grid.tile_bytes <= 0.6 * GC200.tile_bytes
    larger = best_grid(dataclasses.replace(product, rows=2 * rows), GC200, 0.6)
    assert larger.compute + larger.exchange >= 0.5 * (grid.compute + grid.exchange)


def test_less_memory_for_operands_costs_serial_splits():
    product = Product(1, 4096, 8192, 4096, 2)
    free, tight = best_grid(product, GC200, 0.6), best_grid(product, GC200, 0.05)
    assert tight.splits > free.splits
    assert tight.tile_bytes < free.tile_bytes
    assert math.isfinite(tight.compute)


def test_an_operation_that_is_not_known_is_named_and_costed_as_a_copy(report):
    made = report(tf.signal.fft, tf.zeros([64], tf.complex64))
    assert any("operation `fft`: not known, and costed as a copy" in line for line in made.assumptions)
    assert only(made, "fft").seconds > 0


def test_a_branch_takes_the_time_of_its_dearest_way(report):
    def function(x):
        return tf.cond(tf.reduce_sum(x) > 0.0, lambda: x @ x @ x @ x, lambda: x + 1.0)

    made = report(function, tf.zeros([32, 32]))
    assert [row.kind for row in made.operations].count("dot") == 3
    assert any("the dearest of its 2 ways" in line for line in made.assumptions)


def test_options_of_a_single_product_count_for_it_alone(report):
    x = tf.zeros([4096, 4096], tf.float16)

    def program(x):
        with scopes.poplar_options({"availableMemoryProportion": "0.05"}):
            tight = x @ x
        with scopes.partials_type(tf.float16):
            halved = tight @ x
        return halved @ x

    found = report(program, x, proportion=0.6)
    tight, halved, plain = (row for row in found.operations if row.kind == "dot")
    alone = report(lambda x: x @ x, x, proportion=0.05).operations[0]
    assert (tight.plan, tight.seconds) == (alone.plan, alone.seconds)
    assert tight.seconds > plain.seconds >= halved.seconds
    assert plain.seconds == report(lambda x: x @ x, x, proportion=0.6).operations[0].seconds


def test_partial_sums_of_half_the_size_take_less_to_add_up():
    product = Product(1, 16, 16, 1 << 16, 2)
    whole, half = (best_grid(product, GC200, 0.6, size) for size in (4, 2))
    assert whole.depth > 1
    assert half.exchange < whole.exchange
    assert half.tile_bytes < whole.tile_bytes
