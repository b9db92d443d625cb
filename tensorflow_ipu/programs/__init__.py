"""Traces, compiles and runs programs, on one IPU or on replicas."""

from tensorflow_ipu._tensorflow.graphs import in_condition
from tensorflow_ipu.config import _state
from tensorflow_ipu.programs._attributes import (
    ALL_IPUS,
    SHARD_ATTRIBUTE,
    attributed,
    computed_by,
    follow_operations,
    place_on,
    placed,
    placed_by_name,
    placed_on,
    power_of_2,
    shards_of,
)
from tensorflow_ipu.programs._program import GRAPH_FUNCTIONS, Program, insert, tracing_program
from tensorflow_ipu.programs._replica_groups import ReplicaGroups, check_size
from tensorflow_ipu.programs._trace_context import (
    FloatingPoint,
    Target,
    floating_point_now,
    floating_point_of,
    in_function,
    in_plain_graph,
    ipus_traced_for,
    is_native_state,
    is_tracing,
    on_host,
    source_of,
    summed_in,
    wants_host_kernels,
    with_states,
)
from tensorflow_ipu.programs.diagnostics.retracing import ShapesOfData
from tensorflow_ipu.programs.diagnostics.tracebacks import hlo, user_lines

__all__ = [
    "ALL_IPUS",
    "GRAPH_FUNCTIONS",
    "SHARD_ATTRIBUTE",
    "FloatingPoint",
    "Program",
    "ReplicaGroups",
    "ShapesOfData",
    "Target",
    "attributed",
    "check_size",
    "computed_by",
    "floating_point_now",
    "floating_point_of",
    "follow_operations",
    "hlo",
    "in_condition",
    "in_function",
    "in_plain_graph",
    "insert",
    "ipus_traced_for",
    "is_native_state",
    "is_tracing",
    "on_host",
    "place_on",
    "placed",
    "placed_by_name",
    "placed_on",
    "power_of_2",
    "shards_of",
    "source_of",
    "summed_in",
    "tracing_program",
    "user_lines",
    "wants_host_kernels",
    "with_states",
]

_state.tell_kernels()
