"""Creates the notebooks of `examples/notebooks/`, with the outputs of their cells, from the scripts in the same folder.

`python build_tools/notebooks.py [NAME ...]` creates the named notebooks, or all. A kernel of this Python runs them in an empty
folder.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

import jupytext
import nbclient
import nbformat
from traitlets.config import Config

SCRIPTS = Path(__file__).resolve().parents[1] / "examples" / "notebooks"
FOLDERS = ("JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR")
# The log messages of TensorFlow and XLA at their start.
_LOG = re.compile(
    r"^(WARNING: All log messages before absl|[IWE]\d{4,} |To enable the following instructions).*\n?", re.MULTILINE
)


def notebook_of(script: Path) -> nbformat.NotebookNode:
    """Returns the notebook of a script, without outputs."""
    notebook = jupytext.read(script, fmt="py:percent")
    for index, cell in enumerate(notebook.cells):
        cell.id = f"{script.stem}-{index}"  # A random id would change the file in each build.
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def run(notebook: nbformat.NotebookNode) -> None:
    """Runs a notebook in a kernel whose files are in a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:  # Paths of sockets must be short.
        os.environ.update(dict.fromkeys(FOLDERS, folder))
        _run(notebook)


def _run(notebook: nbformat.NotebookNode) -> None:
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # For `!python`.
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="2", TENSORFLOW_IPU_PROGRESS="0")
    config = Config({"ConnectionFileMixin": {"transport": "ipc"}})
    options = {"timeout": 300, "startup_timeout": 300, "coalesce_streams": True, "record_timing": False}
    nbclient.NotebookClient(notebook, kernel_name="python3", config=config, **options).execute()


def tidy(notebook: nbformat.NotebookNode) -> None:
    """Removes log messages, which differ between machines, from the outputs of the cells."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                output.text = _LOG.sub("", output.text)
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("text") != ""]


def main(names: list[str]) -> None:
    """Creates the named notebooks, or all."""
    for script in sorted(SCRIPTS.glob("*.py")):
        if names and script.stem not in names:
            continue
        notebook = notebook_of(script)
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            run(notebook)
            os.chdir(SCRIPTS)
        tidy(notebook)
        nbformat.write(notebook, script.with_suffix(".ipynb"))
        print(f"created {script.stem}.ipynb")


if __name__ == "__main__":
    main(sys.argv[1:])
