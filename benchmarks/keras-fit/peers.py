"""Compares steps of `fit` in a strategy's scope with PyTorch and JAX, if they are installed."""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from networks import NETWORKS
from run import OURS, ROWS, Contestant, Measured, fit_of, interleave, print_table, seconds, warm_up

ENVIRONMENT = {**os.environ, "KERAS_BACKEND": "jax", "TF_USE_LEGACY_KERAS": "0"}
PEER = pathlib.Path(__file__).with_name("peer.py")
WAYS = {"eager": "PyTorch", "compiled": "PyTorch, compiled", "jax": "JAX"}
PACKAGES = {"PyTorch": ("torch", ("eager", "compiled")), "JAX": ("jax, keras", ("jax",))}
TARGETS = {"resnet-20": 0.8, "lstm": 0.8, "masked-gru": 0.8}  # Limits relative to PyTorch's time. Others: 1.0.


class Peer:
    """A process that trains a network in another framework, one epoch per call.

    Attributes:
      first: The seconds of its first step.
    """

    def __init__(self, python: str, way: str, name: str, data: str) -> None:
        command = [python, str(PEER), way, name, data, str(NETWORKS[name].batch)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
        )
        self.first = float(self._answer())

    def __call__(self) -> None:
        """Runs an epoch."""
        print(file=self.process.stdin, flush=True)
        self._answer()

    def _answer(self) -> str:
        if line := self.process.stdout.readline():
            return line
        raise RuntimeError(f"{' '.join(self.process.args)} ended")


def installed(python: str) -> list[str]:
    """Returns the ways to train with the frameworks that an interpreter can import, and prints the others."""
    ways = []
    for framework, (packages, runs) in PACKAGES.items():
        command = [python, "-c", f"import {packages}"]
        if subprocess.run(command, check=False, stderr=subprocess.DEVNULL, env=ENVIRONMENT).returncode:
            print(f"{framework} is not measured: {python} cannot import {packages}")
        else:
            ways += runs
    return ways


def measure(name: str, ways: list[str], python: str) -> tuple[list[object], list[object]]:
    """Trains a network in each way, in turns, and returns its rows of the tables of steps and of first steps."""
    network, row = NETWORKS[name], ROWS[name]
    epoch = row.epoch or network.steps
    x, y = network.arrays(epoch)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as processes:
        np.savez(f"{folder}/data.npz", x=x, y=y)
        calls = {OURS: fit_of(network, Contestant(OURS, network.steps), (x, y))}
        first = {OURS: seconds(calls[OURS])}
        for way in ways:
            calls[way] = peer = Peer(python, way, name, f"{folder}/data.npz")
            processes.callback(peer.process.communicate)  # The process ends when its input is closed.
            first[way] = peer.first
        measured = Measured(interleave(calls, row.rounds), first, epoch)
    steps: list[object] = [measured.step(way) for way in (OURS, *WAYS)]
    for framework, (_, runs) in PACKAGES.items():
        steps += [measured.share(OURS, runs), TARGETS.get(name, 1.0) if framework == "PyTorch" else 1.0]
    return [f"`{name}`", *steps], [f"`{name}`", *(first.get(way, "") for way in (OURS, *WAYS))]


def main() -> None:
    """Measures the networks that the command line names, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="network", help=f"{', '.join(ROWS)}; all if omitted")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has PyTorch, JAX and Keras")
    options = parser.parse_args()
    if unknown := set(options.rows) - set(ROWS):
        parser.error(f"unknown network {', '.join(sorted(unknown))}; the networks are {', '.join(ROWS)}")
    ways = installed(options.python)
    warm_up()
    rows: list[tuple[list[object], list[object]]] = []
    try:
        rows.extend(measure(name, ways, options.python) for name in options.rows or ROWS)
    finally:  # An interrupted benchmark prints the networks that it has measured.
        shares = [cell for framework in PACKAGES for cell in (f"of {framework}", "at most")]
        header = ["ms per step", OURS, *WAYS.values(), *shares]
        print_table(
            "Steps of float32, with many steps per execution in the scope", header, [steps for steps, _ in rows]
        )
        header = ["s", f"{OURS}, an execution", *WAYS.values()]
        print_table(
            "The first call: an execution in the scope, a step of the others", header, [first for _, first in rows]
        )


if __name__ == "__main__":
    main()
