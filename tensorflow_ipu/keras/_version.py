"""Checks the installed version of Keras at import, before a changed private API raises a less helpful error."""

from __future__ import annotations

import importlib.metadata
import sys

from tensorflow_ipu._base import environment, requirements
from tensorflow_ipu.errors import LibraryError

# The releases that `_keras3` supports. The extras in `setup.py` name the same ones. Keras 3.12 is the last
# release for Python 3.10.
FIRST, END = ((3, 12), (3, 13)) if sys.version_info < (3, 11) else ((3, 15), (3, 16))
_MAJOR, _MINOR = map(int, requirements.tensorflow_release().split("."))
FIRST_2, END_2 = (_MAJOR, _MINOR), (_MAJOR, _MINOR + 1)


def check(version: str | None) -> None:
    """Raises `LibraryError` if Keras is installed in an unsupported version, or a required `tf_keras` is missing."""
    is_2 = environment.uses_keras_2()
    if version is None and is_2:
        raise LibraryError(
            "`TF_USE_LEGACY_KERAS` selects Keras 2 for `tf.keras`, but the package `tf_keras` is not installed:"
            f" {environment.KERAS_2_COMES_BY}"
        )
    if version is None:
        return
    package, first, end = ("tf_keras", FIRST_2, END_2) if is_2 else ("keras", FIRST, END)
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if not first <= numbers < end:
        requirement = f"{package}>={first[0]}.{first[1]},<{end[0]}.{end[1]}"
        installation = f"Keras 2 is installed as `tf_keras` `{version}`" if is_2 else f"Keras `{version}` is installed"
        raise LibraryError(
            f"{installation}, but models under an `IPUStrategy` use private APIs of Keras, which change between"
            f" releases. Install a supported release: `pip install '{requirement}'`"
        )


def installed() -> str | None:
    """Returns the version of the installed Keras without importing it, or None if there is none."""
    package = "tf_keras" if environment.uses_keras_2() else "keras"
    if package in sys.modules:
        return getattr(sys.modules[package], "__version__", None)
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
