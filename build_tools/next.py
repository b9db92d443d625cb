"""Tests the package with the newest pre-releases of TensorFlow and Keras, or with `TENSORFLOW=2.20`: `make test-next`.

The script copies the sources into `build/next/`, removes the limits on versions from the copy, installs a separate
environment, builds the package, and runs the tests of the seam and then all tests. For each function of the seam, it prints
how many tests failed in it. The result shows the cost of an upgrade.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "next"
SOURCES = FOLDER / "sources"
PYTHON = FOLDER / "environment" / "bin" / "python"
SEAM_TESTS = ("tests/seam", "tests/test_patches.py", "tests/test_imports.py")
_SEAM = re.compile(r"tensorflow_ipu/(_tensorflow/\w+|keras/_keras\w+)\.py:(\d+)(?:: in (\w+))?")
# These flags replace those of `tests/conftest.py`. XLA aborts if it does not know a flag, and later releases lack
# `--xla_cpu_use_fusion_emitters`.
_XLA_FLAGS = "--xla_cpu_parallel_codegen_split_count=1 --xla_backend_optimization_level=0"
# The packages to try, in order of preference. TensorFlow's pre-releases for CPUs have had several names.
RELEASE = os.environ.get("TENSORFLOW", "")
TENSORFLOWS = (f"tensorflow-cpu=={RELEASE}.*",) if RELEASE else ("tf-nightly-cpu", "tf-nightly", "tensorflow-cpu")


def main() -> None:
    """Builds and tests the package, and prints the failures."""
    shutil.rmtree(SOURCES, ignore_errors=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split(
        "\n"
    )
    for name in filter(None, tracked):
        if (ROOT / name).is_file():
            (SOURCES / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, SOURCES / name)
    tensorflow, keras = _environment()
    print(f"TensorFlow {tensorflow}, Keras {keras}")
    _lift_limits(tensorflow, keras)
    if not _build():
        sys.exit("the package does not build: see above")
    for title, tests in (("the seam", SEAM_TESTS), ("all", ("tests",))):
        print(f"\n{title}:", *_report(tests), sep="\n  ")


def _pip(*arguments: str, check: bool = True) -> bool:
    command = [str(PYTHON), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, check=check, cwd=SOURCES).returncode == 0


def _environment() -> tuple[str, str]:
    if not PYTHON.exists():
        subprocess.run([sys.executable, "-m", "venv", str(PYTHON.parents[1])], check=True)
    _pip("install", "--upgrade", "pip", "setuptools>=77", "wheel")
    name = next((name for name in TENSORFLOWS if _pip("install", "--upgrade", "--pre", name, check=False)), None)
    if name is None:
        sys.exit(f"none of {', '.join(TENSORFLOWS)} can be installed for this Python")
    _pip("install", "--upgrade", "--pre", "keras")
    _pip("install", "hypothesis>=6.100", "pytest>=8.4", "pytest-timeout>=2.3", "pytest-xdist>=3.6")
    _pip("install", "matplotlib>=3.8", "scikit-learn>=1.4", "tqdm>=4.66", "tensorboard>=2.20")
    return _version(name.partition("=")[0]), _version("keras")


def _version(name: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({name!r}))"
    return subprocess.run([str(PYTHON), "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def _lift_limits(tensorflow: str, keras: str) -> None:
    """Replaces the supported versions in the copy of the sources by these."""
    first, second = (".".join(version.split(".")[:2]) for version in (tensorflow, keras))
    major, minor = map(int, second.split("."))
    for name, pattern, value in (
        ("build_tools/kernels.py", r"(?m)^SUPPORTED_TENSORFLOW = .*$", f'SUPPORTED_TENSORFLOW = ("{first}",)'),
        (
            "tensorflow_ipu/keras/_version.py",
            r"(?m)^FIRST, END = .*$",
            f"FIRST, END = ({major}, {minor}), ({major}, {minor + 1})",
        ),
    ):
        file = SOURCES / name
        text, count = re.subn(pattern, value, file.read_text())
        assert count == 1, f"{name} has no line that matches `{pattern}`"
        file.write_text(text)


def _build() -> bool:
    process = subprocess.run([str(PYTHON), "setup.py", "--quiet", "build_kernels"], cwd=SOURCES, check=False)
    return process.returncode == 0 and _pip(
        "install", "--no-build-isolation", "--no-deps", "--force-reinstall", ".", check=False
    )


def _report(tests: tuple[str, ...]) -> list[str]:
    """Runs tests, and returns lines that describe the failures."""
    folder, results = FOLDER / "run", FOLDER / "results.xml"
    folder.mkdir(exist_ok=True)
    results.unlink(missing_ok=True)
    command = [str(PYTHON), "-m", "pytest", "-c", str(SOURCES / "pyproject.toml"), "--rootdir", str(SOURCES), "-q"]
    command += ["-p", "no:cacheprovider", "--tb=short", f"--junitxml={results}", "-n", os.environ.get("WORKERS", "2")]
    command += [str(SOURCES / test) for test in tests]
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "XLA_FLAGS": _XLA_FLAGS}
    process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if not results.exists():
        return ["pytest ran no tests:", *process.stdout.splitlines()[-30:], *process.stderr.splitlines()[-10:]]
    failures: Counter[str] = Counter()
    examples: dict[str, str] = {}
    cases = list(ET.parse(results).getroot().iter("testcase"))
    for case in cases:
        for failure in (*case.findall("failure"), *case.findall("error")):
            text = failure.text or ""
            frames = _SEAM.findall(text)
            place = f"{frames[-1][0]}:{frames[-1][2] or frames[-1][1]}" if frames else "outside of the seam"
            failures[place] += 1
            examples.setdefault(place, (failure.get("message") or text).strip().split("\n")[0][:160])
    lines = [f"{len(cases)} tests, {sum(failures.values())} failed"]
    return [*lines, *(f"{count:5}  {place}: {examples[place]}" for place, count in failures.most_common())]


if __name__ == "__main__":
    main()
