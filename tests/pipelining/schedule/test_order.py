"""When micro-batches set out, and what their number must be a multiple of."""

from __future__ import annotations

import pytest

from tensorflow_ipu.pipelining import PipelineSchedule, overlap_length
from tensorflow_ipu.pipelining.schedule.order import order_of

GROUPED, INTERLEAVED, SEQUENTIAL = PipelineSchedule


@pytest.mark.parametrize("stages", [2, 3, 4, 9])
def test_overlap_length_of_a_stage_an_ipu(stages):
    mapping = range(stages)
    assert overlap_length(GROUPED, mapping, training=False) == stages
    assert overlap_length(GROUPED, mapping, training=True) == 2 * stages
    assert overlap_length(INTERLEAVED, mapping, training=False) == stages
    assert overlap_length(INTERLEAVED, mapping, training=True) == stages
    assert overlap_length(SEQUENTIAL, mapping, training=True) == 1


@pytest.mark.parametrize(
    ("mapping", "offsets"),
    [
        ([0, 1, 1, 0], (0, 2)),
        ([0, 1, 2, 0, 0, 2, 1, 0], (0, 2)),
        ([0, 0, 0], (0,)),
        ([0, [1, 2], 3], (0, 1, 2)),
        ([0, [1, 2], 2, 3], (0, 2)),
    ],
)
def test_interleaved_inference_sets_out_where_rotations_share_no_ipu(mapping, offsets):
    groups = [[item] if isinstance(item, int) else item for item in mapping]
    assert order_of(INTERLEAVED, groups, training=False).offsets == offsets
    assert overlap_length(INTERLEAVED, mapping, training=False) == len(offsets)


def test_interleaved_training_sets_out_every_second_step():
    assert order_of(INTERLEAVED, [[0], [1], [2]], training=True).offsets == (0, 2, 4)


@pytest.mark.parametrize(
    ("schedule", "batch", "period"),
    [(GROUPED, 1, (1, 1)), (INTERLEAVED, 1, (2, 1)), (SEQUENTIAL, 1, (8, 1)), (SEQUENTIAL, 3, (24, 3))],
)
def test_period_is_the_shortest_loop(schedule, batch, period):
    order = order_of(schedule, [[0], [1], [2], [3]], training=True, batch_serialization_iterations=batch)
    assert order.period == period
    steps, advance = period
    for micro_batch in range(9):
        for point in range(8):
            assert order.step(micro_batch + advance, point) == order.step(micro_batch, point) + steps


def test_period_of_uneven_offsets_is_the_whole_cycle():
    mapping = [[ipu] for ipu in (0, 1, 2, 0, 0, 2, 1, 0)]
    assert order_of(INTERLEAVED, mapping, training=False).period == (8, 2)
