"""Figures of machines, and costs of operations compared with closed formulas."""

import dataclasses
import math

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorflow_ipu import IPUConfig, IPUStrategy, scopes
from tensorflow_ipu.analysis.machine.costs import best_grid
from tensorflow_ipu.analysis.machine.hlo import Product
from tensorflow_ipu.machine import BOW, GC2, GC200, system_of, systems

HZ = GC200.clock_hz


def only(report, kind):
    (row,) = [row for row in report.operations if row.kind == kind]
    return row


def test_elementwise_operations_share_their_elements_among_the_tiles_and_synchronise_once(report):
    row = only(report(tf.exp, tf.zeros([1472 * 10])), "exponential")
    assert row.compute == pytest.approx(10 / GC200.float_functions / HZ)
    assert row.exchange == 0
    assert row.sync == pytest.approx(GC200.sync_cycles / HZ)
    half = only(report(tf.exp, tf.zeros([1472 * 10], tf.float16)), "exponential")
    assert half.compute == pytest.approx(row.compute / 2)
    made = report(lambda x: tf.tanh(tf.exp(x) * 2.0), tf.zeros([1000]))
    assert made.part_seconds("sync") == pytest.approx(GC200.sync_cycles / HZ)


def test_products_and_convolutions_count_their_multiply_adds(report):
    for dtype in (tf.float32, tf.float16):
        row = only(report(tf.matmul, tf.zeros([64, 96], dtype), tf.zeros([96, 32], dtype)), "dot")
        assert row.flops == 2 * 64 * 96 * 32
        batched = only(report(tf.matmul, tf.zeros([5, 64, 96], dtype), tf.zeros([5, 96, 32], dtype)), "dot")
        assert batched.flops == 5 * row.flops
    image, kernel = tf.zeros([8, 16, 16, 4]), tf.zeros([3, 3, 4, 6])
    for stride, size in ((1, 14), (2, 7)):
        made = report(lambda x, w, stride=stride: tf.nn.conv2d(x, w, stride, "VALID"), image, kernel)
        assert only(made, "convolution").flops == 2 * 8 * size * size * 6 * 3 * 3 * 4
    # The zeros between the elements of a dilated gradient are not counted.
    made = report(lambda g: tf.nn.conv2d_transpose(g, kernel[:2, :2], image.shape, 2, "VALID"), tf.zeros([8, 8, 8, 6]))
    assert only(made, "convolution").flops == 2 * 8 * 16 * 16 * 4 * 6 * 2 * 2 / 4


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


def test_less_memory_costs_serial_splits_and_partial_sums_of_half_the_size_take_less_to_add_up():
    product = Product(1, 4096, 8192, 4096, 2)
    free, tight = best_grid(product, GC200, 0.6), best_grid(product, GC200, 0.05)
    assert tight.splits > free.splits
    assert tight.tile_bytes < free.tile_bytes
    assert math.isfinite(tight.compute)
    product = Product(1, 16, 16, 1 << 16, 2)
    full, half = (best_grid(product, GC200, 0.6, size) for size in (4, 2))
    assert full.depth > 1
    assert half.exchange < full.exchange
    assert half.tile_bytes < full.tile_bytes


def test_an_operation_that_is_not_known_is_named_and_a_branch_takes_the_time_of_its_slowest_way(report):
    made = report(tf.signal.fft, tf.zeros([64], tf.complex64))
    assert any("operation `fft`: unsupported, and costed as a copy" in line for line in made.assumptions)
    assert only(made, "fft").seconds > 0
    made = report(lambda x: tf.cond(tf.reduce_sum(x) > 0.0, lambda: x @ x @ x @ x, lambda: x + 1.0), tf.zeros([32, 32]))
    assert [row.kind for row in made.operations].count("dot") == 3
    assert any("the slowest of its 2 branches" in line for line in made.assumptions)


def test_options_of_a_single_product_count_for_it_alone(report):
    x = tf.zeros([4096, 4096], tf.float16)

    def program(x):
        with scopes.poplar_options({"availableMemoryProportion": "0.05"}):
            tight = x @ x
        with scopes.partials_type(tf.float16):
            halved = tight @ x
        return halved @ x

    result = report(program, x, proportion=0.6)
    tight, halved, default = (row for row in result.operations if row.kind == "dot")
    expected = report(lambda x: x @ x, x, proportion=0.05).operations[0]
    assert (tight.plan, tight.seconds) == (expected.plan, expected.seconds)
    assert tight.seconds > default.seconds >= halved.seconds
    assert default.seconds == report(lambda x: x @ x, x, proportion=0.6).operations[0].seconds


@pytest.mark.parametrize(
    ("machine", "half", "single", "mib"),
    [(GC2, 124.5e12, 31.1e12, 304), (GC200, 249.6e12, 62.4e12, 897), (BOW, 350e12, 87.4e12, 897)],
)
def test_peaks_and_memories_are_the_published_ones(machine, half, single, mib):
    assert machine.bytes == mib * 2**20
    assert machine.peak_half_flops == pytest.approx(half, rel=0.01)
    assert machine.peak_float_flops == pytest.approx(single, rel=0.01)


def test_tiles_for_io_do_not_compute():
    machine = dataclasses.replace(GC200, io_tiles=72)
    assert machine.compute_tiles == 1400
    assert machine.bytes == 1400 * 624 * 1024
    assert machine.peak_half_flops == pytest.approx(GC200.peak_half_flops * 1400 / 1472)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"tiles": 0}, ValueError, "`tiles` must be above 0, but is 0"),
        ({"tiles": 1.5}, TypeError, "`tiles` must be a whole number, but is 1.5"),
        ({"clock_hz": float("inf")}, ValueError, "`clock_hz` must be above 0, but is inf"),
        ({"clock_hz": True}, TypeError, "`clock_hz` must be a number, but is True"),
        ({"name": 3}, TypeError, "`name` must be a string, but is 3"),
        ({"io_tiles": 1472}, ValueError, "`io_tiles` is 1472 of 1472 tiles"),
        ({"clock_hz": -1.0, "half_macs": 0}, ValueError, "(?s)2 faults.*`clock_hz`.*`half_macs`"),
    ],
)
def test_a_machine_that_cannot_be_is_refused(change, kind, message, refused):
    refused(kind, message, dataclasses.replace, GC200, **change)


def test_systems_are_found_by_name_and_a_machine_is_put_into_its_box():
    for name in ("Bow Pod16", "bow-pod16", "BOWPOD16"):
        system = system_of(name)
        assert system == systems()["Bow Pod16"]
        assert (system.ipus, system.machine) == (16, BOW)
    for name in ("IPU-POD4", "pod4", "IPU-POD64", "IPU-M2000", "m2000", "POD16"):
        assert system_of(name).machine is GC200
    assert (system_of("POD16"), system_of("pod4").ipus) == (systems()["IPU-POD16"], 4)
    assert [system_of(name).machine for name in ("MK1", "mk2", "ipu21", "GC200")] == [GC2, GC200, BOW, GC200]
    assert system_of(GC2).ipus == 2
    config = IPUConfig()
    config.auto_select_ipus = 1
    config.ipu_model.version = "bow-pod16"
    config.configure_ipu_system()
    report = IPUStrategy().report(tf.function(lambda: tf.zeros([])))
    assert report.system == systems()["Bow Pod16"]
    custom = dataclasses.replace(GC200, name="mine", tiles=10)
    assert system_of(custom).machine is custom
    assert system_of(system_of(custom)).name == "mine"


def test_an_unknown_machine_lists_those_there_are(refused):
    with pytest.raises(ValueError, match="`machine` is 'GC300', which is not known") as caught:
        system_of("GC300")
    for name in ("GC2", "GC200", "Bow", "MK2", *systems()):
        assert f"`{name}`" in str(caught.value)
    refused(TypeError, "`machine` must be a `Machine`, a `System` or a name, but is 3", system_of, 3)
