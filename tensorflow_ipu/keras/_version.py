"""Which Keras the package stands on: checked at the import, before something fails that says less."""

from __future__ import annotations

import importlib.metadata
import sys

from tensorflow_ipu._base import environment, requirements
from tensorflow_ipu.errors import LibraryError

# The releases whose private names `_keras3` knows; the extras in `setup.py` have the same. Keras 3.15 is
# not for Python 3.10, for which 3.12 is the last.
FIRST, END = ((3, 12), (3, 13)) if sys.version_info < (3, 11) else ((3, 15), (3, 16))
_MAJOR, _MINOR = map(int, requirements.tensorflow_release().split("."))
FIRST_2, END_2 = (_MAJOR, _MINOR), (_MAJOR, _MINOR + 1)


def check(version: str | None) -> None:
    """Compares the installed Keras with those that are known."""
    is_2 = environment.uses_keras_2()
    if version is None and is_2:
        raise LibraryError(
            "`TF_USE_LEGACY_KERAS` says that `tf.keras` is Keras 2, and the package `tf_keras` is not installed:"
            f" {environment.KERAS_2_COMES_BY}"
        )
    if version is None:
        return
    package, first, end = ("tf_keras", FIRST_2, END_2) if is_2 else ("keras", FIRST, END)
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if not first <= numbers < end:
        wanted = f"{package}>={first[0]}.{first[1]},<{end[0]}.{end[1]}"
        what = f"Keras 2 is installed as `tf_keras` `{version}`" if is_2 else f"Keras `{version}` is installed"
        raise LibraryError(
            f"{what}, and models under an `IPUStrategy` run by what Keras keeps to itself, which differs from release to"
            f" release. Install one that is known: `pip install '{wanted}'`"
        )


def installed() -> str | None:
    """The version of the installed Keras, which is not imported for it; None where there is none."""
    package = "tf_keras" if environment.uses_keras_2() else "keras"
    if package in sys.modules:
        return getattr(sys.modules[package], "__version__", None)
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
