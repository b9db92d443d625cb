"""Identifies this process among the workers that MPI has started, and joins them to a cluster."""

from tensorflow_ipu.hosts.cluster import Cluster, join, joined
from tensorflow_ipu.hosts.identity import Identity, identity

__all__ = ["Cluster", "Identity", "identity", "join", "joined"]
