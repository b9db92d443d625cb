"""Optimizers that use tensors of the last stage, such as a learning rate that is passed from stage to stage."""

import itertools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.keras.optimizer_v2 import gradient_descent as legacy_sgd

import tensorflow_ipu as ipu
from tensorflow_ipu import pipelining
from tensorflow_ipu.pipelining import OptimizerFunctionOutput, PhasedExecution, PipelineSchedule

v1 = tf.compat.v1.train

COUNT, PASSES = 4, 2
XS = np.linspace(0.2, 1.0, COUNT * PASSES, dtype=np.float32)
RATES = np.linspace(0.01, 0.2, COUNT * PASSES, dtype=np.float32)
STARTS = (1.5, -0.5)


class Optimizers:
    """The optimizers with a tensor as learning rate. Keras optimizers are created once, and read the rate from here."""

    def __init__(self, kind):
        self.rate: Any = None
        make = {"keras": keras.optimizers.SGD, "legacy": legacy_sgd.SGD}.get(kind)
        self.once = make and make(lambda: self.rate, momentum=0.9)

    def momentum(self):
        return v1.MomentumOptimizer(self.rate, 0.9)

    def wrapped(self):
        return ipu.optimizers.CrossReplicaOptimizer(v1.AdamOptimizer(self.rate))


def loss_of(x, v, w):
    return (tf.tanh(x * v) * w - 1.0) ** 2


def expected(kind):
    """Returns the weights of plain TensorFlow, trained with sums of gradients and the last rate of each pass."""
    variables = [tf.Variable(start) for start in STARTS]
    if kind == "wrapped":
        optimizer = v1.AdamOptimizer(lambda: rate)
    elif kind in ("momentum", "in parts"):
        optimizer = v1.MomentumOptimizer(lambda: rate, 0.9)
    else:
        optimizer = keras.optimizers.SGD(lambda: rate, momentum=0.9)
    for number in range(PASSES):
        rate = float(RATES[(number + 1) * COUNT - 1])
        with tf.GradientTape() as tape:
            total = tf.add_n([loss_of(x, *variables) for x in XS[number * COUNT :][:COUNT]])
        optimizer.apply_gradients(list(zip(tape.gradient(total, variables), variables, strict=True)))
    return [float(variable) for variable in variables]


def piped(variables, kind, optimizers):
    """Returns two stages that pass the rate on, and an optimizer function that uses it."""
    v, w = variables
    in_parts = kind == "in parts"

    def optimizer_function(out, rate):
        optimizers.rate = rate
        chosen = {"variables": list(variables)} if kind in ("keras", "legacy") else {}
        made = optimizers.once or getattr(optimizers, "momentum" if in_parts else kind)()
        return OptimizerFunctionOutput(made, (out - 1.0) ** 2 if in_parts else out, **chosen)

    def last(hidden, rate):
        return (hidden * w - 1.0) ** 2, tf.identity(rate)

    parts = [lambda hidden, _: hidden * w, lambda _, rate: rate + 0.0]
    return [lambda x, rate: (tf.tanh(x * v), rate), parts if in_parts else last], optimizer_function


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("momentum", {"pipeline_schedule": PhasedExecution.Parallel}),
        ("wrapped", {"pipeline_schedule": PipelineSchedule.Interleaved}),
        ("keras", {}),
        ("legacy", {}),
        ("in parts", {"device_mapping": [0, [1, 2]]}),
    ],
)
def test_rate_is_that_of_the_last_micro_batch_of_each_pass(kind, options, run, strategy, configure):
    configure(4 if kind == "in parts" else 2)
    with strategy.scope():
        variables = [tf.Variable(start) for start in STARTS]
        stages, function = piped(variables, kind, Optimizers(kind))
    dataset = tf.data.Dataset.from_tensor_slices((XS, RATES))
    found = run(dataset, stages, COUNT, repeat_count=PASSES, optimizer_function=function, **options)
    np.testing.assert_array_equal(found[1], RATES)
    np.testing.assert_allclose([float(one) for one in variables], expected(kind), rtol=1e-5)


def in_graph(configure, body, elements, **options):
    """Compiles and runs a pipeline in a graph of TensorFlow 1; returns the outfeed's contents and the variables."""
    configure(2)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(elements))
        outfeed = ipu.IPUOutfeedQueue()

        def program():
            with tf.compat.v1.variable_scope("stages", use_resource=True):
                variables = [tf.compat.v1.get_variable(f"w{at}", initializer=start) for at, start in enumerate(STARTS)]
            stages, function = body(variables)
            queues = {"infeed_queue": infeed, "outfeed_queue": outfeed}
            return pipelining.pipeline(stages, COUNT, optimizer_function=function, **queues, **options)

        with ipu.scopes.ipu_scope("/device:IPU:0"):
            compiled = ipu.compiler.compile(program)
        dequeued = outfeed.dequeue()
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(infeed.initializer)
        session.run(compiled)
        return session.run([dequeued, tf.compat.v1.global_variables()[: len(STARTS)]])


def test_rate_goes_through_the_stages_of_a_graph_too(configure):
    def body(variables):
        return piped(variables, "momentum", Optimizers("momentum"))

    dequeued, found = in_graph(configure, body, (XS, RATES), repeat_count=PASSES)
    np.testing.assert_array_equal(dequeued[1], RATES)
    np.testing.assert_allclose(found, expected("momentum"), rtol=1e-5)


def scaled(rate):
    """Returns an optimizer whose `compute_gradients` multiplies gradients by the rate of each micro-batch."""
    inner = v1.GradientDescentOptimizer(1.0)
    return ipu.optimizers.MapGradientOptimizer(inner, lambda gradient, _: gradient * rate * rate)


def scaled_alone():
    """Returns the weights of plain TensorFlow, trained with each gradient multiplied by its micro-batch's rate."""
    variables = [tf.Variable(start) for start in (*STARTS, 0.7)]
    elements = zip(itertools.cycle(XS), itertools.cycle(RATES))
    for _ in range(PASSES):
        sums = np.zeros(3)
        for x, rate in itertools.islice(elements, 6):
            with tf.GradientTape() as tape:
                loss = (tf.tanh(x * variables[0]) * variables[2] * variables[1] - 1.0) ** 2
            sums += [float(rate * rate * one) for one in tape.gradient(loss, variables)]
        for variable, total in zip(variables, sums, strict=True):
            variable.assign_sub(total)
    return [float(variable) for variable in variables]


LAST: dict[str, Any] = {
    "a function": lambda hidden, w, rate: ((hidden * w - 1.0) ** 2, tf.identity(rate)),
    "parts": [lambda hidden, w, _: hidden * w, lambda _hidden, _w, rate: tf.identity(rate)],
}


@pytest.mark.parametrize(
    ("last", "options"),
    [
        ("a function", {"recomputation_mode": pipelining.RecomputationMode.RecomputeThenBackpropagate}),
        ("parts", {"device_mapping": [0, [1, 2], [3, 0]], "pipeline_schedule": PipelineSchedule.Sequential}),
        ("a function", {"device_mapping": [0, [1, 2], 0], "pipeline_schedule": PhasedExecution.Parallel}),
    ],
)
def test_gradients_of_all_stages_take_a_tensor_of_the_last_stage_of_their_own_micro_batch(last, options, run, strategy):
    with strategy.scope():
        v, w, u = variables = [tf.Variable(start) for start in (*STARTS, 0.7)]
    middle: list[Any] = [lambda hidden, _: hidden * u, lambda _, rate: tf.identity(rate)]
    in_parts = isinstance(options.get("device_mapping", [0, 0])[1], list)
    final = LAST[last]

    def with_w(function):
        return lambda hidden, rate: function(hidden, w, rate)

    def optimizer_function(out, rate):
        return OptimizerFunctionOutput(scaled(rate), (out - 1.0) ** 2 if last == "parts" else out)

    stages = [
        lambda x, rate: (tf.tanh(x * v), rate),
        middle if in_parts else lambda hidden, rate: tuple(part(hidden, rate) for part in middle),
        [with_w(one) for one in final] if last == "parts" else with_w(final),
    ]
    dataset = tf.data.Dataset.from_tensor_slices((XS, RATES)).repeat(2)
    run(dataset, stages, 6, repeat_count=PASSES, optimizer_function=optimizer_function, **options)
    np.testing.assert_allclose([float(one) for one in variables], scaled_alone(), rtol=1e-5)


def test_a_tensor_of_the_last_stage_may_be_a_gradient_as_it_is(configure):
    def body(variables):
        stages = [lambda x, rate: (x * variables[0], rate), lambda x, rate: (x * variables[1], rate)]

        def optimizer_function(loss, rate):
            optimizer = ipu.optimizers.MapGradientOptimizer(v1.GradientDescentOptimizer(1.0), lambda *_: rate)
            return OptimizerFunctionOutput(optimizer, loss)

        return stages, optimizer_function

    weights = in_graph(configure, body, (XS[:COUNT], RATES[:COUNT]))[1]
    np.testing.assert_allclose(weights, np.subtract(STARTS, RATES[:COUNT].sum()), rtol=1e-5)


def test_a_tensor_of_an_inner_stage_is_refused_for_the_gradients_of_another(configure):
    def body(variables):
        kept = []

        def middle(x, rate):
            kept.append(tf.identity(rate))
            return x, rate

        stages = [lambda x, rate: (x * variables[0], rate), middle, lambda x, rate: (x, rate)]
        return stages, lambda x, _: OptimizerFunctionOutput(scaled(kept[-1]), x)

    with pytest.raises(ValueError, match="for the gradients of stage 0, .*: pass the tensor from stage to stage"):
        in_graph(configure, body, (XS, RATES), device_mapping=[0, 1, 0], pipeline_schedule=PipelineSchedule.Sequential)


def test_a_loss_that_depends_on_no_variable_changes_none(configure):
    def body(variables):
        stages = [lambda x: (x, variables[0]), lambda x, v: (x, v)]
        return stages, lambda x, _: OptimizerFunctionOutput(v1.MomentumOptimizer(1.0, 0.9), x)

    np.testing.assert_array_equal(in_graph(configure, body, XS[:COUNT])[1], STARTS)
