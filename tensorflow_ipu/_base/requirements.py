"""What the package needs before it can be imported: a Python, and the TensorFlow that its library was built for."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

_BUILD_INFO = Path(__file__).parents[1] / "kernels" / "build_info.json"


def check_python() -> None:
    """Refuses an older Python, on which other modules of the package fail with less to say."""
    if sys.version_info < (3, 10):  # noqa: UP036  (pip refuses it too, but a checkout does not ask pip.)
        found = "`{}` is {}.{}".format(sys.executable, *sys.version_info[:2])
        message = f"tensorflow_ipu needs Python 3.10 to 3.13, and {found}: make an environment with a newer one"
        raise SystemExit(message) if sys.argv[:1] == ["-m"] else ImportError(message)


def check_tensorflow() -> None:
    """Refuses to go on without TensorFlow."""
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
        return "2.21"  # What sources are built for. `_native` says what is wrong.
    return ".".join(str(built_for).split(".")[:2])
