"""Keras 2 with all names of 2021. A process has one Keras, so each of these scripts runs in its own process."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tf_keras", reason="Keras 2 is not installed")

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture
def command(quick_imports, tmp_path):
    """`command(*args)` runs a command line in a separate process."""

    def run(*args, env=()):
        gone = ("PYTHONSAFEPATH", "TF_USE_LEGACY_KERAS")
        variables = {name: value for name, value in os.environ.items() if name not in gone}
        command, variables = [sys.executable, "-m", "tensorflow_ipu", *map(str, args)], {**variables, **quick_imports}
        variables.update(env)
        return subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, check=False)

    return run


def _lines(text):
    """Returns the printed lines by their first word."""
    lines = {}
    for line in text.splitlines():
        word, _, values = line.partition(" ")
        lines.setdefault(word, []).append(values)
    return lines


def test_keras_has_all_its_names_of_2021_and_the_optimizers_are_those_of_then(command):
    done = command("--keras", "2", SCRIPTS / "keras_2.py")
    assert done.returncode == 0, done.stderr
    printed = _lines(done.stdout)
    for word in ("same", "below", "graph", "v1", "addons"):
        assert set(" ".join(printed[word]).split()) == {"True"}, (word, printed[word])
    assert len(printed["v1"]) == 8
    assert printed["weights"] == ["SGD True 1", "Plain True 3", "SGD True 1"]
    assert printed["lost"] == [
        "No module named 'keras.engine.no_such'",
        "No module named 'tensorflow.python.keras.no_such'",
        "False",
    ]
    assert printed["after"] == ["False False", "False False", "[]"]


@pytest.mark.parametrize("version", ["2", "3"])
def test_packages_beside_keras_import_behind_the_layer(command, tmp_path, version):
    packages = ["ogb", "spektral", "tensorflow_datasets", "tensorflow_probability", "transformers"]
    if version == "2":
        packages.remove("tensorflow_probability")  # A program of `tests/scripts` imports it.
    installed = [package for package in packages if importlib.util.find_spec(package) is not None]
    if not installed:
        pytest.skip(f"none of these is installed: {', '.join(packages)}")
    (tmp_path / "script.py").write_text(f"import keras\nimport {', '.join(installed)}\nprint(keras.__version__[0])")
    done = command("--keras", version, "script.py")
    assert done.stdout.splitlines()[-1:] == [version], done.stderr


_TELL = """\
import os
import keras
print("keras", keras.__version__[0], os.environ.get("TF_USE_LEGACY_KERAS"))
"""


def test_command_chooses_the_keras_that_a_script_or_a_module_beside_it_needs(command, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(_TELL + "import beside")
    (tmp_path / "beside.py").write_text("from keras.utils import tf_inspect")
    done = command("script.py")
    assert (done.stdout, done.returncode) == ("keras 2 1\n", 0), done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "Keras 2" in line]
    assert line == (
        "`script.py` is for Keras 2 (beside.py:1: Keras 3 has no `keras.utils.tf_inspect`) and runs with it, as `tf_keras`;"
        " `--keras 3` runs it with Keras 3"
    )
    done = command("--keras", "3", "script.py")
    assert (done.stdout, done.returncode) == ("", 2)
    assert "  beside.py:1: Keras 3 has no `keras.utils.tf_inspect`" in done.stderr


def test_code_of_the_sdk_gets_keras_2_and_what_it_does_with_keras_ends_as_in_2021(command, tmp_path):
    done = command(SCRIPTS / "of_sdk.py", tmp_path / "saved")
    printed = _lines(done.stdout)
    expected = {"rate": "0.5", "cell": "[[[3.0, 3.0], [3.0, 3.0]]]", "saved": "True [[2.0]]", "layers": "[[3.0]]"}
    assert {word: " ".join(lines) for word, lines in printed.items()} == expected, done.stderr


def test_variable_of_the_user_goes_before_what_the_script_is(command, tmp_path):
    (tmp_path / "script.py").write_text(_TELL + "from tensorflow.python import ipu")
    done = command("script.py", env={"TF_USE_LEGACY_KERAS": "0"})
    assert (done.stdout, done.returncode) == ("keras 3 0\n", 0), done.stderr
    assert "Keras" not in done.stderr


def test_workers_get_the_keras_of_their_launcher(command, tmp_path):
    (tmp_path / "script.py").write_text(_TELL)
    done = command("run", "--keras", "2", "--instances", "2", "script.py")
    assert sorted(done.stdout.splitlines()) == ["[0] keras 2 1", "[1] keras 2 1"], done.stderr
