"""Runs parts of a program on the host: prints, assertions, lookups of strings, and a C++ function.

    the program, on two replicas:              the host, once per replica and step:

    +-----------------------------+
    | for each of 3 steps:        |
    |     keys ---------------------------->   a table of strings; the lengths of its words
    |     lengths <-------------------------
    |     scaled ------------------------->    the C++ function `Callback`, below
    |     print, assert  ----------------->    a line on stderr; an error if the assertion fails
    +-----------------------------+

`outside_compilation_scope` is for operations without an XLA kernel. Inside of it, all of TensorFlow can be used.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # Hides TensorFlow's messages about its build.

import tempfile
from pathlib import Path

import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.ops import compile_user_operation, custom_ops, internal_ops, replication_ops
from tensorflow_ipu.scopes import outside_compilation_scope

REPLICAS = 2
STEPS = 3

SCALE = """
#include <cstdint>
#include <string>
#include <vector>

// outputs[0] = data[0] * attributes
extern "C" void Callback(const std::vector<const void*>& data, const std::vector<uint32_t>& number_of_elements,
                         const std::vector<void*>& outputs, const std::string& attributes, const std::string&) {
  const float factor = std::stof(attributes);
  const auto* const from = static_cast<const float*>(data[0]);
  auto* const to = static_cast<float*>(outputs[0]);
  for (uint32_t i = 0; i < number_of_elements[0]; ++i) to[i] = factor * from[i];
}
"""


def compiled():
    """Compiles the C++ function and returns the path of its library."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "scale.cc")
        source.write_text(SCALE)
        return compile_user_operation(source)


def make_program(table, library):
    """Returns a program of `keys` and `limit`. Each replica returns its total, and fails if the total is above `limit`."""

    @tf.function(jit_compile=True)
    def program(keys, limit):
        total = tf.zeros([])
        for step in tf.range(STEPS):
            with outside_compilation_scope("words"):
                words = table.lookup(keys + replication_ops.replication_index())
                lengths = tf.ensure_shape(tf.strings.length(words), keys.shape)
                tf.print("step", step, "has", words)
            (scaled,) = custom_ops.cpu_user_operation(
                [tf.cast(lengths, tf.float32)],
                library,
                outs={"output_types": [tf.float32], "output_shapes": [keys.shape]},
                attributes="0.5",
            )
            total += tf.reduce_sum(scaled)
            internal_ops.print_tensor(total, "total")
            tf.debugging.assert_less_equal(total, limit, "the total is too high")
        return total

    return program


def main():
    """Runs the program with a check that passes, and with one that fails."""
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = REPLICAS
    config.configure_ipu_system()

    words = tf.lookup.KeyValueTensorInitializer([0, 1, 2], ["one", "three", "seventeen"], tf.int32, tf.string)
    program = make_program(tf.lookup.StaticHashTable(words, "nothing"), compiled())
    strategy = ipu.IPUStrategy()
    keys = tf.constant([0, 1])
    print(f"the first replica's total: {strategy.run(program, (keys, tf.constant(100.0))):.1f}")
    try:
        strategy.run(program, (keys, tf.constant(10.0)))
    except tf.errors.InvalidArgumentError as error:
        print("the run ended:", error.message.split("assertion failed:")[1].strip().splitlines()[0])


if __name__ == "__main__":
    main()
