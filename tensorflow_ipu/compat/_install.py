"""Opens and closes the door."""

from __future__ import annotations

import sys
import threading

from tensorflow_ipu._tensorflow.patches import Changes
from tensorflow_ipu.compat import _modules, _names
from tensorflow_ipu.compat._table import resolve

_lock = threading.Lock()
_finder = _modules.OldModuleFinder()
_changes = Changes()


def install() -> None:
    """Makes the names of IPU TensorFlow importable: `from tensorflow.python import ipu` and so on.

    It also gives TensorFlow and Keras 3 back the names and arguments that such scripts use and that were lost since:
    docs/porting.md lists them. A second call does nothing. Thread-safe.
    """
    with _lock:
        if _finder in sys.meta_path:
            return
        sys.meta_path.insert(0, _finder)
        try:
            for module, name, target in _names.ATTRIBUTES:
                _changes.add(module, name, resolve(target))

            from tensorflow_ipu.compat import _keras, _tensorflow

            _tensorflow.bridge(_changes)
            _keras.bridge(_changes)
        except BaseException:
            _close()
            raise


def uninstall() -> None:
    """Takes back what `install` did; where it did nothing, neither does this.

    Modules and names that a script has imported stay in its hands. Thread-safe.
    """
    with _lock:
        if _finder in sys.meta_path:
            _close()


def _close() -> None:
    _changes.undo()
    _modules.remove_all()
    sys.meta_path.remove(_finder)
