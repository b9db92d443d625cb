"""Sets the shards and attributes of operations, and copies them to their HLO instructions and gradients."""

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

# TensorFlow's bridge to XLA copies this attribute onto the HLO instructions of the program.
_ATTRIBUTE = "_XlaFrontendAttributes"

# These attributes choose the arithmetic of an operation. Its gradient inherits them.
PARTIALS = "ipu_partials_type"
_INHERITED = frozenset({PARTIALS, "ipu_stochastic_rounding"})
HAS_SCOPES = "_ipu_has_scopes"  # Marks graphs in which a scope sets an attribute of `_INHERITED`.

# Lists the shards of an operation. It replaces TensorFlow's `_XlaSharding`, which would make XLA split the program.
SHARD_ATTRIBUTE = "_IpuShard"
# Lists the shards of an operation's HLO instructions, separated by blanks.
_SHARDS_OF_INSTRUCTION = "ipu_shard"
ALL_IPUS = -1  # The shard number that means all shards.
_SHARDS = "_ipu_shards"  # An attribute of function graphs: the number of IPUs that their operations use.

_CALLS = {"Case", "If", "StatelessCase", "StatelessIf", "StatelessWhile", "While", *graphs.CALLS}


def note_shards(index: int) -> None:
    """Records on all functions that are being traced that they use the IPU `index` of their replica."""
    for graph in graphs.being_traced():
        setattr(graph, _SHARDS, max(getattr(graph, _SHARDS, 1), index + 1))


@contextlib.contextmanager
def placed(shards: Sequence[int]) -> Iterator[None]:
    """Runs the block with its operations placed on these IPUs of their replica; `ALL_IPUS` means all of them."""
    note_shards(max(0, *shards))
    with graphs.attributed({SHARD_ATTRIBUTE: _shards_value(shards)}), attributed(_of_shards(shards)):
        yield


def place_on(operation: tf.Operation, shards: Sequence[int]) -> None:
    """Places an existing operation of a graph on IPUs that the program already uses."""
    graphs.set_attribute(operation, SHARD_ATTRIBUTE, _shards_value(shards))
    old_attributes = xla.frontend_attributes(operation.node_def.attr[_ATTRIBUTE].s)  # Empty if it has none.
    graphs.set_attribute(operation, _ATTRIBUTE, _value({**old_attributes, **_of_shards(shards)}))


def placed_on(operation: tf.Operation) -> list[int] | None:
    """Returns the IPUs on which an operation of a graph was placed, or None if it was not placed."""
    attributes = operation.node_def.attr
    return list(attributes[SHARD_ATTRIBUTE].list.i) if SHARD_ATTRIBUTE in attributes else None


def placed_by_name(program: functions.ConcreteFunction | tf.Graph) -> dict[str, list[int]]:
    """Returns the IPUs of all placed operations of a program by name.

    A name that ends in a slash, such as `"while/"`, applies to the operations of the called function.
    """
    shards_by_name: dict[str, list[int]] = {}
    for operation in (operation for graph in graphs.graphs_of(program) for operation in graph.get_operations()):
        shards = placed_on(operation)
        if shards is not None:
            shards_by_name[operation.name] = shards
            if operation.type in _CALLS:
                shards_by_name[f"{operation.name}/"] = shards
    return shards_by_name


def shards_of(program: functions.ConcreteFunction | tf.Graph) -> int:
    """Returns the number of IPUs that one replica of a program uses: the highest recorded index plus 1."""
    return max(getattr(graph, _SHARDS, 1) for graph in graphs.graphs_of(program))


def power_of_2(shards: int) -> int:
    """Returns the number of IPUs for a replica of `shards` stages or shards: the next power of 2."""
    return 1 << (shards - 1).bit_length()


def _shards_value(shards: Sequence[int]) -> tf.compat.v1.AttrValue:
    return tf.compat.v1.AttrValue(list=tf.compat.v1.AttrValue.ListValue(i=shards))


def _of_shards(shards: Sequence[int]) -> dict[str, str]:
    return {_SHARDS_OF_INSTRUCTION: " ".join(map(str, shards))}


def attributes_now() -> dict[str, str]:
    """Returns the instruction attributes that new operations get at present."""
    attribute = graphs.attribute_now(_ATTRIBUTE)
    return {} if attribute is None else xla.frontend_attributes(attribute.s)


@contextlib.contextmanager
def attributed(attributes: Mapping[str, str], attributes_after: Mapping[str, str] | None = None) -> Iterator[None]:
    """Runs the block with added instruction attributes; `attributes_after` are set when it ends."""
    outer_attributes = attributes_now()
    _set({**outer_attributes, **attributes})
    try:
        yield
    finally:
        _set({**(attributes_after or {}), **outer_attributes})


def computed_by(
    attributes: Mapping[str, str], attributes_after: Mapping[str, str] | None = None
) -> contextlib.AbstractContextManager[None]:
    """Runs the block as `attributed` does; gradients inherit the attributes that choose the arithmetic."""
    if not tf.executing_eagerly() and not _INHERITED.isdisjoint(attributes):
        graph = tf.compat.v1.get_default_graph()
        follow_operations(graph)
        for enclosing_graph in graphs.around(graph):
            setattr(enclosing_graph, HAS_SCOPES, True)
    return attributed(attributes, attributes_after)


def _set(attributes: Mapping[str, str]) -> None:
    graphs.leave_attribute(_ATTRIBUTE, _value(attributes) if attributes else None)


def _value(attributes: Mapping[str, str]) -> tf.compat.v1.AttrValue:
    return tf.compat.v1.AttrValue(s=xla.serialized_frontend_attributes(attributes))


def _inherited(attribute: tf.compat.v1.AttrValue) -> dict[str, str]:
    return {name: value for name, value in xla.frontend_attributes(attribute.s).items() if name in _INHERITED}


def _inherited_from(operation: tf.Operation) -> dict[str, str]:
    attributes = operation.node_def.attr
    # Reading a missing attribute from a protobuf's map would add an empty one.
    return _inherited(attributes[_ATTRIBUTE]) if _ATTRIBUTE in attributes else {}


def is_set_by_scope(graph: tf.Graph, operation: tf.Operation | None = None) -> bool:
    """Returns True if a scope chooses the arithmetic of an operation, or of the loop or function that contains it.

    Without an operation, the answer is for the next operation of the graph.
    """
    if operation is not None and _inherited_from(operation):
        return True
    outer_graphs = graphs.around(graphs.enclosing(graph))
    attributes = (graphs.attribute_now(_ATTRIBUTE, outer_graph) for outer_graph in outer_graphs)
    return any(_inherited(attribute) for attribute in attributes if attribute is not None)


def marker_entries(graph: graphs.FunctionGraph) -> Iterator[str]:
    """Yields the attributes that scopes set for a program's float16 operations, as `IpuHalfPrecision` lists them."""
    # TensorFlow's bridge copies attributes to the instructions of most operations. It does not copy them for operations
    # that it lowers by MLIR (`Einsum` and others), nor into loops and called functions. So the program lists them, and
    # `kernels/precision/rounding.h` reads the list. Example of an entry: `ipu_partials_type:dense/MatMul=half`.
    attributes_by_name: dict[str, Mapping[str, str]] = {}
    for name, attributes in _half_operations(graph, "", {}):
        if attributes_by_name.get(name, attributes) != attributes:
            _logger.warning(
                "two functions of the program have operations called `%s`, and scopes set different options for them;"
                " both use the options of the configuration: rename one of them by `tf.name_scope`",
                name,
            )
            attributes_by_name[name] = {}
        else:
            attributes_by_name[name] = attributes
    for name, attributes in attributes_by_name.items():
        for attribute, value in attributes.items():
            yield f"{attribute}:{name}={value}"


def _half_operations(
    graph: graphs.FunctionGraph, prefix: str, call_attributes: Mapping[str, str]
) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yields the name of each operation with a float16 operand or result, and the attributes of it and its callers."""
    for operation in graph.get_operations():
        attributes = {**call_attributes, **_inherited_from(operation)}
        called_functions = graphs.functions_of(graph, operation)
        for function in called_functions:
            yield from _half_operations(function, graphs.scope_of_called(operation, prefix), attributes)
        if not called_functions and any(
            tensor.dtype == tf.float16 for tensor in (*operation.outputs, *operation.inputs)
        ):
            yield prefix + operation.name, attributes


_Gradient = Callable[..., Any]

# The name under which a tape records the attributes that gradients inherit.
_ON_TAPE = "_IpuInherited"


def follow_operations(graph: tf.Graph) -> None:
    """Makes gradients inherit the shards and attributes of their operations, as long as the graph lives.

    For example, after `with ipu_shard(1): y = x @ w`, the gradients of `x` and `w` are also placed on IPU 1. Three
    patches are needed:

    - TensorFlow looks up registered gradients by the operation's type. The lookup returns a wrapped gradient.
    - Some operations have separate gradients, such as calls of functions. These are wrapped too.
    - A tape passes a record of the operation to the gradient. The patch adds the shards and attributes to the record.

    A wrapped gradient enters `placed` and `attributed` with the values of the operation that it differentiates.
    """
    patches.GRADIENT_LOOKUPS.apply_while(graph, _inheriting_lookups)
    patches.OWN_GRADIENTS.apply_while(graph, _inheriting_own_gradients)
    patches.RECORDED_OPERATIONS.apply_while(graph, _recording_attributes)


def _inheriting(gradient: _Gradient | None) -> _Gradient | None:
    """Returns a gradient whose operations inherit the shards and attributes of the differentiated operation."""
    if gradient is None:
        return None

    def inheriting(operation: Any, *upstream: Any) -> Any:
        shards, attributes = _shards_and_attributes(operation)
        with (
            contextlib.nullcontext() if shards is None else placed(shards),
            attributed(attributes) if attributes else contextlib.nullcontext(),
        ):
            return gradient(operation, *upstream)

    return inheriting


def _shards_and_attributes(operation: Any) -> tuple[Sequence[int] | None, Mapping[str, str]]:
    if isinstance(operation, tf.Operation):
        return placed_on(operation), _inherited_from(operation)
    recorded = gradients.recorded_attributes(operation)
    values = dict(zip(recorded[::2], recorded[1::2], strict=False))
    shards = values.get(SHARD_ATTRIBUTE)
    return None if shards is None else list(shards), dict(values.get(_ON_TAPE, ()))


def _inheriting_lookups(original: Any) -> type:
    class Gradients(original):
        __slots__ = ()

        def lookup(self, name: str) -> _Gradient | None:
            return _inheriting(super().lookup(name))

    return Gradients


def _inheriting_own_gradients(
    original: Callable[[tf.Operation], _Gradient | None],
) -> Callable[[tf.Operation], _Gradient | None]:
    def find(operation: tf.Operation) -> _Gradient | None:
        gradient = original(operation)
        # A gradient that was looked up is wrapped already.
        return _inheriting(gradient) if gradient is gradients.own_gradient(operation) else gradient

    return find


def _recording_attributes(original: Callable[..., None]) -> Callable[..., None]:
    def record(kind: str, inputs: Sequence[tf.Tensor], attributes: Sequence[Any], results: Sequence[tf.Tensor]) -> None:
        first = results[0] if isinstance(results, (list, tuple)) and results else None
        if isinstance(first, tf.Tensor) and hasattr(first, "graph"):
            shards, inherited = _shards_and_attributes(first.op)
            if shards is not None:
                attributes = (*(attributes or ()), SHARD_ATTRIBUTE, tuple(shards))
            if inherited:
                attributes = (*(attributes or ()), _ON_TAPE, tuple(inherited.items()))
        original(kind, inputs, attributes, results)

    return record


def registering(original: Callable[..., None]) -> Callable[..., None]:
    """Makes the registry forget a gradient of `tf.custom_gradient` when the graphs that registered it are deleted."""

    def register(registry: object, gradient: _Gradient, name: str | None = None) -> None:
        is_custom = registry is gradients.REGISTRY and gradients.is_custom(name)
        owners: list[Any] = graphs.being_built() if is_custom else []
        if name is None or not owners:
            return original(registry, gradient, name)
        reference = weakref.ref(gradient)

        def differentiate(operation: Any, *upstream: Any) -> Any:
            referenced = reference()
            assert referenced is not None  # The operation's graph keeps the gradient alive.
            results = referenced(operation, *upstream)
            if len(results) != len(operation.inputs):
                return results  # TensorFlow raises an error that names the gradient.
            return [_in_graph(result, tensor) for result, tensor in zip(results, operation.inputs, strict=True)]

        original(registry, differentiate, name)
        for graph in owners:  # A graph accepts new attributes, though it has no `__dict__`.
            graph._ipu_gradients = [*getattr(graph, "_ipu_gradients", ()), gradient]
        lifetimes.call_later(gradient, lambda: gradients.forget(name))
        return None

    return register


def _in_graph(gradient: TensorLike | tf.IndexedSlices | None, operand: tf.Tensor) -> Gradient | None:
    """Converts a gradient to a tensor of the graph: `tf.gradients`, unlike tapes, accepts tensors only."""
    if gradient is None or isinstance(gradient, tf.IndexedSlices):
        return gradient
    return tf.convert_to_tensor(gradient, dtype_hint=None if operand.dtype == tf.resource else operand.dtype)
