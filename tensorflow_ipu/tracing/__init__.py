"""Recordings of programs over time, as traces for Perfetto."""

from tensorflow_ipu.tracing._trace import trace

__all__ = ["trace"]
