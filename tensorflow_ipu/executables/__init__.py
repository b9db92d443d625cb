"""Executables of programs: compile them before they run, keep them on disk, and run them in other processes."""

from tensorflow_ipu.executables import application_compile_op, embedded_runtime
from tensorflow_ipu.executables._compile import (
    cache_folder,
    compile,  # noqa: A004  (It shadows nothing here.)
    set_cache,
)

__all__ = ["application_compile_op", "cache_folder", "compile", "embedded_runtime", "set_cache"]
