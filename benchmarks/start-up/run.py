"""Measures the import of the package, first calls, and second starts with stored executables."""

from __future__ import annotations

import argparse
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from measure import interleave, print_table

ROUNDS = 7

FIRST_CALL = pathlib.Path(__file__).with_name("first_call.py")
FIRST_STEP = pathlib.Path(__file__).with_name("first_step.py")
SECOND_START = pathlib.Path(__file__).with_name("second_start.py")


def seconds_printed(script: pathlib.Path, *arguments: str) -> float:
    """Runs a script in a new process, and returns the seconds that it prints."""
    command = [sys.executable, str(script), *arguments]
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def start(*arguments: str) -> list[float]:
    """Runs the demo to its first step in a new process; returns the seconds of tracing, and of everything after it."""
    command = [sys.executable, str(SECOND_START), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [float(seconds) for seconds in done.stdout.split()]


def starts(count: int) -> None:
    """Prints the table of first and second starts, measured in `count` rounds."""
    with tempfile.TemporaryDirectory() as folder:
        start(folder)
        rounds = [(start(), start(folder)) for _ in range(count)]
    rows = []
    for title, seconds_of in [
        ("tracing", lambda times: times[0]),
        ("compilation, the first step", lambda times: times[1]),
        ("together", sum),
    ]:
        first, second = ([seconds_of(pair[index]) for pair in rounds] for index in (0, 1))
        times = statistics.median(cold / warm for cold, warm in zip(first, second, strict=True))
        rows.append((title, *map(statistics.median, (first, second)), f"{times:.1f} times"))
    print_table(
        f"the demo to its first step, seconds (medians of {count} rounds of processes)",
        ("part", "first start", "second", "as fast"),
        rows,
    )


def first_calls(count: int) -> None:
    """Prints the rows of the import and of first calls, measured with `count` pairs of processes."""
    imports = interleave(
        {
            name: lambda name=name: subprocess.run(
                [sys.executable, "-c", f"import {name}"], check=True, capture_output=True
            )
            for name in ("tensorflow", "tensorflow_ipu")
        },
        count,
    )
    pairs = list(zip(imports["tensorflow"], imports["tensorflow_ipu"], strict=True))
    rows = [
        (
            "import",
            statistics.median(plain for plain, _ in pairs),
            statistics.median(ours for _, ours in pairs),
            f"{statistics.median(ours - plain for plain, ours in pairs):.2f} s more",
            "at most 0.2 s more",
        )
    ]
    for title, function, limit in (
        ("first call of a training loop", "loop", 1.05),
        ("first call of 50 activations", "activations", 0.8),
    ):
        calls = [tuple(seconds_printed(FIRST_CALL, way, function) for way in ("plain", "ipu")) for _ in range(count)]
        times = statistics.median(ours / plain for plain, ours in calls)
        medians = (statistics.median(pair[index] for pair in calls) for index in (0, 1))
        rows.append((title, *medians, f"{times:.2f} times", f"at most {limit} times"))
    print_table(
        f"seconds (medians of {count} pairs of processes)",
        ("measurement", "plain TensorFlow", "tensorflow_ipu", "difference", "target"),
        rows,
    )


def first_steps(count: int) -> None:
    """Prints the table of first steps of `fit`, measured in `count` rounds of processes."""
    rows = []
    for network in ("bert-base", "resnet-50", "u-net"):
        ways = ("plain", "1", "4")
        rounds = [[seconds_printed(FIRST_STEP, network, way) for way in ways] for _ in range(count)]
        shares = (statistics.median(times[way] / times[0] for times in rounds) for way in (1, 2))
        rows.append((f"`{network}`", *map(statistics.median, zip(*rounds, strict=True)), *shares, "at most 3"))
    print_table(
        f"from `fit` to the first batch, seconds (medians of {count} rounds of processes)",
        ("network", "plain Keras", "one stage", "four stages", "one stage / plain", "four stages / plain", "target"),
        rows,
    )


def main() -> None:
    """Measures the parts that the command line names, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="part", help="`first-calls`, `first-steps`, `starts`; all if omitted"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="the number of processes of each kind")
    options = parser.parse_args()
    parts = {"first-calls": first_calls, "first-steps": first_steps, "starts": starts}
    unknown = set(options.parts) - set(parts)
    if unknown:
        parser.error(f"unknown part {', '.join(sorted(unknown))}; the parts are {', '.join(parts)}")
    for name, measure in parts.items():
        if not options.parts or name in options.parts:
            measure(options.rounds)


if __name__ == "__main__":
    main()
