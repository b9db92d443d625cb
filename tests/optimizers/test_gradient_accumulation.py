"""Gradient accumulation of N micro-batches is equal to one batch of N times the size, with any reduction method."""

import types

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.keras.optimizers.accumulated_step import StepAccumulation, accumulated_step
from tensorflow_ipu.optimizers import (
    CrossReplicaGradientAccumulationOptimizer,
    CrossReplicaGradientAccumulationOptimizerV2,
    GradientAccumulationOptimizer,
    GradientAccumulationOptimizerV2,
)
from tensorflow_ipu.optimizers import GradientAccumulationReductionMethod as Method
from tensorflow_ipu.optimizers.accumulation import Accumulator, accumulated
from tensorflow_ipu.pipelining.weight_update import Accumulation

v1 = tf.compat.v1.train
INNER = {"momentum": lambda: v1.MomentumOptimizer(0.05, 0.9), "adam": lambda: v1.AdamOptimizer(0.1)}


@pytest.mark.parametrize(
    ("kind", "inner", "count", "options"),
    [
        (GradientAccumulationOptimizerV2, "momentum", 2, {"reduction_method": "mean"}),
        (GradientAccumulationOptimizerV2, "adam", 2, {"reduction_method": "running_mean"}),
        (GradientAccumulationOptimizerV2, "adam", 2, {}),
        (GradientAccumulationOptimizerV2, "adam", 1, {}),
        (GradientAccumulationOptimizer, "momentum", 4, {}),
        (CrossReplicaGradientAccumulationOptimizer, "momentum", 4, {}),
        (CrossReplicaGradientAccumulationOptimizerV2, "momentum", 4, {}),
    ],
)
def test_accumulated_micro_batches_train_as_one_batch(trained_on, plainly_trained, kind, inner, count, options):
    batches = [list(range(at, at + count)) for at in range(0, 8, count)]
    expected = plainly_trained(INNER[inner](), batches, mean=bool(options))
    result = trained_on(1, lambda: kind(INNER[inner](), count, **options))
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


class _Recording(v1.GradientDescentOptimizer):
    """An optimizer that records the types of its gradients, and casts them for the update."""

    def __init__(self):
        super().__init__(0.5)
        self.dtypes = []

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        pairs = list(grads_and_vars)
        self.dtypes = [gradient.dtype for gradient, _ in pairs]
        return super().apply_gradients([(tf.cast(g, v.dtype), v) for g, v in pairs], global_step, name)


@pytest.fixture
def variable_of(strategy):
    def make(value, dtype):
        with strategy.scope():
            return tf.Variable(value, dtype=dtype)

    return make


@pytest.fixture
def counted(variable_of):
    """Returns a variable, and a step that subtracts 1 from it; four steps are one update."""
    variable = variable_of(0.0, tf.float32)
    optimizer = GradientAccumulationOptimizerV2(v1.GradientDescentOptimizer(1.0), 4)

    def step():
        optimizer.apply_gradients([(tf.constant(1.0), variable)])

    return variable, step


def test_gradients_accumulate_and_arrive_in_the_type_asked_for(strategy, variable_of):
    asked = []

    def by_variable(variable):
        asked.append(variable.dtype)
        return tf.float32 if variable.dtype == tf.float16 else tf.bfloat16

    dtypes = [None, tf.float32, "float32", by_variable]
    inners = [_Recording() for _ in dtypes]
    optimizers = [GradientAccumulationOptimizerV2(each, 5, dtype=one) for each, one in zip(inners, dtypes, strict=True)]
    halves = [variable_of(0.0, tf.float16) for _ in dtypes]
    single = variable_of(0.0, tf.float32)
    # The sum of 2048 and 0.5 is exact in float32 only: float16 has 11 bits.
    gradients = tf.constant([2048.0, 0.5, 0.5, 0.5, 0.5], tf.float16)

    @tf.function(jit_compile=True)
    def program():
        for at in tf.range(5):
            gradient = tf.gather(gradients, at)
            for optimizer, half in zip(optimizers, halves, strict=True):
                pairs = [(gradient, half)]
                optimizer.apply_gradients(pairs + [(tf.constant(1.0), single)] * (optimizer is optimizers[3]))

    strategy.run(program)
    assert asked == [tf.float16, tf.float32]
    assert [inner.dtypes for inner in inners] == [[tf.float16], [tf.float32], [tf.float32], [tf.float32, tf.bfloat16]]
    assert [half.numpy() for half in halves] == [-1024, -1025, -1025, -1025]
    assert single.numpy() == -2.5


def test_sparse_gradients_accumulate_by_their_rows(strategy):
    rows = np.array([[0, 2, 2], [1, 2, 0], [3, 3, 3], [0, 1, 0]], np.int32)
    begin = np.arange(10, dtype=np.float32).reshape(5, 2)
    optimizers = {one: GradientAccumulationOptimizerV2(INNER["momentum"](), 2, reduction_method=one) for one in Method}
    with strategy.scope():
        tables = {one: tf.Variable(begin) for one in Method}

    @tf.function(jit_compile=True)
    def program(indices):
        for at in tf.range(4):
            for method, optimizer in optimizers.items():
                loss = lambda at=at, table=tables[method]: tf.reduce_sum(tf.gather(table, indices[at]) ** 2)  # noqa: E731
                pairs = optimizer.compute_gradients(loss, [tables[method]])
                assert isinstance(pairs[0][0], tf.IndexedSlices)
                optimizer.apply_gradients(pairs)

    strategy.run(program, args=(tf.constant(rows),))
    for method, table in tables.items():
        plain, inner, share = tf.Variable(begin), INNER["momentum"](), 1.0 if method is Method.SUM else 0.5
        for first in (0, 2):
            with tf.GradientTape() as tape:
                loss = sum(tf.reduce_sum(tf.gather(plain, rows[at]) ** 2) for at in (first, first + 1)) * share
            # The momentum of a row without a gradient still changes the row.
            inner.apply_gradients([(tf.convert_to_tensor(tape.gradient(loss, plain)), plain)])
        np.testing.assert_allclose(table.numpy(), plain.numpy(), rtol=1e-5)


def test_two_groups_of_variables_in_one_loop_count_for_themselves(strategy, variable_of, refused):
    first, second, unused = (variable_of(0.0, tf.float32) for _ in range(3))
    optimizer = GradientAccumulationOptimizerV2(v1.GradientDescentOptimizer(1.0), 4)
    results = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program():
        for _ in tf.range(8):
            optimizer.apply_gradients([(first + 1.0, first), (None, unused)])
            optimizer.apply_gradients([(tf.constant(2.0), second)])
            results.enqueue((first, second))

    strategy.run(program)
    seen = results.dequeue()
    np.testing.assert_array_equal(seen[0], [0, 0, 0, -4, -4, -4, -4, 8])  # Its gradients see the update.
    np.testing.assert_array_equal(seen[1], [0, 0, 0, -8, -8, -8, -8, -16])
    assert unused.numpy() == 0
    refused(ValueError, "`grads_and_vars` has no gradient", optimizer.apply_gradients, [(None, unused)])


def test_without_verification_left_over_gradients_wait_for_the_next_run(strategy, variable_of):
    variable, updates = variable_of(0.0, tf.float32), variable_of(0, tf.int32)
    optimizer = GradientAccumulationOptimizer(v1.GradientDescentOptimizer(1.0), 4, verify_usage=False)

    @tf.function(jit_compile=True)
    def program():
        for _ in tf.range(3):
            optimizer.apply_gradients([(tf.constant(1.0), variable)], global_step=updates)
        return variable.read_value()

    assert [float(strategy.run(program)) for _ in range(4)] == [0, -4, -8, -12]
    assert updates.numpy() == 3


def test_a_session_trains_with_it(regression, plainly_trained):
    inputs, targets = regression
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        with ipu.scopes.ipu_scope("/device:IPU:0"):
            weights = tf.compat.v1.get_variable("w", initializer=np.ones((3, 1), np.float32), use_resource=True)
            optimizer = CrossReplicaGradientAccumulationOptimizerV2(INNER["adam"](), 2)

            def body(at):
                x, y = (tf.gather(values, at) for values in (inputs, targets))
                return at + 1, optimizer.minimize(tf.reduce_mean((tf.matmul(x, weights) - y) ** 2))

            [last] = ipu.compiler.compile(lambda: ipu.loops.repeat(8, body, [0]))
        session.run(tf.compat.v1.global_variables_initializer())
        assert session.run(last) == 8
        result = session.run(weights)
    np.testing.assert_allclose(result, plainly_trained(INNER["adam"](), [[0, 1], [2, 3], [4, 5], [6, 7]]), rtol=1e-5)


def test_the_slots_of_the_wrapped_optimizer_are_saved_and_restored(strategy, variable_of, tmp_path):
    def descend(optimizer, variable):
        @tf.function(jit_compile=True)
        def program():
            for at in tf.range(4):
                optimizer.apply_gradients([(1.0 + tf.cast(at, tf.float32), variable)])

        strategy.run(program)

    variable, optimizer = variable_of(1.0, tf.float32), GradientAccumulationOptimizerV2(INNER["adam"](), 2)
    descend(optimizer, variable)
    path = tf.train.Checkpoint(variable=variable, optimizer=optimizer).save(str(tmp_path / "checkpoint"))
    descend(optimizer, variable)
    again, other = variable_of(0.0, tf.float32), GradientAccumulationOptimizerV2(INNER["adam"](), 2)
    status = tf.train.Checkpoint(variable=again, optimizer=other).restore(path)
    descend(other, again)
    status.assert_existing_objects_matched()
    assert again.numpy() == variable.numpy()


LEFT_OVER = "`GradientAccumulationOptimizerV2` accumulates the gradients of `num_mini_batches=4`"


def without_a_loop(_, step):
    step()


def of_six_iterations(_, step):
    for _ in tf.range(6):
        step()


def while_above_one(x, step):
    while x > 1.0:
        step()
        x /= 2.0


def in_an_inner_loop(_, step):
    for _ in tf.range(4):
        for _ in tf.range(2):
            step()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (without_a_loop, f"{LEFT_OVER}.*not inside a training loop"),
        (of_six_iterations, f"{LEFT_OVER}.*loop of 6 iterations, which is no"),
        (while_above_one, "is not known when the program is traced"),
        (in_an_inner_loop, "loop of 2 iterations"),
    ],
)
def test_a_loop_that_leaves_gradients_over_is_refused(strategy, counted, body, words, refused):
    _, step = counted
    program = tf.function(lambda x: body(x, step), jit_compile=True)
    refused(tf.errors.FailedPreconditionError, words, strategy.run, program, args=(tf.constant(8.0),))
    refused(tf.errors.FailedPreconditionError, f"{LEFT_OVER}.*not inside a training loop", step)


@pytest.mark.parametrize("kind", ["repeat", "range"])
def test_a_number_of_iterations_that_the_run_knows_is_refused_at_the_run(kind, strategy, counted, refused):
    variable, step = counted

    @tf.function(jit_compile=True)
    def program(n):
        if kind == "repeat":
            ipu.loops.repeat(n, step)
        else:
            for _ in tf.range(n):
                step()

    for iterations, total in ((8, -8.0), (0, -8.0), (-3, -8.0), (4, -12.0)):
        strategy.run(program, args=(tf.constant(iterations),))
        assert variable.numpy() == total
    for iterations in (6, 3):
        words = f"^{LEFT_OVER} mini-batches in a loop of {iterations} iterations, which is not a multiple of it: .*Make it a"
        refused(tf.errors.FailedPreconditionError, words, strategy.run, program, args=(tf.constant(iterations),))


def test_a_number_of_iterations_that_is_fed_to_a_session_is_refused_at_the_run(refused):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        n = tf.compat.v1.placeholder(tf.int32, [])

        def program(n):
            variable = tf.compat.v1.get_variable("x", initializer=tf.constant(0.0), use_resource=True)
            optimizer = GradientAccumulationOptimizerV2(v1.GradientDescentOptimizer(1.0), 4)
            ipu.loops.repeat(n, lambda: optimizer.apply_gradients([(tf.constant(1.0), variable)]))
            return variable.read_value()

        with ipu.scopes.ipu_scope("/device:IPU:0"):
            result = ipu.compiler.compile(program, [n])
        session.run(tf.compat.v1.global_variables_initializer())
        assert session.run(result, {n: 8}) == [-8.0]
        words = f"^{LEFT_OVER}.*loop of 6 iterations, which is no"
        refused(tf.errors.FailedPreconditionError, words, session.run, result, {n: 6})


def test_a_step_that_is_a_function_of_its_own_belongs_to_the_loop_that_calls_it(strategy, counted, refused):
    variable, step = counted
    step = tf.function(step)

    def in_loop(n):
        @tf.function(jit_compile=True)
        def program():
            for _ in tf.range(n):
                step()

        strategy.run(program)

    in_loop(4)
    in_loop(8)
    assert variable.numpy() == -12
    # This is an error although the step is not traced again.
    refused(tf.errors.FailedPreconditionError, "loop of 6 iterations", in_loop, 6)


GRADIENTS = np.random.default_rng(3).normal(size=(7, 5)).astype(np.float32)
EXPECTED = {Method.SUM: GRADIENTS.sum(0), Method.MEAN: GRADIENTS.mean(0), Method.RUNNING_MEAN: GRADIENTS.mean(0)}
# The tolerance of a sum of seven numbers of about 1 in which each step rounds.
TOLERANCE = {tf.float32: 4e-6, tf.float16: 2e-2, tf.bfloat16: 0.15}


def by_function(method, dtype):
    total = tf.zeros([5], dtype)
    for index, gradient in enumerate(GRADIENTS):
        total = accumulated(total, tf.constant(gradient), index, len(GRADIENTS), method)
    return total


def by_optimizer(method, dtype, make=tf.identity):
    """Accumulates in variables, as wrappers of optimizers do; `make` converts tensors to gradients."""
    counter, total, result = tf.Variable(0), tf.Variable(tf.zeros([5], dtype)), tf.Variable(tf.zeros([5], dtype))
    accumulator = Accumulator(counter, [total], len(GRADIENTS), method)

    @tf.function
    def step(gradient):
        accumulator.step([make(gradient)], lambda reduced: result.assign(reduced[0], read_value=False))

    for gradient in GRADIENTS:
        step(tf.constant(gradient))
    return result.value()


def by_keras_step(method, dtype):
    weight, micro_batch_gradients, results = tf.Variable(tf.zeros([5])), iter(GRADIENTS), []
    optimizer = types.SimpleNamespace(apply_gradients=lambda pairs: results.extend(gradient for gradient, _ in pairs))
    model = types.SimpleNamespace(name="model", trainable_variables=[weight], optimizer=optimizer)
    accumulation = StepAccumulation(len(GRADIENTS), method, dtype)
    accumulated_step(model, lambda: optimizer.apply([tf.constant(next(micro_batch_gradients))]), accumulation)()
    return results[0]


def by_pipeline(method, dtype):
    """Accumulates as a pipeline does, whose count may be a tensor."""
    accumulation = Accumulation(method, tf.constant(len(GRADIENTS)), dtype)
    totals = [tf.zeros(spec.shape, spec.dtype) for spec in accumulation.specs([tf.Variable(tf.zeros([5]))])]
    for index, gradient in enumerate(GRADIENTS):
        totals = accumulation.add(totals, [tf.constant(gradient)], tf.constant(index))
    return totals[0]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("method", Method)
def test_every_accumulation_comes_to_the_numbers_of_the_one_function(method, dtype):
    result = by_function(method, dtype)
    assert result.dtype == dtype
    np.testing.assert_allclose(tf.cast(result, tf.float32), EXPECTED[method], atol=TOLERANCE[dtype])
    for accumulate in (by_optimizer, by_keras_step, by_pipeline):
        np.testing.assert_array_equal(accumulate(method, dtype), result, err_msg=accumulate.__name__)
    sparse = by_optimizer(method, dtype, lambda values: tf.IndexedSlices(values, tf.range(5), tf.constant([5])))
    np.testing.assert_array_equal(sparse, result)


def test_weights_are_exact_where_the_type_of_the_total_cannot_count_so_far_and_as_exact_as_float64():
    for dtype, many in ((tf.float16, 70_000), (tf.bfloat16, 1000)):
        zero, one = tf.zeros([], dtype), tf.ones([], dtype)
        assert float(accumulated(one, zero, many, many + 1, Method.RUNNING_MEAN)) == 1  # many / (many + 1), rounded
        for method in (Method.RUNNING_MEAN, Method.MEAN):
            added = float(accumulated(zero, one, many - 1, many, method))
            assert added == pytest.approx(1 / many, rel=2**-7)
    total = accumulated(tf.zeros([], tf.float64), tf.ones([], tf.float64), 2, 3, Method.MEAN)
    assert float(total) == 1 / 3
