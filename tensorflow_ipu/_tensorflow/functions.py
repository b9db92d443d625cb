"""Finds, traces, runs and defines the concrete functions of a `tf.function`, and describes their arguments."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf
from tensorflow.core.function.polymorphism import function_type
from tensorflow.core.function.trace_type import default_types
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import (
    atomic_function,
    attributes,
    concrete_function,
    function_context,
    function_type_utils,
    polymorphic_function,
    tracing_compilation,
)

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Nested
    from tensorflow_ipu._tensorflow.graphs import FunctionGraph

    class Function(tf.types.experimental.PolymorphicFunction):
        """The class of `tf.function(f)`, with the members that the package uses."""

        python_function: Callable[..., Any]
        input_signature: Nested
        function_spec: Any
        _lock: AbstractContextManager[object]

        def __getattr__(self, name: str) -> Any: ...

    class ConcreteFunction(tf.types.experimental.ConcreteFunction):
        """The class of what `get_concrete_function` returns, with the members that the package uses."""

        graph: FunctionGraph
        inputs: list[tf.Tensor]
        outputs: list[tf.Tensor]
        captured_inputs: list[tf.Tensor]
        variables: Sequence[tf.Variable]
        trainable_variables: Sequence[tf.Variable]
        structured_outputs: Nested
        structured_input_signature: tuple[tuple[Nested, ...], dict[str, Nested]]
        name: str

        def __getattr__(self, name: str) -> Any: ...

else:
    Function = polymorphic_function.Function
    ConcreteFunction = concrete_function.ConcreteFunction

# The public `tf.types.experimental.PolymorphicFunction` and `ConcreteFunction` are abstract. Functions restored from a
# SavedModel derive from them too, and lack the attributes that this module reads. Without the private classes: take the
# classes of `tf.function(f)` and of its `get_concrete_function()`.

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def is_compiled(function: Function) -> bool:
    """Returns True if `function` has `jit_compile=True`.

    Uses the private `Function._jit_compile`: there is no getter.
    """
    return bool(function._jit_compile)


def compiled_copy(function: Function) -> Function:
    """Returns a copy of `function` with `jit_compile=True`. Uses the private `Function._clone`."""
    # Without it: call `tf.function` with the same Python function, signature, name and AutoGraph options.
    jitted = function._clone(None)
    jitted._jit_compile = True
    return jitted


def initializes_variables(graph: tf.Graph) -> bool:
    """Returns True if `graph` initializes the variables of a first trace. Uses the private name of that graph.

    TensorFlow runs this graph on the host.
    """
    # The graph is traced within the trace of a program, so it looks like one. When TensorFlow changes the name,
    # programs that create variables fail because a host kernel is missing.
    return getattr(graph, "name", None) == "initialize_variables"


def known_trace(
    function: Function, args: Sequence[Nested], kwargs: Mapping[str, Nested], target: object
) -> tuple[ConcreteFunction, list[tf.Tensor]] | None:
    """Returns the existing trace for a call and a target, with the call's flat inputs, or None. Never traces.

    Uses the private `TracingOptions.function_cache`.
    """
    # `get_concrete_function` traces if it finds nothing. Its cache ignores the target, so a program traced for one IPU
    # could run on four. `tracing_compilation.trace_function` does the same look-up, but binds the arguments a
    # second time in each run. Without it: keep a cache by the `tf.types.experimental.TraceType` of the arguments.
    if _config_of(function) is None:
        return None
    options = _options_of(function, target)
    bound = _bound_arguments(function, args, kwargs)
    args, signature, captures = bound.args, options.input_signature, options.function_captures
    if signature is not None:
        args = (*signature, *args[len(signature) :])
    types = captures.capture_types if captures else {}
    kind, _ = function_type_utils.make_canonicalized_monomorphic_type(
        args, bound.kwargs, types, options.polymorphic_type
    )
    key = function_context.make_function_context(options.scope_type)
    with options.lock:
        program = options.function_cache.lookup(kind, key)
    return None if program is None else (program, _flat_inputs(program, bound))


def new_trace(
    function: Function, args: Sequence[Nested], kwargs: Mapping[str, Nested], target: object
) -> tuple[ConcreteFunction, list[tf.Tensor]]:
    """Returns the trace for a call and a target, with its flat inputs. Traces if there is none; see `known_trace`."""
    with function._lock:  # Another thread may be in the first call, which creates the variables.
        if _config_of(function) is None:
            function._ipu_first = target  # pyright: ignore[reportAttributeAccessIssue]
            try:
                function.get_concrete_function(*args, **kwargs)
            except BaseException:  # The trace failed. A plain call, without a target, may trace first now.
                function._ipu_first = function._ipu_options = None  # pyright: ignore[reportAttributeAccessIssue]
                raise
        had_variables = bool(function._created_variables)
    bound = _bound_arguments(function, args, kwargs)
    program: Any = tracing_compilation.trace_function(bound.args, dict(bound.kwargs), _options_of(function, target))
    if function._created_variables and not had_variables:
        raise ValueError(
            "the function made variables on a call that is not its first; make them once, outside of it or on the first"
            " call alone"
        )
    return program, _flat_inputs(program, bound)


def _config_of(function: Function) -> Any:
    """Returns the `TracingOptions` of `function`, or None before its first trace.

    Uses the private `Function._variable_creation_config` and `Function._no_variable_creation_config`.
    """
    if function._created_variables:
        return function._no_variable_creation_config
    return function._variable_creation_config


def _options_of(function: Function, target: object) -> Any:
    """Returns the `TracingOptions` by which `function` is traced for `target`; see `known_trace`.

    TensorFlow stores traces by the arguments and by `scope_type`, an option that may hold any hashable value. So the
    options of each target differ from TensorFlow's own in `scope_type` only: `scope_type -> (scope_type, target)`. The
    target of the first trace keeps TensorFlow's own options, since `get_concrete_function` has traced with them.
    """
    # The table is an attribute of the function. In a `WeakKeyDictionary`, the options could refer to the function and
    # would keep it alive for ever.
    config = _config_of(function)
    table = getattr(function, "_ipu_options", None)
    if table is None or table[0] is not config:
        table = function._ipu_options = (config, {})  # pyright: ignore[reportAttributeAccessIssue]
    options = table[1].get(target)
    if options is None:
        # Only the target of the first trace has TensorFlow's own options. A first trace by a plain call has no target.
        options = config
        if target != getattr(function, "_ipu_first", None):
            options = dataclasses.replace(config, scope_type=(config.scope_type, target))
        table[1][target] = options
    return options


def traced_once(
    function: Callable[..., Any], args: Sequence[tf.Tensor], name: str, attributes: Mapping[str, Any]
) -> ConcreteFunction:
    """Returns a trace of `function` for the tensors `args`, with `attributes` on its definition.

    Uses the private `trace_function`.
    """
    # Without it: use `tf.function`, and set the attributes by `tf.__internal__`.
    options = tracing_compilation.TracingOptions(
        python_function=function, name=name, attributes=dict(attributes), autograph=False
    )
    traced: Any = tracing_compilation.trace_function(tuple(args), {}, options)
    return traced


def traces_of(function: Function) -> list[ConcreteFunction]:
    """Returns all concrete functions of `function`, the latest last; see `known_trace`."""
    configs = (function._variable_creation_config, function._no_variable_creation_config)
    return [trace for config in configs if config is not None for trace in config.function_cache.values()]


def _bound_arguments(
    function: Function, args: Sequence[Nested], kwargs: Mapping[str, Nested]
) -> inspect.BoundArguments:
    """Binds the arguments of a call as TensorFlow does. Uses the private `canonicalize_function_inputs`."""
    # The public API only binds arguments when it calls the function. Without it: use `function.function_type.bind`, and
    # convert the arguments by `tf.convert_to_tensor` if there is an `input_signature`.
    return function_type_utils.canonicalize_function_inputs(
        args, kwargs, function._function_type, function._default_values, function._is_pure
    )


def _flat_inputs(program: ConcreteFunction, bound: inspect.BoundArguments) -> list[tf.Tensor]:
    """Returns the flat inputs for bound arguments, without captured tensors.

    Uses the private `FunctionType.unpack_inputs`.
    """
    # Without it: call `tf.nest.flatten` on the bound arguments, with `expand_composites`.
    signature = program.function_type
    parameters = bound.signature.parameters
    # A trace replaces `*args` and `**kwargs` by one parameter for each value. If a function has neither of them, the
    # signatures are equal, and the arguments need not be bound again.
    if parameters.keys() != signature.parameters.keys() or any(
        parameter.kind in _VARIADIC for parameter in parameters.values()
    ):
        bound = signature.bind(*bound.args, **bound.kwargs)
    return signature.unpack_inputs(bound)


def flat_inputs_of_call(
    program: ConcreteFunction, args: Sequence[Nested], kwargs: Mapping[str, Nested]
) -> list[tf.Tensor]:
    """Returns the flat inputs of a call of a concrete function; see `_flat_inputs`.

    The call may leave out arguments that are Python values. Uses the private `ConcreteFunction._arg_keywords`.
    """
    # Without it: take the names in `program.structured_input_signature`.
    try:
        bound = function_type_utils.canonicalize_function_inputs(args, kwargs, program.function_type)
        return program.function_type.unpack_inputs(bound)
    except TypeError:
        keywords = program._arg_keywords[len(args) :]
        tensors = [*args, *(kwargs.get(name) for name in keywords)]
        if (
            kwargs.keys() != set(keywords)
            or len(tensors) != len(program._arg_keywords)
            or not all(map(tf.is_tensor, tensors))
        ):
            raise
        return tensors


def execute(program: ConcreteFunction, inputs: Sequence[tf.Tensor], captured: Sequence[tf.Tensor]) -> Nested:
    """Executes a concrete function, or adds its call to a graph. Uses the private `ConcreteFunction._call_flat`."""
    # A public call cannot replace the captured tensors. Without it: `ConcreteFunction.inference_fn.call_flat`, which
    # has no gradient.
    return program._call_flat(inputs, captured_inputs=captured)


def results_of(program: ConcreteFunction, flat: Sequence[tf.Tensor]) -> Nested:
    """Packs flat results into the structure that the function returned. Uses the private `FunctionType.pack_output`."""
    # Without it: call `tf.nest.pack_sequence_as` with `program.structured_outputs`.
    return program.function_type.pack_output(flat)


def not_compiled(program: ConcreteFunction) -> ConcreteFunction:
    """Returns a concrete function of the same graph that XLA does not compile. Uses the private `from_func_graph`."""
    plain_program: Any = concrete_function.ConcreteFunction.from_func_graph(
        program.graph, program.function_type, attrs={}
    )
    return plain_program


# Attributes that `get_concrete_function` sets to describe the signature. `keep_from_compiling` does not change them.
_OF_SIGNATURE = ("_arg_keywords", "_num_positional_args")


def keep_from_compiling(function: ConcreteFunction) -> None:
    """Keeps XLA from compiling a concrete function that was just traced. Uses the private `from_func_graph`.

    It also relies on the private attributes of concrete functions.
    """
    # TensorFlow has no call for this. The function gets the attributes of a second concrete function that has the same
    # graph and is not compiled. `tests/seam` lists the attributes. Without it: copy the attributes that refer to the
    # definition.
    if attributes.XLA_COMPILE not in function._attrs:
        return
    remaining = {name: value for name, value in function._attrs.items() if name != attributes.XLA_COMPILE}
    function._garbage_collector.release()
    plain_copy = concrete_function.ConcreteFunction.from_func_graph(
        function.graph, function.function_type, remaining, shared_func_graph=False
    )
    vars(function).update({name: value for name, value in vars(plain_copy).items() if name not in _OF_SIGNATURE})


def hlo_of(program: ConcreteFunction, inputs: Sequence[tf.Tensor], device: str, stage: str = "hlo_serialized") -> bytes:
    """Returns the HLO of a concrete function without running it. Uses the private `Context.get_compiler_ir`.

    With the default `stage`, this is the serialized `HloModuleProto` that XLA gets. With `"optimized_hlo"`, it is the text of
    the compiled module.
    """
    # The public `experimental_get_compiler_ir` takes a `tf.function`, and traces it again outside of the replica.
    # Without it: use the public one with a function that calls this program.
    eager_context: Any = context.context()
    return eager_context.get_compiler_ir(
        device_name=device,
        platform_name=None,
        function_name=program.name,
        flat_args=list(inputs),
        captured_inputs=program.captured_inputs,
        stage=stage,
    )


class Leaf(NamedTuple):
    """One leaf of an argument: its `kind` is `"tensor"`, `"value"`, `"object"` or `"other"`."""

    kind: str
    text: str
    shape: tuple[int | None, ...] | None = None
    dtype: str = ""


def leaves_of(program: ConcreteFunction) -> dict[str, Leaf]:
    """Returns the leaves of a trace's arguments by name, such as `x['image'][0]`. Uses the private `default_types`."""
    # The public `TraceType` can be compared, but not read. Without it: one leaf of kind `"other"` with the text of the
    # type.
    leaves: dict[str, Leaf] = {}
    for name, parameter in program.function_type.parameters.items():
        _add(leaves, name, parameter.type_constraint)
    return leaves


def leaves_of_spec(name: str, spec: object) -> dict[str, Leaf]:
    """Returns the leaves of a structure of `tf.TensorSpec` by `name[0]`, `name[1]` and so on; see `leaves_of`."""
    leaves: dict[str, Leaf] = {}
    for path, part in enumerate(tf.nest.flatten(spec)):
        _add(leaves, f"{name}[{path}]", part)
    return leaves


def _add(leaves: dict[str, Leaf], path: str, part: Any) -> None:
    """Adds the leaves of one argument to `leaves`; see `leaves_of`."""
    if isinstance(part, tf.TensorSpec):
        shape = None if part.shape.rank is None else tuple(part.shape.as_list())
        leaves[path] = Leaf("tensor", f"{part.dtype.name}{part.shape}", shape, part.dtype.name)
    elif isinstance(part, default_types.Literal):
        leaves[path] = Leaf("value", repr(part.value), dtype=type(part.value).__name__)
    elif isinstance(part, default_types.Weakref):
        instance = part._ref()
        leaves[path] = Leaf("object", str(id(instance)), dtype=type(instance).__name__)
    elif isinstance(part, default_types.Dict):
        for key, below in part.mapping.items():
            _add(leaves, f"{path}[{key!r}]", below)
    elif isinstance(part, default_types.List):
        _add(leaves, path, part.components_tuple)
    elif isinstance(part, default_types.Tuple):
        for index, below in enumerate(part.components):
            _add(leaves, f"{path}[{index}]", below)
    elif isinstance(part, tf.TypeSpec) and hasattr(part, "element_spec"):
        iterator: Any = part  # The spec of a dataset's iterator, or of a queue.
        leaves[path] = Leaf("other", type(part).__name__)
        for index, below in enumerate(tf.nest.flatten(iterator.element_spec)):
            _add(leaves, f"the elements of {path}, [{index}]", below)
    else:
        leaves[path] = Leaf("other", str(part))


def of_graph(name: str, graph: tf.Graph, *, called: bool = True) -> Any:
    """Defines a runtime function from a graph with `inputs` and `outputs`. Uses the private `from_func_graph`.

    If `called`, the result has `call_flat(*inputs)`. Otherwise, the graph need not come from `trace_into`.
    """
    # `tf.function` only makes functions of graphs that it has traced. Without it: `context.add_function_def` with the
    # graph's definition.
    function_graph: Any = graph
    return atomic_function.from_func_graph(name, function_graph, {}, None if called else function_type.FunctionType([]))


def definitions_of(program: ConcreteFunction) -> bytes:
    """Serializes a concrete function and all that it calls. Uses the private `ConcreteFunction.function_def`.

    The result is a `FunctionDefLibrary`. Its first function is the concrete function, and the others are called by it.
    """
    # Without it: call `tf.Graph.as_graph_def` on a graph that calls the function.
    called = program.graph.as_graph_def().library
    library = type(called)()
    library.function.add().CopyFrom(program.function_def)
    for function in called.function:
        if function.signature.name != library.function[0].signature.name:
            library.function.add().CopyFrom(function)
    return library.SerializeToString()


def define(library: bytes, suffix: str) -> str:
    """Defines the functions that `definitions_of` serialized, and returns the name of the first one.

    Adds `_{suffix}` to each name, so that one library can be defined several times. Uses the private
    `Context.add_function_def`.
    """
    # Without it: call `tf.graph_util.import_graph_def` on a graph that calls the function.
    definitions = tf.compat.v1.GraphDef().library
    definitions.ParseFromString(library)
    names = {function.signature.name: f"{function.signature.name}_{suffix}" for function in definitions.function}
    for function in definitions.function:
        function.signature.name = names[function.signature.name]
        for node in function.node_def:
            node.op = names.get(node.op, node.op)
            for attribute in node.attr.values():
                is_function = attribute.WhichOneof("value") == "func"
                for called in [attribute.func] if is_function else attribute.list.func:
                    called.name = names.get(called.name, called.name)
    eager_context: Any = context.context()
    for function in reversed(definitions.function):
        eager_context.add_function_def(function)
    return definitions.function[0].signature.name


def call_defined(name: str, inputs: Sequence[tf.Tensor], results: int) -> None:
    """Calls a function of `define` eagerly and drops its results. Uses the private `Context.call_function`."""
    # Without it: use `tf.raw_ops.StatefulPartitionedCall` in a function that is compiled.
    running: Any = context.context()
    running.call_function(name.encode(), list(inputs), results)
