"""Operations for compiled programs: what replicas exchange, and what the shards of one replica do."""

from tensorflow_ipu.ops import (
    all_to_all_op,
    cross_replica_ops,
    reduce_scatter_op,
    replication_ops,
    within_replica_ops,
)
from tensorflow_ipu.ops._groups import ReplicaGroups

__all__ = [
    "ReplicaGroups",
    "all_to_all_op",
    "cross_replica_ops",
    "reduce_scatter_op",
    "replication_ops",
    "within_replica_ops",
]
