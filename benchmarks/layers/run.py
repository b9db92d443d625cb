"""Compares the time of a layer's forward and backward pass by XLA and by host kernels."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import numpy as np
import tensorflow as tf
from layers import LAYERS, Layer
from measure import print_table
from tensorflow.compiler.xla.service import hlo_pb2

import tensorflow_ipu as ipu
from tensorflow_ipu import programs
from tensorflow_ipu.programs import _host_kernels

LOOP, LONGEST_LOOP = 4, 256  # The smallest and the largest number of steps in a loop.
ENOUGH = 0.01  # The seconds that a loop should take at least, so that the time of the call does not matter.
NEAR = 1.05  # The default counts as the fastest way if it takes at most this many times as long.
HOPELESS = 2.5  # A way that takes at least this many times as long as the fastest one is dropped.
SURE = 4  # Ways are dropped after this many rounds, or after the first one if a call takes `LONG` seconds.
LONG = 0.2
DEVICE = "/device:IPU:0"
WAYS = ("XLA", "rewritten", "host", "default")

Call = Callable[[int], object]


def stepper(layer: Layer) -> Callable[..., Any]:
    """Returns a function that runs one step of gradient descent on the inputs of the layer."""

    def step(*values: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            tape.watch(values)
            loss = tf.reduce_sum(tf.square(layer.call(*values)))
        gradients = [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, values)]
        return [v - tf.cast(1e-6, v.dtype) * g for v, g in zip(values, gradients, strict=True)]

    return step


class Contest(NamedTuple):
    """The ways to compute a layer.

    Attributes:
      calls: A function that runs a number of steps, for each way with a distinct program.
      same: For each way, the first way with the same program.
    """

    calls: dict[str, Call]
    same: dict[str, str]


def contest(layer: Layer, loop: bool) -> Contest:
    """Traces the programs of a layer, and detects ways with the same program."""
    rng = np.random.default_rng(0)
    values = [tf.constant(rng.normal(size=shape, scale=0.1), layer.dtype) for shape in layer.shapes]
    step = stepper(layer)

    def steps(count: Any, *values: Any) -> Any:
        if not loop:
            return step(*values)
        return tf.while_loop(lambda i, *_: i < count, lambda i, *state: [i + 1, *step(*state)], [0, *values])[1:]

    calls: dict[str, Call] = {}
    same: dict[str, str] = {}
    codes: dict[str, list[Any]] = {}
    for way in WAYS:
        program = tf.function(steps, jit_compile=True)
        arguments = (tf.constant(1), *values)
        strategy = None if way == "XLA" else ipu.IPUStrategy(host_kernels=way != "rewritten")
        if strategy is None:
            code = instructions(program.get_concrete_function(*arguments), list(arguments))
        else:
            with _host_kernels.wherever_known() if way == "host" else contextlib.nullcontext():
                code = instructions(programs.Program.trace(program, arguments, {}, DEVICE, strategy.extended.target))
        same[way] = next((earlier for earlier in codes if codes[earlier] == code), way)
        codes.setdefault(same[way], code)
        # If a strategy has the same program as XLA, measure the strategy's call, so that all calls have the same overhead.
        if same[way] == way or same[way] == "XLA":
            calls[same[way]] = functools.partial(run, strategy, program, values)
    return Contest(calls, same)


def run(strategy: ipu.IPUStrategy | None, program: Any, values: list[Any], count: int) -> object:
    """Runs `count` steps, in plain TensorFlow if `strategy` is None."""
    arguments = (tf.constant(count), *values)
    return program(*arguments) if strategy is None else strategy.run(program, arguments)


def instructions(program: programs.Program) -> list[Any]:
    """Returns the instructions of a program. Two programs with equal lists run the same code."""
    module: Any = hlo_pb2.HloModuleProto()  # pyright: ignore[reportAttributeAccessIssue]
    module.ParseFromString(programs.hlo(program.function, program.inputs, DEVICE))
    return [
        (instruction.opcode, instruction.custom_call_target, instruction.shape.SerializeToString())
        for computation in module.computations
        for instruction in computation.instructions
    ]


def measure(calls: dict[str, Call], count: int, seconds: float) -> dict[str, float]:
    """Returns the shortest time of a step for each way, in microseconds.

    The ways take turns, and each round begins with another one. A call runs `count` steps, or more if they are fast. Slow
    ways leave the comparison early.
    """

    def timed(call: Call, count: int) -> float:
        start = time.perf_counter()
        call(count)
        return (time.perf_counter() - start) / count

    for call in calls.values():
        call(1)
    shortest = {way: timed(call, 1) for way, call in calls.items()}
    if count > 1:
        count = min(max(count, int(ENOUGH / min(shortest.values()))), LONGEST_LOOP)
    running = list(calls)
    end = time.perf_counter() + seconds
    for turn in range(200):
        if turn >= SURE and time.perf_counter() > end:
            break
        limit = HOPELESS * min(shortest.values())
        running = [way for way in running if shortest[way] < limit or (turn < SURE and count * shortest[way] < LONG)]
        for way in running[turn % len(running) :] + running[: turn % len(running)]:
            shortest[way] = min(shortest[way], timed(calls[way], count))
    return {way: seconds * 1e6 for way, seconds in shortest.items()}


class Row(NamedTuple):
    """The times of a layer.

    Attributes:
      times: Microseconds of a step for each way.
      chosen: The first way with the same program as the default; "default" if no other way has this program.
    """

    layer: str
    where: str
    times: dict[str, float]
    chosen: str

    @property
    def ratio(self) -> float:
        """The time of the fastest way, as a share of the default's."""
        return min(self.times.values()) / self.times["default"]


def measured(layer: Layer, where: str, seconds: float) -> Row:
    """Compiles and times a layer."""
    ways = contest(layer, where == "loop")
    times = measure(ways.calls, LOOP if where == "loop" else 1, seconds)
    return Row(layer.name, where, {way: times[ways.same[way]] for way in WAYS}, ways.same["default"])


def stored_rows(path: pathlib.Path | None) -> dict[tuple[str, str], Row]:
    """Returns the rows of a file, if it exists."""
    if path is None or not path.exists():
        return {}
    rows = (Row(*values) for values in json.loads(path.read_text()))
    return {(row.layer, row.where): row for row in rows}


def main() -> None:
    """Prints a table of all layers, or of some."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", action="append", default=[], help="measure layers whose names contain this; repeatable"
    )
    parser.add_argument("--seconds", type=float, default=0.8, help="the time for a row, without its compilation")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no row after this time")
    parser.add_argument(
        "--file",
        type=pathlib.Path,
        help="store the rows in this file; if it exists, measure only the missing rows, or those of `--only` again, and"
        " print all",
    )
    options = parser.parse_args()
    started = time.perf_counter()
    rows = stored_rows(options.file)
    count = 0
    for layer in LAYERS:
        for where in ("once", "loop"):
            is_selected = (
                any(part in layer.name for part in options.only) if options.only else (layer.name, where) not in rows
            )
            if not is_selected or time.perf_counter() - started > 60 * options.minutes:
                continue
            row = rows[layer.name, where] = measured(layer, where, options.seconds)
            count += 1
            print(layer.name, where, f"{row.ratio:.2f}", file=sys.stderr, flush=True)
            if options.file is not None:
                options.file.write_text(json.dumps(list(rows.values())))
    results = [row for layer in LAYERS for where in ("once", "loop") if (row := rows.get((layer.name, where)))]
    table = [
        [row.layer, row.where, *row.times.values(), row.chosen.replace("default", "own"), row.ratio] for row in results
    ]
    print_table("A step, us", ["layer", "where", *WAYS, "default is", "fastest / default"], table)
    fastest = sum(row.ratio >= 1 / NEAR for row in results)
    print(
        f"\n{count} rows in {time.perf_counter() - started:.0f} s; {2 * len(LAYERS) - len(results)} were not measured"
    )
    print(f"the default is the fastest way, within {NEAR - 1:.0%}, in {fastest} of {len(results)} rows")


if __name__ == "__main__":
    main()
