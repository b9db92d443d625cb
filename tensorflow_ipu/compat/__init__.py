"""The module names of IPU TensorFlow, for scripts that were written for it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorflow_ipu.compat._script import install, uninstall

__all__ = ["install", "uninstall"]


if not TYPE_CHECKING:  # A misspelled name is an error for type checkers.

    def __getattr__(name: str) -> Any:
        # Scripts are read, and the names listed, without TensorFlow, which takes seconds.
        if name in __all__:
            from tensorflow_ipu.compat import _script

            return getattr(_script, name)
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
