"""Embeddings on the host: rows and updates against NumPy, replicas, pipelines, and a table larger than memory."""

import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.ops.embedding_ops import (
    HostEmbedding,
    HostEmbeddingOptimizerSpec,
    HostEmbeddingSGDGAOptimizerSpec,
    create_host_embedding,
)
from tensorflow_ipu.ops.replication_ops import replication_index

ROWS = np.random.default_rng(0).normal(size=[6, 3]).astype(np.float32)
INDICES = tf.constant([[1, 4], [4, 9]])  # There is no row 9, so that row 5 is read.
CLIPPED = np.minimum(INDICES, 5)


def step(embedding, indices):
    """Looks up rows and trains them: the gradient of each row is twice the row. Returns the rows and the gradients."""
    with tf.GradientTape() as tape:
        rows = embedding.lookup(indices)
        loss = tf.reduce_sum(tf.cast(rows, tf.float32) ** 2)
    return rows, tape.gradient(loss, embedding.trainable_variables)


def descended(table, looked_up, rate):
    table, gradients = table.copy(), 2 * table[looked_up]
    for row, gradient in zip(looked_up, gradients, strict=True):
        table[row] -= np.asarray(rate * gradient, table.dtype)
    return table


@pytest.mark.parametrize(("dtype", "partition"), [(np.float32, "TOKEN"), (np.float16, "ENCODING")])
def test_rows_are_looked_up_and_trained_where_they_are(dtype, partition, strategy):
    begin = ROWS.astype(dtype)
    with strategy.scope(), tf.device("/device:CPU:0"):
        variable = tf.Variable(begin)
    embedding = HostEmbedding("table", variable, partition, HostEmbeddingOptimizerSpec(0.25))
    program = tf.function(lambda indices: step(embedding, indices), jit_compile=True)
    expected = begin
    ipu.clear_metrics()
    with embedding.register() as registered:
        assert registered is embedding
        for _ in range(2):
            rows, [of_scalar] = strategy.run(program, (INDICES,))
            np.testing.assert_array_equal(rows, expected[CLIPPED])
            assert of_scalar == 0
            expected = descended(expected, CLIPPED.flatten(), 0.25)
            np.testing.assert_allclose(embedding.table, expected, rtol=1e-2 if dtype == np.float16 else 1e-6)
    counted = [ipu.counter_value(f"Embedding{name}") for name in ("Lookups", "RowsRead", "Updates", "RowsUpdated")]
    assert counted == [2, 2 * CLIPPED.size, 2, 2 * CLIPPED.size]
    assert "Counter: EmbeddingLookups" in ipu.metrics_report()
    for rows in (embedding.get_embedding_tensor(), variable):
        np.testing.assert_array_equal(rows, embedding.table)


def test_accumulated_gradients_are_applied_after_so_many_batches(strategy):
    embedding = HostEmbedding("sums", tf.constant(ROWS), optimizer_spec=HostEmbeddingSGDGAOptimizerSpec(0.25, 3))

    @tf.function(jit_compile=True)
    def program(steps):
        for _ in tf.range(steps):
            step(embedding, INDICES)

    with embedding.register():
        strategy.run(program, (2,))
        np.testing.assert_array_equal(embedding.table, ROWS)
        strategy.run(program, (1,))
    expected = ROWS.copy()
    np.subtract.at(expected, CLIPPED.flatten(), 3 * 0.25 * 2 * ROWS[CLIPPED.flatten()])
    np.testing.assert_allclose(embedding.table, expected, rtol=1e-5)


def test_replicas_train_one_table(replicas):
    strategy = replicas(2)
    embedding = create_host_embedding("shared", [6, 3], tf.float32, "ENCODING", HostEmbeddingOptimizerSpec(1.0))
    embedding.table[...] = 1

    @tf.function(jit_compile=True)
    def program():
        for _ in tf.range(100):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(embedding.lookup([0, 0, 1 + replication_index()]))
            tape.gradient(loss, embedding.trainable_variables)

    with embedding.register():
        strategy.run(program)
    assert embedding.table[:, 0].tolist() == [1 - 2 * 200, -99, -99, 1, 1, 1]


def test_stages_of_a_pipeline_train_a_table(replicas, pipelined):
    strategy = replicas(2)
    embedding = HostEmbedding("stage", tf.constant(ROWS), optimizer_spec=HostEmbeddingOptimizerSpec(0.25))
    with strategy.scope():
        infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(np.arange(4, dtype=np.int32)[:, np.newaxis]))
        weight = tf.Variable(1.0)
    with embedding.register():
        pipelined(strategy, [embedding.lookup, lambda rows: tf.reduce_sum(rows * rows) * weight], infeed, 0.0)
    np.testing.assert_allclose(embedding.table, descended(ROWS, np.arange(4), 0.25), rtol=1e-6)


def test_session_trains_and_saves_the_variable():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        spec = HostEmbeddingSGDGAOptimizerSpec(0.25, 1)
        embedding = create_host_embedding(
            "old", [6, 3], tf.float32, optimizer_spec=spec, initializer=tf.compat.v1.constant_initializer(ROWS)
        )

        def network():
            loss = tf.reduce_sum(embedding.lookup([2, 3]) ** 2)
            return loss, tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss)

        with ipu.scopes.ipu_scope("/device:IPU:0"):
            [loss] = ipu.compiler.compile(network)
        session.run(tf.compat.v1.global_variables_initializer())
        with embedding.register(session):
            assert session.run(loss) == pytest.approx(np.sum(ROWS[[2, 3]] ** 2))
        trained = session.run(embedding.get_embedding_tensor())
    np.testing.assert_allclose(trained, descended(ROWS, np.array([2, 3]), 0.25), rtol=1e-6)
    with tf.Graph().as_default(), pytest.raises(ValueError, match="needs a `session`"):
        embedding.register()


def test_table_of_8_gib_takes_the_memory_of_the_rows_that_were_written(strategy, check_growth):
    rows = 1 << 25
    embedding = create_host_embedding(
        "huge", [rows, 64], tf.float32, "TOKEN", HostEmbeddingOptimizerSpec(1.0), tf.zeros_initializer()
    )
    assert embedding.table.nbytes == 8 << 30
    embedding.table[rows - 1] = 1
    program = tf.function(lambda indices: step(embedding, indices)[0], jit_compile=True)

    def train():
        with embedding.register():
            values = strategy.run(program, (tf.constant([rows - 1, 12345]),))
        np.testing.assert_array_equal(values[1], np.zeros(64))

    check_growth(train, 64 << 20)
    mappings = Path("/proc/self/smaps").read_text()
    resident = re.search(rf"^{embedding.table.ctypes.data:x}-(?:.*\n)+?Rss: +(\d+) kB", mappings, re.MULTILINE)
    assert resident
    assert int(resident[1]) < 64 << 10
    assert abs(embedding.table[rows - 1]).tolist() == [1] * 64
    # The variable shares the memory of the table.
    assert abs(embedding.get_embedding_tensor()[rows - 1]).numpy().tolist() == [1] * 64


def test_checkpoint_saves_and_restores_the_rows(strategy, tmp_path):
    embedding = create_host_embedding("saved", [4, 2], tf.float32, initializer=tf.ones_initializer())
    checkpoint = tf.train.Checkpoint(rows=embedding.get_embedding_tensor())
    path = checkpoint.save(str(tmp_path / "rows"))
    program = tf.function(lambda: embedding.lookup([0, 3]), jit_compile=True)
    embedding.table[...] = 5
    checkpoint.restore(path)
    with embedding.register():
        assert strategy.run(program).numpy().tolist() == [[1, 1], [1, 1]]
    assert not embedding.trainable_variables


def test_runs_that_cannot_be_fail_with_the_way_out(strategy, refused):
    embedding = create_host_embedding("closed", [4, 2], tf.float32, initializer=tf.zeros_initializer())
    program = tf.function(lambda x: embedding.lookup(x, clip_indices=False), jit_compile=True)
    message = r"with embedding.register\(\)"
    refused(tf.errors.FailedPreconditionError, message, strategy.run, program, (tf.constant([0]),))
    with embedding.register():
        message = "row 4 is not one of the embedding's 4"
        refused(tf.errors.OutOfRangeError, message, strategy.run, program, (tf.constant([4]),))


def test_arguments_that_cannot_be_are_refused(refused):
    embedding = create_host_embedding("x", [2, 2], tf.float32)
    for call, kind, message in (
        (lambda: HostEmbedding("x", [[1.0]]), ValueError, "`embedding_tensor` must be a tensor"),
        (
            lambda: HostEmbedding("x", tf.ones([2]), "ROWS", 3),
            ValueError,
            r"3 faults:[^$]*'ROWS'[^$]*3[^$]*\[rows, width",
        ),
        (lambda: create_host_embedding("x", [2, None], tf.int32), ValueError, r"2 faults:[^$]*`shape`[^$]*float16 or"),
        (lambda: HostEmbeddingOptimizerSpec("fast"), TypeError, "`learning_rate` must be a number"),
        (lambda: HostEmbeddingOptimizerSpec(-1, "Adam"), ValueError, r"2 faults:[^$]*`learning_rate=-1`[^$]*'Adam'"),
        (lambda: HostEmbeddingSGDGAOptimizerSpec(1, 0), ValueError, "`accumulation_factor=0`"),
        (lambda: embedding(1), NotImplementedError, "embedding.register"),
        (lambda: embedding.lookup([1]), RuntimeError, "in a program"),
        (lambda: embedding.lookup([1.0]), TypeError, "`indices` must have integers"),
    ):
        refused(kind, message, call)
