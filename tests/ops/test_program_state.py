"""What a program remembers and counts: delay lines, and the micro-batches of pipelines."""

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import pipelining
from tensorflow_ipu.ops.internal_ops import fifo, get_current_iteration_counter, remap, remap_deduce
from tensorflow_ipu.ops.replication_ops import replication_index


def test_value_comes_out_so_many_calls_later_in_the_next_run_too_on_each_replica(replicas):
    strategy = replicas(2)
    queue = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program(begin):
        for step in tf.range(4):
            x = tf.fill([2], begin + step + 10 * replication_index())
            halves = fifo(tf.cast(x, tf.float16), 3)
            queue.enqueue(([fifo(x, 3)[0], fifo(x, 0)[0], fifo(x + 1, 1, offload=True)[0]], halves))

    for begin in (1, 5):
        strategy.run(program, (tf.constant(begin),))
    delays, halves = queue.dequeue()
    by_3, by_0, by_1 = (one.numpy() for one in delays)
    for replica in (0, 1):
        assert by_3[3:, replica].tolist() == (np.arange(1, 6) + 10 * replica).tolist()
        assert by_0[:, replica].tolist() == (np.arange(1, 9) + 10 * replica).tolist()
        assert by_1[1:, replica].tolist() == (np.arange(2, 9) + 10 * replica).tolist()
    assert not by_3[:3].any()
    assert not by_1[0].any()
    assert halves.dtype == tf.float16
    np.testing.assert_array_equal(halves[..., 1], by_3)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: fifo(1.0, 2), RuntimeError, "outside|program"),
        (lambda: fifo(1.0, 2.5), TypeError, "`depth` must be an int"),
        (lambda: fifo(1.0, 2, 1), TypeError, "`offload` must be"),
        (get_current_iteration_counter, RuntimeError, "`computational_stages`"),
        (lambda: get_current_iteration_counter(lower=1), TypeError, "no argument `lower`"),
    ],
)
def test_calls_that_cannot_be_are_refused_and_hints_at_layouts_change_nothing(call, kind, message, refused):
    refused(kind, message, call)
    assert remap([1, 2]).numpy().tolist() == remap_deduce([1, 2]).numpy().tolist() == [1, 2]


@pytest.mark.parametrize("recompute", [None, pipelining.RecomputationMode.RecomputeThenBackpropagate])
def test_stages_and_their_gradients_have_the_number_of_their_micro_batch(replicas, pipelined, recompute):
    strategy = replicas(2)
    data = np.arange(1, 9, dtype=np.float32)
    with strategy.scope():
        infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(data))
        weight = tf.Variable(1.0)
    stages = [
        lambda x: x * weight * tf.cast(get_current_iteration_counter(), tf.float32),
        lambda x: (x, get_current_iteration_counter()),
    ]
    outfeed = pipelined(strategy, stages, infeed, 0.01, repeat_count=2, recomputation_mode=recompute)
    assert outfeed.dequeue()[1].numpy().tolist() == [0, 1, 2, 3] * 2
    np.testing.assert_allclose(weight.numpy(), 1 - 0.01 * np.sum(data * ([0, 1, 2, 3] * 2)), rtol=1e-5)
