"""Checks that the Python version is supported and TensorFlow is installed, before the package is imported."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

_BUILD_INFO = Path(__file__).parents[1] / "kernels" / "build_info.json"


def check_python() -> None:
    """Raises `ImportError` for Python below 3.10, on which other modules would fail with a less clear message."""
    if sys.version_info < (3, 10):  # noqa: UP036  (pip checks this too, but a checkout may be used without pip.)
        current = "`{}` is {}.{}".format(sys.executable, *sys.version_info[:2])
        message = f"tensorflow_ipu needs Python 3.10 to 3.13, and {current}: make an environment with a newer one"
        raise SystemExit(message) if sys.argv[:1] == ["-m"] else ImportError(message)


def check_tensorflow() -> None:
    """Raises `ModuleNotFoundError` if TensorFlow is not installed."""
    if "tensorflow" not in sys.modules and importlib.util.find_spec("tensorflow") is None:
        raise ModuleNotFoundError(
            f"tensorflow_ipu needs TensorFlow {tensorflow_release()}, and `{sys.executable}` has none: `pip install"
            " 'tensorflow-ipu[cpu]'` installs it with the Keras that fits",
            name="tensorflow",
        )


def tensorflow_release() -> str:
    """Returns the release of TensorFlow, such as `2.21`, that the library was built for."""
    try:
        built_for = json.loads(_BUILD_INFO.read_text())["tensorflow"]
    except (OSError, ValueError, KeyError, TypeError):
        return "2.21"  # The release that a checkout supports. `_native` reports the error in the file.
    return ".".join(str(built_for).split(".")[:2])
