"""What a training step of float16, and a program's first call, cost when the numbers are to be those of the machine."""

from __future__ import annotations

import pathlib
import sys
import time
from collections.abc import Callable
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from measure import interleave, median, print_table, ratio
from models import MODELS, Model

from tensorflow_ipu.config import IPUConfig, StochasticRoundingBehaviour

ROUNDS = 5
PLAIN, ROUNDING, EXCEPTIONS = "nothing", "`esr`", "`inv`, `div0`, `oflo`"
ASKED: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "`nanoo`": {"nanoo": True},
    ROUNDING: {"esr": StochasticRoundingBehaviour.ON},
    "`oflo`": {"oflo": True},
    EXCEPTIONS: {"inv": True, "div0": True, "oflo": True},
    "`set_all`": {"set_all": True},
}


def configured(model: Model, asked: dict[str, Any]) -> Callable[[], object]:
    """Returns a call of a new program, that is traced and run with what is asked."""

    def configure() -> None:
        config = IPUConfig()
        config.auto_select_ipus = model.ipus
        for name, value in asked.items():
            setattr(config.floating_point_behaviour, name, value)
        config.configure_ipu_system()

    configure()
    program = model.make()
    return lambda: (configure(), program())


def first_call(call: Callable[[], object]) -> float:
    """Returns the seconds of a call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(name: str) -> list[list[object]]:
    """Returns the rows of a model."""
    model = MODELS[name]
    asked = ASKED if model.all else {key: ASKED[key] for key in (PLAIN, ROUNDING, EXCEPTIONS)}
    calls = {key: configured(model, value) for key, value in asked.items()}
    first = {key: first_call(call) for key, call in calls.items()}
    times = interleave(calls, ROUNDS)
    steps = {key: [median(times, key, model.steps) / 1e3, 1 / ratio(times, key, PLAIN)] for key in asked}
    return [[f"{name}, {key}", *steps[key], first[key], first[key] / first[PLAIN]] for key in asked]


def main() -> None:
    """Prints a table of the models that the command names; of all if it names none."""
    names = sys.argv[1:] or list(MODELS)
    if unknown := [name for name in names if name not in MODELS]:
        sys.exit(f"There is no model {unknown[0]!r}. There are: {', '.join(MODELS)}")
    configured(MODELS["MLP"], {})()  # TensorFlow and XLA make once a process what this makes.
    rows: list[list[object]] = []
    try:
        for name in names:
            rows += measure(name)
    finally:  # An interrupted run shows what it has measured.
        header = ["asked for", "ms a step", "of the plain step", "first call, s", "of the plain one"]
        print_table("Steps and first calls of float16", header, rows)


if __name__ == "__main__":
    main()
