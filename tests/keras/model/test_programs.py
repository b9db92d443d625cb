"""Tests the number of programs that a model needs, and which versions of Keras are supported."""

import gc
import importlib.metadata
import re
import sys
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import programs
from tensorflow_ipu.errors import LibraryError, RecompilationWarning
from tensorflow_ipu.keras import _version


def test_new_epochs_and_new_data_of_the_spec_need_no_new_program(features, labels, make_model, scoped, compilations):
    model = scoped(lambda: make_model(steps_per_execution=2))
    data = {"validation_data": (features[:24], labels[:24]), "validation_batch_size": 12, "verbose": 0}

    def use(size):
        model.fit(features[:size], labels[:size], batch_size=12, epochs=2, **data)
        model.evaluate(features, labels, batch_size=12, verbose=0)
        model.predict(features, batch_size=12, verbose=0)

    with compilations() as first:
        use(48)
    assert sum("program" in name for name in first) == 3, first
    with compilations() as later:
        use(24)
        dataset = tf.data.Dataset.from_tensor_slices((features, labels)).batch(12, drop_remainder=True)
        model.fit(dataset.repeat(2), epochs=2, shuffle=False, **data)
        # Another number of steps an execution is an argument too.
        model.steps_per_execution = 4
        model.fit(features, labels, batch_size=12, verbose=0)
    assert later == []
    assert model._ipu_extension.traces() == {"train": 1, "test": 1, "predict": 1}
    # Another batch size is another program.
    model.fit(features, labels, batch_size=6, verbose=0)
    assert model._ipu_extension.traces()["train"] == 2
    # A single step an execution needs no loop.
    model.steps_per_execution = 1
    for _ in range(2):
        model.fit(features, labels, batch_size=6, verbose=0)
    assert model._ipu_extension.traces()["train"] == 3


def test_batches_of_a_third_size_warn_once_in_the_users_line(scoped):
    model = scoped(lambda: keras.Sequential([keras.layers.Dense(1)]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for size in (2, 3, 2, 4, 5):
            model.predict(np.zeros([size, 1], np.float32), batch_size=size, verbose=0)
    (warning,) = [record for record in caught if record.category is RecompilationWarning]
    assert warning.filename == __file__
    assert re.search(
        r"a step of the model .* 3 different shapes.* shape \(3, 1\) became \(4, 1\)", str(warning.message)
    )


def test_executions_with_the_same_queues_look_for_their_program_once_and_no_queue_outlives_a_fit(
    features, labels, make_model, scoped, monkeypatch
):
    def queues():
        gc.collect()
        return [queue for queue in gc.get_objects() if type(queue) is ipu.IPUInfeedQueue and queue._feed is not None]

    looks = []
    find = programs.Program.find
    monkeypatch.setattr(programs.Program, "find", lambda *args: looks.append(args[0]) or find(*args))
    earlier_queues = queues()  # Another test may still hold these.
    model = scoped(make_model)
    model.fit(features, labels, batch_size=6, epochs=2, verbose=0, shuffle=False)
    # Only the first of the eight executions of an epoch has a new queue.
    assert len(looks) == 2
    assert len(queues()) == len(earlier_queues)


def test_the_installed_keras_is_known_and_a_program_without_keras_needs_none():
    assert _version.installed() == keras.__version__
    _version.check(keras.__version__)
    _version.check(None)


@pytest.mark.parametrize("version", ["2.15.0", "3.11.3", "3.14.0", "3.16.0", "3.16.0.dev20260101", "4.0"])
def test_another_keras_is_refused_with_the_one_to_install(version):
    with pytest.raises(LibraryError, match=rf"Keras `{version}` is installed.*pip install 'keras>=3\.\d+,<3\.\d+'"):
        _version.check(version)


def test_the_extras_ask_for_the_releases_that_the_check_knows():
    requirements = [line for line in importlib.metadata.requires("tensorflow-ipu") or [] if line.startswith("keras")]
    old = [line for line in requirements if "<" in line.partition(";")[2] and "3.11" in line]
    new = [line for line in requirements if ">=" in line.partition(";")[2]]
    [requirement] = old if sys.version_info < (3, 11) else new
    first, end = (".".join(map(str, bound)) for bound in (_version.FIRST, _version.END))
    assert set(re.split(r",\s*", requirement.partition(";")[0].removeprefix("keras"))) == {f">={first}", f"<{end}"}
