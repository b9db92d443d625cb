"""Users' C++ functions in programs: numbers, gradients, order, replicas, failures, and their compilation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tensorflow_ipu.ops import compile_user_operation
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
def library(tmp_path_factory: Any) -> str:
    source = tmp_path_factory.mktemp("user") / "user.cc"
    source.write_text(SOURCE)
    return compile_user_operation(source, ["-O1"])


def plain(a: Any, b: Any) -> Any:
    return a * b, tf.reduce_sum(a)


@pytest.mark.parametrize("separate", [False, True])
def test_numbers_and_gradients_are_tensorflows_in_a_loop(separate: bool, library: str, strategy: Any) -> None:
    def training(function: Any) -> Any:
        a, found = A, tf.zeros([2, 3])
        for _ in tf.range(3):
            with tf.GradientTape() as tape:
                tape.watch([a, B])
                product, total = function(a, B)
                loss = tf.reduce_sum(product * product) + 3 * total
            found = tf.stack(tape.gradient(loss, [a, B]))
            a = product / total
        return a, found

    def called(a: Any, b: Any) -> Any:
        return cpu_user_operation([a, b], library, OUTS, separate_gradients=separate)

    expected = tf.function(lambda: training(plain))()
    for one, other in zip(strategy.run(tf.function(lambda: training(called))), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_gradient_has_its_attributes_and_those_inputs_that_were_asked_for(library: str, strategy: Any) -> None:
    @tf.function(jit_compile=True)
    def program() -> Any:
        product, _ = cpu_user_operation(
            [A, B], library, OUTS, inputs_with_gradients=[0], gradient_attributes="10", attributes="none"
        )
        return tf.gradients(product, [A, B], unconnected_gradients="zero")

    with tf.GradientTape() as tape:
        tape.watch(A)
        product, _ = plain(A, B)
    first, second = strategy.run(program)
    expected: Any = tape.gradient(product, A)
    np.testing.assert_allclose(first, 10 * expected)
    np.testing.assert_array_equal(second, np.zeros(3))


def test_keras_traces_a_layer_for_a_batch_of_any_size_and_trains_it(library: str, strategy: Any) -> None:
    """The trace of a functional model was refused: its batch is unknown, and `outs` had to be static."""

    class Product(keras.layers.Layer):
        def __init__(self, function: Any) -> None:
            super().__init__()
            self.function = function

        def call(self, x: Any) -> Any:
            return self.function(x)

    def called(x: Any) -> Any:
        outs = {"output_types": [tf.float32] * 2, "output_shapes": [x.shape, []]}
        return cpu_user_operation([x, x], library, outs)[0]

    x = np.random.default_rng(0).normal(size=[16, 3]).astype(np.float32)

    def trained(function: Any) -> Any:
        with strategy.scope():
            inputs = keras.Input([3])
            features = keras.layers.Dense(4, kernel_initializer="ones")(inputs)
            product = Product(function)(features)
            model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones")(product))
            model.compile(keras.optimizers.SGD(0.001), "mse", steps_per_execution=2)
        assert product.shape == (None, 4)
        losses = model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0, shuffle=False).history["loss"]
        return [losses, model.predict(x, batch_size=4, verbose=0), *model.get_weights()]

    for found, expected in zip(trained(called), trained(lambda x: x * x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_a_function_that_was_traced_for_any_size_is_no_program(library: str, strategy: Any) -> None:
    @tf.function(jit_compile=True, input_signature=[tf.TensorSpec([None])])
    def traced(a: Any) -> Any:
        outs = {"output_types": [tf.float32] * 2, "output_shapes": [a.shape, []]}
        return cpu_user_operation([a, a], library, outs, name="work")[0]

    traced.get_concrete_function()  # Where no program is traced; the run takes it from here.
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"`work`: `outs` says the shape \[\?\], and a program has"
    ):
        strategy.run(traced, (A,))


def test_each_replica_calls_once_a_step(library: str, replicas: Any) -> None:
    strategy = replicas(2)
    outs = {"output_types": [tf.int32], "output_shapes": [[]]}

    @tf.function(jit_compile=True)
    def program() -> Any:
        last = tf.zeros([], tf.int32)
        for _ in tf.range(5):
            if replication_index() == 1:
                (last,) = cpu_user_operation([], library, outs, op_name="Count")
        return last

    @tf.function(jit_compile=True)
    def count() -> Any:
        return cpu_user_operation([], library, outs, op_name="Count")[0]

    strategy.run(program)
    assert strategy.run(count).numpy() in (6, 7)


def test_what_the_function_throws_ends_the_run(library: str, strategy: Any) -> None:
    @tf.function(jit_compile=True)
    def program() -> Any:
        return cpu_user_operation([A, B], library, OUTS, name="throwing", attributes="throw")

    with pytest.raises(
        tf.errors.UnknownError, match=r"`throwing` \(\S*test_custom_ops.py:\d+\): it threw: no throwing"
    ):
        strategy.run(program)


def test_faults_are_named(library: str, strategy: Any, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.cc"
    wrong.write_text("this is no C++")
    with pytest.raises(ValueError, match=r"(?s)does not compile `sources`:.*wrong.cc"):
        compile_user_operation([wrong])
    with pytest.raises(ValueError, match="must be paths of C\\+\\+ files, but `nowhere.cc` is none"):
        compile_user_operation("nowhere.cc")
    with pytest.raises(ValueError, match="but `#include <vector>`... is code: write it to a file"):
        compile_user_operation("\n#include <vector>\n" + 300 * "// long\n")
    with pytest.raises(ValueError, match="`sources` must be the path of a C\\+\\+ file, or several, but is empty"):
        compile_user_operation([])

    def call(*args: Any, **kwargs: Any) -> Any:
        return strategy.run(tf.function(lambda: cpu_user_operation(*args, **kwargs)))

    with pytest.raises(ValueError, match="Expected attributes to be a 'str' type, but was int: `1`"):
        call([A], library, attributes=1)
    with pytest.raises(ValueError, match="Expected gradient_attributes to be a 'str' type, but was bytes"):
        call([A], library, gradient_attributes=b"1")
    with pytest.raises(ValueError, match="but `nowhere.so` is no file"):
        call([A], "nowhere.so")
    with pytest.raises(ValueError, match="`library_path` is `.*wrong.cc`, which cannot be loaded"):
        call([A], str(wrong))
    with pytest.raises(ValueError, match='has no function `Other`: declare it with `extern "C"`'):
        call([A], library, op_name="Other")
    with pytest.raises(ValueError, match="numbers of `inputs`, 0 to 0, but is \\[1\\]"):
        call([A], library, inputs_with_gradients=[1])
    with pytest.raises(ValueError, match="`outs` must be a dict with the lists"):
        call([A], library, {"types": []})
    with pytest.raises(ValueError, match="as many types as shapes, all of them static"):
        call([A], library, {"output_types": [tf.float32], "output_shapes": [[None]]})
    with pytest.raises(RuntimeError, match="`cpu_user_operation` can only be called in a program"):
        cpu_user_operation([A, B], library, OUTS)
    with pytest.raises(ValueError, match="has no function `Count_grad`.*`tf.stop_gradient`"):
        strategy.run(tf.function(lambda a: tf.gradients(counted(a, library), a)), (A,))


def counted(a: Any, library: str) -> Any:
    outs = {"output_types": [tf.float32], "output_shapes": [[3]]}
    return cpu_user_operation([a], library, outs, op_name="Count")
