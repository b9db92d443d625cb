"""Measures steps and first calls of float16 programs that compute as the machine does."""

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
PLAIN, ROUNDING, EXCEPTIONS = "default", "`esr`", "`inv`, `div0`, `oflo`"
BEHAVIOURS: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "`nanoo`": {"nanoo": True},
    ROUNDING: {"esr": StochasticRoundingBehaviour.ON},
    "`oflo`": {"oflo": True},
    EXCEPTIONS: {"inv": True, "div0": True, "oflo": True},
    "`set_all`": {"set_all": True},
}


def configured(model: Model, behaviour: dict[str, Any]) -> Callable[[], object]:
    """Returns a function that configures the behaviour and runs a new program. The first call traces the program."""

    def configure() -> None:
        config = IPUConfig()
        config.auto_select_ipus = model.ipus
        for name, value in behaviour.items():
            setattr(config.floating_point_behaviour, name, value)
        config.configure_ipu_system()

    configure()
    program = model.make()
    return lambda: (configure(), program())


def first_call(call: Callable[[], object]) -> float:
    """Returns the seconds of the first call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(name: str) -> list[list[object]]:
    """Measures a model and returns its rows of the table."""
    model = MODELS[name]
    behaviours = BEHAVIOURS if model.all else {key: BEHAVIOURS[key] for key in (PLAIN, ROUNDING, EXCEPTIONS)}
    calls = {key: configured(model, value) for key, value in behaviours.items()}
    first = {key: first_call(call) for key, call in calls.items()}
    times = interleave(calls, ROUNDS)
    steps = {key: [median(times, key, model.steps) / 1e3, 1 / ratio(times, key, PLAIN)] for key in behaviours}
    return [[f"{name}, {key}", *steps[key], first[key], first[key] / first[PLAIN]] for key in behaviours]


def main() -> None:
    """Prints a table of the models that the command line names, or of all."""
    names = sys.argv[1:] or list(MODELS)
    if unknown := [name for name in names if name not in MODELS]:
        sys.exit(f"There is no model {unknown[0]!r}. The models are: {', '.join(MODELS)}")
    configured(MODELS["MLP"], {})()  # Warms up: TensorFlow and XLA create some objects once per process.
    rows: list[list[object]] = []
    try:
        for name in names:
            rows += measure(name)
    finally:  # An interrupted benchmark prints the models that it has measured.
        header = ["behaviour", "ms a step", "step / default", "first call, s", "call / default"]
        print_table("Steps and first calls of float16", header, rows)


if __name__ == "__main__":
    main()
