"""Operations have the shards of their scopes, and gradients have the shards of their operations."""

import numpy as np
import pytest
import tensorflow as tf

from tensorflow_ipu import optimizers, sharding
from tensorflow_ipu.scopes import ipu_shard


@pytest.fixture(params=[True, False], ids=["tape", "graph"])
def trace(request):
    """`trace(body)` traces `body(x, gradients)` with a matrix `x` and returns its result."""

    def run(body):
        results = []

        @tf.function
        def function(x):
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(x)
                results.append(body(x, tape.gradient if request.param else tf.gradients))

        function.get_concrete_function(tf.TensorSpec([4, 4]))
        return results[0]

    return run


def test_gradients_are_on_the_shards_of_their_operations(trace):
    def body(x, gradients):
        y = tf.ones([4, 4]) + x
        with ipu_shard(0):
            left = x * 5
        with ipu_shard([1, 2]):
            right = y * 5
        with ipu_shard(3):
            loss = tf.reduce_sum((left + right) ** 2)
        of_y, of_right = gradients(loss, [y, right])
        return [left, right, of_y, of_right]

    assert [sharding.get_sharding(tensor) for tensor in trace(body)] == [[0], [1, 2], [1, 2], [3]]


def test_gradient_of_what_is_on_no_shard_is_on_none(trace):
    def body(x, gradients):
        product = x @ x
        with ipu_shard(0):
            loss = tf.reduce_sum(product)
        return gradients(loss, [x])[0]

    assert sharding.get_sharding(trace(body)) is None


def test_shard_of_the_operation_goes_before_the_scope_around_the_gradient_and_second_gradients(trace):
    def body(x, gradients):
        with ipu_shard(0), ipu_shard(1):
            loss = tf.reduce_sum((x @ tf.ones([4, 4])) ** 2)
        with ipu_shard(2):
            (first,) = gradients(loss, [x])
        return [first, *gradients(first, [x])]

    assert [sharding.get_sharding(tensor) for tensor in trace(body)] == [[1], [1]]


def test_gradients_of_custom_and_overridden_functions_are_placed_too():
    @tf.custom_gradient
    def doubled(x):
        return 2 * x, lambda upstream: 3 * upstream

    @tf.function
    def inner(x):
        return x * x

    with tf.Graph().as_default():
        x = tf.ones([2])
        with ipu_shard(1):
            y = inner(doubled(x))
        of_call, of_x = tf.gradients(y, [y.op.inputs[0], x])
        assert [sharding.get_sharding(of_call), sharding.get_sharding(of_x)] == [[1], [1]]


def test_numbers_do_not_depend_on_shards():
    def step(x, shards):
        with ipu_shard(shards[0]):
            y = tf.nn.tanh(x @ x)
        with ipu_shard(shards[1]):
            y = tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, tf.sin(y)), (0, y), maximum_iterations=3)[1]
            loss = tf.reduce_sum(y)
        return [loss, *tf.gradients(loss, [x])]

    x = tf.reshape(tf.range(9.0) / 9, [3, 3])
    first, second = (tf.function(lambda x, s=shards: step(x, s), jit_compile=True)(x) for shards in ([0, 0], [0, 1]))
    for actual, expected in zip(first, second, strict=True):
        np.testing.assert_array_equal(actual, expected)


# While a graph with shards was alive, a tape without attributes of a product of variables once failed.
def test_eager_gradients_are_found_while_a_graph_with_shards_lives():
    graph = tf.Graph()
    with graph.as_default(), ipu_shard(1):
        tf.constant(1.0)
    variable = tf.Variable(3.0)
    with tf.GradientTape() as tape:
        loss = variable * variable
    assert float(tf.convert_to_tensor(tape.gradient(loss, variable))) == 6.0
    assert graph.get_operations()


def test_ancestors_are_found_by_inputs_and_control_inputs(refused):
    with tf.Graph().as_default():
        a, b, c = tf.constant(1), tf.constant(2), tf.constant(3)
        with tf.control_dependencies([b]):
            d = a + 1
        constant = d.op.inputs[1].op
        assert sharding.dependencies([d]) == {a.op, b.op, d.op, constant}
        assert sharding.dependencies([c.op, a]) == {a.op, c.op}
        refused(TypeError, "`roots` must be a list", sharding.dependencies, d)


def test_shard_comes_from_what_an_operation_is_beside():
    with tf.Graph().as_default() as graph:
        with ipu_shard(1):
            a = tf.constant(1.0, name="a")
        with tf.compat.v1.colocate_with(a.op):
            b = tf.constant(2.0, name="b")
        with tf.compat.v1.colocate_with(b.op):
            c = tf.constant(3.0, name="c")
        assert (sharding.get_sharding(b), sharding.get_shard_from_colocation(b)) == (None, [1])
        assert sharding.has_attr(b.op, "_class")
        assert not sharding.has_attr(a, "_class")
        assert sharding.get_shard_from_colocation(a) is None
        sharding.propagate_sharding(graph)
        assert [sharding.get_sharding(tensor) for tensor in (a, b, c)] == [[1], [1], [1]]


def test_sharded_optimizer_places_sums_of_gradients_too():
    with tf.Graph().as_default() as graph:
        variable = tf.compat.v1.get_variable("v", [2], use_resource=True)
        with ipu_shard(1):
            value = tf.identity(variable)
            loss = tf.reduce_sum(value * 2 + value * 3)
        optimizer = optimizers.ShardedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1))
        ((gradient, _),) = optimizer.compute_gradients(loss)
        sums = [operation for operation in graph.get_operations() if operation.type == "AddN"]
        assert [sharding.get_sharding(tensor) for tensor in sums] == [[1]]
        assert sharding.get_sharding(gradient) == [1]


def test_what_is_no_operation_of_a_graph_is_refused_and_nothing_is_left_to_switch_on(refused):
    sharding.enable_sharded_gradient_tape()
    for node in (tf.constant(1.0), "matmul", None):
        refused(TypeError, "`op` must be an operation", sharding.get_sharding, node)
    refused(TypeError, "`g` must be a `tf.Graph`", sharding.propagate_sharding, None)
