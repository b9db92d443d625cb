"""What stages can be: they infer, share variables, run concurrently, take and return structures, have state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import pipelining
from tensorflow_ipu.ops import gradient_capture
from tensorflow_ipu.pipelining import OptimizerFunctionOutput, PipelineSchedule, RecomputationMode, StageCost

SEQUENTIAL = PipelineSchedule.Sequential


@pytest.mark.parametrize("schedule", PipelineSchedule)
def test_a_pipeline_without_an_optimizer_infers_in_the_order_of_the_dataset(run, toy, schedule):
    stages = [lambda x: x + 1, lambda x: x * 2, lambda x: x - 3]
    found = run(toy.numbers(6), stages, 3, repeat_count=2, pipeline_schedule=schedule)
    np.testing.assert_array_equal(found, (np.arange(1, 7) + 1) * 2 - 3)


def test_ramps_that_are_no_iterations_of_the_loop_are_written_out(run, toy):
    toy.configure(2)
    options = {"device_mapping": [0, 1, 0, 1], "pipeline_schedule": PipelineSchedule.Interleaved}
    found = run(toy.numbers(8), [lambda x: x + 1, lambda x: x * 2, lambda x: x - 3, lambda x: x * x], 8, **options)
    np.testing.assert_array_equal(found, ((np.arange(1, 9) + 1) * 2 - 3) ** 2)


def test_inputs_come_first_and_dicts_by_name(run, toy):
    dataset = toy.numbers(3).map(lambda x: {"b": x, "a": -x})

    def first(rate, offsets, *, a, b):
        return {"z": a * rate, "y": b + offsets[0]}

    def second(y, z):
        return y, z

    def third(y, z):
        return {"sum": y + z, "z": z}

    found = run(dataset, [first, second, third], 3, inputs=[tf.constant(10.0), [1.0]])
    np.testing.assert_array_equal(found["z"], [-10, -20, -30])
    np.testing.assert_array_equal(found["sum"], [-8, -17, -26])


def test_a_pipeline_needs_no_infeed(run, toy):
    toy.configure(2)
    found = run(None, [lambda x: x + 1, lambda x: x * 2], 4, inputs=3.0)
    np.testing.assert_array_equal(found, [8, 8, 8, 8])


@pytest.mark.parametrize(
    ("schedule", "mode"),
    [
        (PipelineSchedule.Grouped, None),
        (PipelineSchedule.Grouped, RecomputationMode.RecomputeThenBackpropagate),
        (PipelineSchedule.Grouped, RecomputationMode.RecomputeAndBackpropagateInterleaved),
        (PipelineSchedule.Interleaved, RecomputationMode.Auto),
        (PipelineSchedule.Sequential, RecomputationMode.Auto),
    ],
)
def test_concurrent_stages_get_the_same_and_are_concatenated(run, strategy, toy, schedule, mode):
    toy.configure(4)
    with strategy.scope():
        a, b, c = (tf.Variable(value) for value in (2.0, 3.0, 5.0))
    stages = [lambda x: x + 1, [lambda x: a * x, lambda x: (b * x, x)], lambda p, q, r: p * q + c * r]
    mapping = [0, [1, 2], 3]
    options = {"device_mapping": mapping, "pipeline_schedule": schedule, "optimizer_function": toy.sgd_on}
    (losses,) = run(toy.numbers(12), stages, 12, recomputation_mode=mode, **options)
    x = np.arange(2, 14, dtype=np.float32)
    np.testing.assert_allclose(losses, 6 * x**2 + 5 * x)
    np.testing.assert_allclose([a.numpy(), b.numpy()], [2 - 3 * np.sum(x**2), 3 - 2 * np.sum(x**2)], rtol=1e-6)
    np.testing.assert_allclose(c.numpy(), 5 - np.sum(x))


def test_a_first_and_a_last_stage_can_be_concurrent(run, strategy, toy):
    with strategy.scope():
        a, b, c, d = (tf.Variable(value) for value in (2.0, 3.0, 5.0, 7.0))
    stages = [[lambda x: a * x, lambda x: b * x], [lambda p, q: c * p * q, lambda p, q: d * p]]

    def optimizer_function(first, second):
        return toy.sgd_on(first + 2 * second)

    options = {"device_mapping": [[0, 1], [2, 3]], "optimizer_function": optimizer_function}
    first, second = run(toy.numbers(4), stages, 4, **options)
    x = np.arange(1, 5, dtype=np.float32)
    np.testing.assert_allclose(first, 30 * x**2)
    np.testing.assert_allclose(second, 14 * x)
    # loss = c a x b x + 2 d a x
    np.testing.assert_allclose(a.numpy(), 2 - np.sum(15 * x**2 + 14 * x))
    np.testing.assert_allclose(b.numpy(), 3 - np.sum(10 * x**2))
    np.testing.assert_allclose(c.numpy(), 5 - np.sum(6 * x**2))
    np.testing.assert_allclose(d.numpy(), 7 - np.sum(4 * x))


@pytest.mark.parametrize("mapping", [[0, 1, 0], [-1, 0, 1]])  # -1 is all IPUs, each other stage's too.
def test_stages_of_one_ipu_share_variables(mapping, run, strategy, toy):
    toy.configure(2)
    with strategy.scope():
        v = tf.Variable(2.0)
    stages = [lambda x: x * v, lambda x: x + 1, lambda x: x * v]
    options = {
        "device_mapping": mapping,
        "optimizer_function": toy.sgd_on,
        "recomputation_mode": RecomputationMode.Auto,
    }
    run(toy.numbers(6), stages, 6, **options)
    x = np.arange(1, 7)
    np.testing.assert_allclose(v.numpy(), 2 - np.sum(2 * 2 * x + 1))


def test_batches_are_serialized_on_one_ipu(run, strategy, toy):
    toy.configure(1)
    with strategy.scope():
        v, w = tf.Variable(2.0), tf.Variable(3.0)
    stages = [lambda x: x * v, lambda x: x * w]
    (losses,) = run(
        toy.numbers(12), stages, 2, batch_serialization_iterations=3, repeat_count=2, optimizer_function=toy.sgd_on
    )
    expected = []
    a, b = 2.0, 3.0
    for xs in np.split(np.arange(1, 13), 2):
        expected += list(xs * a * b)
        a, b = a - np.sum(xs) * b, b - np.sum(xs) * a
    np.testing.assert_allclose(losses, expected)
    np.testing.assert_allclose([v.numpy(), w.numpy()], [a, b])
    plan = pipelining.last_pipeline().plan
    assert (plan.schedule, plan.mapping, plan.micro_batches) == (SEQUENTIAL, ((0,), (0,)), 6)


def test_a_program_can_have_several_pipelines(strategy, toy):
    toy.configure(2)
    with strategy.scope():
        v = tf.Variable(1.0)
        infeed = ipu.IPUInfeedQueue(toy.numbers(8))
        training, testing = ipu.IPUOutfeedQueue(), ipu.IPUOutfeedQueue()

        @tf.function(jit_compile=True)
        def program() -> None:
            options = {"infeed_queue": infeed, "optimizer_function": toy.sgd_on}
            pipelining.pipeline(
                [lambda x: x * v, lambda x: x * 0.1], 4, outfeed_queue=training, **options, name="train"
            )
            pipelining.pipeline([lambda x: x * v, lambda x: x], 2, infeed_queue=infeed, outfeed_queue=testing)

        infeed.initializer  # noqa: B018  (The access starts it.)
        strategy.run(program)
        np.testing.assert_allclose(training.dequeue()[0], [0.1, 0.2, 0.3, 0.4])
        np.testing.assert_allclose(testing.dequeue(), [0.0, 0.0], atol=1e-6)
        assert v.numpy() == pytest.approx(0.0, abs=1e-6)


def test_a_pipeline_runs_in_a_loop(strategy, toy):
    toy.configure(2)
    with strategy.scope():
        v = tf.Variable(1.0)
        infeed, outfeed = ipu.IPUInfeedQueue(toy.numbers(8)), ipu.IPUOutfeedQueue()

        @tf.function(jit_compile=True)
        def program() -> None:
            def body() -> Any:
                options = {"infeed_queue": infeed, "outfeed_queue": outfeed, "optimizer_function": toy.sgd_on}
                return pipelining.pipeline([lambda x: x * v, lambda x: x * 0.1], 4, **options)

            ipu.loops.repeat(2, body)

        infeed.initializer  # noqa: B018  (The access starts it.)
        strategy.run(program)
        np.testing.assert_allclose(outfeed.dequeue()[0], [0.1, 0.2, 0.3, 0.4, 0.0, 0.0, 0.0, 0.0], atol=1e-6)
        assert v.numpy() == pytest.approx(-2.6)


def test_replicas_of_a_pipeline_each_get_their_elements(strategy, toy):
    toy.configure(4)  # Two stages: two replicas.
    with strategy.scope():
        v = tf.Variable(1.0)
        infeed, outfeed = ipu.IPUInfeedQueue(toy.numbers(8)), ipu.IPUOutfeedQueue()
        optimizer = tf.keras.optimizers.SGD(0.01)

        @tf.function(jit_compile=True)
        def program() -> None:
            pipelining.pipeline(
                [lambda x: x * v, lambda x: x * 2],
                4,
                infeed_queue=infeed,
                outfeed_queue=outfeed,
                optimizer_function=lambda loss: OptimizerFunctionOutput(optimizer, loss, variables=[v]),
            )

        infeed.initializer  # noqa: B018  (The access starts it.)
        strategy.run(program)
        (losses,) = outfeed.dequeue()
    np.testing.assert_allclose(losses, 2 * np.arange(1, 9).reshape(4, 2))
    # Keras sums the gradients of the replicas.
    assert v.numpy() == pytest.approx(1 - 0.01 * 2 * np.sum(np.arange(1, 9)))


def test_a_pipeline_runs_in_a_compiled_graph(toy):
    toy.configure(2)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        infeed, outfeed = ipu.IPUInfeedQueue(toy.numbers(4)), ipu.IPUOutfeedQueue()

        def first(x):
            with tf.compat.v1.variable_scope("first", use_resource=True):
                return x * tf.compat.v1.get_variable("v", initializer=2.0)

        def optimizer_function(loss):
            optimizer = tf.compat.v1.train.MomentumOptimizer(0.5, 0.9)
            return OptimizerFunctionOutput(optimizer, loss)

        def program():
            return pipelining.pipeline(
                [first, lambda x: x],
                4,
                infeed_queue=infeed,
                outfeed_queue=outfeed,
                optimizer_function=optimizer_function,
            )

        with ipu.scopes.ipu_scope("/device:IPU:0"):
            compiled = ipu.compiler.compile(program)
        dequeued = outfeed.dequeue()
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(infeed.initializer)
        session.run(compiled)
        np.testing.assert_allclose(session.run(dequeued)[0], [2, 4, 6, 8])
        (v,) = tf.compat.v1.trainable_variables()
        assert session.run(v) == pytest.approx(2 - 0.5 * 10)


def test_accumulators_have_the_wanted_type_and_the_optimizer_gets_it(run, strategy, toy):
    toy.configure(2)
    seen = []

    class Casting(tf.compat.v1.train.GradientDescentOptimizer):
        def apply_gradients(self, grads_and_vars, global_step=None, name=None):
            pairs = list(grads_and_vars)
            seen.extend(gradient.dtype for gradient, _ in pairs)
            return super().apply_gradients([(tf.cast(g, v.dtype), v) for g, v in pairs], global_step, name)

    with strategy.scope():
        v, w = tf.Variable(tf.constant(1, tf.float16)), tf.Variable(1.0)

    def optimizer_function(loss):
        return OptimizerFunctionOutput(Casting(2.0**-12), loss)

    # In float16, 2048 + 1 is 2048.
    dataset = tf.data.Dataset.from_tensor_slices(np.array([2048, 1, 1, 1], np.float16))
    stages = [lambda x: x * v, lambda x: tf.cast(x, tf.float32) * w]
    options = {"optimizer_function": optimizer_function}
    run(dataset, stages, 4, gradient_accumulation_dtype=lambda variable: tf.float32, **options)
    assert seen[-2:] == [tf.float32, tf.float32]
    assert w.numpy() == pytest.approx(1 - 2051 / 4096)


def test_the_note_of_a_pipeline_tells_its_bytes(run, strategy, toy):
    toy.configure(2)
    with strategy.scope():
        v = tf.Variable(tf.ones([8, 16]))
    dataset = tf.data.Dataset.from_tensors(np.ones([4, 8], np.float32)).repeat(4)
    run(dataset, [lambda x: tf.tanh(x @ v), tf.reduce_sum], 4, optimizer_function=toy.sgd_on, offload_activations=True)
    pipeline = pipelining.last_pipeline()
    cost = pipeline.stage_costs[0]
    assert isinstance(cost, StageCost)
    assert cost.activation_bytes == 4 * (4 * 8 + 4 * 16)  # The input, and the result of tanh.
    assert (cost.input_bytes, cost.weight_bytes) == (4 * 4 * 8, 4 * 8 * 16)
    assert pipeline.options.offload_activations is True


def test_what_gradients_that_nobody_asked_for_would_take_is_not_stashed(run, strategy, toy):
    toy.configure(2)
    with strategy.scope():
        weight = tf.Variable(2.0)
    run(toy.numbers(4), [lambda x: x * weight, lambda x: x**3], 4, optimizer_function=toy.sgd_on)
    # The input, four bytes of it. The gradient of the exponent would take the result as well.
    cost = pipelining.last_pipeline().stage_costs[1]
    assert isinstance(cost, StageCost)
    assert cost.activation_bytes == 4
    x = np.arange(1, 5)
    np.testing.assert_allclose(weight.numpy(), 2 - np.sum(3 * (2 * x) ** 2 * x))


@pytest.mark.parametrize("summed", [True, False])
def test_captured_gradients_come_once_a_pass(strategy, toy, summed):
    toy.configure(2)
    with strategy.scope():
        v = tf.Variable(2.0)
        infeed, outfeed, captured = ipu.IPUInfeedQueue(toy.numbers(8)), ipu.IPUOutfeedQueue(), ipu.IPUOutfeedQueue()

        @tf.function(jit_compile=True)
        def program() -> None:
            def second(x):
                return gradient_capture.capture_upstream_gradients(x, tag="x") ** 2

            def optimizer_function(loss):
                optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.0)
                return OptimizerFunctionOutput(
                    optimizer, loss, gradient_capture_context=context, captured_gradient_outfeed=captured
                )

            with gradient_capture.GradientCaptureContext() as context:
                pipelining.pipeline(
                    [lambda x: x * v, second],
                    4,
                    gradient_accumulation_for_captured_grads=summed,
                    repeat_count=2,
                    infeed_queue=infeed,
                    outfeed_queue=outfeed,
                    optimizer_function=optimizer_function,
                )

        infeed.initializer  # noqa: B018  (The access starts it.)
        strategy.run(program)
        (found,) = captured.dequeue()["x"]
    each = 2 * 2 * np.arange(1, 9).reshape(2, 4)
    np.testing.assert_allclose(found, each.sum(axis=1) if summed else each[:, -1])


def test_the_mean_of_replicas_is_taken_by_its_optimizer(run, strategy, toy):
    toy.configure(4)  # Two stages: two replicas.
    with strategy.scope():
        v = tf.Variable(1.0)

    def optimizer_function(loss):
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.01)
        return OptimizerFunctionOutput(ipu.optimizers.CrossReplicaOptimizer(optimizer), loss)

    run(toy.numbers(8), [lambda x: x * v, lambda x: 2 * x], 4, optimizer_function=optimizer_function)
    assert v.numpy() == pytest.approx(1 - 0.01 * np.sum(np.arange(1, 9)))


def test_a_layer_that_recomputes_leaves_its_input_alone_and_no_weights(run, strategy, toy):
    toy.configure(2)
    with strategy.scope():
        a, b = tf.Variable(tf.fill([8, 8], 0.1)), tf.Variable(2.0)
        x = tf.data.Dataset.from_tensors(tf.ones([4, 8])).repeat()

    def first(x):
        return tf.recompute_grad(lambda y: tf.tanh(tf.tanh(y @ a) @ a))(x)

    def last(x):
        return tf.reduce_sum(b * x)

    run(x, [first, last], 4, optimizer_function=toy.sgd_on)
    pipeline = pipelining.last_pipeline()
    cost = pipeline.stage_costs[0]
    assert isinstance(cost, StageCost)
    assert cost.activation_bytes == 4 * 4 * 8  # Of the weights, 256 bytes, there is nothing.
    with tf.GradientTape() as tape:
        weights = tf.fill([8, 8], 0.1)
        tape.watch(weights)
        loss = 2.0 * tf.reduce_sum(tf.tanh(tf.tanh(tf.ones([4, 8]) @ weights) @ weights))
    np.testing.assert_allclose(a.numpy(), weights - 4 * tape.gradient(loss, weights), rtol=1e-5)
