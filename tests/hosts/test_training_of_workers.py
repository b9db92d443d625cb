"""Training without Keras: optimizers, pipelines and random numbers of w workers of r replicas are those of w times r."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import optimizers, pipelining

v1 = tf.compat.v1.train

OPTIMIZERS = {
    "keras": lambda: tf.keras.optimizers.SGD(0.05, momentum=0.9),
    "sum": lambda: v1.GradientDescentOptimizer(0.01),
    "mean": lambda: optimizers.CrossReplicaOptimizer(v1.MomentumOptimizer(0.05, 0.9)),
    "accumulated": lambda: optimizers.CrossReplicaGradientAccumulationOptimizerV2(
        v1.AdamOptimizer(0.1), 2, offload_weight_update_variables=True, replicated_optimizer_state_sharding=True
    ),
}

# What the workers run, and this process alone.


def configured(ipus: int, ipus_per_replica: int = 1) -> Any:
    strategy = ipu.IPUMultiWorkerStrategy(ipus_per_replica=ipus_per_replica)
    config = ipu.IPUConfig()
    config.auto_select_ipus = [ipus]
    config.configure_ipu_system()
    return strategy


def batches(strategy: Any) -> tf.data.Dataset:
    random = np.random.default_rng(5)
    inputs = random.normal(size=(16, 2, 3)).astype("float32")
    targets = random.normal(size=(16, 2, 1)).astype("float32")
    return strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((inputs, targets)))


def trained(kinds: list[str], ipus: int) -> dict[str, Any]:
    """The weights of each kind of optimizer, and the losses of this worker's replicas."""
    found: dict[str, Any] = {}
    for kind in kinds:
        strategy = configured(ipus)
        results = ipu.IPUOutfeedQueue()
        with strategy.scope():
            weights = tf.Variable(np.full((3, 1), 1.0 + strategy.cluster.worker, np.float32))
            optimizer: Any = OPTIMIZERS[kind]()
            iterator = iter(batches(strategy))

        @tf.function(jit_compile=True)
        def program(iterator: Any) -> None:
            for _ in tf.range(16 // strategy.num_replicas_in_sync):  # noqa: B023
                x, y = next(iterator)
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((tf.matmul(x, weights) - y) ** 2)  # noqa: B023
                gradients = tape.gradient(loss, [weights])  # noqa: B023
                optimizer.apply_gradients(zip(gradients, [weights], strict=True))  # noqa: B023
                results.enqueue((loss, ipu.ops.replication_ops.replication_index()))  # noqa: B023

        strategy.run(program, (iterator,))
        losses, indices = results.dequeue()
        found[kind] = {"weights": weights.numpy(), "losses": losses.numpy(), "indices": indices.numpy()}
    return found


def pipelined(ipus: int) -> dict[str, Any]:
    strategy = configured(ipus, 2)
    losses = ipu.IPUOutfeedQueue()
    with strategy.scope():
        first = tf.Variable(np.full((3, 4), 0.1 + strategy.cluster.worker, np.float32))
        last = tf.Variable(np.linspace(-1, 1, 4, dtype=np.float32)[:, None])
        infeed = ipu.IPUInfeedQueue(batches(strategy))
        optimizer = optimizers.CrossReplicaOptimizer(v1.MomentumOptimizer(0.05, 0.9))

    def stage_1(x: tf.Tensor, y: tf.Tensor) -> Any:
        return tf.tanh(x @ first), y

    def stage_2(hidden: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.reduce_mean((hidden @ last - y) ** 2)

    def optimizer_function(loss: tf.Tensor) -> pipelining.OptimizerFunctionOutput:
        return pipelining.OptimizerFunctionOutput(optimizer, loss)

    @tf.function(jit_compile=True)
    def program() -> None:
        pipelining.pipeline(
            [stage_1, stage_2],
            gradient_accumulation_count=4,
            repeat_count=16 // 4 // strategy.num_replicas_in_sync,
            infeed_queue=infeed,
            outfeed_queue=losses,
            optimizer_function=optimizer_function,
        )

    infeed.initializer  # noqa: B018
    strategy.run(program)
    found = losses.dequeue()
    return {"first": first.numpy(), "last": last.numpy(), "losses": tf.nest.flatten(found)[0].numpy()}


def drawn(ipus: int) -> Any:
    strategy = configured(ipus)
    ipu.config.reset_ipu_seed(3)
    results = ipu.IPUOutfeedQueue()
    program = tf.function(lambda: results.enqueue(tf.random.uniform([4])) and None, jit_compile=True)
    strategy.run(program)
    return results.dequeue()[0].numpy()


def close(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)


def test_optimizers_over_workers_train_as_in_one_process(workers):
    kinds = list(OPTIMIZERS)
    zero, one = workers.call(trained, kinds, 2)
    wanted = trained(kinds, 4)
    for kind in kinds:
        np.testing.assert_array_equal(zero[kind]["weights"], one[kind]["weights"])
        close(zero[kind]["weights"], wanted[kind]["weights"])
        for worker, found in enumerate((zero, one)):  # Each process has the results of its replicas.
            close(found[kind]["losses"], wanted[kind]["losses"][:, 2 * worker : 2 * worker + 2])
            assert found[kind]["indices"].tolist() == [[2 * worker, 2 * worker + 1]] * 4


def test_workers_of_one_replica_train_as_in_one_process(three_workers):
    found = three_workers.call(trained, ["mean"], 1)
    wanted = trained(["mean"], 3)["mean"]
    for worker, each in enumerate(found):
        np.testing.assert_array_equal(each["mean"]["weights"], found[0]["mean"]["weights"])
        close(each["mean"]["weights"], wanted["weights"])
        close(each["mean"]["losses"], wanted["losses"][:, worker])
        assert each["mean"]["indices"].tolist() == [worker] * 5


def test_pipelines_over_workers_train_as_in_one_process(workers):
    zero, one = workers.call(pipelined, 4)
    wanted = pipelined(8)
    for name in ("first", "last"):
        np.testing.assert_array_equal(zero[name], one[name])
        close(zero[name], wanted[name])
    close(np.concatenate([zero["losses"], one["losses"]], axis=1), wanted["losses"])


def test_random_numbers_differ_by_replica_of_all_workers(workers):
    zero, one = workers.call(drawn, 2)
    np.testing.assert_array_equal(np.concatenate([zero, one]), drawn(4))
    assert len({row.tobytes() for row in (*zero, *one)}) == 4
