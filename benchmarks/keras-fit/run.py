"""What `fit` costs in a strategy's scope, against Keras alone with and without `jit_compile`: a row a network."""

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
    """The share of the time of others, of which the best counts, that a step in the scope may take."""

    ways: tuple[str, ...]
    most: float


class Row(NamedTuple):
    """How a network is measured.

    Attributes:
      many: The target with many steps an execution.
      one: The target with one step an execution, against others with one; None if that is not measured.
      first: What the first epoch may take, of Keras without `jit_compile`.
      epoch: The number of steps an epoch, if it is not that of an execution.
      rounds: The number of epochs that are timed.
      ways: The ways that can run the network.
    """

    many: Target
    one: Target | None = None
    first: str = ""
    epoch: int = 0
    rounds: int = 5
    ways: tuple[str, ...] = (PLAIN, JIT, OURS)


class Contestant(NamedTuple):
    """A way to run `fit`, with so many steps an execution."""

    way: str
    steps: int
    dtype: str = "float32"


class Measured(NamedTuple):
    """The times of a network's epochs.

    Attributes:
      times: The seconds of each timed epoch.
      first: The seconds of the first epoch.
      epoch: The number of steps an epoch.
    """

    times: Times
    first: dict[Any, float]
    epoch: int

    def step(self, one: Hashable) -> float | str:
        """Returns the milliseconds a step, and nothing for a contestant that was not measured."""
        return median(self.times, one, self.epoch) / 1e3 if one in self.times else ""

    def share(self, ours: Hashable, others: Sequence[Hashable]) -> float | str:
        """Returns the share of the time of the best of others, and nothing if none was measured."""
        known = [one for one in others if one in self.times]
        return 1 / ratio(self.times, ours, min(known, key=self.step)) if known else ""


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
    # With `jit_compile`, it compiles its recurrent layers anew at each execution.
    ROWS["lstm"] = Row(Target((PLAIN,), 0.77), Target((PLAIN,), 1.0), rounds=9, ways=(PLAIN, OURS))


def model_of(network: Network, contestant: Contestant) -> Any:
    """Returns a new compiled model, which is in a strategy's scope where that is the contestant's way."""
    way, steps, dtype = contestant
    if way != OURS:
        return network.compiled(steps, dtype, jit_compile=way == JIT)
    with ipu.IPUStrategy().scope():
        return network.compiled(steps, dtype, jit_compile=True)


def fit_of(network: Network, contestant: Contestant, data: Any) -> Callable[[], object]:
    """Returns an epoch of a new model."""
    model = model_of(network, contestant)
    return lambda: model.fit(*data, batch_size=network.batch, verbose=0)


def seconds(call: Callable[[], object]) -> float:
    """Returns how long a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def warm_up() -> None:
    """Makes TensorFlow, Keras and XLA create what they create once a process."""
    network = NETWORKS["small-convolutions"]
    for way in (PLAIN, JIT, OURS):
        fit_of(network, Contestant(way, 1), network.arrays(2))()


def measure(name: str, contestants: Sequence[Contestant]) -> Measured:
    """Trains a network by each contestant."""
    network, row = NETWORKS[name], ROWS[name]
    epoch = row.epoch or network.steps
    data = network.arrays(epoch)
    calls = {one: fit_of(network, one, data) for one in contestants}
    first = {one: seconds(call) for one, call in calls.items()}
    return Measured(interleave(calls, row.rounds), first, epoch)


@dataclasses.dataclass
class Steps:
    """The tables of steps and first epochs in float32."""

    steps: list[list[object]] = dataclasses.field(default_factory=list)
    first: list[list[object]] = dataclasses.field(default_factory=list)

    def add(self, name: str) -> None:
        """Measures a network."""
        row, many = ROWS[name], NETWORKS[name].steps
        ones = [way for way in row.ways if row.one and way in (PLAIN, OURS, *row.one.ways)]
        measured = measure(name, [Contestant(way, many) for way in row.ways] + [Contestant(way, 1) for way in ones])
        cells: list[object] = [measured.step(Contestant(way, n)) for way in (PLAIN, JIT, OURS) for n in (1, many)]
        others = [Contestant(way, n) for way in row.many.ways for n in (1, many)]
        cells += [measured.share(Contestant(OURS, many), others), row.many.most]
        cells += [
            measured.share(Contestant(OURS, 1), [Contestant(way, 1) for way in row.one.ways] if row.one else []),
            row.one.most if row.one else "",
        ]
        self.steps.append([f"`{name}`, {many} steps", *cells])
        first = [measured.first.get(Contestant(way, many), "") for way in (PLAIN, JIT, OURS)]
        self.first.append([f"`{name}`", *first, first[-1] / first[0], row.first])

    def show(self) -> None:
        """Prints the tables."""
        ways = [f"{way}, {count}" for way in (PLAIN, JIT, OURS) for count in ("1", "many")]
        header = ["ms a step", *ways, "share of many", "at most", "share of one", "at most"]
        print_table("Steps of float32, by steps an execution", header, self.steps)
        print_table("The first epoch", ["s, many steps", PLAIN, JIT, OURS, "of plain", "target"], self.first)


@dataclasses.dataclass
class Types:
    """The table of steps in other types, many an execution."""

    dtypes: Sequence[str]
    rows: list[list[object]] = dataclasses.field(default_factory=list)

    def add(self, name: str) -> None:
        """Measures a network in each type, and in the scope in float32 too."""
        many = NETWORKS[name].steps
        single = Contestant(OURS, many)
        halves = [Contestant(way, many, dtype) for dtype in self.dtypes for way in ROWS[name].ways]
        measured = measure(name, [single, *halves])
        for dtype in self.dtypes:
            plain, jit, ours = (Contestant(way, many, dtype) for way in (PLAIN, JIT, OURS))
            steps = [measured.step(one) for one in (single, plain, jit, ours)]
            shares = [measured.share(ours, [one]) for one in (single, plain, jit)]
            first = [measured.first[one] for one in (single, ours)]
            self.rows.append([f"`{name}`, {dtype}", *steps, *shares, *first, first[1] / first[0]])

    def show(self) -> None:
        """Prints the table."""
        steps = ["scope, float32", PLAIN, JIT, OURS, "of float32, 1.3", "of plain, 1.0", "of jit, 1.0"]
        first = ["first epoch, s: float32", "that type", "of float32, 1.3"]
        print_table("Steps by type, and what they may take at most", ["ms a step", *steps, *first], self.rows)


def second_fit() -> None:
    """Prints how soon a `fit` of the MLP that is not the first begins its first batch, and ends it."""
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
    """Prints how long the MNIST tutorial takes from start to end: a model, an epoch of 60,000 images, an evaluation."""
    network = NETWORKS["convolutions"]
    data, held_out = (network.arrays(count // network.batch) for count in (60_000, 10_000))

    def learn(way: str) -> None:
        with ipu.IPUStrategy().scope() if way == OURS else contextlib.nullcontext():
            model = network.compiled(jit_compile=way != PLAIN)
            model.fit(*data, batch_size=network.batch, verbose=0)
            model.evaluate(*held_out, batch_size=network.batch, verbose=0)

    times = {way: seconds(lambda way=way: learn(way)) for way in (PLAIN, OURS)}
    print_table(
        "the MNIST tutorial, 60,000 images, batch 64, one step an execution: from start to end, s",
        ["who", "takes", "of Keras"],
        [[way, taken, taken / times[PLAIN]] for way, taken in times.items()],
    )


def main() -> None:
    """Runs the rows that the command names; all if it names none."""
    others: dict[str, Callable[[], None]] = {"second-fit": second_fit, "tutorial": tutorial}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="row", help=f"{', '.join([*ROWS, *others])}; all if omitted")
    parser.add_argument("--types", nargs="+", choices=TYPES, help="measure steps in these types against float32's")
    words = parser.parse_args()
    known = [*ROWS] if words.types else [*ROWS, *others]
    if unknown := set(words.rows) - set(known):
        parser.error(f"there is no row {', '.join(sorted(unknown))}: there are {', '.join(known)}")
    names = words.rows or known
    warm_up()
    table = Types(words.types) if words.types else Steps()
    try:
        for name in names:
            table.add(name) if name in ROWS else others[name]()
    finally:  # An interrupted run shows what it has measured.
        table.show()


if __name__ == "__main__":
    main()
