"""Several hosts: which worker of how many this process is, and the cluster that the workers form."""

from tensorflow_ipu.hosts.cluster import Cluster, join, joined
from tensorflow_ipu.hosts.identity import Identity, identity

__all__ = ["Cluster", "Identity", "identity", "join", "joined"]
