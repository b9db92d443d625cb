"""The call sites of collectives, and the other state variables of replicas, in programs that are being traced."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu._native.library import native, ops
from tensorflow_ipu._tensorflow import graphs
from tensorflow_ipu.feeds import program_order
from tensorflow_ipu.feeds._native_object import NativeObject, SharedObjects
from tensorflow_ipu.feeds.elements import strategy_ordinal
from tensorflow_ipu.programs import ReplicaGroups

if TYPE_CHECKING:
    from tensorflow_ipu._tensorflow.graphs import FunctionGraph


# The native objects that all programs of a device share, by kind and device. The state variable of `identity` holds the
# replica's index. The state variable of `random` names the random streams.
_shared = SharedObjects()


def new(function: str, name: str, description: str, groups: ReplicaGroups) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Creates a call site of a collective. Returns its state variable, and the tokens that order it in the program."""
    device = device_of_program(function)
    graph = tf.compat.v1.get_default_graph()
    location = f"{graph.unique_name(name, mark_as_used=False)} in {_outermost_name(graph)}"
    site = _make(device, location, description, groups)
    return programs.in_function(site.state(device)), program_order.of(device)


def identity(function: str) -> tf.Tensor:
    """Returns the state variable that holds the replica's index, in the program being traced."""
    return _state("identity", function)


def random(function: str) -> tf.Tensor:
    """Returns the state variable that names the random streams of the device, in the program being traced."""
    return _state("random", function)


def _state(kind: str, function: str) -> tf.Tensor:
    device = device_of_program(function)
    return programs.in_function(shared(kind, device).state(device))


def shared(kind: str, device: str) -> NativeObject:
    """Returns the native object of a kind, `identity` or `random`, that all programs of a device share."""
    return _shared.get((kind, device), lambda: object_of(kind, device, "the replica's index"))


def _make(device: str, location: str, description: str = "", groups: ReplicaGroups | None = None) -> NativeObject:
    groups, index = groups or ReplicaGroups(), tf.DeviceSpec.from_string(device).device_index
    number = native.ipu_site_new(index, location.encode(), description.encode(), groups.size or 0, groups.orthogonal)
    return NativeObject(number, native.ipu_site_drop)


def device_of_program(function: str) -> str:
    """Returns the IPU device of the program being traced: of its operations, else of the strategy, else IPU 0."""
    if tf.executing_eagerly():
        raise RuntimeError(
            f"`{function}` can only be called in a program, where there are replicas: in the"
            " `tf.function(jit_compile=True)` that `strategy.run` runs"
        )
    spec = device_here()
    if spec.device_type == "IPU":
        return f"/device:IPU:{spec.device_index or 0}"
    return f"/device:IPU:{strategy_ordinal() or 0}"


def device_here() -> tf.DeviceSpec:
    """Returns the device of operations that are added to the graph now."""
    return tf.DeviceSpec.from_string(tf.constant(0).device)  # XLA drops a constant that nothing uses.


def keep_with_trace(*values: object) -> None:
    """Keeps `values` alive as long as the outermost graph that is being built."""
    *_, outermost = graphs.around(tf.compat.v1.get_default_graph())
    holder: Any = outermost  # Graphs accept new attributes, which their type does not show.
    holder._ipu_kept = [*getattr(holder, "_ipu_kept", ()), *values]


def on_ipu() -> bool:
    """Returns True if a program for an IPU device is being traced."""
    return not tf.executing_eagerly() and (programs.is_tracing() or device_here().device_type == "IPU")


def _outermost_name(graph: tf.Graph) -> str:
    *_, outermost = itertools.takewhile(
        lambda candidate: candidate is graph or candidate.building_function, graphs.around(graph)
    )
    return getattr(outermost, "name", "a graph")


def kind(state: tf.Tensor) -> str | None:
    """Returns the kind of a state variable, `random`, `identity` or `site`; None if it names a function of the host."""
    native_object: Any = getattr(state, "_ipu_native", None)
    if native_object._drop is native.ipu_random_drop:
        return "random"
    key = _shared.key_of(native_object)
    if key is not None:
        return key[0]
    return "site" if native_object._drop is native.ipu_site_drop else None


def object_of(kind: str, device: str, place: str = "a stored program") -> NativeObject:
    """Creates a native object of a kind for the programs of a device."""
    if kind != "random":
        return _make(device, place)
    number = native.ipu_random_new(tf.DeviceSpec.from_string(device).device_index)
    return NativeObject(number, native.ipu_random_drop)


def mark_half_precision(graph: FunctionGraph, options: str) -> None:
    """Adds the half-precision marker to a program's outermost graph, where a pass over the program's HLO finds it."""
    with graph.as_default(), tf.control_dependencies(None), tf.name_scope("half_precision"):
        marker = ops.ipu_half_precision(random("IPUConfig.floating_point_behaviour"), options=options)
    graph.control_outputs.append(marker)
