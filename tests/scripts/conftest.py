"""Fixtures that run the programs of this folder, and train their models in plain Keras 2."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parent

_COMMAND = "import sys; from tensorflow_ipu.__main__ import main; sys.exit(main(sys.argv[1:]))"


# The interpreter imports TensorFlow and Keras before the command could select the version of Keras.
_KERAS_2 = {"TF_USE_LEGACY_KERAS": "1"}


@pytest.fixture(scope="session")
def forking_keras_2(quick_imports: dict[str, str]) -> Iterator[Any]:
    """Yields a `Forking` like the fixture `forking`, but with Keras 2."""
    pytest.importorskip("tf_keras", reason="Keras 2 is not installed")
    kind = runpy.run_path(str(PROGRAMS.parent / "forked.py"))["Forking"]
    interpreter = kind({**quick_imports, **_KERAS_2, "PYTHONSAFEPATH": ""})  # Programs import modules of this folder.
    yield interpreter
    interpreter.close()


@pytest.fixture
def trained(tmp_path: Path, forking_keras_2: Any) -> Callable[..., tuple[Any, Any]]:
    """`trained("resnet", "--seed", "1")` runs a program with these arguments, and trains its model in plain Keras 2.

    Returns the results of both, which run at the same time. The command runs the program with `--keras 2` and, if they
    exist, the emulations in `resnet_emulations.py`. The function `resnet` in `plain.py` trains the model.
    """

    def run(name: str, *arguments: str) -> tuple[Any, Any]:
        emulations = PROGRAMS / f"{name}_emulations.py"
        options = [f"--emulations={emulations}"] if emulations.exists() else []
        commands = {
            "program": ["--keras", "2", *options, str(PROGRAMS / f"{name}.py")],
            "plain": ["--keras", "2", str(PROGRAMS / "plain.py"), name],
        }
        script = tmp_path / "command.py"
        script.write_text(_COMMAND)
        processes = {}
        for kind, words in commands.items():
            output, folder = tmp_path / f"{kind}.txt", tmp_path / kind
            folder.mkdir()
            results = str(folder / "results.json")
            processes[kind] = forking_keras_2.start(
                script, *words, "--results", results, *arguments, folder=folder, output=output, env=_KERAS_2
            )
        codes = {kind: forking_keras_2.end(process) for kind, process in processes.items()}
        for kind, code in codes.items():
            if code:
                pytest.fail(
                    f"{kind} of `{name}` ended with {code}; it printed:\n{(tmp_path / f'{kind}.txt').read_text()}"
                )
        program, plain = (json.loads((tmp_path / kind / "results.json").read_text()) for kind in commands)
        return program, plain

    return run
