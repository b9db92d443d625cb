"""Programs as executables: kept on disk, compiled before they run, run by other processes."""

from tensorflow_ipu.executables import application_compile_op, embedded_runtime
from tensorflow_ipu.executables._compile import (
    cache_folder,
    compile,  # noqa: A004  (It shadows nothing here.)
    set_cache,
)

__all__ = ["application_compile_op", "cache_folder", "compile", "embedded_runtime", "set_cache"]
