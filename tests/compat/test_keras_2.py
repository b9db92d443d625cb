"""Keras 2 by all names that it had in 2021; a process has one Keras, so these scripts have processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tf_keras", reason="Keras 2 is not installed")

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture
def command(quick_imports, tmp_path):
    """Executes a command line in a process of its own: `command(*words)`."""

    def run(*words, env=()):
        variables = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
        return subprocess.run(
            [sys.executable, "-m", "tensorflow_ipu", *map(str, words)],
            env={**variables, **quick_imports, **dict(env)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def _lines(text):
    """What a script prints, by the first word of the lines."""
    found = {}
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        found.setdefault(word, []).append(rest)
    return found


def test_keras_has_all_its_names_of_2021_and_the_optimizers_are_those_of_then(command):
    done = command("--keras", "2", SCRIPTS / "keras_2.py")
    assert done.returncode == 0, done.stderr
    said = _lines(done.stdout)
    for word in ("same", "below", "graph", "v1"):
        assert set(" ".join(said[word]).split()) == {"True"}, (word, said[word])
    assert len(said["v1"]) == 8
    assert said["weights"] == ["SGD True 1", "Plain True 3", "SGD True 1"]
    assert said["lost"] == [
        "No module named 'keras.engine.no_such'",
        "No module named 'tensorflow.python.keras.no_such'",
        "False",
    ]
    assert said["after"] == ["False False", "False False", "[]"]
