"""Each trace has its reason in words, and many for shapes that differ are warned of, once."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._base import tracepoints
from tensorflow_ipu.errors import RecompilationWarning
from tensorflow_ipu.replicas import ShapesOfData


class Thing:
    """Compared by identity."""


def reasons(strategy: Any, function: Any, *calls: tuple[Any, ...]) -> list[str]:
    """Prepares a program for each call; why those were traced that were."""
    tracepoints.traces.clear()
    for call in calls:
        strategy.prepare(function, call)
    assert all(trace.function.startswith("program (test_trace_reasons.py:") for trace in tracepoints.traces)
    return [trace.reason for trace in tracepoints.traces]


def new_program() -> Any:
    @tf.function(jit_compile=True)
    def program(x: Any, setting: Any = None) -> Any:
        del setting
        return x

    return program


def test_reason_names_the_argument_and_what_of_it_changed(strategy: Any) -> None:
    x, thing = tf.zeros(3), Thing()
    first, *others = reasons(
        strategy,
        new_program(),
        (x,),
        (x,),
        (tf.zeros(4),),
        (tf.zeros(3, tf.int32),),
        (x, 1),
        (x, 2),
        (x, thing),
        (x, Thing()),
        (x, {"a": [x, 1]}),
        (x, {"a": [tf.zeros(5), 1]}),
    )
    assert first == "its first call"
    assert others == [
        "`x`: shape (3,) became (4,)",
        "`x`: type float32 became int32",
        "`setting`: the Python value None became 1; pass a tensor if it changes often",
        "`setting`: the Python value 1 became 2; pass a tensor if it changes often",
        "`setting`: value 2 became an object of type `Thing`",
        "`setting`: another Python object, of type `Thing`; it is compared by identity",
        "`setting` is gone; `setting['a'][0]` is new; `setting['a'][1]` is new",
        "`setting['a'][0]`: shape (3,) became (5,)",
    ]


def test_elements_of_a_queue_are_told_apart(strategy: Any) -> None:
    def queue(size: int) -> ipu.IPUInfeedQueue:
        made = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensors(tf.zeros(size)).repeat())
        made.initializer  # noqa: B018  (The property starts it.)
        return made

    @tf.function(jit_compile=True)
    def program(queue: ipu.IPUInfeedQueue) -> tf.Tensor:
        return queue._dequeue()

    queues = [queue(2), queue(2), queue(3)]
    assert reasons(strategy, program, *((one,) for one in queues)) == [
        "its first call",
        "`the elements of queue, [0]`: shape (2,) became (3,)",
    ]


def test_another_device_and_another_function_of_the_same_code_are_reasons(replicas: Any) -> None:
    program = new_program()
    found = reasons(replicas(1), program, (1.0,)) + reasons(replicas(2), program, (1.0,))
    assert found[1] == "the device has 2 IPUs, and had 1"
    (again,) = reasons(replicas(2), new_program(), (1.0,))
    assert again.startswith("another function of the same code was traced before")


def test_third_shape_warns_once_in_the_users_line(strategy: Any) -> None:
    program = new_program()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for size in (1, 2, 2, 1, 3, 4, 5):
            strategy.run(program, (tf.zeros(size),))
    (warning,) = caught
    assert warning.category is RecompilationWarning
    assert warning.filename == __file__
    message = str(warning.message)
    assert "was traced for 3 different shapes" in message
    assert "`x`: shape (2,) became (3,)" in message
    assert all(way in message for way in ("pad", "drop_remainder", "reduce_retracing"))


def test_values_types_and_devices_that_change_warn_of_nothing(replicas: Any) -> None:
    program, strategy = new_program(), replicas(1)
    for x in (tf.zeros(1), tf.zeros(1, tf.int32), tf.zeros(1, tf.float16), tf.zeros(2, tf.float16)):
        strategy.run(program, (x,))
    for setting in range(4):
        strategy.run(program, (tf.zeros(1), setting))
    for ipus in (2, 4):
        strategy = replicas(ipus)
        strategy.prepare(program, (tf.zeros(2),))


def test_python_number_that_changes_at_each_call_warns_once_to_make_it_a_tensor(strategy: Any) -> None:
    program = new_program()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(7):
            strategy.run(program, (tf.zeros(1), step))
    (warning,) = caught
    assert warning.category is RecompilationWarning
    assert warning.filename == __file__
    message = str(warning.message)
    assert "was traced for 5 different Python numbers" in message
    assert "`setting`: the Python value 3 became 4" in message
    assert "Make it a tensor" in message


def test_number_of_a_run_in_a_function_of_the_host_warns_in_the_users_line(strategy: Any) -> None:
    program = new_program()

    @tf.function
    def host(x: Any, setting: int) -> Any:
        return strategy.run(program, (x, setting))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(7):
            host(tf.zeros(1), step)
    (warning,) = [one for one in caught if one.category is RecompilationWarning]
    assert warning.filename == __file__


def test_switches_texts_and_tensors_that_change_are_no_numbers(strategy: Any) -> None:
    program = new_program()
    for setting in (True, False, "a", "b", "c", "d", "e", None):
        strategy.run(program, (tf.zeros(1), setting))
    for step in range(7):
        strategy.run(program, (tf.zeros(1), tf.constant(step)))


def test_data_of_a_third_shape_warn_once() -> None:
    shapes = ShapesOfData()
    for size in (4, 4, 3):
        shapes.note("a step", {"x": tf.TensorSpec([size, 2]), "y": None})
    shapes.note("a step", {"x": tf.TensorSpec([5, 2], tf.int32), "y": None})
    with pytest.warns(RecompilationWarning, match=r"`a step`.*`data\[0\]`: shape \(3, 2\) became \(2, 2\)"):
        shapes.note("a step", {"x": tf.TensorSpec([2, 2]), "y": None})
    shapes.note("a step", {"x": tf.TensorSpec([1, 2]), "y": None})
