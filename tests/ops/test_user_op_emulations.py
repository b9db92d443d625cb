"""Operations with code for tiles: emulations in Python and C++, gradients, checks, and expressions of elements."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.ops import compile_user_operation, custom_ops, register_user_op_emulation
from tensorflow_ipu.ops.custom_ops import codelet_expression_op, precompiled_user_op
from tensorflow_ipu.ops.vertex_edsl import constant

SOURCE = """
#include <cstdint>
#include <string>
#include <vector>

extern "C" void Twice(const std::vector<const void*>& data, const std::vector<uint32_t>& number_of_elements,
                      const std::vector<void*>& outputs, const std::string& attributes, const std::string&) {
  for (uint32_t i = 0; i < number_of_elements[0]; ++i)
    static_cast<float*>(outputs[0])[i] = std::stof(attributes) * static_cast<const float*>(data[0])[i];
}

extern "C" void Twice_grad(const std::vector<const void*>& data, const std::vector<uint32_t>& number_of_elements,
                           const std::vector<void*>& outputs, const std::string&, const std::string&) {
  for (uint32_t i = 0; i < number_of_elements[0]; ++i)
    static_cast<float*>(outputs[0])[i] = 2 * static_cast<const float*>(data[0])[i];
}
"""

A, B = tf.constant([1.0, 2.0, 3.0]), tf.constant([4.0, 5.0, 6.0])
OUTS = {"output_types": [tf.float32], "output_shapes": [[3]]}


@pytest.fixture(autouse=True)
def nothing_registered():
    yield
    custom_ops._registered.clear()


def scaled_product(a, b, attributes):
    return float(attributes) * a * b


def gradients_of_product(gradients, outputs, inputs, attributes):
    (gradient,), (product,), (_, b) = gradients, outputs, inputs
    return [float(attributes) * gradient * b, gradient * product]


def test_emulation_computes_numbers_and_gradients_in_a_loop(replicas):
    def program():
        total = tf.zeros([3, 3])
        for _ in tf.range(2):
            with tf.GradientTape() as tape:
                tape.watch([A, B])
                (product,) = precompiled_user_op([A, B], "nowhere/libproduct.so", "product.gp", OUTS, attributes="2")
            total += tf.stack([product, *tape.gradient(product, [A, B])])
        return total

    register_user_op_emulation("Build", scaled_product)
    total = replicas(2).run(tf.function(program, jit_compile=True))
    np.testing.assert_allclose(total, 2 * np.stack([2 * A * B, 2 * B, 2 * A]))


def test_gradient_is_the_registered_one_of_those_inputs_that_were_asked_for(strategy):
    def gradients(inputs_with_gradients, **options):
        def program():
            with tf.GradientTape() as tape:
                tape.watch([A, B])
                options.update(op_name="Product", attributes="2", inputs_with_gradients=inputs_with_gradients)
                (product,) = precompiled_user_op([A, B], "libproduct.so", outs=OUTS, **options)
            return tf.stack(tape.gradient(product, [A, B], unconnected_gradients="zero"))

        return strategy.run(tf.function(program))

    register_user_op_emulation("Product", scaled_product)
    np.testing.assert_allclose(gradients([1]), [[0, 0, 0], 2 * A])
    register_user_op_emulation("Product", scaled_product, gradients_of_product)
    np.testing.assert_allclose(gradients([0], gradient_attributes="10"), [10 * B, [0, 0, 0]])
    separate = gradients(None, gradient_attributes="1", separate_gradients=True)
    np.testing.assert_allclose(separate, [B, 2 * A * B])


class Scale(keras.layers.Layer):
    def __init__(self, multiply):
        super().__init__()
        self.multiply = multiply

    def build(self, input_shape):
        self.factor = self.add_weight(shape=input_shape[1:], initializer="ones")

    def call(self, x):
        return self.multiply(x, tf.convert_to_tensor(self.factor))


def test_keras_traces_a_layer_for_a_batch_of_any_size_and_trains_it(strategy):
    x = np.random.default_rng(0).normal(size=[16, 3]).astype(np.float32)

    def called(x, factor):
        outs = {"output_types": [x.dtype], "output_shapes": [x.shape]}
        return precompiled_user_op([x, factor], "libscale.so", outs=outs)[0]

    def trained(multiply):
        with strategy.scope():
            model = keras.Sequential([keras.Input([3]), Scale(multiply), keras.layers.Dense(1)])
            model.compile(keras.optimizers.SGD(0.1), "mse", steps_per_execution=2)
        model.set_weights([np.ones(3), np.ones([3, 1]), np.zeros(1)])
        assert model.layers[0].output.shape == (None, 3)  # pyright: ignore[reportAttributeAccessIssue]
        losses = model.fit(x, 3 * x[:, :1], batch_size=4, epochs=2, verbose=0, shuffle=False).history["loss"]
        return [losses, *model.get_weights()]

    reference = trained(tf.multiply)
    for gradient in (None, lambda g, _, i: [g[0] * i[1], tf.reduce_sum(g[0] * i[0], 0)]):
        register_user_op_emulation("Build", tf.multiply, gradient)
        for actual, expected in zip(trained(called), reference, strict=True):
            np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_outputs_of_unknown_shape_are_refused_in_programs_and_eagerly(strategy, refused):
    register_user_op_emulation("Build", tf.identity)

    def call(a=A):
        return precompiled_user_op([a], "libx.so", outs={"output_types": [tf.float32], "output_shapes": [[None]]})

    for use in (call, lambda: strategy.run(tf.function(call))):
        refused(ValueError, "as many types as shapes, all of them static", use)
    np.testing.assert_array_equal(tf.function(call, [tf.TensorSpec([None])])(A)[0], A)


def test_emulation_in_cpp_is_a_function_of_the_host(strategy, tmp_path):
    source = tmp_path / "twice.cc"
    source.write_text(SOURCE)
    register_user_op_emulation("Twice", compile_user_operation(source, ["-O1"]))

    @tf.function(jit_compile=True)
    def program():
        with tf.GradientTape() as tape:
            tape.watch(A)
            (twice,) = precompiled_user_op([A], "libtwice.so", outs=OUTS, op_name="Twice", attributes="2")
            loss = tf.reduce_sum(twice * B)
        return twice, tape.gradient(loss, A)

    np.testing.assert_allclose(strategy.run(program), [2 * A, 2 * B])


def test_emulation_trains_in_a_stage_of_a_pipeline(replicas, pipelined):
    strategy, begin = replicas(2), np.array([1.0, 2.0, 3.0])
    with strategy.scope():
        weight = tf.Variable(begin, dtype=tf.float32)
    infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensors(B).repeat())
    register_user_op_emulation("Build", lambda a, b: a * b, lambda g, _, i: [g[0] * i[1], g[0] * i[0]])
    stages = [
        lambda x: precompiled_user_op([x, weight], "libproduct.so", outs=OUTS)[0],
        lambda y: tf.reduce_sum(y * y),
    ]
    pipelined(strategy, stages, infeed, 0.01)  # Four micro-batches.
    np.testing.assert_allclose(weight, begin - 0.01 * 4 * 2 * B**2 * begin, rtol=1e-5)


def test_library_of_a_name_has_an_emulation_of_its_own():
    register_user_op_emulation("Build", lambda a: a + 1)
    register_user_op_emulation("Build", lambda a: a + 2, library="somewhere/libtwo.so")
    results = [precompiled_user_op([A], f"else/lib{name}.so", outs=OUTS)[0] for name in ("one", "two")]
    np.testing.assert_allclose(results, [A + 1, A + 2])


def test_faults_of_emulations_are_named(tmp_path, refused):
    call = functools.partial(precompiled_user_op, [A], "y/libx.so", outs=OUTS)
    refused(NotImplementedError, r'`Build` of `libx.so`.*register_user_op_emulation\("Build", function\)', call)
    for argument in ("attributes", "gradient_attributes"):
        refused(ValueError, f"Expected {argument} to be a 'str' type, but was int: `1`", call, **{argument: 1})
    register_user_op_emulation("Sum", tf.reduce_sum)
    message = r"the outputs of `Sum` as float32\[3\], but its emulation returns float32\[\]"
    refused(ValueError, message, call, op_name="Sum")
    refused(NotImplementedError, "There are emulations of `Sum`", call)
    register_user_op_emulation("Same", tf.identity, lambda g, _, __: [])
    with tf.GradientTape() as tape:
        tape.watch(A)
        (same,) = call(op_name="Same")
    refused(ValueError, "returns 0 gradients for 1 inputs", tape.gradient, same, A)
    register: Any = register_user_op_emulation
    for error, message, arguments in [
        (TypeError, "`op_name` must be a string, but is 1", (1, tf.identity)),
        (ValueError, "`op_name` is empty", ("", tf.identity)),
        (TypeError, "`function` must be a function or the path of a shared library, but is 1", ("A", 1)),
        (ValueError, "`function` is `gone.so`, which is no file", ("A", "gone.so")),
        (ValueError, "`gradient` must be omitted if", ("A", str(Path(__file__)), tf.identity)),
        (TypeError, "`gradient` must be a function or None", ("A", tf.identity, 1)),
    ]:
        refused(error, message, register, *arguments)


def test_expression_broadcasts_and_has_the_type_of_its_first_input(strategy):
    y = np.array([3], np.int32)
    inputs = [np.arange(8).astype(dtype) for dtype in (np.float32, np.float16, np.int32)]

    @tf.function(jit_compile=True)
    def program():
        return [
            (
                codelet_expression_op(lambda x, y, z: x * x + y * z, x[:, np.newaxis], y, x - 4),
                codelet_expression_op(lambda x, z: abs(-x - 2) + constant(3) * 2, x[:, np.newaxis], x - 4),
                codelet_expression_op(lambda x: 1 - ~x + 2 * +x, x),
            )
            for x in inputs
        ]

    for x, results in zip(inputs, strategy.run(program), strict=True):
        column = x[:, np.newaxis]
        expected = (column * column + 3 * (x - 4), np.broadcast_to(column + 8, [8, 8]), 1 + 3 * x)
        for result, value in zip(results, expected, strict=True):
            assert result.dtype == x.dtype
            np.testing.assert_array_equal(result, value)


def test_expression_has_no_gradient_and_no_other_operators(refused):
    with tf.GradientTape() as tape:
        tape.watch(A)
        squared = codelet_expression_op(lambda x: x * x, A)
    refused(LookupError, "`codelet_expression_op` has no gradient, on the machine either", tape.gradient, squared, A)
    call: Any = codelet_expression_op
    for error, message, arguments in [
        (TypeError, "`vertex_expression` may only use .*: unsupported operand", (lambda x: x / x, A)),
        (TypeError, "neither true nor false", (lambda x: x if x else -x, A)),
        (TypeError, "must return an expression of its arguments, but returns 3", (lambda x: 3, A)),
        (ValueError, "`args` is empty", (lambda: 3,)),
        (ValueError, r"shapes \(3,\), \(2,\), which do not broadcast", (lambda x, y: x + y, A, [1.0, 2.0])),
    ]:
        refused(error, message, call, *arguments)
