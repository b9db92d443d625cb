"""Compares `fit` in a strategy's scope with plain Keras, with and without `jit_compile`, for each network."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from measure import Times, interleave, median, print_table, ratio
from networks import NETWORKS, Network, keras

import tensorflow_ipu as ipu

PLAIN, JIT, OURS = "plain", "jit", "scope"
TYPES = ("float16", "mixed_float16")


class Target(NamedTuple):
    """The limit for the time of a step in the scope, relative to the time of the fastest of `ways`."""

    ways: tuple[str, ...]
    limit: float


class Row(NamedTuple):
    """The targets of a network, and the settings with which it is measured.

    Attributes:
      many: The target with many steps per execution.
      single: The target with one step per execution, compared with ways with one step; None if that is not measured.
      first: The target of the first epoch, relative to Keras without `jit_compile`.
      epoch: The number of steps per epoch; 0 for one execution.
      rounds: The number of timed epochs.
      ways: The ways that can train the network.
    """

    many: Target
    single: Target | None = None
    first: str = ""
    epoch: int = 0
    rounds: int = 5
    ways: tuple[str, ...] = (PLAIN, JIT, OURS)


class Contestant(NamedTuple):
    """A way to run `fit`, with a number of steps per execution and a type."""

    way: str
    steps: int
    dtype: str = "float32"


class Measured(NamedTuple):
    """The times of a network's epochs.

    Attributes:
      times: The seconds of each timed epoch.
      first: The seconds of the first epoch.
      epoch: The number of steps per epoch.
    """

    times: Times
    first: dict[Any, float]
    epoch: int

    def step(self, contestant: Hashable) -> float | str:
        """Returns the milliseconds per step, or an empty text for a contestant that was not measured."""
        return median(self.times, contestant, self.epoch) / 1e3 if contestant in self.times else ""

    def share(self, ours: Hashable, references: Sequence[Hashable]) -> float | str:
        """Returns the share of the time of the fastest reference, or an empty text if none was measured."""
        measured = [contestant for contestant in references if contestant in self.times]
        return 1 / ratio(self.times, ours, min(measured, key=self.step)) if measured else ""


EITHER = (PLAIN, JIT)

ROWS = {
    "mlp": Row(Target(EITHER, 0.83), Target((JIT,), 1.0), epoch=500),
    "small-convolutions": Row(Target(EITHER, 1.0), Target((JIT,), 1.0)),
    "convolutions": Row(Target((PLAIN,), 0.9), Target((PLAIN,), 1.0), first="at most 2 s more"),
    "resnet-20": Row(Target((PLAIN,), 0.62), Target((PLAIN,), 1.0)),
    "resnet-50": Row(Target(EITHER, 1.0), rounds=3),
    "mobilenet-v2": Row(Target(EITHER, 1.0), rounds=3),
    "u-net": Row(Target(EITHER, 1.0), first="at most 5 times"),
    "masked-gru": Row(Target(EITHER, 1.0), first="at most 5 times"),
    "autoencoder": Row(Target(EITHER, 1.0), first="at most 5 times"),
    "transformer": Row(Target(EITHER, 0.77), Target((JIT,), 1.0), rounds=9),
    "bert-base": Row(Target(EITHER, 1.0), rounds=3),
    "lstm": Row(Target(EITHER, 0.77), Target((JIT,), 1.0), rounds=9),
}


if keras.Model.__module__.startswith("tf_keras."):
    # With `jit_compile`, Keras 2 compiles recurrent layers again in each execution.
    ROWS["lstm"] = Row(Target((PLAIN,), 0.77), Target((PLAIN,), 1.0), rounds=9, ways=(PLAIN, OURS))


def model_of(network: Network, contestant: Contestant) -> Any:
    """Returns a new compiled model, created in a strategy's scope if that is the contestant's way."""
    way, steps, dtype = contestant
    if way != OURS:
        return network.compiled(steps, dtype, jit_compile=way == JIT)
    with ipu.IPUStrategy().scope():
        return network.compiled(steps, dtype, jit_compile=True)


def fit_of(network: Network, contestant: Contestant, data: Any) -> Callable[[], object]:
    """Returns a function that trains a new model for an epoch."""
    model = model_of(network, contestant)
    return lambda: model.fit(*data, batch_size=network.batch, verbose=0)


def seconds(call: Callable[[], object]) -> float:
    """Returns the seconds that a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def warm_up() -> None:
    """Trains a small network in each way, so that no measurement includes the start of TensorFlow, Keras and XLA."""
    network = NETWORKS["small-convolutions"]
    for way in (PLAIN, JIT, OURS):
        fit_of(network, Contestant(way, 1), network.arrays(2))()


def measure(name: str, contestants: Sequence[Contestant]) -> Measured:
    """Trains a network with each contestant, in turns."""
    network, row = NETWORKS[name], ROWS[name]
    epoch = row.epoch or network.steps
    data = network.arrays(epoch)
    calls = {contestant: fit_of(network, contestant, data) for contestant in contestants}
    first = {contestant: seconds(call) for contestant, call in calls.items()}
    return Measured(interleave(calls, row.rounds), first, epoch)


@dataclasses.dataclass
class Steps:
    """The tables of steps and of first epochs in float32."""

    steps: list[list[object]] = dataclasses.field(default_factory=list)
    first: list[list[object]] = dataclasses.field(default_factory=list)

    def add(self, name: str) -> None:
        """Measures a network."""
        row, many = ROWS[name], NETWORKS[name].steps
        single_ways = [way for way in row.ways if row.single and way in (PLAIN, OURS, *row.single.ways)]
        contestants = [Contestant(way, many) for way in row.ways] + [Contestant(way, 1) for way in single_ways]
        measured = measure(name, contestants)
        cells: list[object] = [measured.step(Contestant(way, n)) for way in (PLAIN, JIT, OURS) for n in (1, many)]
        references = [Contestant(way, n) for way in row.many.ways for n in (1, many)]
        cells += [measured.share(Contestant(OURS, many), references), row.many.limit]
        cells += [
            measured.share(Contestant(OURS, 1), [Contestant(way, 1) for way in row.single.ways] if row.single else []),
            row.single.limit if row.single else "",
        ]
        self.steps.append([f"`{name}`, {many} steps", *cells])
        first = [measured.first.get(Contestant(way, many), "") for way in (PLAIN, JIT, OURS)]
        self.first.append([f"`{name}`", *first, first[-1] / first[0], row.first])

    def show(self) -> None:
        """Prints the tables."""
        ways = [f"{way}, {count}" for way in (PLAIN, JIT, OURS) for count in ("1", "many")]
        header = ["ms per step", *ways, "share, many", "at most", "share, 1", "at most"]
        print_table("Steps of float32, by steps per execution", header, self.steps)
        print_table("The first epoch", ["s, many steps", PLAIN, JIT, OURS, "scope / plain", "target"], self.first)


@dataclasses.dataclass
class Types:
    """The table of steps in other types, with many steps per execution."""

    dtypes: Sequence[str]
    rows: list[list[object]] = dataclasses.field(default_factory=list)

    def add(self, name: str) -> None:
        """Measures a network in each type, and also with float32 in the scope."""
        many = NETWORKS[name].steps
        single = Contestant(OURS, many)
        halves = [Contestant(way, many, dtype) for dtype in self.dtypes for way in ROWS[name].ways]
        measured = measure(name, [single, *halves])
        for dtype in self.dtypes:
            plain, jit, ours = (Contestant(way, many, dtype) for way in (PLAIN, JIT, OURS))
            steps = [measured.step(contestant) for contestant in (single, plain, jit, ours)]
            shares = [measured.share(ours, [reference]) for reference in (single, plain, jit)]
            first = [measured.first[contestant] for contestant in (single, ours)]
            self.rows.append([f"`{name}`, {dtype}", *steps, *shares, *first, first[1] / first[0]])

    def show(self) -> None:
        """Prints the table."""
        steps = ["scope, float32", PLAIN, JIT, OURS, "of float32, 1.3", "of plain, 1.0", "of jit, 1.0"]
        first = ["first epoch, s: float32", "that type", "of float32, 1.3"]
        print_table("Steps by type; shares have their targets", ["ms per step", *steps, *first], self.rows)


def second_fit() -> None:
    """Prints the times from the call of a second `fit` of the MLP to the start and to the end of its first batch."""
    network = NETWORKS["mlp"]
    data = network.arrays(500)
    model = model_of(network, Contestant(OURS, 1))
    begun: list[float] = []
    note = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda *_, **__: begun.append(time.perf_counter()))
    starts, firsts = [], []
    model.fit(*data, batch_size=network.batch, steps_per_epoch=10, verbose=0)
    for _ in range(9):
        start = time.perf_counter()
        model.fit(*data, batch_size=network.batch, steps_per_epoch=1, verbose=0, callbacks=[note])
        firsts.append(time.perf_counter() - start)
        starts.append(begun[-1] - start)
    begins, ends = statistics.median(starts) * 1e3, statistics.median(firsts) * 1e3
    print(f"\na second fit begins its first batch after {begins:.0f} ms, and has run it after {ends:.0f} ms")


def tutorial() -> None:
    """Prints the time of the MNIST tutorial: it creates a model, trains an epoch of 60,000 images, and evaluates."""
    network = NETWORKS["convolutions"]
    data, held_out = (network.arrays(count // network.batch) for count in (60_000, 10_000))

    def learn(way: str) -> None:
        with ipu.IPUStrategy().scope() if way == OURS else contextlib.nullcontext():
            model = network.compiled(jit_compile=way != PLAIN)
            model.fit(*data, batch_size=network.batch, verbose=0)
            model.evaluate(*held_out, batch_size=network.batch, verbose=0)

    times = {way: seconds(lambda way=way: learn(way)) for way in (PLAIN, OURS)}
    print_table(
        "the MNIST tutorial, 60,000 images, batch 64, one step per execution: from start to end",
        ["way", "s", "share of plain"],
        [[way, total, total / times[PLAIN]] for way, total in times.items()],
    )


def main() -> None:
    """Measures the networks that the command line names, or all."""
    extras: dict[str, Callable[[], None]] = {"second-fit": second_fit, "tutorial": tutorial}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="network", help=f"{', '.join([*ROWS, *extras])}; all if omitted")
    parser.add_argument("--types", nargs="+", choices=TYPES, help="compare steps in these types with float32")
    options = parser.parse_args()
    names = [*ROWS] if options.types else [*ROWS, *extras]
    if unknown := set(options.rows) - set(names):
        parser.error(f"unknown network {', '.join(sorted(unknown))}; the networks are {', '.join(names)}")
    warm_up()
    table = Types(options.types) if options.types else Steps()
    try:
        for name in options.rows or names:
            table.add(name) if name in ROWS else extras[name]()
    finally:  # An interrupted benchmark prints the networks that it has measured.
        table.show()


if __name__ == "__main__":
    main()
