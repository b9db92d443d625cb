"""What a training step of float16 costs when its numbers are to be those of the machine."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import tensorflow as tf
from measure import interleave, median, print_table, ratio
from models import MODELS

import tensorflow_ipu as ipu
from tensorflow_ipu.config import IPUConfig, StochasticRoundingBehaviour

ROUNDS = 5
PLAIN = "nothing"
ASKED: dict[str, dict[str, Any]] = {
    PLAIN: {},
    "`nanoo`": {"nanoo": True},
    "`esr`": {"esr": StochasticRoundingBehaviour.ON},
    "`oflo`": {"oflo": True},
    "`inv`, `div0`, `oflo`": {"inv": True, "div0": True, "oflo": True},
    "`set_all`": {"set_all": True},
}


def configure(asked: dict[str, Any]) -> None:
    """Has programs from now on be traced so."""
    config = IPUConfig()
    config.auto_select_ipus = 1
    for name, value in asked.items():
        setattr(config.floating_point_behaviour, name, value)
    config.configure_ipu_system()


def contestants(make: Callable[[], Any], steps: int) -> dict[str, Callable[[], object]]:
    """A call of the same program for each thing that is asked."""
    strategy = ipu.IPUStrategy()
    configure({})
    with strategy.scope():
        step = make()
    count = tf.constant(steps)

    def caller(asked: dict[str, Any]) -> Callable[[], object]:
        configure(asked)
        return lambda: (configure(asked), strategy.run(step, (count,)))[1]

    return {name: caller(asked) for name, asked in ASKED.items()}


def main() -> None:
    """Prints a table for each model."""
    for name, make, steps in MODELS:
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        times = interleave(contestants(make, steps), ROUNDS)
        rows = [[asked, median(times, asked, steps) / 1e3, 1 / ratio(times, asked, PLAIN)] for asked in ASKED]
        print_table(name, ["asked for", "ms a step", "of the plain step"], rows)


if __name__ == "__main__":
    main()
