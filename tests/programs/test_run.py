"""`IPUStrategy.run`: supported functions, arguments and results."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu

ONE = tf.TensorSpec([], tf.float32)


def double(x: Any) -> Any:
    return 2 * x


def double_if_positive(x: Any) -> Any:
    if x > 0:
        x = 2 * x
    return x


class Scale:
    """An object with methods that are graph functions."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    @tf.function(jit_compile=True)
    def compiled(self, x: Any) -> Any:
        return self.factor * x

    @tf.function
    def plain(self, x: Any) -> Any:
        return self.factor * x


SCALE = Scale(2)  # TensorFlow's bound methods do not keep their object alive.

# Concrete functions failed. A compiled one was taken for a `tf.function`. For others, the check for compilation added
# an empty attribute to their definition.
PROGRAMS = {
    **{
        f"jit_compile={each}": (lambda each=each: tf.function(double, jit_compile=each)) for each in (None, False, True)
    },
    "input_signature": lambda: tf.function(double, input_signature=[ONE], reduce_retracing=True, autograph=False),
    "concrete": lambda: tf.function(double).get_concrete_function(ONE),
    "concrete, compiled": lambda: tf.function(double, jit_compile=True).get_concrete_function(ONE),
    "partial inside": lambda: tf.function(functools.partial(lambda factor, x: factor * x, 2)),
    "bound method": lambda: SCALE.plain,
    "bound method, compiled": lambda: SCALE.compiled,
    "nested": lambda: tf.function(lambda x: tf.function(double)(x)),
    "nested, compiled inside": lambda: tf.function(lambda x: tf.function(double, jit_compile=True)(x)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_graph_function_of_any_kind_runs_by_itself_and_inside_a_graph_function(name, strategy):
    program = PROGRAMS[name]()
    for value in (1.5, 4.0):
        result = strategy.run(program, (tf.constant(value),))
        assert result.dtype == tf.float32
        assert result.device.endswith("device:IPU:0")
        assert result.numpy() == 2 * value
    outer = tf.function(lambda x: strategy.run(program, (x,)) + 1)
    assert outer(tf.constant(3.0)).numpy() == 7


def _unknown_to_xla(x: Any) -> Any:
    """Computes what runs only outside of a compiled program."""
    return tf.reshape(tf.numpy_function(lambda value: value, [x], tf.float32), [])


UNCOMPILABLE = {
    **{
        f"jit_compile={each}": (lambda each=each: tf.function(_unknown_to_xla, jit_compile=each))
        for each in (None, False, True)
    },
    "concrete": lambda: tf.function(_unknown_to_xla).get_concrete_function(ONE),
    "nested": lambda: tf.function(lambda x: tf.function(_unknown_to_xla)(x)),
}


@pytest.mark.parametrize("eagerly", [False, True])
def test_program_is_compiled_whole_so_it_may_hold_nothing_that_xla_lacks(eagerly, strategy):
    tf.config.run_functions_eagerly(eagerly)
    try:
        for make in UNCOMPILABLE.values():
            program = make()
            with pytest.raises(tf.errors.InvalidArgumentError, match="PyFunc"):
                strategy.run(program, (tf.constant(1.0),))
            for function in () if eagerly else (program, _unknown_to_xla):
                with pytest.raises(tf.errors.InvalidArgumentError, match="PyFunc"):
                    tf.function(lambda x, function=function: strategy.run(function, (x,)))(tf.constant(1.0))
        assert strategy.run(tf.function(double), (tf.constant(1.0),)).numpy() == 2
    finally:
        tf.config.run_functions_eagerly(False)


def test_what_is_no_graph_function_is_refused(strategy):
    for fn in (double, lambda x: x, functools.partial(tf.function(double), tf.constant(1.0)), SCALE.__init__):
        with pytest.raises(ValueError, match=r"`IPUStrategyV1.run` does not support eager execution.*@tf.function"):
            strategy.run(fn, (tf.constant(1.0),))
        with strategy.scope(), pytest.raises(ValueError, match="does not support eager execution"):
            strategy.run(fn, (tf.constant(1.0),))
    for fn in (None, 3, "program", tf.constant(1.0)):
        with pytest.raises(TypeError, match=r"`fn` must be a `tf.function`, but is"):
            strategy.run(fn)
    # A bare tensor was split along its first axis into arguments.
    for args in (tf.constant([1.0]), tf.constant(1.0), 1, None, {"x": 1}, (i for i in [1])):
        with pytest.raises(ValueError, match=r"`args` must be a list or tuple of `fn`'s arguments, but is"):
            strategy.run(tf.function(double), args)
    with pytest.raises(ValueError, match=r"`kwargs` must map names to `fn`'s arguments, but is \[1\]"):
        strategy.run(tf.function(double), (), [1])


def test_plain_callable_inside_a_graph_function_is_a_program_and_other_callers_see_no_compiled_one(strategy):
    outer = tf.function(lambda x: strategy.run(double_if_positive, (x,)))
    assert outer(tf.constant(2.0)).numpy() == 4
    assert outer(tf.constant(-2.0)).numpy() == -2
    program = tf.function(lambda x: tf.identity(x) + 1)
    assert strategy.run(program, (tf.constant(1),)).numpy() == 2
    assert not program._jit_compile
    assert program(tf.constant(5)).numpy() == 6


# TensorFlow compiled the outer function for the host, and did not find the variables of the device.
@pytest.mark.parametrize("inner", [None, True])
def test_compiled_function_around_a_program_runs_on_the_host(inner, strategy):
    with strategy.scope():
        variable = tf.Variable(1.0)
    program = tf.function(lambda x: variable.assign_add(x), jit_compile=inner)

    @tf.function(jit_compile=True)
    def outer(x: Any, n: Any = 2) -> Any:
        total = 0.0
        for _ in tf.range(n):
            if x > 0:
                total += strategy.run(program, (x,))
        return total

    assert outer(tf.constant(1.0)).numpy() == 2 + 3
    assert outer(tf.constant(-1.0)).numpy() == 0
    around = tf.function(lambda x: outer(x))
    assert around(tf.constant(1.0)).numpy() == 4 + 5
    concrete = outer.get_concrete_function(tf.constant(1.0))
    assert concrete(x=tf.constant(1.0)).numpy() == 6 + 7


def test_arguments_that_do_not_fit_the_function_are_refused(strategy):
    concrete = tf.function(double, jit_compile=True).get_concrete_function(ONE)
    for program in (tf.function(double), tf.function(double, jit_compile=True), concrete):
        with pytest.raises(TypeError, match="missing a required argument: 'x'"):
            strategy.run(program)
        with pytest.raises(TypeError, match="too many positional arguments"):
            strategy.run(program, (tf.constant(1.0), tf.constant(1.0)))


def test_options_are_run_options_and_runs_inside_of_programs_are_refused(strategy):
    inner = tf.function(double)
    options = tf.distribute.RunOptions(experimental_enable_dynamic_batch_size=False)
    assert strategy.run(inner, (tf.constant(1.0),), options=options).numpy() == 2
    with pytest.raises(TypeError, match=r"`options` must be a `tf.distribute.RunOptions`, but is \{\}"):
        strategy.run(inner, (tf.constant(1.0),), options={})
    with pytest.raises(RuntimeError, match=r"`experimental_run_v2` was removed. Call `run`"):
        strategy.experimental_run_v2(inner, args=(1,))
    with pytest.raises(RuntimeError, match="cross-replica context"):
        strategy.run(tf.function(lambda: strategy.run(inner, (tf.constant(1.0),))))


def test_arguments_by_name_and_with_defaults_reach_the_function(strategy):
    @tf.function
    def program(x: Any, y: Any, *rest: Any, z: Any = 100.0, **more: Any) -> Any:
        return [x, y, *rest, z, more]

    values = [tf.constant(float(i)) for i in range(5)]
    result = strategy.run(program, values[:3], {"k": values[3]})
    assert [float(x) for x in result[:4]] == [0, 1, 2, 100]
    assert result[4]["k"].numpy() == 3
    result = strategy.run(program, args=[values[0]], kwargs={"y": values[1], "z": values[4]})
    assert [float(x) for x in result[:3]] == [0, 1, 4]


def test_concrete_function_takes_its_tensors_alone_and_is_a_program_of_its_own(strategy):
    def scaled(factor: float, x: Any, name: str, y: Any) -> Any:
        return factor * x - y

    for jit_compile in (None, True):
        program = tf.function(scaled, jit_compile=jit_compile).get_concrete_function(3.0, ONE, "name", ONE)
        x, y = tf.constant(2.0), tf.constant(1.0)
        for args, kwargs in (((3.0, x, "name", y), {}), ((x, y), {}), ((x,), {"y": y}), ((), {"y": y, "x": x})):
            assert strategy.run(program, args, kwargs).numpy() == 5
        for args, kwargs in (((x,), {}), ((x, y, y), {}), ((x, y), {"y": y}), ((x,), {"z": y}), ((x, "y"), {})):
            with pytest.raises(TypeError):
                strategy.run(program, args, kwargs)
    with strategy.scope():
        variables = [tf.Variable(1.0), tf.Variable(2.0)]

    def adding(variable: tf.Variable) -> Any:
        return tf.function(lambda: variable + 1).get_concrete_function()

    programs = [adding(variable) for variable in variables]  # The functions share their code.
    assert [strategy.run(program).numpy() for program in programs] == [2, 3]


def test_any_python_object_is_an_argument(strategy):
    class Settings:
        rate = 0.5

    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones")])
        optimizer = tf.keras.optimizers.SGD(0.25)
        variable = tf.Variable(3.0)
        iterator = iter(tf.data.Dataset.from_tensors(tf.ones([2, 3])).repeat())
    queue = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program(settings: Any, model: Any, optimizer: Any, variable: Any, iterator: Any, queue: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(next(iterator))) * settings.rate
        kernel = model.layers[0].kernel
        optimizer.apply_gradients([(tape.gradient(loss, kernel), kernel)])
        queue.enqueue(loss)
        return variable.assign_add(loss)

    results = [strategy.run(program, (Settings, model, optimizer, variable, iterator, queue)) for _ in range(3)]
    # The weights start at 1, and each step subtracts 0.25.
    np.testing.assert_allclose(queue.dequeue(), [3.0, 2.25, 1.5])
    assert results[-1].numpy() == pytest.approx(3 + 6.75)


def test_results_keep_their_structure(strategy):
    @tf.function
    def program(x: Any) -> Any:
        return {"a": (x, [x + 1, None]), "b": 3, "c": tf.constant([[1, 2]]), "d": np.float32(0.5)}

    result = strategy.run(program, (tf.constant(1),))
    tf.nest.assert_same_structure(result, {"a": (0, [0, None]), "b": 0, "c": 0, "d": 0})
    assert result["a"][0].numpy() == 1
    assert result["a"][1][0].numpy() == 2
    assert result["a"][1][1] is None
    assert (int(result["b"]), float(result["d"])) == (3, 0.5)
    np.testing.assert_array_equal(result["c"], [[1, 2]])
    assert strategy.run(tf.function(lambda: None)) is None


def test_operation_that_a_function_returns_in_a_graph_is_that_of_its_program():
    strategy, v1 = ipu.IPUStrategy(), tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        with strategy.scope():
            weight = v1.get_variable("weight", initializer=1.0, use_resource=True)
        optimizer, averages = v1.train.GradientDescentOptimizer(0.5), v1.train.ExponentialMovingAverage(0.5)

        def train(x):
            if x > 2:  # AutoGraph raises it, as in any program.
                x = 2 * x
            update = optimizer.minimize(weight * x)
            with tf.control_dependencies([update]):
                return {"x": x, "operations": [update, averages.apply([weight])], "nothing": None}

        results = strategy.run(train, (tf.constant(3.0),))
        alone = strategy.run(lambda: tf.group(weight.assign(7.0)))
        session.run(v1.global_variables_initializer())
        assert session.run([results["x"], *results["operations"]]) == [6.0, None, None]
        assert session.run([weight, averages.average(weight)]) == [-2.0, -0.5]
        assert session.run(alone) is None
        assert session.run(weight) == 7.0


def test_operation_that_a_program_of_a_graph_function_returns_orders_what_follows(strategy):
    with strategy.scope():
        weight = tf.Variable(1.0)

    @tf.function
    def outer():
        with tf.control_dependencies([strategy.run(lambda: tf.group(weight.assign_add(1.0)))]):
            return weight.read_value()

    assert outer().numpy() == 2.0


def test_types_of_tensors_go_in_and_come_out(strategy):
    types = [tf.float16, tf.bfloat16, tf.float32, tf.int8, tf.uint8, tf.int16, tf.int32, tf.int64]
    results = strategy.run(
        tf.function(lambda *xs: [x + x for x in xs]), [tf.constant([1, 2], dtype) for dtype in types]
    )
    assert [result.dtype for result in results] == types
    for result in results:
        np.testing.assert_array_equal(tf.cast(result, tf.int32), [2, 4])


# The program used the trace without a strategy: each replica drew the same values, and sums over replicas had one
# addend.
@pytest.mark.parametrize("fails", ["", "plainly", "in the program"])
def test_function_that_was_called_plainly_first_is_traced_as_a_program(fails, replicas):
    strategy, failing = replicas(2), [fails == "in the program"]
    with strategy.scope():
        total = tf.Variable(1.0)

    @tf.function(jit_compile=True)
    def step(x):
        if failing.pop() if failing else False:
            raise KeyError("once")
        # Without the strategy, the variable of an IPU is not accessible, and the trace stays.
        context = tf.distribute.get_replica_context()
        summed = context.all_reduce("sum", x) if not tf.distribute.in_cross_replica_context() else x
        return summed + (total if fails == "plainly" else 0.0)

    x = tf.constant(3.0)
    if fails == "in the program":
        with pytest.raises(KeyError):
            strategy.run(step, (x,))
    if fails == "plainly":
        with pytest.raises(tf.errors.InvalidArgumentError):
            step(x)
    else:
        assert step(x) == 3
    assert strategy.run(step, (x,)) == (7 if fails == "plainly" else 6)


def test_dataset_that_runs_a_program_for_each_element_is_iterated_eagerly(strategy):
    program = tf.function(double, jit_compile=True)
    dataset = tf.data.Dataset.range(3).map(lambda i: strategy.run(program, (tf.cast(i, tf.float32),)))
    assert [float(element) for element in dataset] == [0, 2, 4]


def test_gradient_of_a_run_reaches_variables_and_inputs(strategy):
    with strategy.scope():
        variable = tf.Variable(3.0)
    program = tf.function(lambda x: variable * variable * x, jit_compile=True)
    x = tf.constant(2.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        result = strategy.run(program, (x,))
    gradients: Any = tape.gradient(result, [variable, x])
    assert [gradient.numpy() for gradient in gradients] == [12, 9]


def test_exception_in_a_traced_function_leaves_all_usable(strategy):
    fail = True

    @tf.function
    def program(x: Any) -> Any:
        if fail:
            raise KeyError("no such thing")
        return x + 1

    for _ in range(2):
        with pytest.raises(KeyError, match="no such thing"):
            strategy.run(program, (tf.constant(1),))
        assert not tf.distribute.has_strategy()
        assert tf.executing_eagerly()
        assert ipu.IPUStrategy() is not None
    fail = False
    assert strategy.run(program, (tf.constant(1),)).numpy() == 2
    with strategy.scope():
        assert tf.Variable(1.0).device.endswith("IPU:0")
