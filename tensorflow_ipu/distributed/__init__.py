"""Tensors of the host over all instances: reduced, gathered, or one for all, outside of programs."""

from tensorflow_ipu.distributed.host_collectives import allgather, allreduce, broadcast

__all__ = ["allgather", "allreduce", "broadcast"]
