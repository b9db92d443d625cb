"""Programs and Keras: w workers of r replicas compute the same as one process of w * r replicas.

Each case returns values that must be equal on all workers, and arrays with this worker's replicas along axis 1.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tensorflow_ipu as ipu
from tensorflow_ipu import optimizers, pipelining
from tensorflow_ipu.ops import all_to_all_op, cross_replica_ops, reduce_scatter_op, replication_ops
from tensorflow_ipu.programs import ReplicaGroups

v1 = tf.compat.v1.train

OPTIMIZERS: dict[str, Any] = {
    "keras": lambda: tf.keras.optimizers.SGD(0.05, momentum=0.9),
    "sum": lambda: v1.GradientDescentOptimizer(0.01),
    "mean": lambda: optimizers.CrossReplicaOptimizer(v1.MomentumOptimizer(0.05, 0.9)),
    "accumulated": lambda: optimizers.CrossReplicaGradientAccumulationOptimizerV2(
        v1.AdamOptimizer(0.1), 2, offload_weight_update_variables=True, replicated_optimizer_state_sharding=True
    ),
}


def strategy_of(replicas: int, ipus_per_replica: int = 1) -> Any:
    config = ipu.IPUConfig()
    config.auto_select_ipus = [replicas * ipus_per_replica]
    config.configure_ipu_system()
    return ipu.IPUMultiWorkerStrategy(ipus_per_replica=ipus_per_replica)


def batches(strategy: Any) -> tf.data.Dataset:
    random = np.random.default_rng(5)
    inputs = random.normal(size=(16, 2, 3)).astype("float32")
    targets = random.normal(size=(16, 2, 1)).astype("float32")
    return strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((inputs, targets)))


def exchanges(groups: Any) -> dict[str, Any]:
    """Runs all collectives in groups of one kind."""
    index = tf.cast(replication_ops.replication_index(), tf.float32)
    x = tf.range(7, dtype=tf.float32) * (index + 2) - index * index
    table = tf.reshape(tf.range(12, dtype=tf.float32), [12, 1]) + 100 * index
    return {
        "sum": cross_replica_ops.cross_replica_sum(x, groups),
        "mean": cross_replica_ops.cross_replica_mean(tf.cast(x, tf.int32), groups),
        "half": cross_replica_ops.cross_replica_sum(tf.cast(x, tf.float16), groups),
        "broadcast": cross_replica_ops.cross_replica_broadcast(x, groups.size - 1, groups),
        "gather": all_to_all_op.all_gather(tf.cast(x, tf.int8), groups),
        "exchange": all_to_all_op.all_to_all(table, 0, 1, groups),
        "max": reduce_scatter_op.reduce_scatter(x, groups, "COLLECTIVE_OP_MAX"),
        "product": reduce_scatter_op.reduce_scatter(x, groups, "COLLECTIVE_OP_MUL"),
        "local": reduce_scatter_op.reduce_scatter(x, groups, "COLLECTIVE_OP_LOCAL"),
        "any": all_to_all_op.all_gather(x > 5, groups),
    }


def collectives(replicas: int) -> Any:
    """Runs all collectives in groups of all sizes, of neighbors and orthogonal ones."""
    strategy, results = strategy_of(replicas), ipu.IPUOutfeedQueue()
    all_replicas = strategy.num_replicas_in_sync
    sizes = [size for size in range(1, all_replicas + 1) if all_replicas % size == 0]
    kinds = [*((size, False) for size in sizes), *((size, True) for size in sizes[1:-1])]
    groups = {f"{size} {orthogonal}": ReplicaGroups(size, orthogonal=orthogonal) for size, orthogonal in kinds}

    @tf.function(jit_compile=True)
    def program() -> None:
        results.enqueue({name: exchanges(replica_groups) for name, replica_groups in groups.items()})

    strategy.run(program)
    # One replica has no axis.
    return (), tf.nest.map_structure(lambda x: x.numpy() if replicas > 1 else x.numpy()[:, None], results.dequeue())


def in_loops(replicas: int) -> Any:
    """Sums in a loop, in a branch that depends on a sum, and in another loop that a sum ends."""
    strategy = strategy_of(replicas)

    @tf.function(jit_compile=True)
    def program(steps: tf.Tensor) -> Any:
        index = tf.cast(replication_ops.replication_index(), tf.float32)
        total = tf.zeros([])
        for step in tf.range(steps):
            mean = cross_replica_ops.cross_replica_mean(index + tf.cast(step, tf.float32))
            if mean > 5:
                total += cross_replica_ops.cross_replica_sum(index)
            else:
                total += mean
        while cross_replica_ops.cross_replica_sum(total) < 5000.0:
            total *= 2.0
        return total, replication_ops.replication_index()

    total, index = ipu.IPUStrategy().run(program, (tf.constant(12),))  # Any strategy works once the process has joined.
    assert int(index) == strategy.cluster.worker * replicas
    return total, ()


def drawn(replicas: int) -> Any:
    strategy, results = strategy_of(replicas), ipu.IPUOutfeedQueue()
    ipu.config.reset_ipu_seed(3)
    strategy.run(tf.function(lambda: results.enqueue(tf.random.uniform([4])) and None, jit_compile=True))
    values = results.dequeue().numpy()
    assert len({row.tobytes() for row in values[0]}) == replicas
    return (), values


def optimized(kind: str, replicas: int) -> Any:
    strategy, results = strategy_of(replicas), ipu.IPUOutfeedQueue()
    with strategy.scope():
        weights = tf.Variable(np.full((3, 1), 1.0 + strategy.cluster.worker, np.float32))
        optimizer = OPTIMIZERS[kind]()
        iterator = iter(batches(strategy))

    @tf.function(jit_compile=True)
    def program(iterator: Any) -> None:
        for _ in tf.range(16 // strategy.num_replicas_in_sync):
            x, y = next(iterator)
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.matmul(x, weights) - y) ** 2)
            gradients = tape.gradient(loss, [weights])
            optimizer.apply_gradients(zip(gradients, [weights], strict=True))
            results.enqueue((loss, replication_ops.replication_index()))

    strategy.run(program, (iterator,))
    return weights, [result.numpy().reshape([-1, replicas]) for result in results.dequeue()]


def pipelined(replicas: int) -> Any:
    strategy, losses = strategy_of(replicas, 2), ipu.IPUOutfeedQueue()
    with strategy.scope():
        first = tf.Variable(np.full((3, 4), 0.1 + strategy.cluster.worker, np.float32))
        last = tf.Variable(np.linspace(-1, 1, 4, dtype=np.float32)[:, None])
        infeed = ipu.IPUInfeedQueue(batches(strategy))
        optimizer = optimizers.CrossReplicaOptimizer(v1.MomentumOptimizer(0.05, 0.9))

    @tf.function(jit_compile=True)
    def program() -> None:
        pipelining.pipeline(
            [lambda x, y: (tf.tanh(x @ first), y), lambda hidden, y: tf.reduce_mean((hidden @ last - y) ** 2)],
            gradient_accumulation_count=4,
            repeat_count=16 // 4 // strategy.num_replicas_in_sync,
            infeed_queue=infeed,
            outfeed_queue=losses,
            optimizer_function=lambda loss: pipelining.OptimizerFunctionOutput(optimizer, loss),
        )

    infeed.initializer  # noqa: B018
    strategy.run(program)
    return (first, last), tf.nest.flatten(losses.dequeue())[0].numpy()


def fitted(kind: str, method: str, replicas: int) -> Any:
    """Trains a Keras model with accumulated gradients or with a pipeline."""
    strategy = strategy_of(replicas * 2 if kind == "pipeline" else replicas, 1)
    random = np.random.default_rng(3)
    x = random.normal(size=(32, 6, 6, 2) if kind == "accumulation" else (32, 5)).astype("float32")
    y = random.normal(size=(32, 1)).astype("float32")
    with strategy.scope():
        keras.utils.set_random_seed(1 + strategy.cluster.worker)  # Only worker 0's weights count.
        if kind == "accumulation":
            parts = [keras.Input([6, 6, 2]), layers.Conv2D(3, 3, activation="relu"), layers.Flatten(), layers.Dense(1)]
            model: Any = keras.Sequential(parts)
            model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=2)
        else:
            with ipu.keras.PipelineStage(0):
                inputs = keras.Input([5])
                hidden = layers.Dense(4, activation="tanh", name="first")(inputs)
            with ipu.keras.PipelineStage(1):
                model = keras.Model(inputs, layers.Dense(1, name="second")(hidden))
            model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
        model.set_replication_options(method)
        model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"], steps_per_execution=4)
        history = model.fit(x, y, batch_size=2, epochs=2, shuffle=False, verbose=0, validation_data=(x, y))
        evaluated = model.evaluate(x, y, batch_size=2, verbose=0, return_dict=True)
        predicted = model.predict(x[:-3], batch_size=2, verbose=0)  # The last batch is padded.
    return (history.history, model.get_weights(), evaluated, predicted), ()


@pytest.mark.parametrize(
    ("workers", "replicas", "case", "args"),
    [
        (2, 1, collectives, ()),
        (2, 3, collectives, ()),
        (2, 2, in_loops, ()),
        (2, 2, drawn, ()),
        *((2, 2, optimized, (kind,)) for kind in OPTIMIZERS),
        (3, 1, optimized, ("mean",)),
        (2, 2, pipelined, ()),
        (2, 2, fitted, ("accumulation", "NONE")),
        (2, 2, fitted, ("pipeline", "LIST")),
    ],
)
def test_workers_compute_what_one_process_does(set_of, workers, replicas, case, args):
    common, per_worker = zip(*set_of(workers).call(case, *args, replicas), strict=True)
    for values in common:
        tf.nest.map_structure(np.testing.assert_array_equal, values, common[0])
    expected = case(*args, replicas * workers)
    of_all = common[0], tf.nest.map_structure(lambda *parts: np.concatenate(parts, axis=1), *per_worker)
    tf.nest.map_structure(lambda x, y: np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6), of_all, expected)


@pytest.mark.workers(3)
def test_halves_are_added_in_float32_and_rounded_once():
    """Rounding the sum of two values first would change the sum of three, in a program and on the host."""
    strategy = ipu.IPUMultiWorkerStrategy()
    program = tf.function(cross_replica_ops.cross_replica_sum, jit_compile=True)
    for dtype, large in ((tf.float16, 2048), (tf.bfloat16, 256)):
        value = tf.constant([1 if strategy.cluster.worker else large] * 3, dtype)
        for total in (ipu.distributed.allreduce(value, "SUM"), strategy.run(program, (value,))):
            assert total.numpy().tolist() == [large + 2] * 3
