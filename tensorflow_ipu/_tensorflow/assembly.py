"""Assembles graphs of functions, in 10 to 30 us an operation; TensorFlow's Python takes 0.1 to 0.3 ms.

Stands on `pywrap_tf_session`, `Operation._from_c_op` and `FuncGraph._function_captures`. Without them: the functions of
`_native.library.ops`, `tf.compat.v1.placeholder` and `graphs.trace_into`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import tensorflow as tf
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.framework import ops
from tensorflow.python.ops import handle_data_util
from tensorflow.python.util import tf_stack

from tensorflow_ipu._base.types import ShapeLike
from tensorflow_ipu._tensorflow import graphs

# What an operation takes for one of its inputs: a tensor, or those of a list.
Input: TypeAlias = "tf.Tensor | Sequence[tf.Tensor]"


class CapturingGraph(graphs.FunctionGraph):
    """A graph of a function that is traced, and soon has an input for each variable that it uses."""

    def capture(self, tensor: tf.Tensor, name: str | None = None, shape: ShapeLike | None = None) -> tf.Tensor:
        """Gives a tensor of another graph, or of none, as one of this graph."""
        if not _is_variable(tensor):
            return super().capture(tensor, name, shape)
        found = _captured(self, tensor)
        found._record_tape(tensor)  # A stage may have a tape of its own.
        return found


class AssembledGraph(graphs.LoopBodyGraph):
    """A graph of a function whose operations with side effects run in the order in which they are put into it."""

    _stack: Any = None

    def stack(self) -> Any:
        """From where the package began to put operations into the graph: what is kept with all of them."""
        if self._stack is None:
            self._stack = tf_stack.extract_stack(stacklevel=2)
        return self._stack

    def capture(self, tensor: tf.Tensor, name: str | None = None, shape: ShapeLike | None = None) -> tf.Tensor:
        """Gives a tensor of another graph, or of none, as one of this graph."""
        if getattr(tensor, "graph", None) is self:
            return tensor
        if hasattr(tensor, "graph") or _is_variable(tensor):
            return _captured(self, tensor)
        with self.as_default():  # It has a value already, and may become a constant.
            return super().capture(tensor, name, shape)

    def trace(self, function: Callable[..., Sequence[tf.Tensor]], specs: Sequence[tf.TensorSpec]) -> None:
        """Makes the graph that of a function: with `inputs`, captured ones last, and `outputs`."""
        with self.as_default():
            arguments = [placeholder(self, spec) for spec in specs]
            self.outputs = [self.capture(each) for each in function(*arguments)]
        self.inputs = [*arguments, *self.internal_captures]
        effects = [each for each in self.get_operations() if each._is_stateful]
        for before, after in itertools.pairwise(effects):
            after._add_control_input(before)
        self.control_outputs = effects


def _is_variable(tensor: tf.Tensor) -> bool:
    """Whether a tensor is the handle of a variable, or of another resource, that was made outside of any graph."""
    made: Any = tensor
    return not hasattr(tensor, "graph") and tensor.dtype == tf.resource and not made.is_packed


def _captured(graph: Any, tensor: tf.Tensor) -> tf.Tensor:
    """The input of a graph for a tensor from outside."""
    captures = graph.function_captures
    known = captures.by_val_internal.get(id(tensor))
    if known is not None:
        return known
    spec = tf.TensorSpec(tensor.shape, tensor.dtype)
    found = placeholder(graph, spec, "captured")
    if tensor.dtype in (tf.resource, tf.variant):
        handle_data_util.copy_handle_data(tensor, found)
    captures.add_or_replace(id(tensor), tensor, found, spec)
    graph.inputs.append(found)
    return found


def placeholder(graph: Any, spec: tf.TensorSpec, name: str = "input") -> tf.Tensor:
    """A new placeholder of a graph of a function, which is no input of it yet, and waits for nothing."""
    [found] = _put(
        graph, "Placeholder", name, (), (), {"dtype": type_of(spec.dtype), "shape": shape_of(spec.shape)}
    ).outputs
    return found


def put(
    graph: Any, kind: str, name: str, inputs: Sequence[Input], attributes: Mapping[str, bytes] | None = None
) -> list[tf.Tensor]:
    """Puts an operation into a graph; returns its outputs."""
    captured = [
        list(map(graph.capture, one)) if isinstance(one, (list, tuple)) else graph.capture(one) for one in inputs
    ]
    if isinstance(graph, AssembledGraph):
        return list(_put(graph, kind, name, captured, (), attributes or {}).outputs)
    flat = [each for one in captured for each in (one if isinstance(one, list) else [one])]
    after = graph._control_dependencies_for_inputs({each.op for each in flat})
    operation = _put(graph, kind, name, captured, after, attributes or {})
    operation._control_flow_post_processing()
    graph._create_op_helper(operation)
    return list(operation.outputs)


def number(graph: Any, value: int) -> tf.Tensor:
    """An int32 scalar of a graph of a function."""
    value_of = tf.compat.v1.AttrValue(tensor=tf.make_tensor_proto(value, tf.int32)).SerializeToString()
    return put(graph, "Const", "number", (), {"dtype": type_of(tf.int32), "value": value_of})[0]


def _put(
    graph: Any,
    kind: str,
    name: str,
    inputs: Sequence[Any],
    after: Sequence[tf.Operation],
    attributes: Mapping[str, bytes],
) -> Any:
    with graph._c_graph.get() as c_graph:
        making = pywrap_tf_session.TF_NewOperation(c_graph, kind, graph.unique_name(name))
    for one in inputs:
        if isinstance(one, list):
            pywrap_tf_session.TF_AddInputList(making, [each._as_tf_output() for each in one])
        else:
            pywrap_tf_session.TF_AddInput(making, one._as_tf_output())
    for each in after:
        pywrap_tf_session.TF_AddControlInput(making, each._c_op)
    for key, value in attributes.items():
        pywrap_tf_session.TF_SetAttrValueProto(making, key, value)
    made = pywrap_tf_session.TF_FinishOperation(making)
    stack = graph.stack() if isinstance(graph, AssembledGraph) else tf_stack.extract_stack(stacklevel=2)
    pywrap_tf_session.TF_SetOpStackTrace(made, stack)
    return ops.Operation._from_c_op(made, graph)


def type_of(dtype: tf.DType) -> bytes:
    """An attribute that is a type."""
    return tf.compat.v1.AttrValue(type=dtype.as_datatype_enum).SerializeToString()


def types_of(dtypes: Sequence[tf.DType]) -> bytes:
    """An attribute that is a list of types."""
    listed = tf.compat.v1.AttrValue.ListValue(type=[one.as_datatype_enum for one in dtypes])
    return tf.compat.v1.AttrValue(list=listed).SerializeToString()


def shape_of(shape: tf.TensorShape) -> bytes:
    """An attribute that is a shape."""
    return tf.compat.v1.AttrValue(shape=shape.as_proto()).SerializeToString()


def shapes_of(shapes: Sequence[tf.TensorShape]) -> bytes:
    """An attribute that is a list of shapes."""
    listed = tf.compat.v1.AttrValue.ListValue(shape=[one.as_proto() for one in shapes])
    return tf.compat.v1.AttrValue(list=listed).SerializeToString()


def function_of(function: Any) -> bytes:
    """An attribute that is a function of the runtime, see `functions.of_graph`."""
    return tf.compat.v1.AttrValue(func=tf.compat.v1.NameAttrList(name=function.name)).SerializeToString()


def true() -> bytes:
    """An attribute that is set."""
    return tf.compat.v1.AttrValue(b=True).SerializeToString()


def call(graph: Any, function: Any, inputs: Sequence[tf.Tensor], specs: Sequence[tf.TensorSpec]) -> list[tf.Tensor]:
    """Calls a function of the runtime in a graph."""
    graphs.hold_function(graph, function)
    attributes = {"f": function_of(function), "Tout": types_of([one.dtype for one in specs])}
    found = put(graph, "StatefulPartitionedCall", "StatefulPartitionedCall", [list(inputs)], attributes)
    for one, spec in zip(found, specs, strict=True):
        one.set_shape(spec.shape)
    return found
