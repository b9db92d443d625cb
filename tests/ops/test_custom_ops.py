"""C++ functions of users in programs: results, gradients, order, replicas, failures, and compilation."""

from __future__ import annotations

import os

import keras
import numpy as np
import pytest
import tensorflow as tf

from tensorflow_ipu.ops import compile_user_operation, custom_ops
from tensorflow_ipu.ops.custom_ops import cpu_user_operation
from tensorflow_ipu.ops.replication_ops import replication_index

SOURCE = """
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#define FUNCTION(name)                                                                                            \\
  extern "C" void name(const std::vector<const void*>& data, const std::vector<uint32_t>& number_of_elements,     \\
                       const std::vector<void*>& outputs, const std::string& attributes, const std::string& name_)

static const float* In(const std::vector<const void*>& data, int i) { return static_cast<const float*>(data[i]); }
static float* Out(const std::vector<void*>& outputs, int i) { return static_cast<float*>(outputs[i]); }

// a * b, and the sum of a's elements.
FUNCTION(Callback) {
  if (attributes == "throw") throw std::runtime_error("no " + name_);
  Out(outputs, 1)[0] = 0;
  for (uint32_t i = 0; i < number_of_elements[0]; ++i) {
    Out(outputs, 0)[i] = In(data, 0)[i] * In(data, 1)[i];
    Out(outputs, 1)[0] += In(data, 0)[i];
  }
}

// Gradients of both outputs, both outputs, both inputs.
FUNCTION(Callback_grad) {
  const float factor = attributes.empty() ? 1 : std::stof(attributes);
  const bool all = name_.back() == 'd', first = all || name_.back() == '0', second = all || name_.back() == '1';
  for (uint32_t i = 0; i < number_of_elements[0]; ++i) {
    if (first) Out(outputs, 0)[i] = factor * (In(data, 0)[i] * In(data, 5)[i] + In(data, 1)[0]);
    if (second && !(all && outputs.size() == 1)) Out(outputs, all ? 1 : 0)[i] = factor * In(data, 0)[i] * In(data, 4)[i];
  }
}

FUNCTION(Count) {
  static int count = 0;
  static_cast<int*>(outputs[0])[0] = ++count;
}
"""

A, B = tf.constant([1.0, 2.0, 3.0]), tf.constant([4.0, 5.0, 6.0])
OUTS = {"output_types": [tf.float32, tf.float32], "output_shapes": [[3], []]}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    source = tmp_path_factory.mktemp("user") / "user.cc"
    source.write_text(SOURCE)
    return compile_user_operation(source, ["-O1"])


def in_tensorflow(a, b):
    return a * b, tf.reduce_sum(a)


def test_numbers_and_gradients_are_tensorflows_in_a_loop_and_of_those_inputs_that_were_asked_for(library, strategy):
    def training(function):
        a, gradients = A, tf.zeros([2, 3])
        for _ in tf.range(3):
            with tf.GradientTape() as tape:
                tape.watch([a, B])
                product, total = function(a, B)
                loss = tf.reduce_sum(product * product) + 3 * total
            gradients = tf.stack(tape.gradient(loss, [a, B]))
            a = product / total
        return a, gradients

    def program():
        trained = [
            training(
                lambda a, b, separate=separate: cpu_user_operation([a, b], library, OUTS, separate_gradients=separate)
            )
            for separate in (False, True)
        ]
        options = {"inputs_with_gradients": [0], "gradient_attributes": "10", "attributes": "none"}
        product, _ = cpu_user_operation([A, B], library, OUTS, **options)
        return trained, tf.gradients(product, [A, B], unconnected_gradients="zero")

    trained, of_one = strategy.run(tf.function(program))
    expected = tf.function(lambda: training(in_tensorflow))()
    for results in trained:
        for actual, value in zip(results, expected, strict=True):
            np.testing.assert_allclose(actual, value, rtol=1e-5)
    np.testing.assert_allclose(of_one, [10 * B, [0, 0, 0]])


def test_keras_traces_a_layer_for_a_batch_of_any_size_and_trains_it(library, strategy):
    def called(x):
        outs = {"output_types": [tf.float32] * 2, "output_shapes": [x.shape, []]}
        return cpu_user_operation([x, x], library, outs)[0]

    x = np.random.default_rng(0).normal(size=[16, 3]).astype(np.float32)

    def trained(function):
        dense = [keras.layers.Dense(size, kernel_initializer="ones") for size in (4, 1)]
        with strategy.scope():
            model = keras.Sequential([keras.Input([3]), dense[0], keras.layers.Lambda(function), dense[1]])
            model.compile(keras.optimizers.SGD(0.001), "mse", steps_per_execution=2)
        assert model.layers[1].output.shape == (None, 4)  # pyright: ignore[reportAttributeAccessIssue]
        losses = model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0, shuffle=False).history["loss"]
        return [losses, *model.get_weights()]

    for actual, expected in zip(trained(called), trained(lambda x: x * x), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4)


def test_a_function_that_was_traced_for_any_size_is_no_program(library, strategy, refused):
    @tf.function(jit_compile=True, input_signature=[tf.TensorSpec([None])])
    def traced(a):
        outs = {"output_types": [tf.float32] * 2, "output_shapes": [a.shape, []]}
        return cpu_user_operation([a, a], library, outs, name="work")[0]

    program = traced.get_concrete_function()  # No program is traced here, and the run uses this trace.
    message = r"`work`: `outs` has the shape \[\?\], but a program needs"
    refused(tf.errors.InvalidArgumentError, message, strategy.run, program, (A,))


def test_each_replica_calls_once_a_step(library, replicas):
    strategy = replicas(2)

    def count():
        outs = {"output_types": [tf.int32], "output_shapes": [[]]}
        return cpu_user_operation([], library, outs, op_name="Count")[0]

    @tf.function(jit_compile=True)
    def program():
        last = tf.zeros([], tf.int32)
        for _ in tf.range(5):
            if replication_index() == 1:
                last = count()
        return last

    strategy.run(program)
    assert strategy.run(tf.function(count, jit_compile=True)).numpy() in (6, 7)


def test_forked_process_leaves_the_library_of_its_parent(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    custom_ops._remove(str(folder), os.getppid())
    assert folder.exists()
    custom_ops._remove(str(folder), os.getpid())
    assert not folder.exists()


def test_faults_are_named(library, strategy, tmp_path, refused):
    program = tf.function(lambda: cpu_user_operation([A, B], library, OUTS, name="throwing", attributes="throw"))
    message = r"`throwing` \(\S*test_custom_ops.py:\d+\): it threw: no throwing"
    refused(tf.errors.UnknownError, message, strategy.run, program)
    wrong = tmp_path / "wrong.cc"
    wrong.write_text("this is no C++")
    for message, sources in (
        (r"(?s)does not compile `sources`:.*wrong.cc", [wrong]),
        ("must be paths of C\\+\\+ files, but `nowhere.cc` is not a file", "nowhere.cc"),
        ("but `#include <vector>`... is code: write it to a file", "\n#include <vector>\n" + 300 * "// long\n"),
        ("`sources` must be the path of a C\\+\\+ file, or several, but is empty", []),
    ):
        refused(ValueError, message, compile_user_operation, sources)
    unknown = {"output_types": [tf.float32], "output_shapes": [[None]]}
    for message, path, arguments in (
        ("Expected attributes to be a 'str' type, but was int: `1`", library, {"attributes": 1}),
        ("Expected gradient_attributes to be a 'str' type, but was bytes", library, {"gradient_attributes": b"1"}),
        ("but `nowhere.so` is no file", "nowhere.so", {}),
        ("`library_path` is `.*wrong.cc`, which cannot be loaded", str(wrong), {}),
        ('has no function `Other`: declare it with `extern "C"`', library, {"op_name": "Other"}),
        ("indices of `inputs`, 0 to 0, but is \\[1\\]", library, {"inputs_with_gradients": [1]}),
        ("`outs` must be a dict with the lists", library, {"outs": {"types": []}}),
        ("as many types as shapes, all of them static", library, {"outs": unknown}),
    ):
        program = tf.function(lambda: cpu_user_operation([A], path, **arguments))  # noqa: B023
        refused(ValueError, message, strategy.run, program)
    message = "`cpu_user_operation` can only be called in a program"
    refused(RuntimeError, message, cpu_user_operation, [A, B], library, OUTS)
    outs = {"output_types": [tf.float32], "output_shapes": [[3]]}
    counted = tf.function(lambda a: tf.gradients(cpu_user_operation([a], library, outs, op_name="Count"), a))
    refused(ValueError, "has no function `Count_grad`.*`tf.stop_gradient`", strategy.run, counted, (A,))
