"""Scopes place operations, and record options for the machine as attributes of operations."""

import contextlib

import keras
import pytest
import tensorflow as tf

from tensorflow_ipu import scopes


def _matmuls(function):
    graph = function.get_concrete_function(tf.TensorSpec([2, 2])).graph
    return [operation for operation in graph.get_operations() if operation.type == "MatMul"]


def _instructions(body):
    return tf.function(body, jit_compile=True).experimental_get_compiler_ir(tf.eye(2))(stage="hlo")


def test_ipu_scope_places_operations_and_variables():
    with scopes.ipu_scope("/device:IPU:0"):
        variable = tf.Variable([1.0])
        total = variable + 1.0
    assert variable.device.endswith("/device:IPU:0")
    assert total.device.endswith("/device:IPU:0")
    with tf.Graph().as_default(), tf.compat.v1.variable_scope("outer"), scopes.ipu_scope("/device:IPU:0"):
        variable = tf.compat.v1.get_variable("v", [2])
        assert hasattr(variable, "handle")
        assert (variable.name, variable.device) == ("outer/v:0", "/device:IPU:0")
    with scopes.ipu_jit_scope(0):
        assert tf.constant(1) == 1


@pytest.mark.parametrize(("index", "recorded"), [(1, [1]), ([0, 2], [0, 2]), ((3,), [3]), (-1, [-1])])
def test_ipu_shard_is_recorded_on_the_operations_inside(index, recorded):
    @tf.function
    def function(x):
        with scopes.ipu_shard(7), scopes.ipu_shard(index):
            x = tf.matmul(x, x)
        return tf.matmul(x, x)

    inside, outside = _matmuls(function)
    assert inside.get_attr(scopes.SHARD_ATTRIBUTE) == recorded
    assert scopes.SHARD_ATTRIBUTE not in outside.node_def.attr


@pytest.mark.parametrize(
    ("scope", "arguments", "kind", "message"),
    [
        *(
            (scopes.ipu_scope, (name,), ValueError, "`device`")
            for name in ("/device:CPU:0", "nonsense:x:y", "", None, 3)
        ),
        *((scopes.ipu_shard, (index,), ValueError, "`index`") for index in (-2, 65536, [0, 2**31], [-1, 0], [])),
        *((scopes.ipu_shard, (index,), TypeError, "`index`") for index in (1.0, [0, "1"], True)),
        *(
            (scopes.frontend_attribute, arguments, TypeError, "must be a string")
            for arguments in ((1, "x"), ("x", None), ("x", "y", 3))
        ),
        (scopes.frontend_attribute, ("ipu_partials_type", "int8"), ValueError, "the type of partial sums"),
        (scopes.stochastic_rounding, (1,), TypeError, "`override`"),
        *(
            (scopes.partials_type, (dtype,), ValueError, "float16")
            for dtype in (tf.int32, tf.bfloat16, "nonsense", None)
        ),
        (scopes.poplar_options, ({"availableMemoryProportion": "2"},), ValueError, "the share of an IPU's memory"),
        (scopes.poplar_options, ({"partialsType": "double"},), ValueError, "the type of partial sums"),
        (scopes.poplar_options, ({"partialsType": 1},), TypeError, "`options` must be a dictionary"),
        (scopes.poplar_options, ([("a", "b")],), TypeError, "`options` must be a dictionary"),
        (scopes.available_memory, (1.5,), ValueError, "`proportion` must be a number from 0 to 1, but is 1.5"),
        (scopes.available_memory, (True,), ValueError, "`proportion`"),
    ],
)
def test_what_a_scope_cannot_take_is_refused(scope, arguments, kind, message):
    with pytest.raises(kind, match=message), scope(*arguments):
        pass


def test_frontend_attribute_goes_back_to_what_was_before():
    @tf.function
    def function(x):
        with scopes.frontend_attribute("name", "outer"):
            with scopes.frontend_attribute("name", "inner", restore_to="unused"):
                x = tf.matmul(x, x)
            x = tf.matmul(x, x)
        x = tf.matmul(x, x)
        with scopes.frontend_attribute("name", "late", restore_to="kept"):
            pass
        return tf.matmul(x, x)

    values = [operation.node_def.attr["_XlaFrontendAttributes"].s for operation in _matmuls(function)]
    expected = [b"inner", b"outer", b"", b"kept"]
    assert [word in value for word, value in zip(expected, values, strict=True)] == [True] * 4
    assert values[2] == b""


@pytest.mark.parametrize(
    ("make", "recorded"),
    [
        (
            lambda: [scopes.frontend_attribute("outer", "1"), scopes.frontend_attribute("inner", "2")],
            'inner="2",outer="1"',
        ),
        (lambda: [scopes.stochastic_rounding(True)], 'ipu_stochastic_rounding="on"'),
        (lambda: [scopes.stochastic_rounding(False)], 'ipu_stochastic_rounding="off"'),
        (lambda: [scopes.partials_type(tf.float16)], 'ipu_partials_type="half"'),
        (lambda: [scopes.partials_type("float32")], 'ipu_partials_type="float"'),
        (
            lambda: [
                scopes.poplar_options({"partialsType": "half", "other": "as it is"}),
                scopes.available_memory(0.25),
            ],
            'ipu_option_availableMemoryProportion="0.25",ipu_option_other="as it is",ipu_partials_type="half"',
        ),
    ],
)
def test_what_scopes_say_reaches_the_instructions(make, recorded):
    def body(x):
        with contextlib.ExitStack() as stack:
            for scope in make():
                stack.enter_context(scope)
            return tf.matmul(x, x)

    (line,) = [line for line in _instructions(body).splitlines() if " dot(" in line]
    for attribute in recorded.split(","):
        assert attribute in line


def test_outside_compilation_scope_is_refused_where_no_program_for_an_ipu_is(refused):
    def function(x):
        with scopes.outside_compilation_scope():
            return x * 2

    for called in (function, tf.function(function), tf.function(function, jit_compile=True)):
        refused(ValueError, "only allowed in XLA context, .*`IPUStrategy.run`", called, tf.constant(3.0))


def test_layer_with_an_outside_compilation_scope_tells_keras_its_shapes_before_it_runs(strategy):
    class Halves(keras.layers.Layer):
        def call(self, inputs):
            with scopes.outside_compilation_scope():
                return tf.ensure_shape(tf.numpy_function(lambda x: x / 2, [inputs], tf.float32), inputs.shape)

    with strategy.scope():
        inputs = keras.Input([2])
        model = keras.Model(inputs, Halves()(inputs))
    assert model.output_shape == (None, 2)
    assert model.predict(tf.ones([2, 2]), batch_size=2, verbose=0).tolist() == [[0.5, 0.5]] * 2


def test_code_knows_whether_it_makes_a_program(strategy):
    answers = []

    def look():
        answers.append(scopes.is_on_ipu())

    @tf.function
    def program():
        look()
        with scopes.outside_compilation_scope():
            look()

    look()
    strategy.run(program)
    tf.function(look)()
    assert answers == [False, True, False, False]


@pytest.mark.parametrize("by_tape", [True, False])
def test_gradients_sum_as_the_products_that_they_are_gradients_of(by_tape):
    def gradients(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            with scopes.partials_type(tf.float16), scopes.stochastic_rounding(False):
                inside = tf.matmul(x, x, name="inside")
            with scopes.partials_type(tf.float32):
                result = tf.matmul(inside, x, name="outside")
            result = tf.matmul(result, x)
            if not by_tape:
                return tf.gradients(result, x)
        return tape.gradient(result, x)

    products = [line for line in _instructions(gradients).splitlines() if " dot(" in line]
    assert len(products) == 9
    for attribute, count in (
        ('ipu_partials_type="half"', 3),
        ('ipu_partials_type="float"', 3),
        ("ipu_partials_type", 6),
    ):
        assert len([line for line in products if attribute in line]) == count
    assert all('ipu_stochastic_rounding="off"' in line for line in products if '"half"' in line)
