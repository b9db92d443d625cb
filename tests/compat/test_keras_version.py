"""Scripts are read for names that only one Keras has, and all scripts of a folder run with the same Keras."""

import json
import os
import re

import pytest

from tensorflow_ipu import __main__
from tensorflow_ipu.cli import run_script
from tensorflow_ipu.compat import _api_files, _keras_version, _project
from tensorflow_ipu.compat._api_files import KERAS_2
from tensorflow_ipu.compat._keras_version import KerasChoice, Weight

BEGIN = "import keras\nimport tensorflow as tf\n"
OF_SDK = "from tensorflow.python import ipu\nimport tensorflow as tf\ntf.keras.Sequential()\n"
OF_2 = "import keras\nkeras.utils.tf_inspect\n"
OF_3 = "import keras\nkeras.ops.relu\n"
OF_BOTH = "import keras\nkeras.Sequential()\n"

needs_keras_2 = pytest.mark.skipif(not KERAS_2.is_installed, reason="Keras 2 is not installed")


@pytest.fixture(autouse=True)
def _no_choice_by_the_environment(monkeypatch):
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)


def _needs(folder, code):
    """Returns weight and message of each name in the last line of code that only one Keras has."""
    script = folder / "script.py"
    script.write_text(BEGIN + code)
    needs = [need for need in _keras_version.needs(_project.of_script(script)) if need.weight is not Weight.ORIGIN]
    assert {need.line for need in needs} <= {len(script.read_text().rstrip().splitlines())}, needs
    return [(need.weight, need.message) for need in needs]


@pytest.mark.parametrize(
    ("code", "weight", "text"),
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
        ("tf.compat.v1.layers.dense(1)", Weight.LOST, "`tensorflow.compat.v1.layers` of TensorFlow is Keras 2"),
        ("from tensorflow.python.keras.engine import training", Weight.DECIDES, "left of Keras 2"),
    ],
)
def test_name_that_only_keras_2_has_is_found(tmp_path, code, weight, text):
    ((actual_weight, message),) = _needs(tmp_path, code)
    assert actual_weight is weight
    assert text in message


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
        "try: from keras.engine import base_layer_utils\nexcept ImportError: pass",
    ],
)
def test_name_that_keras_3_has_is_not_reported(tmp_path, code):
    assert _needs(tmp_path, code) == []


def _choices(folder, **scripts):
    """Returns the choice for each of some scripts in a folder, and the line on it."""
    for name, code in scripts.items():
        (folder / f"{name}.py").write_text(code)
    choices = {}
    for name in scripts:
        project = _project.of_script(folder / f"{name}.py")
        needs = _keras_version.needs(project)
        choice = _keras_version.choose(needs, _keras_version.needs_of_folder(project, needs))
        choices[name] = choice.version, run_script.keras_line(name, choice, project)
    return choices


OF_2_FOUND = "train.py:2: Keras 3 has no `keras.utils.tf_inspect`) and runs with it"
OF_3_FOUND = "predict.py:2: Keras 2 has no `keras.ops.relu`) and runs with it; `--keras 2`"


@needs_keras_2
@pytest.mark.parametrize(
    ("scripts", "version", "text"),
    [
        (
            {"train": OF_SDK, "predict": OF_BOTH},
            2,
            "train.py:1: `tensorflow.python.ipu` came with Keras 2) and runs with it",
        ),
        ({"train": OF_2, "predict": OF_BOTH}, 2, OF_2_FOUND),
        ({"train": OF_SDK, "predict": OF_3}, 3, OF_3_FOUND),
        ({"train": OF_SDK + "import more", "more": OF_3}, 3, "more.py:2: Keras 2 has no"),
        ({"train": OF_BOTH, "predict": OF_3}, 3, None),
        ({"train": OF_BOTH, "predict": OF_BOTH}, 3, None),
    ],
)
def test_scripts_of_a_folder_get_one_keras(tmp_path, scripts, version, text):
    for name, (chosen, line) in _choices(tmp_path, **scripts).items():
        assert chosen == version
        assert (text is None and not line) or (line.startswith(f"`{name}` is for Keras {version} (") and text in line)


@needs_keras_2
def test_scripts_that_need_different_ones_get_their_own(tmp_path):
    choices = _choices(tmp_path, train=OF_2, predict=OF_3, both=OF_2 + OF_3, neither=OF_SDK)
    versions = {name: version for name, (version, _) in choices.items()}
    assert versions == {"train": 2, "predict": 3, "both": 2, "neither": 2}


@needs_keras_2
def test_a_script_without_keras_gets_its_line_about_none(tmp_path):
    assert _choices(tmp_path, script="from tensorflow.python import ipu\n") == {"script": (2, "")}
    (tmp_path / "link.py").symlink_to(tmp_path / "gone.py")
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "faulty.py").write_text("keras (")
    assert _choices(tmp_path, plain=OF_BOTH)["plain"][0] == 2


@needs_keras_2
def test_check_says_what_a_run_gets(tmp_path, capsys, monkeypatch):
    (tmp_path / "train.py").write_text(OF_SDK)
    (tmp_path / "predict.py").write_text(OF_BOTH)
    assert __main__.main(["check", str(tmp_path / "predict.py")]) == 0
    title, place, end = capsys.readouterr().out.splitlines()
    assert (title, end) == (
        "makes scripts run with Keras 2:",
        "Nothing is missing with Keras 2, which these scripts use.",
    )
    assert place == f"  {tmp_path}/train.py:1: `tensorflow.python.ipu` came with Keras 2"
    (tmp_path / "predict.py").write_text(OF_3)
    assert __main__.main(["check", str(tmp_path)]) == 0
    assert "makes scripts run with Keras 3:\n" in capsys.readouterr().out
    monkeypatch.setattr("tensorflow_ipu._base.environment._settled_keras", None)
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    assert __main__.main(["check", str(tmp_path)]) == 1
    output = capsys.readouterr().out
    assert f"does not exist:\n  {tmp_path}/predict.py:2: Keras 2 has no `keras.ops.relu`\n" in output
    assert "All scripts run with Keras 2, since `TF_USE_LEGACY_KERAS` is `1`." in output
    assert __main__.main(["check", "--json", str(tmp_path)]) == 1
    assert set(json.loads(capsys.readouterr().out)["keras"].values()) == {2}


def test_check_and_the_command_say_how_to_install_keras_2_where_it_is_not(monkeypatch, tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text(OF_2)
    is_installed = [True]
    monkeypatch.setattr(_api_files.Api, "is_installed", property(lambda api: api is not KERAS_2 or is_installed[0]))
    assert __main__.main(["--check", str(script)]) == 0
    *_, end = capsys.readouterr().out.splitlines()
    assert end == "Nothing is missing with Keras 2, which these scripts use."
    is_installed[0] = False
    assert __main__.main(["--check", str(script)]) == 1
    title, lost, end = capsys.readouterr().out.splitlines()
    assert title == "exists only in Keras 2:"
    assert lost == f"  {script}:2: Keras 3 has no `keras.utils.tf_inspect`"
    assert "`pip install 'tensorflow-ipu[keras2]'`" in end
    assert re.search(r"pip install --no-deps 'tf_keras~=2\.2\d\.0'", end)
    project = _project.of_script(script)
    needs = _keras_version.needs(project)
    message = run_script.keras_line(str(script), KerasChoice(2, (needs[0], needs[0])), project)
    assert message.startswith(f"`{script}` is for Keras 2 ({script}:2: ")
    assert "and 1 more, which `check` lists), the package `tf_keras`, which is not installed: `pip install" in message
