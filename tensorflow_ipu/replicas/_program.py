"""From a `tf.function` and arguments to one compiled program and its flat inputs."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import (
    concrete_function,
    function_type_utils,
    polymorphic_function,
    tracing_compilation,
)

Function = polymorphic_function.Function
ConcreteFunction = concrete_function.ConcreteFunction

# A function that the user does not compile has a twin that is compiled, made at its first run.
_twins: weakref.WeakKeyDictionary[Any, Function] = weakref.WeakKeyDictionary()


def is_graph_function(fn: object) -> bool:
    """Whether `fn` is a `tf.function` or a concrete function, which alone can become a program."""
    return isinstance(fn, (Function, ConcreteFunction))


def compiled(fn: Any) -> Any:
    """The function itself if it is compiled whole, else its twin that is.

    Args:
      fn: A `tf.function` (with any `jit_compile`), a concrete function, or a plain callable, which gets a `tf.function`
        of its own.
    """
    if isinstance(fn, Function):
        if fn._jit_compile:
            return fn
    elif isinstance(fn, ConcreteFunction) and fn.function_def.attr["_XlaMustCompile"].b:
        return fn
    else:
        return tf.function(fn, jit_compile=True)
    twin = _twins.get(fn)
    if twin is None:
        twin = _twins[fn] = _twin(fn)
    return twin


def _twin(fn: Any) -> Function:
    if isinstance(fn, Function):
        twin = fn._clone(None)
        twin._jit_compile = True
        return twin
    reference = weakref.ref(fn)  # The table must not keep its own key alive.
    return tf.function(lambda *args, **kwargs: reference()(*args, **kwargs), jit_compile=True, autograph=False)


def resolve(function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[ConcreteFunction, list[Any]]:
    """Finds or traces the program of a compiled function for these arguments.

    This is what calling the function does, stopped before the execution: what runs a program may want to check it, or
    to run it with other inputs.

    Returns:
      The program, and its flat inputs without the captured ones.
    """
    # While-loops are traced differently for XLA: with bounded stacks for their gradients, for one.
    with polymorphic_function.OptionalXlaContext(True):
        if function._variable_creation_config is None:
            function.get_concrete_function(*args, **kwargs)
        bound = function_type_utils.canonicalize_function_inputs(
            args, kwargs, function._function_type, function._default_values, function._is_pure
        )
        created = function._created_variables
        config = function._no_variable_creation_config if created else function._variable_creation_config
        program = tracing_compilation.trace_function(bound.args, bound.kwargs, config)
        if function._created_variables and not created:
            raise ValueError(
                "the function made variables on a call that is not its first; make them once, outside of it or on the"
                " first call alone"
            )
    bound = program.function_type.bind(*bound.args, **bound.kwargs)
    return program, program.function_type.unpack_inputs(bound)


def call(program: ConcreteFunction, inputs: list[Any]) -> Any:
    """Executes a program.

    Returns:
      What its Python function returned, with tensors for the symbolic ones.
    """
    return program._call_flat(inputs, captured_inputs=program.captured_inputs)
