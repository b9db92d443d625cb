"""Scopes place operations, and write down what they ask of the machine where it can be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import scopes


def _matmuls(function: tf.types.experimental.PolymorphicFunction) -> list[tf.Operation]:
    concrete: Any = function.get_concrete_function(tf.TensorSpec([2, 2]))
    return [operation for operation in concrete.graph.get_operations() if operation.type == "MatMul"]


def _instructions(body: Callable[[tf.Tensor], Any]) -> str:
    return tf.function(body, jit_compile=True).experimental_get_compiler_ir(tf.eye(2))(stage="hlo")


def test_ipu_scope_places_eager_operations_and_variables() -> None:
    with scopes.ipu_scope("/device:IPU:0"):
        variable = tf.Variable([1.0])
        total = variable + 1.0
    assert variable.device.endswith("/device:IPU:0")
    assert total.device.endswith("/device:IPU:0")


def test_ipu_scope_of_a_graph_makes_resource_variables() -> None:
    with tf.Graph().as_default(), tf.compat.v1.variable_scope("outer"), scopes.ipu_scope("/device:IPU:0"):
        variable = tf.compat.v1.get_variable("v", [2])
        assert hasattr(variable, "handle")
        assert variable.name == "outer/v:0"
        assert variable.device == "/device:IPU:0"


@pytest.mark.parametrize("device", ["/device:CPU:0", "nonsense:x:y", "", None, 3])
def test_ipu_scope_refuses_what_is_no_ipu(device: Any) -> None:
    with pytest.raises(ValueError, match="`device`"), scopes.ipu_scope(device):
        pass


def test_ipu_jit_scope_takes_anything() -> None:
    with scopes.ipu_jit_scope(0):
        assert tf.constant(1) == 1


@pytest.mark.parametrize(("index", "recorded"), [(1, [1]), ([0, 2], [0, 2]), ((3,), [3]), (-1, [-1])])
def test_ipu_shard_is_recorded_on_the_operations_inside(index: Any, recorded: list[int]) -> None:
    @tf.function
    def function(x: tf.Tensor) -> tf.Tensor:
        with scopes.ipu_shard(7), scopes.ipu_shard(index):
            x = tf.matmul(x, x)
        return tf.matmul(x, x)

    inside, after = _matmuls(function)
    assert inside.get_attr(scopes.SHARD_ATTRIBUTE) == recorded
    assert scopes.SHARD_ATTRIBUTE not in after.node_def.attr


def test_sharded_program_computes_the_same() -> None:
    @tf.function(jit_compile=True)
    def function(x: tf.Tensor) -> tf.Tensor:
        with scopes.ipu_shard(0):
            y = x * 2
        with scopes.ipu_shard(1):
            return y + 1

    assert function(tf.constant(3.0)).numpy() == 7.0


@pytest.mark.parametrize(
    ("index", "kind"),
    [
        (-2, ValueError),
        (65536, ValueError),
        ([0, 2**31], ValueError),
        ([-1, 0], ValueError),
        ([], ValueError),
        (1.0, TypeError),
        ([0, "1"], TypeError),
        (True, TypeError),
    ],
)
def test_ipu_shard_refuses_what_names_no_ipu(index: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="`index`"), scopes.ipu_shard(index):
        pass


def test_frontend_attributes_reach_the_instructions() -> None:
    def body(x: tf.Tensor) -> tf.Tensor:
        with scopes.frontend_attribute("outer", "1"), scopes.frontend_attribute("inner", "2"):
            return tf.matmul(x, x)

    (line,) = [line for line in _instructions(body).splitlines() if " dot(" in line]
    assert 'inner="2"' in line
    assert 'outer="1"' in line


def test_frontend_attribute_goes_back_to_what_was_before() -> None:
    @tf.function
    def function(x: tf.Tensor) -> tf.Tensor:
        with scopes.frontend_attribute("name", "outer"):
            with scopes.frontend_attribute("name", "inner", restore_to="unused"):
                x = tf.matmul(x, x)
            x = tf.matmul(x, x)
        x = tf.matmul(x, x)
        with scopes.frontend_attribute("name", "late", restore_to="kept"):
            pass
        return tf.matmul(x, x)

    values = [operation.node_def.attr["_XlaFrontendAttributes"].s for operation in _matmuls(function)]
    words = [b"inner", b"outer", b"", b"kept"]
    assert [word in value for word, value in zip(words, values, strict=True)] == [True] * 4
    assert values[2] == b""


@pytest.mark.parametrize("arguments", [(1, "x"), ("x", None), ("x", "y", 3)])
def test_frontend_attribute_takes_strings_alone(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match="must be a string"), scopes.frontend_attribute(*arguments):
        pass


@pytest.mark.parametrize(("override", "value"), [(True, "on"), (False, "off")])
def test_stochastic_rounding_is_recorded(override: bool, value: str) -> None:
    def body(x: tf.Tensor) -> tf.Tensor:
        with scopes.stochastic_rounding(override):
            return tf.matmul(x, x)

    assert f'ipu_stochastic_rounding="{value}"' in _instructions(body)


def test_stochastic_rounding_takes_a_bool_alone() -> None:
    with pytest.raises(TypeError, match="`override`"):
        scopes.stochastic_rounding(1)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(("partials", "value"), [(tf.float16, "half"), ("float32", "float")])
def test_partials_type_is_recorded(partials: Any, value: str) -> None:
    def body(x: tf.Tensor) -> tf.Tensor:
        with scopes.partials_type(partials):
            return tf.matmul(x, x)

    assert f'ipu_partials_type="{value}"' in _instructions(body)


@pytest.mark.parametrize("partials", [tf.int32, tf.bfloat16, "nonsense", None])
def test_partials_type_refuses_other_types(partials: Any) -> None:
    with pytest.raises(ValueError, match="float16"):
        scopes.partials_type(partials)


def test_outside_compilation_scope_is_refused_where_no_program_for_an_ipu_is() -> None:
    def function(x: tf.Tensor) -> tf.Tensor:
        with scopes.outside_compilation_scope():
            return x * 2

    for called in (function, tf.function(function), tf.function(function, jit_compile=True)):
        with pytest.raises(ValueError, match="only allowed in XLA context, .*`IPUStrategy.run`"):
            called(tf.constant(3.0))


def test_layer_with_an_outside_compilation_scope_tells_keras_its_shapes_before_it_runs(
    strategy: ipu.IPUStrategy,
) -> None:
    class Halves(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            with scopes.outside_compilation_scope():
                return tf.ensure_shape(tf.numpy_function(lambda x: x / 2, [inputs], tf.float32), inputs.shape)

    with strategy.scope():
        inputs = keras.Input([2])
        model = keras.Model(inputs, Halves()(inputs))
    assert model.output_shape == (None, 2)
    assert model.predict(tf.ones([2, 2]), batch_size=2, verbose=0).tolist() == [[0.5, 0.5]] * 2


def test_options_of_single_operations_reach_their_instructions() -> None:
    def body(x: tf.Tensor) -> tf.Tensor:
        with scopes.poplar_options({"partialsType": "half", "other": "as it is"}), scopes.available_memory(0.25):
            return tf.matmul(x, x)

    (line,) = [line for line in _instructions(body).splitlines() if " dot(" in line]
    for said in (
        'ipu_option_availableMemoryProportion="0.25"',
        'ipu_partials_type="half"',
        'ipu_option_other="as it is"',
    ):
        assert said in line


def _any(value: Any) -> Any:
    return value


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: scopes.poplar_options({"availableMemoryProportion": "2"}), ValueError, "the share of an IPU's memory"),
        (lambda: scopes.poplar_options({"partialsType": "double"}), ValueError, "the type of partial sums"),
        (lambda: scopes.poplar_options(_any({"partialsType": 1})), TypeError, "`options` must be a dictionary"),
        (lambda: scopes.poplar_options(_any([("a", "b")])), TypeError, "`options` must be a dictionary"),
        (lambda: scopes.available_memory(1.5), ValueError, "`proportion` must be a number from 0 to 1, but is 1.5"),
        (lambda: scopes.available_memory(True), ValueError, "`proportion`"),
        (lambda: scopes.frontend_attribute("ipu_partials_type", "int8"), ValueError, "the type of partial sums"),
    ],
)
def test_options_of_single_operations_are_checked(make: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message), make():
        pass


def test_code_knows_whether_it_makes_a_program(strategy: ipu.IPUStrategy) -> None:
    found = []

    def look() -> None:
        found.append(scopes.is_on_ipu())

    @tf.function
    def program() -> None:
        look()
        with scopes.outside_compilation_scope():
            look()

    look()
    strategy.run(program)
    tf.function(look)()
    assert found == [False, True, False, False]


@pytest.mark.parametrize("by_tape", [True, False])
def test_gradients_sum_as_the_products_that_they_are_gradients_of(by_tape: bool) -> None:
    def gradients(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            with scopes.partials_type(tf.float16), scopes.stochastic_rounding(False):
                inside = tf.matmul(x, x, name="inside")
            with scopes.partials_type(tf.float32):
                result = tf.matmul(inside, x, name="outside")
            if not by_tape:
                return tf.gradients(result, x)
        return tape.gradient(result, x)

    products = [line for line in _instructions(gradients).splitlines() if " dot(" in line]
    assert len(products) == 6
    for said, count in (('ipu_partials_type="half"', 3), ('ipu_partials_type="float"', 3)):
        assert len([line for line in products if said in line]) == count
    assert all('ipu_stochastic_rounding="off"' in line for line in products if '"half"' in line)


def test_gradients_of_products_without_a_scope_say_nothing() -> None:
    def gradients(x: tf.Tensor) -> Any:
        with scopes.partials_type(tf.float16):
            inside = tf.matmul(x, x)
        return tf.gradients(tf.matmul(inside, x), x)

    products = [line for line in _instructions(gradients).splitlines() if " dot(" in line]
    assert len([line for line in products if "ipu_partials_type" in line]) == 3
