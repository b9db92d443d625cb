"""A worker of `mpiexec` that ends as its first argument selects. Worker 1 causes the failure that the others detect."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tensorflow as tf  # isort: skip


def joined(timeout: float = 60.0, **more: Any) -> Any:
    import tensorflow_ipu as ipu

    if timeout < 60.0:
        meet()
    strategy = ipu.IPUMultiWorkerStrategy(timeout=timeout, **more)
    step = tf.function(lambda: ipu.ops.cross_replica_ops.cross_replica_sum(1.0), jit_compile=True)
    for _ in range(3):
        assert float(strategy.run(step)) == strategy.cluster.workers
    return strategy, step


def meet() -> None:
    """Waits until both workers have imported all modules, because one of them may take longer."""
    Path(f"here{os.environ['PMI_RANK']}").touch()
    while not (Path("here0").exists() and Path("here1").exists()):
        time.sleep(0.01)


def show(value: object) -> None:
    # A single write keeps the line whole, because all workers write to one file.
    os.write(1, f"{value if isinstance(value, str) else json.dumps(value)}\n".encode())


def steps(end: Callable[[], object], timeout: float = 60.0) -> None:
    """Runs steps. Worker 1 omits the fourth, and does something else."""
    strategy, step = joined(timeout)
    show(f"worker {strategy.cluster.worker} is process {os.getpid()}.")
    if strategy.cluster.worker == 1:
        end()
    strategy.run(step)


def late() -> None:
    """Worker 1 never joins."""
    if os.environ["PMI_RANK"] == "1":
        meet()
        signal.pause()
    joined(3.0)


def alone() -> None:
    """Makes a strategy without workers, or none."""
    if os.environ["PMI_RANK"] == "1":
        import tensorflow_ipu as ipu

        with ipu.IPUStrategy().scope():
            assert float(tf.Variable(2.0)) == 2.0
    show("ran")


def finished() -> None:
    """All workers end with status 0, worker 1 later."""
    strategy, _ = joined()
    if strategy.cluster.worker == 1:
        time.sleep(1.0)
    show("ran")


def split() -> None:
    """Joins workers 1 and 0 as a cluster in this order; worker 2 is alone. The script finalizes MPI, as its owner."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    strategy, _ = joined(communicator=world.Split(world.rank == 2, -world.rank))
    total = strategy.reduce("SUM", tf.constant(float(world.rank)), axis=None)
    rows = world.gather([strategy.cluster.worker, strategy.cluster.workers, float(total)])
    processes = world.gather([os.getpid(), [name.split(" on ")[0] for name in strategy.cluster.names]])
    rank = world.rank
    MPI.Finalize()
    try:
        strategy.reduce("SUM", tf.constant(1.0), axis=None)
        end = ""
    except tf.errors.OpError as exc:
        end = str(exc)
    if rank == 0:
        show([rows, processes, end])


def trained(folder: str = "", epochs: str = "2", killed_behind: str = "") -> None:
    """Trains a model, from a backup if one exists. Worker 1 is killed in the epoch after the given one."""
    import keras

    import tensorflow_ipu as ipu

    strategy: Any = ipu.IPUMultiWorkerStrategy()
    worker = strategy.cluster.worker
    random = np.random.default_rng(3)
    x, y = random.normal(size=(32, 5)).astype("float32"), random.normal(size=(32, 1)).astype("float32")

    epoch_now = 0

    def begin(epoch: int, logs: object) -> None:
        nonlocal epoch_now
        epoch_now = epoch

    def end(batch: int, logs: object) -> None:
        # The workers have communicated in this epoch, so worker 0 has written its backup.
        if str(epoch_now - 1) == killed_behind and worker == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    callbacks: list[Any] = [keras.callbacks.LambdaCallback(on_epoch_begin=begin, on_train_batch_end=end)]
    if folder:  # Each worker has a separate host, so the folder of worker 1 is always empty.
        callbacks.insert(0, keras.callbacks.BackupAndRestore(str(Path(folder, f"{worker}"))))
    with strategy.scope():
        keras.utils.set_random_seed(1 + worker)
        parts = [keras.Input([5]), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)]
        model = keras.Sequential(parts)
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
        history: Any = model.fit(x, y, 2, epochs=int(epochs), shuffle=False, verbose=0, callbacks=callbacks)
    if worker == 0:
        show([history.epoch, [weight.tolist() for weight in model.get_weights()]])


ENDS: dict[str, Callable[..., None]] = {
    "killed": lambda: steps(lambda: os.kill(os.getpid(), signal.SIGKILL)),
    "stopped": lambda: steps(lambda: os.kill(os.getpid(), signal.SIGSTOP), 3.0),
    "raising": lambda: steps(lambda: {}["the data are bad"]),
    "exiting": lambda: steps(lambda: sys.exit(3)),
    "absent": lambda: steps(signal.pause, 3.0),
    # The loop lasts until a signal ends all: worker 1 waits in Python, and the others wait for worker 1.
    "waiting": lambda: steps(signal.pause, 600.0),
    **{function.__name__: function for function in (late, alone, finished, split, trained)},
}
ENDS[sys.argv[1]](*sys.argv[2:])
