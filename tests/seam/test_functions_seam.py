"""Canaries: private API of `tf.function` behaves as the seam expects."""

from __future__ import annotations

import os
from typing import Any

import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._tensorflow import functions, graphs, profiler

SCALAR = tf.TensorSpec([], tf.float32)


def doubled(x: Any, factor: Any = 2.0) -> Any:
    return {"doubled": x * factor}


@pytest.fixture
def function() -> Any:
    return tf.function(doubled)


@pytest.fixture
def program(function: Any) -> Any:
    return function.get_concrete_function(SCALAR)


def test_functions_have_classes_twins_a_lock_and_results(function, program):
    assert isinstance(function, functions.Function)
    assert isinstance(program, functions.ConcreteFunction)
    assert functions.results_of(program, [tf.constant(8.0)])["doubled"].numpy() == 8.0
    twin = functions.compiled_copy(function)
    assert functions.is_compiled(twin)
    assert not functions.is_compiled(function)
    assert twin.python_function is function.python_function
    assert twin(tf.constant(3.0))["doubled"].numpy() == 6.0
    with function._lock:  # Its thread can acquire it again.
        assert function(tf.constant(3.0))["doubled"].numpy() == 6.0
    plain = functions.not_compiled(twin.get_concrete_function(SCALAR))
    assert not plain.function_def.attr["_XlaMustCompile"].b
    assert functions.execute(plain, [tf.constant(2.0)], [])["doubled"].numpy() == 4.0


def test_definitions_run_under_other_names_with_all_that_they_call():
    total = tf.Variable(1.0)
    inner = tf.function(lambda x: x * 3.0)

    @tf.function(jit_compile=True)
    def outer(x: Any) -> Any:
        for _ in tf.range(2):
            x = inner(x)
        return total.assign_add(x)

    program = outer.get_concrete_function(SCALAR)
    library = functions.definitions_of(program)
    name = functions.define(library, "elsewhere")
    assert name.endswith("_elsewhere")
    assert name == functions.define(library, "elsewhere")
    functions.call_defined(name, [tf.constant(2.0), total.handle], 1)
    assert total.numpy() == 19


def test_traces_are_kept_apart_by_their_target_and_found_again(function):
    call = (tf.constant(5.0),), {}
    assert functions.known_trace(function, *call, "a") is None
    first, second = (functions.new_trace(function, *call, target)[0] for target in ("a", "b"))
    assert first is not second
    for target, trace in (("a", first), ("b", second)):
        result = functions.known_trace(function, *call, target)
        assert result is not None
        assert result[0] is trace
        assert [value.numpy() for value in result[1]] == [5.0]
    assert functions.known_trace(function, *call, "c") is None
    assert {first, second} <= set(functions.traces_of(function))


@pytest.mark.parametrize(
    ("signature", "args", "kwargs", "other_args"),
    [
        (None, (tf.constant(1.0), 2), {}, (tf.constant(1.0), 3)),
        (None, (tf.constant(1.0),), {"factor": 2.5}, (tf.constant([1.0]), 2.5)),
        ([tf.TensorSpec([None], tf.float32)], ([1.0, 2.0],), {}, None),
        ([tf.TensorSpec([None], tf.float32), tf.TensorSpec([], tf.int32)], (tf.constant([1.0]), 3), {}, None),
    ],
    ids=["a Python value", "a name", "a signature", "a signature of both"],
)
def test_a_trace_is_found_by_the_arguments_that_a_call_finds_it_by(signature, args, kwargs, other_args):
    calls = []

    @tf.function(input_signature=signature)
    def scaled(x: Any, factor: Any = 2) -> Any:
        calls.append(x)
        return x * tf.cast(factor, x.dtype)

    function: Any = scaled
    trace, _ = functions.new_trace(function, args, kwargs, "a")
    traced = len(calls)
    result = functions.known_trace(function, args, kwargs, "a")
    assert result is not None
    assert result[0] is functions.new_trace(function, args, kwargs, "a")[0] is trace
    assert scaled.get_concrete_function(*args, **kwargs).graph is trace.graph
    assert len(calls) == traced
    if other_args is not None:
        assert functions.known_trace(function, other_args, {}, "a") is None


def test_functions_are_made_with_attributes_other_captures_and_of_graphs():
    plus = functions.traced_once(lambda x: x + 1.0, [tf.constant(1.0)], "plus", {"_XlaMustCompile": True})
    assert functions.execute(plus, [tf.constant(1.0)], []).numpy() == 2.0
    assert plus.function_def.attr["_XlaMustCompile"].b
    assert plus.name.startswith(b"__inference_plus")
    captured = tf.constant(10.0)
    program: Any = tf.function(lambda x: x + captured).get_concrete_function(SCALAR)
    [tensor] = program.captured_inputs
    assert tensor.numpy() == 10.0
    assert functions.execute(program, [tf.constant(1.0)], [tf.constant(20.0)]).numpy() == 21.0
    graph = graphs.FunctionGraph("squares")
    graphs.trace_into(graph, lambda x: x**2.0, (SCALAR,))
    [result] = functions.of_graph("a_square", graph).call_flat(tf.constant(3.0))
    assert result.numpy() == 9.0


def test_arguments_become_flat_inputs(function, program):
    assert function.python_function(3.0) == {"doubled": 6.0}
    _, flat = functions.new_trace(function, (tf.constant(3.0), tf.constant(4.0)), {}, "a")
    assert [value.numpy() for value in flat] == [3.0, 4.0]
    [alone] = functions.flat_inputs_of_call(program, (tf.constant(3.0),), {})
    assert alone.numpy() == 3.0
    with pytest.raises(TypeError):
        functions.flat_inputs_of_call(program, (), {})
    # A program has one parameter for each value in `**kwargs`. A value named `kwargs` must be bound again.
    variadic: Any = tf.function(lambda **kwargs: kwargs["kwargs"] + 1.0)
    _, [value] = functions.new_trace(variadic, (), {"kwargs": tf.constant(4.0)}, "a")
    assert value.numpy() == 4.0


def test_the_program_of_xla_can_be_read(program):
    from tensorflow_ipu._tensorflow import xla

    serialized = functions.hlo_of(program, [tf.constant(1.0)], "/job:localhost/replica:0/task:0/device:CPU:0")
    module = xla.HloModuleProto.FromString(serialized)
    instructions = [instruction for computation in module.computations for instruction in computation.instructions]
    assert {"parameter", "multiply"} <= {instruction.opcode for instruction in instructions}
    types = {instruction.shape.element_type for instruction in instructions}
    assert xla.PrimitiveType.Value("F32") in types


def test_variables_of_a_first_trace_get_their_values_by_a_function_that_is_known(monkeypatch):
    checked: list[tuple[str, bool]] = []
    original = functions.initializes_variables

    def check(graph: Any) -> bool:
        checked.append((graph.name, original(graph)))
        return checked[-1][1]

    monkeypatch.setattr(functions, "initializes_variables", check)
    created: list[tf.Variable] = []

    @tf.function(jit_compile=True)
    def program(x: tf.Tensor) -> Any:
        if not created:
            created.append(tf.Variable(lambda: tf.ones([2])))
        return created[0] * x

    strategy = ipu.IPUStrategy()
    with strategy.scope():
        assert strategy.run(program, [tf.ones([2])]).numpy().tolist() == [1, 1]
    assert [name for name, initializes in checked if initializes] == ["initialize_variables"]
    assert len(checked) > 1


class Thing:
    """An argument that is compared by identity."""


def test_parts_of_arguments_are_told_apart():
    @tf.function
    def program(x: tf.Tensor, setting: Any, *, options: Any) -> tf.Tensor:
        del setting, options
        return x

    thing = Thing()
    traced: Any = program.get_concrete_function(tf.zeros([2, 3]), [1, thing], options={"a": (tf.zeros([], tf.int32),)})
    assert functions.leaves_of(traced) == {
        "x": functions.Leaf("tensor", "float32(2, 3)", (2, 3), "float32"),
        "setting[0]": functions.Leaf("value", "1", dtype="int"),
        "setting[1]": functions.Leaf("object", str(id(thing)), dtype="Thing"),
        "options['a'][0]": functions.Leaf("tensor", "int32()", (), "int32"),
    }
    unknown = {"x": tf.TensorSpec(None), "y": None}
    assert functions.leaves_of_spec("data", unknown) == {
        "data[0]": functions.Leaf("tensor", "float32<unknown>", None, "float32"),
        "data[1]": functions.Leaf("other", "None"),
    }


def test_profile_of_a_compiled_function_names_its_operations(tmp_path):
    @tf.function(jit_compile=True)
    def program(x: tf.Tensor) -> tf.Tensor:
        return tf.tanh(x @ x)

    x = tf.ones([8, 8])
    program(x)
    profiler.start(os.fspath(tmp_path))
    program(x)
    profiler.stop()
    operations = [event for event in profiler.measured(os.fspath(tmp_path)) if "hlo_op" in event.details]
    assert operations
    assert isinstance(operations[0], profiler.Measured)
    assert all(event.details["hlo_module"] and event.begin > 1e18 and event.duration >= 0 for event in operations)
    assert not list(profiler.measured(os.fspath(tmp_path / "nothing")))
