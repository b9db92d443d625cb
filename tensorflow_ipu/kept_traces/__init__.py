"""A cache of traces on disk: programs that another process has traced are not traced again."""

from tensorflow_ipu.kept_traces._built import by as tell_built_optimizers
from tensorflow_ipu.kept_traces._traces import find_or_trace

__all__ = ["find_or_trace", "tell_built_optimizers"]
