"""The build of the kernels reports missing tools, and writes a complete library and its record."""

from __future__ import annotations

import ast
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tensorflow_ipu._base import requirements

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    """The module that builds the kernels, from the source tree, since it is not installed."""
    spec = importlib.util.spec_from_file_location("build_tools_kernels", ROOT / "build_tools" / "kernels.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # Dataclasses look up their module here.
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tensorflow(kernels: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A TensorFlow with two empty libraries, because linking with the real ones takes four seconds each time."""
    folder = tmp_path_factory.mktemp("tensorflow")
    for name in ("framework", "cc"):
        library = folder / f"libtensorflow_{name}.so.2"
        subprocess.run(["g++", "-shared", "-x", "c++", os.devnull, "-o", library], check=True, timeout=300)
    return kernels.TensorFlow(folder, kernels.SUPPORTED_TENSORFLOW[-1])


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: ModuleType, tensorflow: Any) -> Path:
    """A source tree with a header and two small sources."""
    monkeypatch.setattr(kernels, "find_tensorflow", lambda: tensorflow)
    shutil.copy(ROOT / "CMakeLists.txt", tmp_path)
    for folder in ("support", "ops"):
        (tmp_path / "tensorflow_ipu" / "kernels" / folder).mkdir(parents=True)
    folder = tmp_path / "tensorflow_ipu" / "kernels"
    (folder / "support" / "two.h").write_text("int Two();\n")
    (folder / "support" / "two.cc").write_text(
        '#include "tensorflow_ipu/kernels/support/two.h"\nint Two() { return 2; }\n'
    )
    (folder / "ops" / "three.cc").write_text("int Three() { return 3; }\n")
    monkeypatch.chdir(tmp_path)
    for variable in ("MAX_JOBS", "PORTABLE", "WERROR"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


def test_library_and_its_record_follow_the_sources(tree, kernels):
    library, folder = tree / kernels.LIBRARY, tree / kernels.KERNELS
    kernels.build()
    record = json.loads((tree / kernels.BUILD_INFO).read_text())
    assert record["sha256"] == hashlib.sha256(library.read_bytes()).hexdigest()
    build_time, content = library.stat().st_mtime_ns, library.read_bytes()
    kernels.build()
    assert library.stat().st_mtime_ns == build_time
    library.write_bytes(b"another library")
    kernels.build()
    assert library.read_bytes() == content
    (folder / "support" / "two.h").write_text("int Two();\n__attribute__((used)) static int Header() { return 4; }\n")
    (folder / "ops" / "three.cc").rename(folder / "ops" / "five.cc")
    (folder / "ops" / "five.cc").write_text("int Five() { return 5; }\n")
    kernels.build()
    assert b"Three" not in library.read_bytes()
    assert b"Five" in library.read_bytes()
    assert b"Header" in library.read_bytes()
    assert str(tree).encode() not in library.read_bytes()


def test_sources_that_do_not_compile_or_link_are_all_reported_and_tried_again(tree, kernels, capfd, monkeypatch):
    folder = tree / kernels.KERNELS
    (folder / "support" / "two.cc").write_text("int Nowhere();\nint Two() { return Nowhere(); }\n")
    with pytest.raises(kernels.KernelBuildError, match="do not compile or link"):
        kernels.build()
    assert "Nowhere" in "".join(capfd.readouterr())
    for name in ("support/two.cc", "ops/three.cc"):
        (folder / name).write_text(f"#error {name} is wrong\n")
    for _ in range(2):
        with pytest.raises(kernels.KernelBuildError, match="do not compile or link"):
            kernels.build()
        output = "".join(capfd.readouterr())
        assert "two.cc is wrong" in output
        assert "three.cc is wrong" in output
    for value in ("0", "-1", "two"):
        monkeypatch.setenv("MAX_JOBS", value)
        with pytest.raises(kernels.KernelBuildError, match=f"`MAX_JOBS` is `{value}`"):
            kernels.build()


def test_missing_or_other_tensorflow_is_refused(kernels, monkeypatch, tmp_path):
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").touch()
    (tmp_path / "tensorflow-2.19.1.dist-info").mkdir()
    (tmp_path / "tensorflow-2.19.1.dist-info" / "METADATA").write_text("Name: tensorflow\nVersion: 2.19.1\n")
    (tmp_path / "tensorflow-2.19.1.dist-info" / "top_level.txt").write_text("tensorflow\n")
    other_spec = importlib.machinery.PathFinder.find_spec("tensorflow", [str(tmp_path)])
    versions = rf"{re.escape(kernels.SUPPORTED_TENSORFLOW[-1])}, and the one in .* is `2\.19\.1`"
    for spec, message in ((None, r"has none.*tensorflow-ipu\[cpu\]"), (other_spec, versions)):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, spec=spec: spec)
        with pytest.raises(kernels.KernelBuildError, match=message):
            kernels.find_tensorflow()


def test_missing_compiler_is_named_in_words_by_the_build_itself():
    done = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_kernels"],
        cwd=ROOT,
        env={**os.environ, "PYTHONSAFEPATH": "", "CXX": "/nonexistent/c++"},  # setup.py imports modules of its folder.
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode != 0
    assert "`/nonexistent/c++`, which the variable `CXX` names, is not there" in done.stderr
    assert "apt-get install g++" in done.stderr
    assert "Traceback" not in done.stderr


def test_compiler_that_does_not_start_or_is_missing_is_refused(kernels, monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", str(shutil.which("false")))
    with pytest.raises(kernels.KernelBuildError, match=r"false --version` fails"):
        kernels.find_compiler()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(kernels.KernelBuildError, match=r"`g\+\+` is not there: .*apt-get install g\+\+"):
        kernels.find_compiler()


def test_warnings_are_errors_if_asked_for(tree, kernels, capfd, monkeypatch):
    (tree / kernels.KERNELS / "support" / "two.cc").write_text("int Two() { int unused = 1; return 2; }\n")
    kernels.build()
    assert "warning: unused variable" in "".join(capfd.readouterr())
    monkeypatch.setenv("WERROR", "1")
    with pytest.raises(kernels.KernelBuildError, match="do not compile or link"):
        kernels.build()


def test_missing_cmake_is_refused(tree, kernels, monkeypatch):
    monkeypatch.setattr(kernels, "_tool", lambda name: None)
    monkeypatch.setenv("CXX", str(shutil.which("g++")))
    monkeypatch.setenv("PATH", "")
    with pytest.raises(kernels.KernelBuildError, match="`cmake`, which is not there: `pip install cmake ninja`"):
        kernels.build()


def test_older_python_is_told_which_one_is_needed(monkeypatch):
    """Both pip, through the build backend, and an import in a checkout report it, in code that Python 3.9 can parse."""
    for name in ("setup.py", "build_tools/backend.py", "build_tools/kernels.py", "build_tools/__init__.py"):
        ast.parse((ROOT / name).read_text(), feature_version=(3, 9))
    for name in ("__init__.py", "__main__.py", "_base/__init__.py", "_base/requirements.py"):
        ast.parse((ROOT / "tensorflow_ipu" / name).read_text(), feature_version=(3, 9))
    monkeypatch.setattr(sys, "version_info", (3, 9, 18))
    for arguments, kind in ((["script.py"], ImportError), (["-m"], SystemExit)):
        monkeypatch.setattr(sys, "argv", arguments)
        with pytest.raises(kind, match=r"needs Python 3\.10 to 3\.13, and `.*` is 3\.9"):
            requirements.check_python()


def test_workflows_run_commands_and_actions_that_are_there():
    commands = []
    for file in (ROOT / ".github" / "workflows").glob("*.yml"):
        text = file.read_text()
        commands += re.findall(r"- run: (\S.*)", text)
        assert "publish" not in re.sub(r"(?m)#.*$", "", text)
    goals = re.findall(r"(?m)^\.PHONY: (.*)$", (ROOT / "Makefile").read_text())[0].split()
    assert ".ci/run" in commands
    assert (
        {"wheel", "docs"} <= {command.split()[1] for command in commands if command.startswith("make ")} <= set(goals)
    )
