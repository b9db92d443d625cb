"""Makes the module names of IPU TensorFlow importable for scripts that were written for it."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorflow_ipu.compat._script import install, uninstall

__all__ = ["install", "uninstall"]


if not TYPE_CHECKING:  # Hidden from type checkers, so that they report misspelled names.

    def __getattr__(name: str) -> Any:
        # The commands `check` and `list` import this package without TensorFlow, whose import takes seconds.
        if name in __all__:
            from tensorflow_ipu.compat import _script

            return getattr(_script, name)
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
