"""Traces and compilations of functions: once for all runs of a program; reasons of traces; warnings of many."""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import Any

import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._base import tracepoints
from tensorflow_ipu.errors import RecompilationWarning
from tensorflow_ipu.programs import ShapesOfData
from tensorflow_ipu.programs.diagnostics import retracing


class Thing:
    """An object that is compared by identity."""

    variable: tf.Variable | None = None


class Traced:
    """A graph function that records the Python values of its traces."""

    def __init__(self, **options: Any) -> None:
        self.traces: list[Any] = []

        def program(x: Any, setting: Any = None) -> Any:
            self.traces.append(setting)
            return x + 1

        self.function = tf.function(program, **options)


def test_python_argument_that_changes_traces_anew_and_one_that_returns_does_not(strategy):
    for options in ({}, {"jit_compile": True}):
        traced = Traced(**options)
        for setting in (1, 2, 1, "a", (1, 2), [1, 2], "a", None, 2):
            strategy.run(traced.function, (tf.constant(1), setting))
        assert traced.traces == [1, 2, "a", (1, 2), [1, 2], None]


def test_objects_shapes_and_types_are_told_apart_and_values_and_ways_of_calling_are_not(strategy):
    traced = Traced(jit_compile=True)
    first, second = Thing(), Thing()
    for thing in (first, first, second, first, second):
        strategy.run(traced.function, (tf.constant(1), thing))
    assert traced.traces == [first, second]
    traced = Traced(jit_compile=True)
    for x in ([1], [2], [1, 2], [1.0], [3, 4], [2.0]):
        strategy.run(traced.function, (tf.constant(x),))
    assert len(traced.traces) == 3
    traced = Traced()
    strategy.run(traced.function, (tf.constant(1), 5))
    strategy.run(traced.function, (tf.constant(1),), {"setting": 5})
    with strategy.scope():
        strategy.run(traced.function, kwargs={"setting": 5, "x": tf.constant(1)})
    assert traced.traces == [5]
    traced = Traced(jit_compile=True)
    outer = tf.function(lambda x: strategy.run(traced.function, (x,)))
    for value in range(5):
        assert outer(tf.constant(value)).numpy() == value + 1
    assert len(traced.traces) == 1
    traced = Traced(input_signature=[tf.TensorSpec([None], tf.int32)])
    for size in (1, 5, 2):
        assert strategy.run(traced.function, (tf.zeros([size], tf.int32),)).shape == [size]
    assert len(traced.traces) == 1


@pytest.mark.parametrize("jit_compile", [None, True])
@pytest.mark.parametrize("kind", ["function", "concrete", "inserted"])
def test_function_that_nobody_holds_goes_with_all_that_it_holds(jit_compile, kind, strategy):
    def use() -> list[weakref.ref[Any]]:
        thing = Thing()

        def program(x: Any) -> Any:
            if thing.variable is None:
                thing.variable = tf.Variable(1.0)
            return x + thing.variable

        function = tf.function(program, jit_compile=jit_compile)
        x = tf.constant(1.0)
        used = [function]
        if kind == "function":
            strategy.run(function, (x,))
        elif kind == "concrete":
            with strategy.scope():
                used.append(function.get_concrete_function(x))
            strategy.run(used[-1], (x,))
        else:
            used.append(tf.function(lambda x: strategy.run(function, (x,))))
            used[-1](x)
        return [weakref.ref(referent) for referent in (thing, program, *used)]

    references = use()
    gc.collect()
    assert [reference() for reference in references] == [None] * len(references)


def test_each_program_is_compiled_once_and_each_kind_of_function_is_compiled(strategy, compilations):
    def named(name: str, **options: Any) -> Any:
        def program(x: Any) -> Any:
            return x * 2 + 1

        program.__name__ = name
        return tf.function(program, **options)

    with compilations() as compiled:
        hundred = named("hundred")
        for i in range(100):
            assert strategy.run(hundred, (tf.constant(float(i)),)).numpy() == 2 * i + 1

        scalar = tf.constant(1.0)
        spec = tf.TensorSpec([], tf.float32)
        for name, options in (("absent", {}), ("false", {"jit_compile": False}), ("true", {"jit_compile": True})):
            captured, inner = named(f"held_{name}", **options), named(f"inner_{name}", **options)
            graph = tf.function(lambda x, inner=inner: strategy.run(inner, (x,)))
            for _ in range(3):
                strategy.run(named(name, **options).get_concrete_function(spec), (scalar,))
                strategy.run(captured, (scalar,))
                graph(scalar)

        # The unused range of the loop made XLA compile the program for each length.
        def fed(iterator, queue, n):
            for _ in tf.range(n):
                queue.enqueue(next(iterator))

        fed = tf.function(fed, jit_compile=True)
        for epoch in range(3):
            with strategy.scope():
                iterator = iter(tf.data.Dataset.from_tensors(1.0).repeat())
            queue = ipu.IPUOutfeedQueue()
            strategy.run(fed, (iterator, queue, tf.constant(epoch + 2)))
            assert queue.dequeue().shape == [epoch + 2]

        with strategy.scope():
            model = tf.keras.Sequential([tf.keras.layers.Dense(3)])
            optimizer = tf.keras.optimizers.Adam()

        def created(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(x))
            optimizer.apply_gradients(zip(tape.gradient(loss, model.weights), model.weights, strict=True))
            return loss

        created = tf.function(created)
        for _ in range(3):
            strategy.run(created, (tf.ones([2, 2]),))

    def count(name: str) -> int:
        return sum(f"inference_{name}_" in module for module in compiled)

    kinds = [f"{way}_{kind}" for way in ("held", "inner") for kind in ("absent", "false", "true")]
    for name in ("hundred", *kinds, "fed", "created"):
        assert count(name) == 1
    # A compiled function calls a concrete function that is not compiled. Each of the three is a different function.
    assert len(compiled) == 1 + 3 * (3 + 1 + 1) + 1 + 1


def test_a_function_with_a_name_of_its_own_is_told_by_that():
    def program() -> None:
        pass

    function = tf.function(program)
    assert retracing._described(function).startswith("program (test_retracing.py:")
    function.__name__ = "train digits"  # Models call their programs in this way.
    assert retracing._described(function) == "train digits"


def reasons(strategy: Any, function: Any, *calls: tuple[Any, ...]) -> list[str]:
    """Prepares a program for each call, and returns the reasons of the traces."""
    tracepoints.traces.clear()
    for call in calls:
        strategy.prepare(function, call)
    assert all(trace.function.startswith("program (test_retracing.py:") for trace in tracepoints.traces)
    return [trace.reason for trace in tracepoints.traces]


def new_program() -> Any:
    @tf.function(jit_compile=True)
    def program(x: Any, setting: Any = None) -> Any:
        del setting
        return x

    return program


def test_reason_names_the_argument_and_what_of_it_changed(strategy):
    x, thing = tf.zeros(3), Thing()
    traced = [
        ((x,), "its first call"),
        ((tf.zeros(4),), "`x`: shape (3,) became (4,)"),
        ((tf.zeros(3, tf.int32),), "`x`: type float32 became int32"),
        ((x, 1), "`setting`: the Python value None became 1; pass a tensor if it changes often"),
        ((x, 2), "`setting`: the Python value 1 became 2; pass a tensor if it changes often"),
        ((x, thing), "`setting`: value 2 became an object of type `Thing`"),
        ((x, Thing()), "`setting`: another Python object, of type `Thing`; it is compared by identity"),
        ((x, {"a": [x, 1]}), "`setting` is gone; `setting['a'][0]` is new; `setting['a'][1]` is new"),
        ((x, {"a": [tf.zeros(5), 1]}), "`setting['a'][0]`: shape (3,) became (5,)"),
    ]
    calls = [call for call, _ in traced]
    assert reasons(strategy, new_program(), calls[0], *calls) == [reason for _, reason in traced]


def test_elements_of_a_queue_are_told_apart(strategy):
    def queue(size: int) -> ipu.IPUInfeedQueue:
        queue = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensors(tf.zeros(size)).repeat())
        queue.initializer  # noqa: B018  (The property starts it.)
        return queue

    @tf.function(jit_compile=True)
    def program(queue: ipu.IPUInfeedQueue) -> tf.Tensor:
        return queue._dequeue()

    queues = [queue(2), queue(2), queue(3)]
    assert reasons(strategy, program, *((queue_argument,) for queue_argument in queues)) == [
        "its first call",
        "`the elements of queue, [0]`: shape (2,) became (3,)",
    ]


def test_another_device_and_another_function_of_the_same_code_are_reasons(replicas):
    program = new_program()
    actual = reasons(replicas(1), program, (1.0,)) + reasons(replicas(2), program, (1.0,))
    assert actual[1] == "the device has 2 IPUs, and had 1"
    (latest,) = reasons(replicas(2), new_program(), (1.0,))
    assert latest.startswith("another function of the same code was traced before")


SHAPES = [(size, None) for size in (1, 2, 2, 1, 3, 4, 5)]
NUMBERS = [(1, step) for step in range(7)]


@pytest.mark.parametrize(
    ("calls", "on_host", "parts"),
    [
        (SHAPES, False, ["3 different shapes", "`x`: shape (2,) became (3,)", "pad", "drop_remainder", "reduce_re"]),
        (NUMBERS, False, ["5 different Python numbers", "`setting`: the Python value 3 became 4", "Make it a tensor"]),
        (NUMBERS, True, []),
    ],
)
def test_third_shape_and_fifth_number_warn_once_in_the_users_line(calls, on_host, parts, strategy):
    program = new_program()

    def call(x: Any, setting: Any) -> Any:
        return strategy.run(program, (x, setting))

    if on_host:
        call = tf.function(call)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for size, setting in calls:
            call(tf.zeros(size), setting)
    (warning,) = [record for record in caught if record.category is RecompilationWarning]
    assert warning.filename == __file__
    for part in parts:
        assert part in str(warning.message)


def test_values_types_and_devices_that_change_warn_of_nothing(replicas):
    program, strategy = new_program(), replicas(1)
    for x in (tf.zeros(1), tf.zeros(1, tf.int32), tf.zeros(1, tf.float16), tf.zeros(2, tf.float16)):
        strategy.run(program, (x,))
    for setting in [*range(4), True, False, "a", "b", "c", "d", "e", None, *map(tf.constant, range(7))]:
        strategy.run(program, (tf.zeros(1), setting))
    for ipus in (2, 4):
        replicas(ipus).prepare(program, (tf.zeros(2),))


def test_data_of_a_third_shape_warn_once():
    shapes = ShapesOfData()
    for size in (4, 4, 3):
        shapes.note("a step", {"x": tf.TensorSpec([size, 2]), "y": None})
    shapes.note("a step", {"x": tf.TensorSpec([5, 2], tf.int32), "y": None})
    with pytest.warns(RecompilationWarning, match=r"`a step`.*`data\[0\]`: shape \(3, 2\) became \(2, 2\)"):
        shapes.note("a step", {"x": tf.TensorSpec([2, 2]), "y": None})
    shapes.note("a step", {"x": tf.TensorSpec([1, 2]), "y": None})
