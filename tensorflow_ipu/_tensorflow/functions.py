"""From a `tf.function` to what it is traced to: a function with flat inputs, and its execution."""

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
        """What the package uses of `tf.function`'s own class, in public and here."""

        python_function: Callable[..., Any]
        input_signature: Nested
        function_spec: Any
        _lock: AbstractContextManager[object]

        def __getattr__(self, name: str) -> Any: ...

    class ConcreteFunction(tf.types.experimental.ConcreteFunction):
        """The same of what it is traced to."""

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

# What `tf.function` makes and what it is traced to. Public are `tf.types.experimental.PolymorphicFunction` and
# `ConcreteFunction`, abstract classes that others derive from (SavedModel's restored functions): what is below reads
# attributes of these two alone. When they are gone: the classes of `tf.function(f)` and of its
# `get_concrete_function()`.

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def is_compiled(function: Function) -> bool:
    """Whether a `tf.function` was made with `jit_compile=True`; stands on `Function._jit_compile`, which has no getter."""
    return bool(function._jit_compile)


def compiled_copy(function: Function) -> Function:
    """A `tf.function` like this one, but with `jit_compile=True`; stands on `Function._clone`."""
    # Without it: `tf.function` with the same Python function, signature, name and options of AutoGraph.
    jitted = function._clone(None)
    jitted._jit_compile = True
    return jitted


def initializes_variables(graph: tf.Graph) -> bool:
    """Whether a graph initializes the variables of a first trace on the host; stands on its name in `polymorphic_function`."""
    # It is traced as programs are. When the name changes: programs that make variables fail for want of a host kernel.
    return getattr(graph, "name", None) == "initialize_variables"


def known_trace(
    function: Function, args: Sequence[Nested], kwargs: Mapping[str, Nested], target: object
) -> tuple[ConcreteFunction, list[tf.Tensor]] | None:
    """Returns what was traced for a call and a target, with the call's flat inputs, or None.

    Stands on `TracingOptions.function_cache`, as does `new_trace`.
    """
    # `get_concrete_function` has no look-up that does not trace, and no key of ours, so a program for one number of IPUs could
    # be taken for another. `tracing_compilation.trace_function` looks up in this way, but binds the arguments again at each
    # run. Without it: a cache by `tf.types.experimental.TraceType` of the arguments.
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
    """Traces a call for a target unless it was traced, and returns the same; see `known_trace`."""
    with function._lock:  # Another thread may be at the first call, and make the variables.
        if _config_of(function) is None:
            function._ipu_first = target  # pyright: ignore[reportAttributeAccessIssue]
            try:
                function.get_concrete_function(*args, **kwargs)
            except BaseException:  # A plain call may be the first that is traced.
                function._ipu_first = function._ipu_options = None  # pyright: ignore[reportAttributeAccessIssue]
                raise
        had_variables = bool(function._created_variables)
    bound = _bound_arguments(function, args, kwargs)
    program: Any = tracing_compilation.trace_function(bound.args, dict(bound.kwargs), _options_of(function, target))
    if function._created_variables and not had_variables:
        raise ValueError(
            "the function made variables on a call that is not its first; make them once, outside of it or on the first call"
            " alone"
        )
    return program, _flat_inputs(program, bound)


def _config_of(function: Function) -> Any:
    """How a `tf.function` is traced; None before its first trace; stands on `Function._[no_]variable_creation_config`."""
    if function._created_variables:
        return function._no_variable_creation_config
    return function._variable_creation_config


def _options_of(function: Function, target: object) -> Any:
    """Returns the options whose traces are kept apart from those for another target; see `known_trace`."""
    # Kept by the function, since what TensorFlow traces by may lead back to it, and would keep a weak table's key alive.
    config = _config_of(function)
    known = getattr(function, "_ipu_options", None)
    if known is None or known[0] is not config:
        known = function._ipu_options = (config, {})  # pyright: ignore[reportAttributeAccessIssue]
    options = known[1].get(target)
    if options is None:
        # TensorFlow's own key is for the target that the function was first traced for. There is none if a plain call was
        # the first, even one that failed. Of all that makes up the key of a trace, `scope_type` is free for anything.
        options = config
        if target != getattr(function, "_ipu_first", None):
            options = dataclasses.replace(config, scope_type=(config.scope_type, target))
        known[1][target] = options
    return options


def traced_once(
    function: Callable[..., Any], args: Sequence[tf.Tensor], name: str, attributes: Mapping[str, Any]
) -> ConcreteFunction:
    """Traces a Python function of tensors, with attributes on what comes of it; stands on `trace_function`."""
    # Without it: `tf.function`, and attributes by `tf.__internal__`.
    options = tracing_compilation.TracingOptions(
        python_function=function, name=name, attributes=dict(attributes), autograph=False
    )
    traced: Any = tracing_compilation.trace_function(tuple(args), {}, options)
    return traced


def traces_of(function: Function) -> list[ConcreteFunction]:
    """All that a `tf.function` was traced to, the latest last; see `known_trace`."""
    configs = (function._variable_creation_config, function._no_variable_creation_config)
    return [trace for config in configs if config is not None for trace in config.function_cache.values()]


def _bound_arguments(
    function: Function, args: Sequence[Nested], kwargs: Mapping[str, Nested]
) -> inspect.BoundArguments:
    """The arguments of a call as TensorFlow binds them; stands on `function_type_utils.canonicalize_function_inputs`."""
    # Only a call does so in public. Without it: `function.function_type.bind`, and `tf.convert_to_tensor` where there is an
    # `input_signature`.
    return function_type_utils.canonicalize_function_inputs(
        args, kwargs, function._function_type, function._default_values, function._is_pure
    )


def _flat_inputs(program: ConcreteFunction, bound: inspect.BoundArguments) -> list[tf.Tensor]:
    """Returns the flat inputs for bound arguments without captured ones; stands on `FunctionType.unpack_inputs`."""
    # Without it: `tf.nest.flatten` of the bound arguments with `expand_composites`.
    signature = program.function_type
    wanted = bound.signature.parameters
    # Most often they are bound as the program wants them: it has a parameter for each of `*args` and `**kwargs` alone.
    if wanted.keys() != signature.parameters.keys() or any(one.kind in _VARIADIC for one in wanted.values()):
        bound = signature.bind(*bound.args, **bound.kwargs)
    return signature.unpack_inputs(bound)


def flat_inputs_of_call(
    program: ConcreteFunction, args: Sequence[Nested], kwargs: Mapping[str, Nested]
) -> list[tf.Tensor]:
    """Returns the flat inputs of a concrete function's call, with or without its Python values; see `_flat_inputs`."""
    # Uses `ConcreteFunction._arg_keywords` too. Without it: the names in `program.structured_input_signature`.
    try:
        bound = function_type_utils.canonicalize_function_inputs(args, kwargs, program.function_type)
        return program.function_type.unpack_inputs(bound)
    except TypeError:
        rest = program._arg_keywords[len(args) :]
        tensors = [*args, *(kwargs.get(name) for name in rest)]
        if (
            kwargs.keys() != set(rest)
            or len(tensors) != len(program._arg_keywords)
            or not all(map(tf.is_tensor, tensors))
        ):
            raise
        return tensors


def execute(program: ConcreteFunction, inputs: Sequence[tf.Tensor], captured: Sequence[tf.Tensor]) -> Nested:
    """Executes a concrete function or adds its call to a graph; stands on `ConcreteFunction._call_flat`."""
    # A public call takes no other captured tensors. Without it: `ConcreteFunction.inference_fn.call_flat`, and no gradient.
    return program._call_flat(inputs, captured_inputs=captured)


def results_of(program: ConcreteFunction, flat: Sequence[tf.Tensor]) -> Nested:
    """Flat results in the structure that the Python function returned; stands on `FunctionType.pack_output`."""
    # Without it: `tf.nest.pack_sequence_as` with `program.structured_outputs`.
    return program.function_type.pack_output(flat)


def not_compiled(program: ConcreteFunction) -> ConcreteFunction:
    """A concrete function of the same graph that is not compiled; stands on `ConcreteFunction.from_func_graph`."""
    found: Any = concrete_function.ConcreteFunction.from_func_graph(program.graph, program.function_type, attrs={})
    return found


# Attributes of a concrete function that are its own for ever: its signature, when `get_concrete_function` gave it one.
_OF_SIGNATURE = ("_arg_keywords", "_num_positional_args")


def keep_from_compiling(function: ConcreteFunction) -> None:
    """Keeps a concrete function just traced for XLA from being compiled; stands on `from_func_graph` and its attributes."""
    # TensorFlow has no call for it, so this gives the function all attributes but `_OF_SIGNATURE` of another one of the same
    # graph; `tests/seam` has the set of attributes. Without it: swap those that lead to the definition.
    if attributes.XLA_COMPILE not in function._attrs:
        return
    remaining = {name: value for name, value in function._attrs.items() if name != attributes.XLA_COMPILE}
    function._garbage_collector.release()
    other = concrete_function.ConcreteFunction.from_func_graph(
        function.graph, function.function_type, remaining, shared_func_graph=False
    )
    vars(function).update({name: value for name, value in vars(other).items() if name not in _OF_SIGNATURE})


def hlo_of(program: ConcreteFunction, inputs: Sequence[tf.Tensor], device: str, stage: str = "hlo_serialized") -> bytes:
    """Returns the HLO of a concrete function at a stage, without running it; stands on `context.get_compiler_ir`."""
    # By default a serialized `HloModuleProto` as XLA gets it; `"optimized_hlo"` is the text of what XLA makes of it. The public
    # `experimental_get_compiler_ir` takes a `tf.function` and traces it without the replica. Without it: that one, of a
    # function that calls this one.
    running: Any = context.context()
    return running.get_compiler_ir(
        device_name=device,
        platform_name=None,
        function_name=program.name,
        flat_args=list(inputs),
        captured_inputs=program.captured_inputs,
        stage=stage,
    )


class Leaf(NamedTuple):
    """One part of an argument."""

    kind: str
    text: str
    shape: tuple[int | None, ...] | None = None
    dtype: str = ""


def leaves_of(program: ConcreteFunction) -> dict[str, Leaf]:
    """The parts of the arguments of a trace by spelling, as `x['image'][0]`; stands on `trace_type.default_types`."""
    # A public `TraceType` can be compared and not read. Without them: its text, as of kind `"other"`.
    leaves: dict[str, Leaf] = {}
    for name, parameter in program.function_type.parameters.items():
        _add(leaves, name, parameter.type_constraint)
    return leaves


def leaves_of_spec(name: str, spec: object) -> dict[str, Leaf]:
    """Returns the same of a structure of `tf.TensorSpec`; see `leaves_of`."""
    leaves: dict[str, Leaf] = {}
    for path, part in enumerate(tf.nest.flatten(spec)):
        _add(leaves, f"{name}[{path}]", part)
    return leaves


def _add(leaves: dict[str, Leaf], path: str, part: Any) -> None:
    """Adds the parts of an argument; see `leaves_of`."""
    if isinstance(part, tf.TensorSpec):
        shape = None if part.shape.rank is None else tuple(part.shape.as_list())
        leaves[path] = Leaf("tensor", f"{part.dtype.name}{part.shape}", shape, part.dtype.name)
    elif isinstance(part, default_types.Literal):
        leaves[path] = Leaf("value", repr(part.value), dtype=type(part.value).__name__)
    elif isinstance(part, default_types.Weakref):
        held = part._ref()
        leaves[path] = Leaf("object", str(id(held)), dtype=type(held).__name__)
    elif isinstance(part, default_types.Dict):
        for key, below in part.mapping.items():
            _add(leaves, f"{path}[{key!r}]", below)
    elif isinstance(part, default_types.List):
        _add(leaves, path, part.components_tuple)
    elif isinstance(part, default_types.Tuple):
        for index, below in enumerate(part.components):
            _add(leaves, f"{path}[{index}]", below)
    elif isinstance(part, tf.TypeSpec) and hasattr(part, "element_spec"):
        elements: Any = part  # Of a dataset's iterator, or of a queue.
        leaves[path] = Leaf("other", type(part).__name__)
        for index, below in enumerate(tf.nest.flatten(elements.element_spec)):
            _add(leaves, f"the elements of {path}, [{index}]", below)
    else:
        leaves[path] = Leaf("other", str(part))


def of_graph(name: str, graph: tf.Graph, *, called: bool = True) -> Any:
    """A runtime function made of a graph with `inputs` and `outputs`; stands on `atomic_function.from_func_graph`."""
    # Python can call it by `call_flat(*inputs)` unless `called` is False; then the graph need not come from `trace_into`.
    # `tf.function` traces graphs of its own. Without it: `context.add_function_def` with the graph's definition.
    made: Any = graph
    return atomic_function.from_func_graph(name, made, {}, None if called else function_type.FunctionType([]))


def definitions_of(program: ConcreteFunction) -> bytes:
    """A concrete function and all it calls as a `FunctionDefLibrary`; stands on `ConcreteFunction.function_def`."""
    # It comes first, with the attributes it is called with. Without it: `tf.Graph.as_graph_def` of a graph that calls it.
    library = program.graph.as_graph_def().library
    made = type(library)()
    made.function.add().CopyFrom(program.function_def)
    for function in library.function:
        if function.signature.name != made.function[0].signature.name:
            made.function.add().CopyFrom(function)
    return made.SerializeToString()


def define(library: bytes, suffix: str) -> str:
    """Defines what `definitions_of` returns; returns the first name; stands on `context.add_function_def`."""
    # Each name gets the suffix. Without it: `tf.graph_util.import_graph_def` of a graph that calls the function.
    made = tf.compat.v1.GraphDef().library
    made.ParseFromString(library)
    names = {function.signature.name: f"{function.signature.name}_{suffix}" for function in made.function}
    for function in made.function:
        function.signature.name = names[function.signature.name]
        for node in function.node_def:
            node.op = names.get(node.op, node.op)
            for attribute in node.attr.values():
                is_one = attribute.WhichOneof("value") == "func"
                for called in [attribute.func] if is_one else attribute.list.func:
                    called.name = names.get(called.name, called.name)
    running: Any = context.context()
    for function in reversed(made.function):
        running.add_function_def(function)
    return made.function[0].signature.name


def call_defined(name: str, inputs: Sequence[tf.Tensor], results: int) -> None:
    """Calls a function of `define` eagerly and drops its results; stands on `Context.call_function`."""
    # Without it: `tf.raw_ops.StatefulPartitionedCall` in a function that is compiled.
    running: Any = context.context()
    running.call_function(name.encode(), list(inputs), results)
