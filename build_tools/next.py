"""Tries the package with the newest pre-releases of TensorFlow and Keras, or with `TENSORFLOW=2.20`: `make test-next`.

Everything happens in `build/next/`: a copy of the sources whose limits on versions are lifted, an environment of its own, a
build, the tests of the seam, then all tests. What broke is printed by the function of the seam that it broke in, with how
many tests it took along: that is what an upgrade would cost.
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
# In the place of those in `tests/conftest.py`, one of which later releases do not know: XLA ends the process then.
_XLA_FLAGS = "--xla_cpu_parallel_codegen_split_count=1 --xla_backend_optimization_level=0"
# Names of packages to try, best first: pre-releases of TensorFlow's CPU wheels have gone by several.
RELEASE = os.environ.get("TENSORFLOW", "")
TENSORFLOWS = (f"tensorflow-cpu=={RELEASE}.*",) if RELEASE else ("tf-nightly-cpu", "tf-nightly", "tensorflow-cpu")


def main() -> None:
    """Builds and tests, and prints what broke."""
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
    name = next((one for one in TENSORFLOWS if _pip("install", "--upgrade", "--pre", one, check=False)), None)
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
    """Has the copy take these versions."""
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
        assert count == 1, f"{name} has no limit where this script looks for it"
        file.write_text(text)


def _build() -> bool:
    built = subprocess.run([str(PYTHON), "setup.py", "--quiet", "build_kernels"], cwd=SOURCES, check=False)
    return built.returncode == 0 and _pip(
        "install", "--no-build-isolation", "--no-deps", "--force-reinstall", ".", check=False
    )


def _report(tests: tuple[str, ...]) -> list[str]:
    """Runs tests, and says in lines what broke."""
    folder, results = FOLDER / "run", FOLDER / "results.xml"
    folder.mkdir(exist_ok=True)
    results.unlink(missing_ok=True)
    command = [str(PYTHON), "-m", "pytest", "-c", str(SOURCES / "pyproject.toml"), "--rootdir", str(SOURCES), "-q"]
    command += ["-p", "no:cacheprovider", "--tb=short", f"--junitxml={results}", "-n", os.environ.get("WORKERS", "2")]
    command += [str(SOURCES / one) for one in tests]
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "XLA_FLAGS": _XLA_FLAGS}
    said = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if not results.exists():
        return ["pytest did not get to the tests:", *said.stdout.splitlines()[-30:], *said.stderr.splitlines()[-10:]]
    broken: Counter[str] = Counter()
    example: dict[str, str] = {}
    cases = list(ET.parse(results).getroot().iter("testcase"))
    for case in cases:
        for fault in (*case.findall("failure"), *case.findall("error")):
            text = fault.text or ""
            places = _SEAM.findall(text)
            where = f"{places[-1][0]}:{places[-1][2] or places[-1][1]}" if places else "outside of the seam"
            broken[where] += 1
            example.setdefault(where, (fault.get("message") or text).strip().split("\n")[0][:160])
    lines = [f"{len(cases)} tests, {sum(broken.values())} broke"]
    return [*lines, *(f"{count:5}  {where}: {example[where]}" for where, count in broken.most_common())]


if __name__ == "__main__":
    main()
