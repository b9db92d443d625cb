"""Which Keras the package stands on: checked at the import, before something fails that says less."""

from __future__ import annotations

import importlib.metadata
import sys

from tensorflow_ipu.errors import LibraryError

# The releases whose private names `_keras_internals` knows; the extras in `pyproject.toml` have the same. Keras 3.15 is
# not for Python 3.10, for which 3.12 is the last.
FIRST, END = ((3, 12), (3, 13)) if sys.version_info < (3, 11) else ((3, 15), (3, 16))


def check(version: str | None) -> None:
    """Compares the installed Keras with those that are known."""
    if version is None:
        return
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if not FIRST <= numbers < END:
        wanted = f"keras>={FIRST[0]}.{FIRST[1]},<{END[0]}.{END[1]}"
        raise LibraryError(
            f"Keras `{version}` is installed, and models under an `IPUStrategy` run by what Keras keeps to itself, which"
            f" differs from release to release. Install one that is known: `pip install '{wanted}'`"
        )


def installed() -> str | None:
    """The version of the installed Keras, which is not imported for it; None where there is none."""
    if "keras" in sys.modules:
        return getattr(sys.modules["keras"], "__version__", None)
    try:
        return importlib.metadata.version("keras")
    except importlib.metadata.PackageNotFoundError:
        return None
