"""The shards and attributes of operations, which their instructions and gradients get too."""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tensorflow_ipu._base import lifetimes
from tensorflow_ipu._base.types import Gradient, TensorLike
from tensorflow_ipu._tensorflow import functions, gradients, graphs, patches, xla

_logger = logging.getLogger(__name__)

# TensorFlow's bridge to XLA copies this attribute onto the instructions of the program.
_ATTRIBUTE = "_XlaFrontendAttributes"

# How numbers are computed: gradients have these attributes of their operations.
PARTIALS = "ipu_partials_type"
_INHERITED = frozenset({PARTIALS, "ipu_stochastic_rounding"})
HAS_SCOPES = "_ipu_asked_of_numbers"  # An attribute of graphs with scopes that set one of these.

# Lists the shards of an operation. Not TensorFlow's `_XlaSharding`, by which XLA would split the program.
SHARD_ATTRIBUTE = "_IpuShard"
# Lists the shards of the instructions that the operation becomes, with blanks between several.
_SHARDS_OF_INSTRUCTION = "ipu_shard"
ALL_IPUS = -1  # The number that stands for all shards.
_SHARDS = "_ipu_shards"  # On the graph of a function: how many IPUs what was traced in it uses.

_CALLS = {"Case", "If", "StatelessCase", "StatelessIf", "StatelessWhile", "While", *graphs.CALLS}


def note_shards(index: int) -> None:
    """Notes in all functions being traced that they use the IPU `index` of their replica."""
    for graph in graphs.being_traced():
        setattr(graph, _SHARDS, max(getattr(graph, _SHARDS, 1), index + 1))


@contextlib.contextmanager
def placed(shards: Sequence[int]) -> Iterator[None]:
    """A block whose operations are placed on these IPUs of their replica, or on all by `ALL_IPUS`."""
    note_shards(max(0, *shards))
    with graphs.attributed({SHARD_ATTRIBUTE: _shards_value(shards)}), attributed(_of_shards(shards)):
        yield


def place_on(operation: tf.Operation, shards: Sequence[int]) -> None:
    """Places an operation that is in a graph; the program uses the IPUs already."""
    graphs.set_attribute(operation, SHARD_ATTRIBUTE, _shards_value(shards))
    present = xla.frontend_attributes(operation.node_def.attr[_ATTRIBUTE].s)  # Empty if it has none.
    graphs.set_attribute(operation, _ATTRIBUTE, _value({**present, **_of_shards(shards)}))


def placed_on(operation: tf.Operation) -> list[int] | None:
    """Returns the IPUs that an operation of a graph was placed on; None if it was not placed."""
    attributes = operation.node_def.attr
    return list(attributes[SHARD_ATTRIBUTE].list.i) if SHARD_ATTRIBUTE in attributes else None


def placed_by_name(program: functions.ConcreteFunction | tf.Graph) -> dict[str, list[int]]:
    """Returns the IPUs of all placed operations of a program by name; a name with a slash stands for what it calls."""
    shards_by_name: dict[str, list[int]] = {}
    for operation in (operation for graph in graphs.graphs_of(program) for operation in graph.get_operations()):
        shards = placed_on(operation)
        if shards is not None:
            shards_by_name[operation.name] = shards
            if operation.type in _CALLS:
                shards_by_name[f"{operation.name}/"] = shards
    return shards_by_name


def shards_of(program: functions.ConcreteFunction | tf.Graph) -> int:
    """Returns how many IPUs one replica of a program uses: the highest number noted and 1."""
    return max(getattr(graph, _SHARDS, 1) for graph in graphs.graphs_of(program))


def power_of_2(shards: int) -> int:
    """Returns how many IPUs a replica with so many stages or shards takes: the next power of 2."""
    return 1 << (shards - 1).bit_length()


def _shards_value(shards: Sequence[int]) -> tf.compat.v1.AttrValue:
    return tf.compat.v1.AttrValue(list=tf.compat.v1.AttrValue.ListValue(i=shards))


def _of_shards(shards: Sequence[int]) -> dict[str, str]:
    return {_SHARDS_OF_INSTRUCTION: " ".join(map(str, shards))}


def attributes_now() -> dict[str, str]:
    """Returns the attributes of instructions that operations get now."""
    attribute = graphs.attribute_now(_ATTRIBUTE)
    return {} if attribute is None else xla.frontend_attributes(attribute.s)


@contextlib.contextmanager
def attributed(attributes: Mapping[str, str], after: Mapping[str, str] | None = None) -> Iterator[None]:
    """A block whose instructions have these attributes besides those of the block around; `after` stay set at its end."""
    before = attributes_now()
    _set({**before, **attributes})
    try:
        yield
    finally:
        _set({**(after or {}), **before})


def computed_by(
    attributes: Mapping[str, str], after: Mapping[str, str] | None = None
) -> contextlib.AbstractContextManager[None]:
    """A block whose operations have these attributes, and whose gradients have those that say how to compute."""
    if not tf.executing_eagerly() and not _INHERITED.isdisjoint(attributes):
        graph = tf.compat.v1.get_default_graph()
        follow_operations(graph)
        for around in graphs.around(graph):
            setattr(around, HAS_SCOPES, True)
    return attributed(attributes, after)


def _set(attributes: Mapping[str, str]) -> None:
    graphs.leave_attribute(_ATTRIBUTE, _value(attributes) if attributes else None)


def _value(attributes: Mapping[str, str]) -> tf.compat.v1.AttrValue:
    return tf.compat.v1.AttrValue(s=xla.serialized_frontend_attributes(attributes))


def _inherited(attribute: tf.compat.v1.AttrValue) -> dict[str, str]:
    return {name: value for name, value in xla.frontend_attributes(attribute.s).items() if name in _INHERITED}


def _inherited_from(operation: tf.Operation) -> dict[str, str]:
    attributes = operation.node_def.attr
    # Asked for first: to read an attribute that a protobuf's map does not have adds an empty one.
    return _inherited(attributes[_ATTRIBUTE]) if _ATTRIBUTE in attributes else {}


def is_set_by_scope(graph: tf.Graph, operation: tf.Operation | None = None) -> bool:
    """Returns True if a scope sets how an operation is computed: its own, or that of the loop or function around it.

    Without an operation, the next one of the graph is meant.
    """
    if operation is not None and _inherited_from(operation):
        return True
    attributes = (graphs.attribute_now(_ATTRIBUTE, around) for around in graphs.around(graphs.enclosing(graph)))
    return any(_inherited(attribute) for attribute in attributes if attribute is not None)


def marker_entries(graph: graphs.FunctionGraph) -> Iterator[str]:
    """Yields the attributes that scopes set for a program's float16 operations, as `IpuHalfPrecision` lists them."""
    # TensorFlow's bridge copies attributes to the instructions of most operations, but not of those that it lowers by MLIR
    # (`Einsum` and others), nor into loops and called functions. `kernels/precision/rounding.h` reads the entries.
    attributes_by_name: dict[str, Mapping[str, str]] = {}
    for name, attributes in _half_operations(graph, "", {}):
        if attributes_by_name.get(name, attributes) != attributes:
            _logger.warning(
                "two functions of the program have operations called `%s`, of which scopes say different things; both"
                " compute by the configuration: give one of them another name, by `tf.name_scope`",
                name,
            )
            attributes_by_name[name] = {}
        else:
            attributes_by_name[name] = attributes
    for name, attributes in attributes_by_name.items():
        for attribute, value in attributes.items():
            yield f"{attribute}:{name}={value}"


def _half_operations(
    graph: graphs.FunctionGraph, prefix: str, around: Mapping[str, str]
) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yields all operations with an operand or result of float16, with their attributes and those of calls around."""
    for operation in graph.get_operations():
        attributes = {**around, **_inherited_from(operation)}
        called = graphs.functions_of(graph, operation)
        for function in called:
            yield from _half_operations(function, graphs.scope_of_called(operation, prefix), attributes)
        if not called and any(tensor.dtype == tf.float16 for tensor in (*operation.outputs, *operation.inputs)):
            yield prefix + operation.name, attributes


_Gradient = Callable[..., Any]

# The name by which a tape keeps the attributes that gradients inherit.
_ON_TAPE = "_IpuInherited"


def follow_operations(graph: tf.Graph) -> None:
    """Gives gradients the shards and attributes of their operations, as long as the graph lives."""
    patches.GRADIENT_LOOKUPS.apply_while(graph, _looking_up)
    patches.OWN_GRADIENTS.apply_while(graph, _finding_own)
    patches.RECORDED_OPERATIONS.apply_while(graph, _recording)


def _following(gradient: _Gradient | None) -> _Gradient | None:
    """Returns a gradient whose operations get the shards and attributes of the operation it is called with."""
    if gradient is None:
        return None

    def follow(operation: Any, *upstream: Any) -> Any:
        shards, attributes = _shards_and_attributes(operation)
        with (
            contextlib.nullcontext() if shards is None else placed(shards),
            attributed(attributes) if attributes else contextlib.nullcontext(),
        ):
            return gradient(operation, *upstream)

    return follow


def _shards_and_attributes(operation: Any) -> tuple[Sequence[int] | None, Mapping[str, str]]:
    if isinstance(operation, tf.Operation):
        return placed_on(operation), _inherited_from(operation)
    recorded = gradients.recorded_attributes(operation)
    values = dict(zip(recorded[::2], recorded[1::2], strict=False))
    shards = values.get(SHARD_ATTRIBUTE)
    return None if shards is None else list(shards), dict(values.get(_ON_TAPE, ()))


def _looking_up(plain: Any) -> type:
    class Gradients(plain):
        __slots__ = ()

        def lookup(self, name: str) -> _Gradient | None:
            return _following(super().lookup(name))

    return Gradients


def _finding_own(plain: Callable[[tf.Operation], _Gradient | None]) -> Callable[[tf.Operation], _Gradient | None]:
    def find(operation: tf.Operation) -> _Gradient | None:
        gradient = plain(operation)
        # Those that are looked up follow already.
        return _following(gradient) if gradient is gradients.own_gradient(operation) else gradient

    return find


def _recording(plain: Callable[..., None]) -> Callable[..., None]:
    def record(kind: str, inputs: Sequence[tf.Tensor], attributes: Sequence[Any], results: Sequence[tf.Tensor]) -> None:
        first = results[0] if isinstance(results, (list, tuple)) and results else None
        if isinstance(first, tf.Tensor) and hasattr(first, "graph"):
            shards, inherited = _shards_and_attributes(first.op)
            if shards is not None:
                attributes = (*(attributes or ()), SHARD_ATTRIBUTE, tuple(shards))
            if inherited:
                attributes = (*(attributes or ()), _ON_TAPE, tuple(inherited.items()))
        plain(kind, inputs, attributes, results)

    return record


def registering(plain: Callable[..., None]) -> Callable[..., None]:
    """Makes gradients of `tf.custom_gradient` end with the graphs that they are registered in."""

    def register(registry: object, gradient: _Gradient, name: str | None = None) -> None:
        is_custom = registry is gradients.REGISTRY and gradients.is_custom(name)
        owners: list[Any] = graphs.being_built() if is_custom else []
        if name is None or not owners:
            return plain(registry, gradient, name)
        reference = weakref.ref(gradient)

        def weakly(operation: Any, *upstream: Any) -> Any:
            own = reference()
            assert own is not None  # The operation's graph keeps the gradient.
            results = own(operation, *upstream)
            if len(results) != len(operation.inputs):
                return results  # TensorFlow refuses it by name.
            return [_in_graph(result, tensor) for result, tensor in zip(results, operation.inputs, strict=True)]

        plain(registry, weakly, name)
        for graph in owners:  # A plain graph takes attributes, though it shows no `__dict__`.
            graph._ipu_gradients = [*getattr(graph, "_ipu_gradients", ()), gradient]
        lifetimes.call_later(gradient, lambda: gradients.forget(name))
        return None

    return register


def _in_graph(gradient: TensorLike | tf.IndexedSlices | None, of: tf.Tensor) -> Gradient | None:
    """Returns a number, array, variable or eager tensor as a tensor of the graph; tapes take those, `tf.gradients` does not."""
    if gradient is None or isinstance(gradient, tf.IndexedSlices):
        return gradient
    return tf.convert_to_tensor(gradient, dtype_hint=None if of.dtype == tf.resource else of.dtype)
