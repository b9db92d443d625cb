"""What `fit` costs in a strategy's scope, against Keras alone with and without `jit_compile`: a row a network."""

from __future__ import annotations

import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import networks
from measure import Times, interleave, median, print_table
from networks import keras

import tensorflow_ipu as ipu

PLAIN, JIT, OURS = "Keras", "Keras, jit_compile", "in the scope"


class Contestant(NamedTuple):
    """A way to run `fit`, with so many steps an execution."""

    way: str
    steps: int

    def __str__(self) -> str:
        return f"{self.way}, {self.steps} step{'s' * (self.steps > 1)} an execution"


class Target(NamedTuple):
    """What `fit` in the scope may take of the time of others.

    Attributes:
      ours: How many steps an execution in the scope has.
      theirs: The ways to compare with, of which the best counts.
      steps: How many steps an execution of theirs has; None for any.
      most: The share of their time.
    """

    ours: int
    theirs: tuple[str, ...]
    steps: int | None
    most: float


class Row(NamedTuple):
    """A network, and how it is measured.

    Attributes:
      model: Makes it.
      data: Makes arrays for so many examples.
      batch: How many of them a step takes.
      steps: How many steps an epoch has, a multiple of all that follow.
      contestants: How many steps an execution has, by way.
      targets: What a step may take.
      first: What the first epoch may take, of Keras without `jit_compile`.
      rounds: How many epochs are timed.
      loss: The loss.
    """

    model: Callable[[], Any]
    data: Callable[[int], Any]
    batch: int
    steps: int
    contestants: dict[str, tuple[int, ...]]
    targets: Sequence[Target]
    first: str = ""
    rounds: int = 5
    loss: Any = None


def _words(count: int) -> Any:
    return networks.words(count, 64)


def _pixels(count: int) -> Any:
    pictures, _ = networks.images(count, 64, 64, 3)
    return pictures, networks.classes(count * 64 * 64).reshape(count, 64, 64)


def _pictures_twice(count: int) -> Any:
    pictures, _ = networks.images(count, 28, 28, 1)
    return pictures, pictures


EITHER = (PLAIN, JIT)

ROWS = {
    "mlp": Row(
        networks.mlp,
        lambda count: networks.images(count, 784),
        *(32, 500, {PLAIN: (1, 100), JIT: (1, 10, 100), OURS: (1, 10, 100)}),
        [Target(100, EITHER, None, 1 / 1.2), Target(1, (JIT,), 1, 1.0)],
    ),
    "small-convolutions": Row(
        networks.small_convolutions,
        lambda count: networks.images(count, 28, 28, 1),
        *(32, 100, {PLAIN: (1, 100), JIT: (1, 100), OURS: (1, 100)}),
        [Target(100, EITHER, None, 1.0), Target(1, (JIT,), 1, 1.0)],
    ),
    "convolutions": Row(
        networks.convolutions,
        lambda count: networks.images(count, 28, 28, 1),
        *(64, 30, {PLAIN: (1, 30), JIT: (30,), OURS: (1, 30)}),
        [Target(30, (PLAIN,), 30, 0.9), Target(1, (PLAIN,), 1, 1.0)],
        first="at most 2 s more",
    ),
    "resnet-20": Row(
        networks.resnet_20,
        lambda count: networks.images(count, 32, 32, 3),
        *(32, 10, {PLAIN: (1, 10), JIT: (10,), OURS: (1, 10)}),
        [Target(10, EITHER, None, 1.0), Target(1, (PLAIN,), 1, 1.0)],
    ),
    "mobilenet-v2": Row(
        networks.mobilenet_v2,
        lambda count: networks.images(count, 96, 96, 3),
        *(8, 10, {PLAIN: (10,), JIT: (10,), OURS: (10,)}),
        [Target(10, EITHER, None, 1.0)],
        rounds=3,
    ),
    "u-net": Row(
        *(networks.u_net, _pixels, 8, 10, {PLAIN: (10,), JIT: (10,), OURS: (10,)}),
        [Target(10, EITHER, None, 1.0)],
        first="at most 5 times",
    ),
    "masked-gru": Row(
        *(networks.masked_gru, _words, 32, 20, {PLAIN: (20,), JIT: (20,), OURS: (20,)}),
        [Target(20, EITHER, None, 1.0)],
        first="at most 5 times",
    ),
    "autoencoder": Row(
        *(networks.autoencoder, _pictures_twice, 64, 20, {PLAIN: (20,), JIT: (20,), OURS: (20,)}),
        [Target(20, EITHER, None, 1.0)],
        first="at most 5 times",
        loss=keras.losses.BinaryCrossentropy,
    ),
    "transformer": Row(
        *(networks.transformer, _words, 32, 20, {PLAIN: (1, 20), JIT: (1, 20), OURS: (1, 20)}),
        [Target(20, EITHER, None, 1 / 1.3), Target(1, (JIT,), 1, 1.0)],
        rounds=9,
    ),
    "lstm": Row(
        *(networks.lstm, _words, 32, 20, {PLAIN: (1, 20), JIT: (1, 20), OURS: (1, 20)}),
        [Target(20, EITHER, None, 1 / 1.3), Target(1, (JIT,), 1, 1.0)],
        rounds=9,
    ),
}


if keras.Model.__module__.startswith("tf_keras."):
    # With `jit_compile`, it compiles its recurrent layers anew at each execution.
    ways = {PLAIN: (1, 20), OURS: (1, 20)}
    targets = [Target(20, (PLAIN,), None, 1 / 1.3), Target(1, (PLAIN,), 1, 1.0)]
    ROWS["lstm"] = ROWS["lstm"]._replace(contestants=ways, targets=targets)


def compiled(row: Row, contestant: Contestant) -> Any:
    """A new model of a row, that runs so many steps an execution."""
    model = row.model()
    loss = row.loss() if row.loss else keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        keras.optimizers.Adam(1e-3), loss, steps_per_execution=contestant.steps, jit_compile=contestant.way != PLAIN
    )
    return model


def fit_of(row: Row, contestant: Contestant, data: Any) -> Callable[[], object]:
    """An epoch of a new model, which is in a strategy's scope where that is the contestant's way."""
    if contestant.way == OURS:
        with ipu.IPUStrategy().scope():
            model = compiled(row, contestant)
    else:
        model = compiled(row, contestant)
    return lambda: model.fit(*data, batch_size=row.batch, verbose=0)


def seconds(call: Callable[[], object]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def warm_up() -> None:
    """Has TensorFlow, Keras and XLA make what they make once a process."""
    for way in (PLAIN, JIT, OURS):
        row = ROWS["small-convolutions"]
        fit_of(row, Contestant(way, 1), row.data(2 * row.batch))()


def held_against(target: Target, times: dict[str, list[float]], contestants: list[Contestant]) -> list[object]:
    """The row of a target: who is compared with whom, the share of their time, and how much it may be."""
    ours = Contestant(OURS, target.ours)
    known = [one for one in contestants if one.way in target.theirs and target.steps in (None, one.steps)]
    best = min(known, key=lambda one: statistics.median(times[str(one)]))
    share = statistics.median(a / b for a, b in zip(times[str(ours)], times[str(best)], strict=True))
    return [f"{ours}, of {best}", share, f"at most {target.most:.2f}"]


def run(name: str) -> None:
    """Prints the tables of a row."""
    row = ROWS[name]
    contestants = [Contestant(way, steps) for way, counts in row.contestants.items() for steps in counts]
    data = row.data(row.steps * row.batch)
    calls = {str(one): fit_of(row, one, data) for one in contestants}
    first = {one: seconds(call) for one, call in calls.items()}
    times: Times = interleave(calls, row.rounds)
    print_table(
        f"{name}, batch {row.batch}: an epoch of {row.steps} steps, medians of {row.rounds}",
        ["`fit`", "ms a step", "the first epoch, s"],
        [[one, median(times, one, row.steps) / 1e3, first[one]] for one in calls],
    )
    rows = [held_against(target, times, contestants) for target in row.targets]
    if row.first:
        most = max(row.contestants[OURS])
        ours, theirs = first[str(Contestant(OURS, most))], first[str(Contestant(PLAIN, most))]
        more = f"{ours - theirs:.1f} s more" if row.first.endswith("more") else f"{ours / theirs:.1f} times"
        rows.append([f"the first epoch, of {Contestant(PLAIN, most)}", more, row.first])
    print_table(f"{name}: shares of their time", ["who", "takes", "target"], rows)


def second_fit() -> None:
    """Prints how soon a `fit` of the MLP that is not the first begins its first batch, and ends it."""
    row = ROWS["mlp"]
    data = row.data(row.steps * row.batch)
    with ipu.IPUStrategy().scope():
        model = compiled(row, Contestant(OURS, 1))
    begun: list[float] = []
    note = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda *_, **__: begun.append(time.perf_counter()))
    starts, firsts = [], []
    model.fit(*(part[: 10 * row.batch] for part in data), batch_size=row.batch, verbose=0)
    for _ in range(9):
        start = time.perf_counter()
        model.fit(*data, batch_size=row.batch, steps_per_epoch=1, verbose=0, callbacks=[note])
        firsts.append(time.perf_counter() - start)
        starts.append(begun[-1] - start)
    begins, ends = statistics.median(starts) * 1e3, statistics.median(firsts) * 1e3
    print(f"\na second fit begins its first batch after {begins:.0f} ms, and has run it after {ends:.0f} ms")


def tutorial() -> None:
    """Prints how long the MNIST tutorial takes from start to end: a model, an epoch of 60,000 images, an evaluation."""
    row = ROWS["convolutions"]
    data, held_out = row.data(60_000 // row.batch * row.batch), row.data(10_000 // row.batch * row.batch)

    def learn(way: str) -> None:
        model = compiled(row, Contestant(way, 1))
        model.fit(*data, batch_size=row.batch, verbose=0)
        model.evaluate(*held_out, batch_size=row.batch, verbose=0)

    def ours() -> None:
        with ipu.IPUStrategy().scope():
            learn(OURS)

    times = {PLAIN: seconds(lambda: learn(PLAIN)), OURS: seconds(ours)}
    print_table(
        "the MNIST tutorial, 60,000 images, batch 64, one step an execution: from start to end, s",
        ["who", "takes", "of Keras"],
        [[way, taken, taken / times[PLAIN]] for way, taken in times.items()],
    )


def main() -> None:
    """Runs the rows that the command names; all if it names none."""
    others: dict[str, Callable[[], None]] = {"second-fit": second_fit, "tutorial": tutorial}
    known = [*ROWS, *others]
    names = sys.argv[1:] or known
    if unknown := [name for name in names if name not in known]:
        sys.exit(f"There is no row {unknown[0]!r}. There are: {', '.join(known)}")
    warm_up()
    for name in names:
        if name in others:
            others[name]()
        else:
            run(name)


if __name__ == "__main__":
    main()
