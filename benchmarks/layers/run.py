"""What a layer's step, forward and gradients, costs by XLA and by TensorFlow's kernels inside of a program."""

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

LOOP, LONGEST_LOOP = 4, 256  # Steps in a loop: more for those that are done in less time
ENOUGH = 0.01  # than so many seconds, in which it matters who calls the program.
NEAR = 1.05  # A choice that is this much slower than the best counts as the best.
HOPELESS = 2.5  # What takes so many times as long as the best is not measured again, once it has been
SURE = 4  # so often, or when it takes this many seconds.
LONG = 0.2
DEVICE = "/device:IPU:0"
WAYS = ("XLA", "rewritten", "host", "default")

Call = Callable[[int], object]


def stepper(layer: Layer) -> Callable[..., Any]:
    """One step of gradient descent on what the layer is given."""

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
      calls: A call for each program.
      same: For each way the first one that has its program.
    """

    calls: dict[str, Call]
    same: dict[str, str]


def contest(layer: Layer, loop: bool) -> Contest:
    """What computes so many steps of the layer, by each way."""
    rng = np.random.default_rng(0)
    values = [tf.constant(rng.normal(size=shape, scale=0.1), layer.dtype) for shape in layer.shapes]
    step = stepper(layer)

    def steps(count: Any, *values: Any) -> Any:
        if not loop:
            return step(*values)
        return tf.while_loop(lambda at, *_: at < count, lambda at, *now: [at + 1, *step(*now)], [0, *values])[1:]

    calls: dict[str, Call] = {}
    same: dict[str, str] = {}
    known: dict[str, list[Any]] = {}
    for way in WAYS:
        program = tf.function(steps, jit_compile=True)
        arguments = (tf.constant(1), *values)
        strategy = None if way == "XLA" else ipu.IPUStrategy(host_kernels=way != "rewritten")
        if strategy is None:
            code = instructions(program.get_concrete_function(*arguments), list(arguments))
        else:
            with _host_kernels.wherever_known() if way == "host" else contextlib.nullcontext():
                code = instructions(programs.Program.trace(program, arguments, {}, DEVICE, strategy.extended.target))
        same[way] = next((other for other in known if known[other] == code), way)
        known.setdefault(same[way], code)
        # By a strategy where one runs the same program: what the call itself takes is no matter of the layer.
        if same[way] == way or same[way] == "XLA":
            calls[same[way]] = functools.partial(run, strategy, program, values)
    return Contest(calls, same)


def run(strategy: ipu.IPUStrategy | None, program: Any, values: list[Any], count: int) -> object:
    """Runs so many steps, without a strategy as plain TensorFlow does."""
    arguments = (tf.constant(count), *values)
    return program(*arguments) if strategy is None else strategy.run(program, arguments)


def instructions(program: programs.Program) -> list[Any]:
    """What a program consists of: two that have the same run the same code."""
    module: Any = hlo_pb2.HloModuleProto()  # pyright: ignore[reportAttributeAccessIssue]
    module.ParseFromString(programs.hlo(program.function, program.inputs, DEVICE))
    everything = [one for part in module.computations for one in part.instructions]
    return [(one.opcode, one.custom_call_target, one.shape.SerializeToString()) for one in everything]


def measure(calls: dict[str, Call], count: int, seconds: float) -> dict[str, float]:
    """The shortest of interleaved times of a step by each way, in microseconds; `count` steps or more to a call."""

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
    """What a layer took.

    Attributes:
      times: By each way, in microseconds.
      chosen: The way that is the default; itself where it has a program of its own.
    """

    layer: str
    where: str
    times: dict[str, float]
    chosen: str

    @property
    def ratio(self) -> float:
        """What the best way takes of the time of the default."""
        return min(self.times.values()) / self.times["default"]


def measured(layer: Layer, where: str, seconds: float) -> Row:
    """Compiles and times a layer."""
    ways = contest(layer, where == "loop")
    times = measure(ways.calls, LOOP if where == "loop" else 1, seconds)
    return Row(layer.name, where, {way: times[ways.same[way]] for way in WAYS}, ways.same["default"])


def kept(path: pathlib.Path | None) -> dict[tuple[str, str], Row]:
    """The rows of a file, if it is there."""
    if path is None or not path.exists():
        return {}
    rows = (Row(*values) for values in json.loads(path.read_text()))
    return {(row.layer, row.where): row for row in rows}


def main() -> None:
    """Prints a table of all layers, or of some."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", default=[], help="layers whose names have this in them; repeatable")
    parser.add_argument("--seconds", type=float, default=0.8, help="how long to time a row, once it is compiled")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no row after so long")
    parser.add_argument(
        "--file",
        type=pathlib.Path,
        help="keep the rows here, so that a further run measures those that are missing, or those of `--only` again, and"
        " prints all",
    )
    options = parser.parse_args()
    started = time.perf_counter()
    rows = kept(options.file)
    count = 0
    for layer in LAYERS:
        for where in ("once", "loop"):
            wanted = (
                any(part in layer.name for part in options.only) if options.only else (layer.name, where) not in rows
            )
            if not wanted or time.perf_counter() - started > 60 * options.minutes:
                continue
            row = rows[layer.name, where] = measured(layer, where, options.seconds)
            count += 1
            print(layer.name, where, f"{row.ratio:.2f}", file=sys.stderr, flush=True)
            if options.file is not None:
                options.file.write_text(json.dumps(list(rows.values())))
    found = [row for layer in LAYERS for where in ("once", "loop") if (row := rows.get((layer.name, where)))]
    print_table(
        "A step, us",
        ["layer", "where", *WAYS, "is", "best / default"],
        [[row.layer, row.where, *row.times.values(), row.chosen.replace("default", "own"), row.ratio] for row in found],
    )
    best = sum(row.ratio >= 1 / NEAR for row in found)
    print(f"\n{count} rows in {time.perf_counter() - started:.0f} s; {2 * len(LAYERS) - len(found)} were not measured")
    print(f"the choice by default is the fastest, to {NEAR - 1:.0%}, in {best} of {len(found)} rows")


if __name__ == "__main__":
    main()
