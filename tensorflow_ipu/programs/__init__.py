"""Programs and their replicas: from a `tf.function` to a run on the emulated IPUs."""

from tensorflow_ipu.config import _state
from tensorflow_ipu.programs._floating_point import PLAIN as PLAIN_FLOATING_POINT
from tensorflow_ipu.programs._floating_point import FloatingPoint
from tensorflow_ipu.programs._floating_point import of_device as floating_point_of
from tensorflow_ipu.programs._gradients import computed_by, follow_operations, summed_in
from tensorflow_ipu.programs._instruction_attributes import set_to as instructions_attributed
from tensorflow_ipu.programs._interrupts import run_interruptibly
from tensorflow_ipu.programs._program import Prepared, Target, find, is_graph_function, trace, tracing_program
from tensorflow_ipu.programs._replicated import ReplicaGroups, check_size, ipus_of_replica, ipus_or_one
from tensorflow_ipu.programs._runner import compile_only, insert, run
from tensorflow_ipu.programs._shards import (
    ALL_IPUS,
    SHARD_ATTRIBUTE,
    note_shards,
    place_on,
    placed,
    placed_by_name,
    placed_on,
    power_of_2,
    shards_of,
)
from tensorflow_ipu.programs._trace_context import (
    floating_point_now,
    in_condition,
    in_function,
    in_plain_graph,
    ipus_traced_for,
    is_native_state,
    is_tracing,
    on_host,
    source_of,
    wants_host_kernels,
    with_states,
)
from tensorflow_ipu.programs.diagnostics.retracing import ShapesOfData
from tensorflow_ipu.programs.diagnostics.tracebacks import hlo, user_lines
from tensorflow_ipu.programs.diagnostics.uncompilable import refuse_shapes_of_data, why_stopped

__all__ = [
    "ALL_IPUS",
    "PLAIN_FLOATING_POINT",
    "SHARD_ATTRIBUTE",
    "FloatingPoint",
    "Prepared",
    "ReplicaGroups",
    "ShapesOfData",
    "Target",
    "check_size",
    "compile_only",
    "computed_by",
    "find",
    "floating_point_now",
    "floating_point_of",
    "follow_operations",
    "hlo",
    "in_condition",
    "in_function",
    "in_plain_graph",
    "insert",
    "instructions_attributed",
    "ipus_of_replica",
    "ipus_or_one",
    "ipus_traced_for",
    "is_graph_function",
    "is_native_state",
    "is_tracing",
    "note_shards",
    "on_host",
    "place_on",
    "placed",
    "placed_by_name",
    "placed_on",
    "power_of_2",
    "refuse_shapes_of_data",
    "run",
    "run_interruptibly",
    "shards_of",
    "source_of",
    "summed_in",
    "trace",
    "tracing_program",
    "user_lines",
    "wants_host_kernels",
    "why_stopped",
    "with_states",
]

_state.tell_kernels()
