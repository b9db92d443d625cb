"""A pipeline trains as gradient accumulation does, with any schedule, recomputation mode and optimizer."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import pipelining
from tensorflow_ipu.pipelining import OptimizerFunctionOutput, PipelineSchedule, RecomputationMode, last_pipeline
from tensorflow_ipu.programs import _host_kernels

GROUPED, INTERLEAVED, SEQUENTIAL = PipelineSchedule
THEN, WITHIN = RecomputationMode.RecomputeThenBackpropagate, RecomputationMode.RecomputeAndBackpropagateInterleaved


def momentum():
    return tf.keras.optimizers.SGD(0.05, momentum=0.9)


def adam():
    return tf.keras.optimizers.Adam(0.01)


def old_adam():
    return tf.compat.v1.train.AdamOptimizer(0.01)


def by_tape(opt, loss, variables):
    tape = tf.GradientTape(watch_accessed_variables=False)
    with tape:
        for variable in variables:
            tape.watch(variable)
    return OptimizerFunctionOutput(opt, loss, tape=tape)


# In a steady section longer than its ramps, stages overlap. A ring of three places must be read before it is
# overwritten.
@pytest.mark.parametrize(
    ("schedule", "mode", "count", "passes", "mapping", "reduction"),
    [
        (GROUPED, None, 18, 2, [0, 1, 2], "sum"),
        (GROUPED, THEN, 6, 1, [0, 2, 1], "sum"),
        (GROUPED, WITHIN, 6, 1, [2, 0, 1], "running_mean"),
        (INTERLEAVED, None, 18, 2, [1, 2, 0], "sum"),
        (INTERLEAVED, THEN, 6, 1, [0, 1, 2], "sum"),
        (SEQUENTIAL, None, 1, 3, [0, 1, 2], "sum"),
        (SEQUENTIAL, WITHIN, 6, 1, [0, 1, 2], "sum"),
    ],
)
def test_each_schedule_and_recomputation_trains_as_accumulation_does(
    toy, strategy, schedule, mode, count, passes, mapping, reduction
):
    options = {"pipeline_schedule": schedule, "recomputation_mode": mode, "repeat_count": passes}
    options |= {"device_mapping": mapping, "reduction_method": reduction}
    weights, losses = toy.pipelined(strategy, momentum, count, **options)
    expected, expected_losses = toy.accumulated(momentum, count, passes, mean=reduction != "sum")
    toy.assert_close(weights, expected)
    np.testing.assert_allclose(losses, expected_losses, rtol=2e-5)
    plan = last_pipeline().plan
    found = (plan.schedule, plan.recomputation, plan.micro_batches, plan.repeat_count)
    assert found == (schedule, mode, count, passes)
    pipelining.check_plan(plan)
    if count == 1:  # A sharded model.
        assert replace(plan, name="Sharded") == pipelining.sharded_plan(mapping, repeat_count=passes)


@pytest.mark.parametrize(("optimizer", "output"), [(adam, by_tape), (old_adam, None)])
def test_optimizers_train_as_they_do_elsewhere(toy, configure, strategy, optimizer, output):
    configure(2)
    weights, _ = toy.pipelined(strategy, optimizer, 4, stages=2, runs=2, output=output, pipeline_schedule=INTERLEAVED)
    expected, _ = toy.accumulated(optimizer, 4, 2, stages=2)
    toy.assert_close(weights, expected)


def test_what_compute_gradients_does_is_done_to_each_micro_batch(toy, configure, strategy):
    class Clipping(tf.compat.v1.train.GradientDescentOptimizer):
        def compute_gradients(self, loss, *args, **kwargs):
            pairs = super().compute_gradients(loss * 2.0, *args, **kwargs)
            return [(tf.clip_by_value(gradient, -0.05, 0.05), variable) for gradient, variable in pairs]

    configure(2)
    found, _ = toy.pipelined(strategy, lambda: Clipping(0.1), 4, stages=2)
    steps = [a - b for a, b in zip(toy.weights(2), found, strict=True)]
    variables = [tf.Variable(value) for value in toy.weights(2)]
    total = [np.zeros(variable.shape, np.float32) for variable in variables]
    for batch, y in zip(*toy.batches(4), strict=True):
        with tf.GradientTape() as tape:
            hidden = toy.layer(toy.layer(batch, variables, 0), variables, 1)
            loss = toy.loss_of(hidden, y)
        gradients: Any = tape.gradient(loss, variables)
        total = [a + 0.1 * np.clip(2 * b.numpy(), -0.05, 0.05) for a, b in zip(total, gradients, strict=True)]
    assert max(np.abs(step).max() for step in total) == pytest.approx(0.1 * 4 * 0.05), "some are clipped"
    toy.assert_close(steps, total)


def test_a_count_that_is_known_at_run_time_only_is_kept_to(toy, strategy, refused):
    with strategy.scope():
        variables = [tf.Variable(value) for value in toy.weights(3)]
        optimizer = momentum()
        optimizer.build(variables)
        infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(toy.batches(12)))
        outfeed = ipu.IPUOutfeedQueue()

        @tf.function(jit_compile=True)
        def program(count):
            pipelining.pipeline(
                toy.stages_of(variables),
                count,
                infeed_queue=infeed,
                outfeed_queue=outfeed,
                optimizer_function=lambda loss: OptimizerFunctionOutput(optimizer, loss),
                reduction_method="MEAN",
            )

        infeed.initializer  # noqa: B018  (The access starts it.)
        strategy.run(program, (tf.constant(12),))
        assert outfeed.dequeue()[0].shape == [12]
        found = [variable.numpy() for variable in variables]
        for wrong in (10, 0, -6):
            words = f"a Grouped pipeline of 3 stages that trains must be a multiple of 6 from 6 to .* but is {wrong}"
            refused(tf.errors.FailedPreconditionError, words, strategy.run, program, (tf.constant(wrong),))
        toy.assert_close([variable.numpy() for variable in variables], found)
        # What the failed runs left in the memory of feeds' states is no feed's number.
        replies = ipu.IPUOutfeedQueue()

        @tf.function(jit_compile=True)
        def reply():
            replies.enqueue(1.0)

        strategy.run(reply)
        assert set(replies.dequeue().numpy().ravel()) == {1.0}
    expected, _ = toy.accumulated(momentum, 12, 1, mean=True)
    toy.assert_close(found, expected)


@pytest.fixture
def check_dequeued(run, strategy, configure):
    """Returns `check(last, expected)`, which checks the outfeed of two stages after 2 passes of 4 micro-batches."""
    configure(2)
    with strategy.scope():
        v = tf.Variable(0.0)
    dataset = tf.data.Dataset.range(8).map(lambda x: tf.cast(x, tf.float16))

    def check(last, expected, **options):
        results = run(dataset, [lambda x: x + tf.cast(v, tf.float16), last], 4, repeat_count=2, **options)
        tf.nest.assert_same_structure(results, expected)
        for result, value in zip(tf.nest.flatten(results), tf.nest.flatten(expected), strict=True):
            np.testing.assert_array_equal(result, value, strict=True)

    return check


X = np.arange(8, dtype=np.float16)
SUM, SUM_OF_TWICE = np.array([6, 22], np.float16), np.array([12, 44], np.float16)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [X, 2 * X]),
        ({"outfeed_mask": [True, False]}, [2 * X]),
        ({"outfeed_loss": True}, X.astype(np.float32) + 100),
        ({"accumulate_outfeed": True}, [SUM, SUM_OF_TWICE]),
        ({"outfeed_loss": True, "accumulate_outfeed": True}, np.array([406, 422], np.float32)),
    ],
)
def test_training_gives_a_list_of_the_outputs_or_the_loss_or_sums(check_dequeued, options, expected):
    def optimizer_function(loss, *_):
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.0)
        return OptimizerFunctionOutput(optimizer, tf.cast(loss, tf.float32) + 100.0)

    check_dequeued(lambda x: (x, 2 * x), expected, optimizer_function=optimizer_function, **options)


def several(x):
    return {"a": x, "b": (x, 2 * x)}


def large(x):  # In float16, 2048 + 1 is 2048.
    return x + 2047


SUMS_OF_LARGE = [large(X).astype(np.float32).reshape(2, 4).sum(axis=1)]


@pytest.mark.parametrize(
    ("last", "expected", "accumulated", "dtype"),
    [
        (lambda x: [x], [X], False, None),
        (several, {"a": X, "b": (X, 2 * X)}, False, tf.float64),  # Of sums, and there are none.
        (several, {"a": SUM, "b": (SUM, SUM_OF_TWICE)}, True, lambda _: None),
        (large, SUMS_OF_LARGE, True, tf.float32),
        (large, SUMS_OF_LARGE, True, lambda tensor: tf.float32 if tensor.dtype == tf.float16 else None),
    ],
)
def test_inference_gives_the_structure_that_the_last_stage_returned_or_sums_in_the_wanted_type(
    check_dequeued, last, expected, accumulated, dtype
):
    check_dequeued(last, expected, accumulate_outfeed=accumulated, accumulate_outfeed_dtype=dtype)


COUNT = 6
RANDOM = np.random.default_rng(3)
IMAGES = RANDOM.normal(size=[COUNT, 2, 12, 12, 3]).astype(np.float32)
LABELS = RANDOM.normal(size=[COUNT, 2, 4]).astype(np.float32)
WEIGHTS = [RANDOM.normal(size=size, scale=0.3).astype(np.float32) for size in ([3, 3, 3, 8], [3, 3, 8, 4], [36, 4])]


def first(weights, images):
    return tf.nn.max_pool(tf.nn.relu(tf.nn.conv2d(images, weights[0], 1, "SAME")), 2, 2, "VALID")


def second(weights, features):
    """Runs a stage that computes gradients, so that its backward pass has second derivatives."""
    with tf.GradientTape() as tape:
        tape.watch(features)
        result = tf.nn.conv2d(features, weights[1], 2, "SAME")
        total = tf.reduce_sum(tf.sin(tf.nn.max_pool(result, 2, 1, "SAME")))
    change = tf.nn.conv2d(tape.gradient(total, features), weights[1], 2, "SAME")
    kept = tf.nn.experimental.stateless_dropout(result + 0.1 * change, 0.3, [1, 2])
    return tf.reshape(kept, [2, -1])


def loss_of(weights, features, labels):
    return tf.reduce_mean(tf.square(features @ weights[2] - labels)) / 50


@pytest.mark.parametrize("mode", [None, RecomputationMode.RecomputeThenBackpropagate])
def test_convolutional_stages_train_as_in_tensorflow_without_xla(mode, trains_as_plain):
    def make(*weights):
        return [
            lambda images, labels: (first(weights, images), labels),
            lambda features, labels: (second(weights, features), labels),
            lambda features, labels: loss_of(weights, features, labels),
        ]

    with _host_kernels.wherever_known():
        dataset = tf.data.Dataset.from_tensor_slices((IMAGES, LABELS))
        trains_as_plain(make, WEIGHTS, dataset, COUNT, recomputation_mode=mode)


# Without this form, XLA:CPU took forty times as long: it converts convolutions to it only outside of loops.
def test_without_kernels_of_the_host_stages_have_the_form_that_xla_has_fast_code_for(compiled_text, toy):
    strategy = ipu.IPUStrategy(host_kernels=False)
    with strategy.scope():
        weights = [tf.Variable(tf.ones([3, 3, 3, 3])) for _ in range(2)]
        infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensors(tf.ones([2, 8, 8, 3])).repeat())

    @tf.function(jit_compile=True)
    def program():
        stages = [
            lambda images: tf.nn.conv2d(images, weights[0], 1, "SAME"),
            lambda features: tf.reduce_sum(tf.sin(tf.nn.conv2d(features, weights[1], 2, "SAME"))),
        ]
        queues = {"infeed_queue": infeed, "outfeed_queue": ipu.IPUOutfeedQueue()}
        pipelining.pipeline(stages, 4, **queues, optimizer_function=toy.sgd_on)

    orders = re.findall(r" convolution\(.*dim_labels=(\S+?)[,\s]", compiled_text(strategy, program))
    assert len(orders) >= 5  # Two forward convolutions, and three gradients: nothing needs those of the images.
    assert set(orders) == {"b01f_01io->b01f"}


@pytest.mark.parametrize("as_argument", [False, True])
def test_pipeline_and_loop_take_the_elements_of_an_iterator_as_a_plain_loop_does(as_argument, strategy, toy):
    with strategy.scope():
        iterator, outfeed = iter(toy.numbers(8)), ipu.IPUOutfeedQueue()

    def program(*arguments):
        source = arguments[0] if as_argument else iterator
        stages = [lambda x: x * 2.0, lambda x: x + 1.0, lambda x: x * x]
        pipelining.pipeline(stages, 3, infeed_queue=source, outfeed_queue=outfeed)
        return ipu.loops.repeat(1, lambda total, x: total + x, [0.0], source)

    compiled = tf.function(program, jit_compile=True)
    left_over = [strategy.run(compiled, (iterator,) * as_argument) for _ in range(2)]
    plain = [float(x) for x in toy.numbers(8)]
    np.testing.assert_array_equal(outfeed.dequeue(), [(2 * x + 1) ** 2 for x in plain[:3] + plain[4:7]])
    np.testing.assert_array_equal(left_over, [plain[3], plain[7]])
