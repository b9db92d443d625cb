"""A worker of `mpiexec`, which ends as its first argument says. Worker 1 causes what the others are to notice."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import tensorflow as tf  # isort: skip

WAIT = 100.0  # Seconds that nobody waits for to the end.


def joined(timeout=60.0, **more):
    import tensorflow_ipu as ipu

    strategy = ipu.IPUMultiWorkerStrategy(timeout=timeout, **more)

    @tf.function(jit_compile=True)
    def step():
        return ipu.ops.cross_replica_ops.cross_replica_sum(1.0)

    for _ in range(3):
        assert float(strategy.run(step)) == strategy.cluster.workers
    return strategy, step


def steps(end, timeout=60.0):
    """Runs steps. Worker 1 leaves out the fourth, and does something else."""
    strategy, step = joined(timeout)
    print(f"worker {strategy.cluster.worker} is process {os.getpid()}.", flush=True)
    if strategy.cluster.worker == 1:
        end()
    try:
        strategy.run(step)
    finally:
        print("the wait ended", flush=True)


def killed():
    steps(lambda: os.kill(os.getpid(), signal.SIGKILL))


def stopped():
    steps(lambda: os.kill(os.getpid(), signal.SIGSTOP), 3.0)


def raising():
    def fail():
        raise ValueError("the data are bad")

    steps(fail)


def exiting():
    steps(lambda: sys.exit(3))


def absent():
    steps(lambda: time.sleep(WAIT), 3.0)


def waiting():
    """All wait, worker 1 in Python: until a signal ends them."""
    steps(lambda: time.sleep(WAIT), WAIT)


def late():
    """Worker 1 never joins."""
    if os.environ["PMI_RANK"] == "1":
        time.sleep(WAIT)
    joined(3.0)


def alone():
    """Makes no strategy of workers, but one of its own, or none."""
    if os.environ["PMI_RANK"] == "1":
        import tensorflow_ipu as ipu

        with ipu.IPUStrategy().scope():
            assert float(tf.Variable(2.0)) == 2.0
    print("ran", flush=True)


def finished():
    """All end with 0, worker 1 later."""
    strategy, _ = joined()
    if strategy.cluster.worker == 1:
        time.sleep(1.0)
    print("ran", flush=True)


def split():
    """Workers 1 and 0 are a cluster in this order, and worker 2 is alone; MPI goes on to serve its owner."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    strategy, _ = joined(communicator=world.Split(world.rank == 2, -world.rank))
    total = strategy.reduce("SUM", tf.constant(float(world.rank)), axis=None)
    row = strategy.cluster.worker, strategy.cluster.workers, float(total), os.getpid(), strategy.cluster.names
    rows = world.gather(row)
    if rows:
        print(json.dumps(rows), flush=True)


def trained(folder="", epochs="2", killed_behind=""):
    """Trains a model, from a backup on where there is one. Worker 1 is killed behind an epoch."""
    import keras

    import tensorflow_ipu as ipu

    strategy = ipu.IPUMultiWorkerStrategy()
    worker = strategy.cluster.worker
    random = np.random.default_rng(3)
    x, y = random.normal(size=(32, 5)).astype("float32"), random.normal(size=(32, 1)).astype("float32")

    def end(epoch, logs):
        if str(epoch) == killed_behind and worker == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    callbacks = [keras.callbacks.LambdaCallback(on_epoch_end=end)]
    if folder:  # A machine of each worker's own: the folder of worker 1 is always empty.
        callbacks.insert(0, keras.callbacks.BackupAndRestore(str(Path(folder, f"{worker}"))))
    with strategy.scope():
        keras.utils.set_random_seed(1 + worker)
        parts = [keras.Input([5]), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)]
        model = keras.Sequential(parts)
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
        history = model.fit(x, y, 2, epochs=int(epochs), shuffle=False, verbose=0, callbacks=callbacks)
    weights = [weight.tolist() for weight in model.get_weights()]
    if worker == 0:
        print(json.dumps({"epochs": history.epoch, "weights": weights}), flush=True)


globals()[sys.argv[1]](*sys.argv[2:])
