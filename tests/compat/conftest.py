"""Fixtures: the compatibility layer, installed for one test, and the output of scripts that run with it."""

from pathlib import Path

import pytest

from tensorflow_ipu import compat

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture
def installed():
    """Installs the compatibility layer for the test."""
    compat.install()
    yield
    compat.uninstall()


# Runs scripts one after the other as the command runs each of them: in the main thread and module, and with a fresh
# configuration, graph and Keras.
_RUN_ALL = """
import sys
from tensorflow_ipu import __main__

for path in sys.argv[1:]:
    print("script", path, flush=True)
    try:
        assert not __main__.main([path]), path
    except SystemExit as exc:
        assert not exc.code, exc.code
    sys.modules["tensorflow_ipu"].config.reset_ipu_configuration()
    sys.modules["tensorflow"].compat.v1.reset_default_graph()
"""


@pytest.fixture(scope="module")
def _outputs(tmp_path_factory, forking):
    """Returns the lines that each script in the folder `scripts` prints; one process runs all scripts."""
    # Scripts that switch to TensorFlow 1 run last.
    scripts = ["feed_loop", "dequeue_thread", "old_keras", "session", "pipeline"]
    paths = [str(SCRIPTS / f"{name}.py") for name in scripts]
    run_all = tmp_path_factory.mktemp("scripts") / "run_all.py"
    run_all.write_text(_RUN_ALL)
    done = forking.run(run_all, *paths, timeout=500, env={"XLA_FLAGS": None})  # Compiles as for users.
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    outputs = {}
    for line in done.stdout.splitlines():
        word, _, path = line.partition(" ")
        if word == "script":
            outputs[Path(path).name] = []
        else:
            outputs[Path(paths[len(outputs) - 1]).name].append(line)
    return outputs


@pytest.fixture
def script_output(_outputs):
    """Returns a function: `script_output("session.py")` returns the lines that this script in `scripts` prints."""
    return _outputs.__getitem__
