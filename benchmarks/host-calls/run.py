"""Measures calls of the host in a loop: host kernels, assertions, a user's C++ function, and outside compilation."""

from __future__ import annotations

import pathlib
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import tensorflow as tf
from measure import interleave, print_table

import tensorflow_ipu as ipu
from tensorflow_ipu.ops import compile_user_operation, custom_ops
from tensorflow_ipu.scopes import outside_compilation_scope

STEPS = 20_000
ROUNDS = 9

NOTHING = """
#include <cstdint>
#include <string>
#include <vector>
extern "C" void Callback(const std::vector<const void*>&, const std::vector<uint32_t>&, const std::vector<void*>& outputs,
                         const std::string&, const std::string&) {
  static_cast<float*>(outputs[0])[0] = 1;
}
"""


def contestants():
    """Returns functions of a scalar, by name, each with its target in microseconds or None."""
    source = pathlib.Path(tempfile.mkdtemp(), "nothing.cc")
    source.write_text(NOTHING)
    library = compile_user_operation(source)
    outs = {"output_types": [tf.float32], "output_shapes": [[]]}

    def asserted(x):
        tf.debugging.assert_less(x, 1e9)
        return x + 1

    def outside(x):
        with outside_compilation_scope():
            return x + 1

    return {
        "nothing": (lambda x: x + 1, None),
        "a host kernel": (lambda x: tf.debugging.check_numerics(x, "x") + 1, 3.0),
        "an assertion that passes": (asserted, 3.0),
        "a user's C++ function": (lambda x: x + custom_ops.cpu_user_operation([x], library, outs)[0], 3.0),
        "a part that the host runs": (outside, None),
    }


def main() -> None:
    """Prints a table with a row for each function."""
    strategy = ipu.IPUStrategy()
    functions = contestants()
    calls = {}
    for name, (function, _) in functions.items():

        @tf.function(jit_compile=True)
        def loop(x, function=function):
            for _ in tf.range(STEPS):
                x = function(x)
            return x

        calls[name] = lambda loop=loop: strategy.run(loop, (tf.constant(1.0),)).numpy()
    times = interleave(calls, ROUNDS)
    rows = []
    for name, (_, target) in functions.items():
        added = [(total - empty) / STEPS * 1e6 for total, empty in zip(times[name], times["nothing"], strict=True)]
        if name != "nothing":
            rows.append((name, statistics.median(added), "" if target is None else target))
    print_table(
        f"microseconds that a call adds to a step (medians of {ROUNDS} rounds of {STEPS} steps)",
        ("call", "us", "target: under"),
        rows,
    )


if __name__ == "__main__":
    main()
