"""Which Keras a script gets: one for all scripts of its folder."""

import json
import os

import pytest

from tensorflow_ipu import __main__
from tensorflow_ipu.cli import run_script
from tensorflow_ipu.compat import _keras_version, _project

pytest.importorskip("tf_keras", reason="Keras 2 is not installed")

OF_SDK = "from tensorflow.python import ipu\nimport tensorflow as tf\ntf.keras.Sequential()\n"
OF_2 = "import keras\nkeras.utils.tf_inspect\n"
OF_3 = "import keras\nkeras.ops.relu\n"
OF_BOTH = "import keras\nkeras.Sequential()\n"


@pytest.fixture(autouse=True)
def _no_choice_by_the_environment(monkeypatch):
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)


def _choices(folder, **scripts):
    """The choice for each of some scripts in a folder, and the line on it."""
    for name, code in scripts.items():
        (folder / f"{name}.py").write_text(code)
    found = {}
    for name in scripts:
        project = _project.of_script(folder / f"{name}.py")
        own = _keras_version.needs(project)
        choice = _keras_version.choose(own, _keras_version.needs_of_folder(project, own))
        found[name] = choice.version, run_script.said(name, choice, project)
    return found


@pytest.mark.parametrize(
    ("scripts", "version", "words"),
    [
        (
            {"train": OF_SDK, "predict": OF_BOTH},
            2,
            "train.py:1: `tensorflow.python.ipu` came with Keras 2) and gets it",
        ),
        ({"train": OF_2, "predict": OF_BOTH}, 2, "train.py:2: Keras 3 has no `keras.utils.tf_inspect`) and gets it"),
        (
            {"train": OF_SDK, "predict": OF_3},
            3,
            "predict.py:2: Keras 2 has no `keras.ops.relu`) and gets it; `--keras 2`",
        ),
        ({"train": OF_SDK + "import more", "more": OF_3}, 3, "more.py:2: Keras 2 has no"),
        ({"train": OF_BOTH, "predict": OF_3}, 3, None),
        ({"train": OF_BOTH, "predict": OF_BOTH}, 3, None),
    ],
)
def test_scripts_of_a_folder_get_one_keras(tmp_path, scripts, version, words):
    for name, (chosen, said) in _choices(tmp_path, **scripts).items():
        assert chosen == version
        assert (words is None and not said) or (said.startswith(f"`{name}` is for Keras {version} (") and words in said)


def test_scripts_that_need_different_ones_get_their_own(tmp_path):
    choices = _choices(tmp_path, train=OF_2, predict=OF_3, both=OF_2 + OF_3, neither=OF_SDK)
    assert {name: version for name, (version, _) in choices.items()} == {
        "train": 2,
        "predict": 3,
        "both": 2,
        "neither": 2,
    }


def test_a_script_without_keras_gets_its_line_about_none(tmp_path):
    assert _choices(tmp_path, script="from tensorflow.python import ipu\n") == {"script": (2, "")}
    (tmp_path / "link.py").symlink_to(tmp_path / "gone.py")
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "faulty.py").write_text("keras (")
    assert _choices(tmp_path, plain=OF_BOTH)["plain"][0] == 2


def test_check_says_what_a_run_gets(tmp_path, capsys, monkeypatch):
    (tmp_path / "train.py").write_text(OF_SDK)
    (tmp_path / "predict.py").write_text(OF_BOTH)
    assert __main__.main(["check", str(tmp_path / "predict.py")]) == 0
    title, place, end = capsys.readouterr().out.splitlines()
    assert (title, end) == ("has scripts run with Keras 2:", "Nothing is missing with Keras 2, which such scripts get.")
    assert place == f"  {tmp_path}/train.py:1: `tensorflow.python.ipu` came with Keras 2"
    (tmp_path / "predict.py").write_text(OF_3)
    assert __main__.main(["check", str(tmp_path)]) == 0
    assert "has scripts run with Keras 3:\n" in capsys.readouterr().out
    monkeypatch.setattr("tensorflow_ipu._base.environment._settled_keras", None)
    monkeypatch.setenv("TF_USE_LEGACY_KERAS", "1")
    assert __main__.main(["check", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert f"does not exist:\n  {tmp_path}/predict.py:2: Keras 2 has no `keras.ops.relu`\n" in said
    assert "All scripts run with Keras 2, since `TF_USE_LEGACY_KERAS` is `1`." in said
    assert __main__.main(["check", "--json", str(tmp_path)]) == 1
    assert set(json.loads(capsys.readouterr().out)["keras"].values()) == {2}
