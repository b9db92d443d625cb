"""Trains models of Keras 2 on several workers, and writes the results of each worker as JSON."""

import json
import sys
from pathlib import Path

import numpy as np
import tf_keras as keras

import tensorflow_ipu as ipu

layers = keras.layers
BATCH = 2


def data():
    random = np.random.default_rng(3)
    return random.normal(size=(32, 5)).astype("float32"), random.normal(size=(32, 1)).astype("float32")


def make_model():
    return keras.Sequential([layers.Dense(4, "tanh", input_shape=(5,)), layers.Dense(1)])


def trained(strategy, ipus, epochs, callbacks=()):
    """Trains with `ipus` IPUs in this process, and returns logs, weights and predictions."""
    config = ipu.IPUConfig()
    config.auto_select_ipus = [ipus]
    ipu.config.reset_ipu_configuration()
    config.configure_ipu_system()
    x, y = data()
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = make_model()
        model.set_replication_options("MEAN")
        model.compile(keras.optimizers.legacy.SGD(0.05, momentum=0.9), "mse", metrics=["mae"], steps_per_execution=4)
        history = model.fit(
            x,
            y,
            batch_size=BATCH,
            epochs=epochs,
            shuffle=False,
            verbose=0,
            validation_data=(x, y),
            callbacks=[*callbacks],
        )
        return {
            "epochs": history.epoch,
            "history": history.history,
            "weights": [weight.tolist() for weight in model.get_weights()],
            "evaluated": model.evaluate(x, y, batch_size=BATCH, verbose=0),
            "predicted": model.predict(x, batch_size=BATCH, verbose=0).tolist(),
        }


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    cluster = ipu.IPUMultiWorkerStrategy()
    own = folder / f"worker{cluster.cluster.worker}"
    backup = keras.callbacks.BackupAndRestore
    found = {
        "first": trained(cluster, 2, 2, [backup(own, delete_checkpoint=False)]),
        "resumed": trained(cluster, 2, 3, [backup(own)]),
    }
    (folder / f"{cluster.cluster.worker}.json").write_text(json.dumps(found))
