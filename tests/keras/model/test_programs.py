"""How many programs a model needs: one for training, one for evaluation, one for prediction."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import replicas


def test_new_epochs_and_new_data_of_the_spec_need_no_new_program(
    features: Any, labels: Any, make_model: Any, scoped: Any
) -> None:
    model = scoped(lambda: make_model(steps_per_execution=2))
    data = {"validation_data": (features[:24], labels[:24]), "validation_batch_size": 12, "verbose": 0}
    for size in (48, 24):
        model.fit(features[:size], labels[:size], batch_size=12, epochs=2, **data)
        model.evaluate(features, labels, batch_size=12, verbose=0)
        model.predict(features, batch_size=12, verbose=0)
    dataset = tf.data.Dataset.from_tensor_slices((features, labels)).batch(12, drop_remainder=True)
    model.fit(dataset.repeat(2), epochs=2, shuffle=False, **data)
    # Another number of steps an execution is an argument too.
    model.steps_per_execution = 4
    model.fit(features, labels, batch_size=12, verbose=0)
    assert model._ipu_extension.traces() == {"train": 1, "test": 1, "predict": 1}
    # Another batch size is another program.
    model.fit(features, labels, batch_size=6, verbose=0)
    assert model._ipu_extension.traces()["train"] == 2
    # A single step an execution needs no loop.
    model.steps_per_execution = 1
    for _ in range(2):
        model.fit(features, labels, batch_size=6, verbose=0)
    assert model._ipu_extension.traces()["train"] == 3


def test_second_fit_compiles_nothing(run_script: Any, tmp_path: Any) -> None:
    dump = tmp_path / "dump"
    run_script(
        """
        import os
        from pathlib import Path
        import keras, numpy as np, tensorflow as tf
        import tensorflow_ipu as ipu

        def compilations():
            return sorted(p.name.split(".")[1] for p in Path(os.environ["DUMP"]).glob("*before_optimizations.txt"))

        x, y = np.ones([48, 6], np.float32), np.ones([48, 3], np.float32)
        with ipu.IPUStrategy().scope():
            model = keras.Sequential([keras.Input([6]), keras.layers.Dense(3)])
            model.compile("sgd", "mse", steps_per_execution=2)
        for epochs in (1, 2):
            model.fit(x, y, batch_size=12, epochs=epochs, validation_data=(x, y), validation_batch_size=12, verbose=0)
        model.fit(x[:24], y[:24], batch_size=12, verbose=0)
        programs = [name for name in compilations() if "program" in name]
        assert len(programs) == 2, compilations()
        """,
        env={"XLA_FLAGS": f"--xla_dump_to={dump} --xla_dump_hlo_as_text", "DUMP": str(dump)},
    )


def test_executions_with_the_same_queues_look_for_their_program_once(
    features: Any, labels: Any, make_model: Any, scoped: Any, monkeypatch: Any
) -> None:
    looks = []
    find = replicas.find
    monkeypatch.setattr(replicas, "find", lambda *args: looks.append(args[0]) or find(*args))
    model = scoped(lambda: make_model())
    history = model.fit(features, labels, batch_size=6, epochs=2, verbose=0, shuffle=False).history
    # Of the eight executions of an epoch the first has another queue than before.
    assert len(looks) == 2
    again = scoped(lambda: make_model(steps_per_execution=8))
    other = again.fit(features, labels, batch_size=6, epochs=2, verbose=0, shuffle=False).history
    assert other["loss"] == pytest.approx(history["loss"], rel=1e-5)


def test_no_queue_and_no_data_outlive_a_fit(features: Any, labels: Any, make_model: Any, scoped: Any) -> None:
    model = scoped(lambda: make_model())
    model.fit(features, labels, batch_size=6, epochs=2, verbose=0)
    gc.collect()
    assert not [each for each in gc.get_objects() if type(each) is ipu.IPUInfeedQueue and each._feed is not None]
