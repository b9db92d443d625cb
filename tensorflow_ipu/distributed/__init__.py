"""Reduces, gathers and broadcasts host tensors over all instances, outside of programs."""

from tensorflow_ipu.distributed.host_collectives import allgather, allreduce, broadcast

__all__ = ["allgather", "allreduce", "broadcast"]
