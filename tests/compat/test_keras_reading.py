"""Reading a script finds what only Keras 2 has, and nothing that Keras 3 takes; TensorFlow is not imported for it."""

import re
import subprocess
import sys

import pytest

from tensorflow_ipu import __main__
from tensorflow_ipu.cli import run_script
from tensorflow_ipu.compat import _api_files, _keras_version, _project
from tensorflow_ipu.compat._api_files import KERAS_2
from tensorflow_ipu.compat._keras_version import KerasChoice, Weight

BEGIN = "import keras\nimport tensorflow as tf\nL = tf.keras.layers\n"


@pytest.fixture
def read(tmp_path):
    """What only Keras 2 has of the last line of code: `read(code)` gives pairs of weight and message."""

    def needs(code):
        script = tmp_path / "script.py"
        script.write_text(BEGIN + code)
        needs = _keras_version.needs(_project.of_script(script))
        found = [need for need in needs if need.weight is not Weight.ORIGIN]
        last = len(script.read_text().rstrip().splitlines())
        assert {need.line for need in found} <= {last}, found
        return [(need.weight, need.message) for need in found]

    return needs


@pytest.mark.parametrize(
    ("code", "weight", "words"),
    [
        ("from keras.engine import base_layer_utils", Weight.LOST, "`keras.engine` has no name `base_layer_utils`"),
        ("from keras.layers.core import TFOpLambda", Weight.LOST, "no `keras.layers.core`"),
        ("from keras.losses import LossFunctionWrapper", Weight.LOST, "no `keras.losses.LossFunctionWrapper`"),
        ("import keras.utils.tf_inspect", Weight.LOST, "no `keras.utils.tf_inspect`"),
        (
            "tf.keras.mixed_precision.experimental.set_policy('x')",
            Weight.LOST,
            "no `keras.mixed_precision.experimental`",
        ),
        ("tf.keras.backend.learning_phase()", Weight.LOST, "no `keras.backend.learning_phase`"),
        ("tf.keras.optimizers.legacy.SGD(0.1)", Weight.LOST, "`keras.optimizers.legacy`"),
        ("from tensorflow.python.keras.engine import training", Weight.DECIDES, "left of Keras 2"),
    ],
)
def test_what_only_keras_2_has_is_found(read, code, weight, words):
    (found,) = read(code)
    assert found[0] is weight
    assert words in found[1]


@pytest.mark.parametrize(
    "code",
    [
        "from keras.engine.base_layer import Layer",
        "from keras.optimizer_v2 import gradient_descent",
        "from tensorflow.python.keras.datasets import mnist",
        "keras.metrics.MSE(1, 2)",
        "keras.backend.sum(1)",
        "tf.keras.losses.Reduction.NONE",
        "from tensorflow.keras import ipu",
        "keras.ipu.PipelineStage(0)",
        "from keras.src.layers import Dense",
        "keras.losses.SparseCategoricalCrossentropy(from_logits=True)",
        "try: from keras.engine import base_layer_utils\nexcept ImportError: pass",
    ],
)
def test_what_keras_3_takes_is_not_told(read, code):
    assert read(code) == []


def test_reading_imports_neither_tensorflow_nor_keras(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"{BEGIN}L.Dense(2, 'relu')\nkeras.utils.tf_inspect\n")
    code = (
        "import sys; sys.argv, sys.orig_argv = ['-m'], ['tensorflow_ipu']\n"
        f"from tensorflow_ipu import __main__; print(__main__.main(['--check', {str(script)!r}]))\n"
        "print([name for name in ('keras', 'tensorflow', 'tf_keras') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"is of Keras 2 alone:\n  {script}:5: " in done.stdout
    assert done.stdout.endswith("\n[]\n")


def test_check_and_the_command_say_how_to_install_keras_2_where_it_is_not(monkeypatch, tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text("import keras\nkeras.utils.tf_inspect")
    is_installed = [True]
    monkeypatch.setattr(_api_files.Api, "is_installed", property(lambda api: api is not KERAS_2 or is_installed[0]))
    assert __main__.main(["--check", str(script)]) == 0
    *_, end = capsys.readouterr().out.splitlines()
    assert end == "Nothing is missing with Keras 2, which such scripts get."
    is_installed[0] = False
    assert __main__.main(["--check", str(script)]) == 1
    title, lost, end = capsys.readouterr().out.splitlines()
    assert title == "is of Keras 2 alone:"
    assert lost == f"  {script}:2: Keras 3 has no `keras.utils.tf_inspect`"
    assert "`pip install 'tensorflow-ipu[keras2]'`" in end
    assert re.search(r"pip install --no-deps 'tf_keras~=2\.2\d\.0'", end)
    project = _project.of_script(script)
    needs = [need for need in _keras_version.needs(project) if need.weight is Weight.LOST]
    said = run_script.said(str(script), KerasChoice(2, (needs[0], needs[0])), project)
    assert said.startswith(f"`{script}` is for Keras 2 ({script}:2: ")
    assert "and 1 more, which `check` lists), the package `tf_keras`, which is not installed: `pip install" in said
