"""The wheel of `make wheel` runs on other systems: with TensorFlow, without a compiler, on older libraries."""

from __future__ import annotations

import importlib.metadata
import os
import runpy
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import tensorflow as tf

ROOT = Path(__file__).parents[2]
_FEED = """
import tensorflow as tf
import tensorflow_ipu as ipu

config = ipu.IPUConfig()
config.auto_select_ipus = 1
config.configure_ipu_system()
strategy = ipu.IPUStrategy()
with strategy.scope():
    numbers = iter(tf.data.Dataset.range(4, output_type=tf.int32))
    print(ipu.__file__, int(strategy.run(tf.function(lambda items: next(items) + next(items) + 41), args=(numbers,))))
"""


@pytest.fixture(scope="module")
def wheel() -> Path:
    version = importlib.metadata.version("tensorflow-ipu")
    wheels = list((ROOT / "build" / "wheel").glob(f"*/tensorflow_ipu-{version}-*.whl"))
    if not wheels:
        pytest.skip("there is no wheel of this version: `make wheel` builds it")
    return wheels[0]


def test_wheel_needs_no_newer_cpp_library_than_tensorflow_and_the_c_library_of_its_tag(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        library = Path(archive.extract("tensorflow_ipu/kernels/libtensorflow_ipu.so", tmp_path))
    needed_versions = runpy.run_path(str(ROOT / "build_tools" / "portable.py"))["needed_versions"]
    needed = needed_versions([library])
    of_tensorflow = needed_versions(Path(tf.__file__).parent.glob("libtensorflow_*.so.2"))
    for family in ("GLIBCXX", "CXXABI"):
        assert needed[family] <= of_tensorflow[family]
    assert "manylinux_{}_{}_".format(*needed["GLIBC"]) in wheel.name


def test_installed_wheel_runs_without_compiler_and_says_what_it_lacks_without_tensorflow(wheel, tmp_path):
    venv.create(tmp_path / "fresh")
    python = tmp_path / "fresh" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run([*pip, "install", "--no-index", "--no-deps", str(wheel)], check=True, timeout=300)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        command = [str(python), *arguments]
        environment["PATH"] = str(tmp_path)
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
        )

    (tmp_path / "feed.py").write_text(_FEED)
    for arguments in (("-c", "import tensorflow_ipu"), ("-m", "tensorflow_ipu", "feed.py")):
        errors = run(*arguments).stderr
        assert f"needs TensorFlow {'.'.join(tf.__version__.split('.')[:2])}" in errors
        assert "`pip install 'tensorflow-ipu[cpu]'`" in errors
        assert ("Traceback" in errors) == (arguments[0] == "-c")
    (folder,) = (tmp_path / "fresh" / "lib").glob("python*/site-packages")
    (folder / "others.pth").write_text(str(Path(tf.__file__).parents[1]))
    done = run("feed.py")
    assert done.stdout.split() == [str(folder / "tensorflow_ipu" / "__init__.py"), "42"], done.stderr
