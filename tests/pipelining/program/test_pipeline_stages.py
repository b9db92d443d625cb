"""Stages with structures, shared variables, parts, loops, their own variables, dropout, embeddings and checkpoints."""

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import pipelining
from tensorflow_ipu.ops import gradient_capture
from tensorflow_ipu.pipelining import OptimizerFunctionOutput, PipelineSchedule, RecomputationMode, StageCost

GROUPED, INTERLEAVED, SEQUENTIAL = PipelineSchedule
AUTO = RecomputationMode.Auto


@pytest.mark.parametrize("schedule", [GROUPED, SEQUENTIAL])
def test_a_pipeline_without_an_optimizer_infers_in_the_order_of_the_dataset(run, toy, schedule):
    stages = [lambda x: x + 1, lambda x: x * 2, lambda x: x - 3]
    found = run(toy.numbers(6), stages, 3, repeat_count=2, pipeline_schedule=schedule)
    np.testing.assert_array_equal(found, (np.arange(1, 7) + 1) * 2 - 3)


def test_ramps_that_are_no_iterations_of_the_loop_are_written_out(run, toy, configure):
    configure(2)
    options = {"device_mapping": [0, 1, 0, 1], "pipeline_schedule": INTERLEAVED}
    found = run(toy.numbers(8), [lambda x: x + 1, lambda x: x * 2, lambda x: x - 3, lambda x: x * x], 8, **options)
    np.testing.assert_array_equal(found, ((np.arange(1, 9) + 1) * 2 - 3) ** 2)


def test_inputs_come_first_and_dicts_by_name_and_a_pipeline_needs_no_infeed(run, toy, configure):
    def first(rate, offsets, *, a, b):
        return {"z": a * rate, "y": b + offsets[0]}

    dataset = toy.numbers(3).map(lambda x: {"b": x, "a": -x})
    stages = [first, lambda y, z: (y, z), lambda y, z: {"sum": y + z, "z": z}]
    found = run(dataset, stages, 3, inputs=[tf.constant(10.0), [1.0]])
    np.testing.assert_array_equal(found["z"], [-10, -20, -30])
    np.testing.assert_array_equal(found["sum"], [-8, -17, -26])
    configure(2)
    np.testing.assert_array_equal(run(None, [lambda x: x + 1, lambda x: x * 2], 4, inputs=3.0), [8, 8, 8, 8])


@pytest.mark.parametrize(("schedule", "mode"), [(GROUPED, None), (INTERLEAVED, AUTO)])
def test_concurrent_stages_get_the_same_and_are_concatenated(trains_as_plain, toy, schedule, mode):
    def make(a, b, c):
        return [lambda x: x + 1, [lambda x: a * x, lambda x: (b * x, x)], lambda p, q, r: p * q + c * r]

    options = {"device_mapping": [0, [1, 2], 3], "pipeline_schedule": schedule, "recomputation_mode": mode}
    trains_as_plain(make, (2.0, 3.0, 5.0), toy.numbers(12), 12, **options)


def test_a_first_and_a_last_stage_can_be_concurrent(trains_as_plain, toy):
    def make(a, b, c, d):
        return [[lambda x: a * x, lambda x: b * x], [lambda p, q: c * p * q, lambda p, q: d * p]]

    mapping = [[0, 1], [2, 3]]
    trains_as_plain(make, (2.0, 3.0, 5.0, 7.0), toy.numbers(4), 4, device_mapping=mapping, loss=lambda p, q: p + 2 * q)


@pytest.mark.parametrize(
    "options",
    [
        {"device_mapping": [0, 1, 0], "recomputation_mode": AUTO},
        {"device_mapping": [-1, 0, 1], "recomputation_mode": AUTO},  # -1 is all IPUs, each other stage's too.
        {"pipeline_schedule": pipelining.PhasedExecution.Serial},
    ],
)
def test_stages_of_one_ipu_share_variables(options, trains_as_plain, toy, configure):
    configure(2 if "device_mapping" in options else 1)

    def make(v):
        return [lambda x: x * v, lambda x: x + 1, lambda x: x * v]

    trains_as_plain(make, [2.0], toy.numbers(6), 6, **options)


def test_batches_are_serialized_on_one_ipu(run, strategy, toy, configure):
    configure(1)
    with strategy.scope():
        v, w = tf.Variable(2.0), tf.Variable(3.0)
    options = {"batch_serialization_iterations": 3, "repeat_count": 2, "optimizer_function": toy.sgd_on}
    (losses,) = run(toy.numbers(12), [lambda x: x * v, lambda x: x * w], 2, **options)
    expected = []
    a, b = 2.0, 3.0
    for xs in np.split(np.arange(1, 13), 2):
        expected += list(xs * a * b)
        a, b = a - np.sum(xs) * b, b - np.sum(xs) * a
    np.testing.assert_allclose(losses, expected)
    np.testing.assert_allclose([v.numpy(), w.numpy()], [a, b])
    plan = pipelining.last_pipeline().plan
    assert (plan.schedule, plan.mapping, plan.micro_batches) == (SEQUENTIAL, ((0,), (0,)), 6)


def test_a_program_can_have_several_pipelines_and_one_in_a_loop(strategy, toy, configure):
    configure(2)
    with strategy.scope():
        v = tf.Variable(1.0)
        infeed = ipu.IPUInfeedQueue(toy.numbers(10))
        training, testing = ipu.IPUOutfeedQueue(), ipu.IPUOutfeedQueue()

        @tf.function(jit_compile=True)
        def program():
            def body():
                options = {"infeed_queue": infeed, "outfeed_queue": training, "optimizer_function": toy.sgd_on}
                return pipelining.pipeline([lambda x: x * v, lambda x: x * 0.1], 4, **options, name="train")

            ipu.loops.repeat(2, body)
            pipelining.pipeline([lambda x: x * v, lambda x: x], 2, infeed_queue=infeed, outfeed_queue=testing)

        infeed.initializer  # noqa: B018  (The access starts it.)
        strategy.run(program)
        np.testing.assert_allclose(training.dequeue()[0], [0.1, 0.2, 0.3, 0.4, 0.0, 0.0, 0.0, 0.0], atol=1e-6)
        np.testing.assert_allclose(testing.dequeue(), [-2.6 * 9, -2.6 * 10], rtol=1e-5)
        assert v.numpy() == pytest.approx(-2.6)


# Slices at positions from random operations or from the stage before failed with "Dynamic inferencing on custom call".
@pytest.mark.parametrize("options", [{}, {"recomputation_mode": AUTO, "pipeline_schedule": INTERLEAVED}])
def test_a_stage_slices_at_what_it_draws_and_at_what_it_is_sent(options, trains_as_plain, toy, configure):
    configure(2)

    def make(table, other, weight):
        def first(x):
            seed = tf.cast([x, 2 * x], tf.int32)
            drawn = tf.random.stateless_uniform([], seed, maxval=4, dtype=tf.int32)
            return x + tf.reduce_sum(tf.slice(table, [drawn], [2])), drawn

        def second(x, place):
            taken = tf.cond(place > 1, lambda: other[place], lambda: weight * tf.slice(other, [place + 1], [1])[0])
            return tf.tanh(x * weight) * taken

        return [first, second]

    values = [0.1, 0.2, 0.3, 0.4, 0.5]
    trains_as_plain(make, [values, values[::-1], 0.7], toy.numbers(8), 8, **options)


@pytest.mark.parametrize("mean", [False, True])
def test_replicas_of_a_pipeline_each_get_their_elements(run, strategy, toy, mean):
    with strategy.scope():  # Of four IPUs and two stages: two replicas.
        v = tf.Variable(1.0)
        summing = tf.keras.optimizers.SGD(0.01)

    def optimizer_function(loss):
        if not mean:  # Keras sums the gradients of the replicas.
            return OptimizerFunctionOutput(summing, loss, variables=[v])
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.01)
        return OptimizerFunctionOutput(ipu.optimizers.CrossReplicaOptimizer(optimizer), loss)

    stages = [lambda x: x * v, lambda x: x * 2]
    (losses,) = run(toy.numbers(8), stages, 4, optimizer_function=optimizer_function)
    np.testing.assert_allclose(losses, 2 * np.arange(1, 9).reshape(4, 2))
    assert v.numpy() == pytest.approx(1 - 0.01 * (1 if mean else 2) * np.sum(np.arange(1, 9)))


def test_accumulators_have_the_wanted_type_and_the_optimizer_gets_it(run, strategy, configure):
    configure(2)
    seen = []

    class Casting(tf.compat.v1.train.GradientDescentOptimizer):
        def apply_gradients(self, grads_and_vars, global_step=None, name=None):
            pairs = list(grads_and_vars)
            seen.extend(gradient.dtype for gradient, _ in pairs)
            return super().apply_gradients([(tf.cast(g, v.dtype), v) for g, v in pairs], global_step, name)

    with strategy.scope():
        v, w = tf.Variable(tf.constant(1, tf.float16)), tf.Variable(1.0)
    # In float16, 2048 + 1 is 2048.
    dataset = tf.data.Dataset.from_tensor_slices(np.array([2048, 1, 1, 1], np.float16))
    stages = [lambda x: x * v, lambda x: tf.cast(x, tf.float32) * w]
    options = {"optimizer_function": lambda loss: OptimizerFunctionOutput(Casting(2.0**-12), loss)}
    run(dataset, stages, 4, gradient_accumulation_dtype=lambda variable: tf.float32, **options)
    assert seen[-2:] == [tf.float32, tf.float32]
    assert w.numpy() == pytest.approx(1 - 2051 / 4096)


def test_a_pipeline_tells_its_bytes_of_which_there_are_none_that_gradients_do_without(trains_as_plain):
    def make(a, v):
        def first(x):
            return tf.recompute_grad(lambda y: tf.tanh(tf.tanh(y @ a) @ a))(x)

        return [first, lambda x: tf.tanh(x @ v), lambda x: 1e-2 * tf.reduce_sum(x**3)]

    dataset = tf.data.Dataset.from_tensors(np.ones([4, 8], np.float32)).repeat(6)
    values = (np.full([8, 8], 0.1, np.float32), np.full([8, 16], 0.1, np.float32))
    trains_as_plain(make, values, dataset, 6, offload_activations=True)
    pipeline = pipelining.last_pipeline()
    costs = [cost for cost in pipeline.stage_costs if isinstance(cost, StageCost)]
    # Stage 0 recomputes, so it stashes only its input. Stage 1 also stashes the result of tanh. Stage 2 does not stash
    # the power, which only the gradient of the exponent needs.
    assert [cost.activation_bytes for cost in costs] == [4 * 4 * 8, 4 * (4 * 8 + 4 * 16), 4 * 4 * 16]
    assert (costs[1].input_bytes, costs[1].weight_bytes) == (4 * 4 * 8, 4 * 8 * 16)
    assert pipeline.options.offload_activations is True


@pytest.mark.parametrize("summed", [True, False])
def test_captured_gradients_come_once_a_pass(run, strategy, toy, configure, summed):
    configure(2)
    with strategy.scope():
        v, captured = tf.Variable(2.0), ipu.IPUOutfeedQueue()

    def optimizer_function(loss):
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.0)
        return OptimizerFunctionOutput(
            optimizer, loss, gradient_capture_context=context, captured_gradient_outfeed=captured
        )

    stages = [lambda x: x * v, lambda x: gradient_capture.capture_upstream_gradients(x, tag="x") ** 2]
    options = {"gradient_accumulation_for_captured_grads": summed, "optimizer_function": optimizer_function}
    with gradient_capture.GradientCaptureContext() as context:
        run(toy.numbers(8), stages, 4, repeat_count=2, **options)
    (found,) = captured.dequeue()["x"]
    each = 2 * 2 * np.arange(1, 9).reshape(2, 4)
    np.testing.assert_allclose(found, each.sum(axis=1) if summed else each[:, -1])


@pytest.mark.parametrize(
    ("schedule", "mode"),
    [(GROUPED, None), (INTERLEAVED, AUTO), (SEQUENTIAL, RecomputationMode.RecomputeAndBackpropagateInterleaved)],
)
def test_gradient_functions_may_return_tensors_variables_and_numbers_as_they_are(trains_as_plain, toy, schedule, mode):
    # A tensor of the forward pass as a gradient failed with "different from the passed in node".
    outside = tf.constant(7.0)

    def make(*variables):
        def stage(weights, other):
            def forward(x):
                kept = x * 2.0

                @tf.custom_gradient
                def shifted(y, *_):
                    return y + 1.0, lambda _: (kept, kept, x, None, other, outside, 1.5, np.float32(2.0))

                return shifted(x * other, *weights)

            return forward

        return [stage(variables[:7], variables[14]), stage(variables[7:14], variables[15]), lambda x: x * 3.0]

    values = np.arange(1.0, 17.0, dtype=np.float32)
    trains_as_plain(make, values, toy.numbers(6), 6, pipeline_schedule=schedule, recomputation_mode=mode)


def test_a_captured_gradient_may_be_a_tensor_of_the_forward_pass(run, strategy, toy, configure):
    configure(2)
    with strategy.scope():
        v, captured = tf.Variable(2.0), ipu.IPUOutfeedQueue()

    def last(x):
        kept = x * 3.0
        shifted = tf.custom_gradient(lambda y: (y + 1.0, lambda _: kept))
        return shifted(gradient_capture.capture_upstream_gradients(x, tag="x"))

    def optimizer_function(loss):
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(1.0)
        return OptimizerFunctionOutput(
            optimizer, loss, gradient_capture_context=context, captured_gradient_outfeed=captured
        )

    with gradient_capture.GradientCaptureContext() as context:
        run(toy.numbers(4), [lambda x: x * v, last], 4, optimizer_function=optimizer_function)
    x = np.arange(1, 5)
    np.testing.assert_allclose(captured.dequeue()["x"], [[np.sum(6 * x)]])
    np.testing.assert_allclose(v, 2 - np.sum(6 * x * x))


@pytest.mark.parametrize("mode", [None, *list(RecomputationMode)[1:]])
def test_a_backward_pass_has_the_masks_and_the_state_that_its_forward_pass_had(run, strategy, toy, configure, mode):
    configure(2)
    with strategy.scope():
        seeds = tf.keras.layers.Dropout(0.5, seed=3)
        v, count = tf.Variable(tf.ones([64])), tf.Variable(0.0, trainable=False)

    def first(x):
        count.assign_add(1.0)
        return seeds(v * x, training=True) * tf.stop_gradient(count)

    options = {"optimizer_function": lambda loss, _: toy.sgd_on(loss), "recomputation_mode": mode}
    _, dropped = run(toy.numbers(8), [first, lambda dropped: (tf.reduce_sum(dropped), dropped)], 8, **options)
    assert count.numpy() == 8
    np.testing.assert_allclose(dropped.max(axis=1), 2 * np.arange(1, 9) ** 2)
    # The weights are 1, so the gradient of the sum is mask * 2 * input * count.
    np.testing.assert_allclose(v.numpy(), 1 - dropped.sum(axis=0), rtol=1e-6)
    assert len({tuple(mask > 0) for mask in dropped}) == 8, "each micro-batch has a mask of its own"


@pytest.mark.parametrize("mode", [None, AUTO])
def test_a_stage_can_hold_loops_branches_functions_constants_embeddings_and_checkpoints(trains_as_plain, toy, mode):
    # Stages on different IPUs use `factor`. `offsets` is too large to become a constant.
    factor, offsets = tf.constant(1.5), tf.range(200.0)

    def make(v, table, w):
        @tf.function
        def inner(x):
            return x * v

        def loop(x, index):
            for _ in tf.range(3):
                x = inner(x) * factor
            return x, index, offsets

        def branch(x, index, offsets):
            if x > 12.0:  # noqa: SIM108  (AutoGraph's.)
                y = x * w
            else:
                y = x * w * w
            return y, tf.gather(table, index), offsets

        def last(y, rows, offsets):
            marked = pipelining.recomputation_checkpoint({"sum": tf.reduce_sum(rows * y) * factor})["sum"]
            return tf.reduce_sum(tf.sin(marked + offsets))

        return [loop, branch, last]

    indices = np.array([[0, 1], [1, 1], [4, 0], [2, 2]], np.int32)
    dataset = tf.data.Dataset.zip((toy.numbers(6), tf.data.Dataset.from_tensor_slices(indices).repeat()))
    trains_as_plain(make, (1.1, np.full([5, 2], 0.1, np.float32), 0.9), dataset, 6, recomputation_mode=mode)


# Tensors of the function that XLA needs as constants for the gradient were stashed with its results.
@pytest.mark.parametrize("mode", [None, AUTO])
def test_a_stage_can_call_what_transposes_joins_and_sums(trains_as_plain, toy, configure, mode):
    configure(2)

    @tf.function
    def inner(a):
        a = tf.transpose(tf.sin(tf.transpose(a))) * tf.tile(a[:1], [3, 1])
        a = tf.cumsum(tf.concat([a[1:] * 2, a[:1]], 0), 1) + tf.reduce_max(a, 1, keepdims=True)
        return tf.gather(a, [2, 0, 1]) + tf.pad(tf.reshape(tf.reshape(a, [-1])[:8], [2, 4]), [[0, 1], [0, 0]])

    def make(w):
        return [lambda x: tf.tanh(inner(x * w)), tf.reduce_sum]

    weights = np.linspace(0.1, 0.3, 12, dtype=np.float32).reshape(3, 4)
    trains_as_plain(make, [weights], toy.numbers(4), 4, recomputation_mode=mode)


def test_a_checkpoint_is_stashed_besides_the_input(run, strategy, toy, configure):
    configure(2)
    with strategy.scope():
        v = tf.Variable(0.5)

    def first(x):
        return tf.exp(pipelining.recomputation_checkpoint({"x": tf.sin(x * v)})["x"])

    run(toy.numbers(4), [first, lambda x: x], 4, optimizer_function=toy.sgd_on, recomputation_mode=AUTO)
    x = np.arange(1, 5)
    np.testing.assert_allclose(v.numpy(), 0.5 - np.sum(np.exp(np.sin(x / 2)) * np.cos(x / 2) * x), rtol=1e-5)
    cost = pipelining.last_pipeline().stage_costs[0]
    assert isinstance(cost, StageCost)
    assert cost.input_bytes == 8
