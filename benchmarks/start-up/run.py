"""What the package adds to the import of TensorFlow and to first calls, and what kept executables spare."""

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


def seconds_printed(script: pathlib.Path, *words: str) -> float:
    """Returns the seconds that a script prints in a process of its own."""
    command = [sys.executable, str(script), *words]
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def start(*words: str) -> list[float]:
    """What the demo takes to its first step, in a process of its own: tracing, and the rest."""
    done = subprocess.run([sys.executable, str(SECOND_START), *words], stdout=subprocess.PIPE, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


def starts(count: int) -> None:
    """Prints the table of first and second starts, of so many rounds."""
    with tempfile.TemporaryDirectory() as folder:
        start(folder)
        rounds = [(start(), start(folder)) for _ in range(count)]
    rows = []
    for what, of in [
        ("tracing", lambda times: times[0]),
        ("compiling, the first step", lambda times: times[1]),
        ("together", sum),
    ]:
        first, second = ([of(each[which]) for each in rounds] for which in (0, 1))
        times = statistics.median(one / other for one, other in zip(first, second, strict=True))
        rows.append((what, *map(statistics.median, (first, second)), f"{times:.1f} times"))
    print_table(
        f"the demo to its first step, seconds (medians of {count} rounds of processes)",
        ("what", "first start", "second", "as fast"),
        rows,
    )


def first_calls(count: int) -> None:
    """Prints the row of the import and those of first calls, of so many pairs."""
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
    for what, function, limit in (
        ("first call of a training loop", "loop", 1.05),
        ("first call of 50 activations", "activations", 0.8),
    ):
        calls = [tuple(seconds_printed(FIRST_CALL, way, function) for way in ("plain", "ipu")) for _ in range(count)]
        times = statistics.median(ours / plain for plain, ours in calls)
        medians = (statistics.median(each[which] for each in calls) for which in (0, 1))
        rows.append((what, *medians, f"{times:.2f} times", f"at most {limit} times"))
    print_table(
        f"seconds (medians of {count} pairs of processes)",
        ("what", "plain TensorFlow", "tensorflow_ipu", "so", "target"),
        rows,
    )


def first_steps(count: int) -> None:
    """Prints the table of first steps of `fit`, of so many rounds of processes."""
    rows = []
    for network in ("bert-base", "resnet-50", "u-net"):
        ways = ("plain", "1", "4")
        rounds = [[seconds_printed(FIRST_STEP, network, way) for way in ways] for _ in range(count)]
        shares = (statistics.median(times[way] / times[0] for times in rounds) for way in (1, 2))
        rows.append((f"`{network}`", *map(statistics.median, zip(*rounds, strict=True)), *shares, "at most 3"))
    print_table(
        f"from `fit` to the first batch, seconds (medians of {count} rounds of processes)",
        ("network", "plain Keras", "one stage", "four stages", "one, of plain", "four, of plain", "target"),
        rows,
    )


def main() -> None:
    """Prints what is asked for, or all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="part", help="`first-calls`, `first-steps`, `starts`; all if omitted"
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how many processes of each kind")
    words = parser.parse_args()
    known = {"first-calls": first_calls, "first-steps": first_steps, "starts": starts}
    unknown = set(words.parts) - set(known)
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}: there are {', '.join(known)}")
    for name, part in known.items():
        if not words.parts or name in words.parts:
            part(words.rounds)


if __name__ == "__main__":
    main()
