"""Traces of what programs do in time, for Perfetto."""

from tensorflow_ipu.tracing._trace import trace

__all__ = ["trace"]
