"""Reports of all programs that a script compiles, by an environment variable."""

import json

import keras
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.machine import Report
from tensorflow_ipu.strategy import reports


@pytest.fixture
def reporting(tmp_path, monkeypatch):
    """A folder that the environment asks for reports in."""
    folder = tmp_path / "a" / "reports"
    options = {"autoReport.all": "true", "autoReport.directory": str(folder)}
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", json.dumps(options))
    monkeypatch.setattr(reports, "_warned", False)
    return folder


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_each_program_has_one_under_its_name(reporting):
    pytest.importorskip("matplotlib")
    strategy = ipu.IPUStrategy()
    with strategy.scope():
        total = tf.Variable(0.0)

    @tf.function(jit_compile=True)
    def add(x):
        total.assign_add(tf.reduce_sum(x))
        return total.read_value()

    for size in (2, 2, 3):
        strategy.run(add, (tf.ones([size]),))
    assert float(total) == 7.0  # Each was run once, and no report was.
    assert files(reporting) == ["add.html", "add.json", "add_2.html", "add_2.json"]
    assert Report.load(reporting / "add_2.json").program == "add"


def test_fit_has_one_under_the_name_of_its_model(reporting):
    with ipu.IPUStrategy().scope():
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(2)], name="small")
        model.compile("sgd", "mse", steps_per_execution=2)
    data = tf.ones([8, 4]), tf.ones([8, 2])
    model.fit(*data, batch_size=2, epochs=2, verbose=0)
    assert [name for name in files(reporting) if name.endswith("json")] == ["train_small.json"]


def test_a_run_does_not_fail_for_its_report_and_says_why_once(reporting):
    strategy = ipu.IPUStrategy()
    reporting.parent.mkdir()
    reporting.write_text("a file, where a folder should be")
    double = tf.function(lambda x: 2.0 * x)
    with pytest.warns(UserWarning, match="`POPLAR_ENGINE_OPTIONS` asks for reports, and a program has none: .*Error"):
        assert float(strategy.run(double, (tf.constant(2.0),))) == 4.0
    assert strategy.run(double, (tf.ones([2]),)).shape == [2]


def test_a_malformed_variable_is_named_when_the_strategy_is_made(monkeypatch):
    monkeypatch.setenv("POPLAR_ENGINE_OPTIONS", "autoReport.all=true")
    with pytest.raises(ValueError, match="`POPLAR_ENGINE_OPTIONS=autoReport.all=true` is no JSON"):
        ipu.IPUStrategy()
