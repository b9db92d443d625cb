"""Programs of other processes that need no trace here."""

from tensorflow_ipu.kept_traces._built import by as tell_built_optimizers
from tensorflow_ipu.kept_traces._traces import find_or_trace

__all__ = ["find_or_trace", "tell_built_optimizers"]
