"""The build of the kernels says in words what it lacks, and compiles again what has changed, and that alone."""

from __future__ import annotations

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

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    """The build's module, which is not installed, from the source tree."""
    spec = importlib.util.spec_from_file_location("build_tools_kernels", ROOT / "build_tools" / "kernels.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # Dataclasses look their module up there.
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path: Path, kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source tree of two small sources that need no TensorFlow, one of which includes a header."""
    folder = tmp_path / "tensorflow_ipu" / "kernels"
    (folder / "core").mkdir(parents=True)
    (folder / "core" / "two.h").write_text("int Two();\n")
    (folder / "core" / "two.cc").write_text('#include "tensorflow_ipu/kernels/core/two.h"\nint Two() { return 2; }\n')
    (folder / "core" / "three.cc").write_text("int Three() { return 3; }\n")
    (folder / "core" / "two_test.cc").write_text("#error A test is not part of the library.\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MAX_JOBS", raising=False)
    monkeypatch.setattr(kernels, "TENSORFLOW_LIBRARIES", ())  # To link against them would take a second each time.
    return tmp_path


def _compiled(capsys: pytest.CaptureFixture[str]) -> set[str]:
    """Names the sources that were compiled since the last call."""
    return {Path(line.split()[0]).name for line in capsys.readouterr().out.splitlines() if " compiled in " in line}


def test_first_build_compiles_all_and_leaves_library_and_record(tree, kernels, capsys):
    kernels.build()
    assert _compiled(capsys) == {"two.cc", "three.cc"}
    library = (tree / kernels.LIBRARY).read_bytes()
    record = json.loads((tree / kernels.BUILD_INFO).read_text())
    assert record["sha256"] == hashlib.sha256(library).hexdigest()


def test_second_build_does_nothing(tree, kernels, capsys):
    kernels.build()
    made = (tree / kernels.LIBRARY).stat().st_mtime_ns
    capsys.readouterr()
    kernels.build()
    assert "is up to date" in capsys.readouterr().out
    assert (tree / kernels.LIBRARY).stat().st_mtime_ns == made


@pytest.mark.parametrize("content", [b"", b"another library"])
def test_library_that_is_not_the_one_that_was_built_is_linked_again(tree, kernels, capsys, content):
    kernels.build()
    whole = (tree / kernels.LIBRARY).read_bytes()
    (tree / kernels.LIBRARY).write_bytes(content)
    capsys.readouterr()
    kernels.build()
    assert _compiled(capsys) == set()
    assert (tree / kernels.LIBRARY).read_bytes() == whole


@pytest.mark.parametrize("changed", ["two.cc", "two.h"])
def test_change_compiles_what_depends_on_it_alone(tree, kernels, capsys, changed):
    kernels.build()
    capsys.readouterr()
    path = tree / kernels.KERNELS / "core" / changed
    path.write_text(path.read_text() + "int Four();\n")
    kernels.build()
    assert _compiled(capsys) == {"two.cc"}


def test_sources_that_read_tensorflow_are_compiled_a_folder_at_a_time(tree, kernels, capsys):
    folder = tree / kernels.KERNELS / "ops"
    folder.mkdir()
    (folder / "five.cc").write_text("int Five() { return 5; }\n")
    (folder / "six.cc").write_text("int Six() { return 6; }\n")
    kernels.build()
    assert _compiled(capsys) == {"two.cc", "three.cc", "ops"}
    kernels.build()
    assert _compiled(capsys) == set()
    (folder / "five.cc").write_text("int Five() { return 55; }\n")
    kernels.build()
    assert _compiled(capsys) == {"ops"}
    (folder / "six.cc").unlink()
    kernels.build()
    assert _compiled(capsys) == {"ops"}
    assert b"Six" not in (tree / kernels.LIBRARY).read_bytes()


def test_other_tensorflow_or_other_flags_compile_all(tree, kernels, capsys, monkeypatch):
    kernels.build()
    capsys.readouterr()
    tensorflow = kernels.find_tensorflow()
    monkeypatch.setattr(kernels, "find_tensorflow", lambda: kernels.TensorFlow(tensorflow.folder, "2.21.99"))
    kernels.build()
    assert _compiled(capsys) == {"two.cc", "three.cc"}
    monkeypatch.setattr(kernels, "COMPILE_FLAGS", (*kernels.COMPILE_FLAGS, "-O1"))
    kernels.build()
    assert _compiled(capsys) == {"two.cc", "three.cc"}


def test_deleted_source_leaves_the_library(tree, kernels):
    kernels.build()
    assert b"Three" in (tree / kernels.LIBRARY).read_bytes()
    (tree / kernels.KERNELS / "core" / "three.cc").unlink()
    kernels.build()
    assert b"Three" not in (tree / kernels.LIBRARY).read_bytes()


def test_sources_that_do_not_compile_are_all_reported_and_tried_again(tree, kernels, capsys):
    for name in ("two.cc", "three.cc"):
        (tree / kernels.KERNELS / "core" / name).write_text(f"#error {name} is wrong\n")
    for _ in range(2):
        with pytest.raises(kernels.KernelBuildError, match="2 of 2 sources do not compile"):
            kernels.build()
        said = capsys.readouterr().out
        assert "two.cc is wrong" in said
        assert "three.cc is wrong" in said


def test_symbol_that_nothing_defines_fails_the_build(tree, kernels):
    (tree / kernels.KERNELS / "core" / "two.cc").write_text("int Nowhere();\nint Two() { return Nowhere(); }\n")
    with pytest.raises(kernels.KernelBuildError, match=r"(?s)do not link.*Nowhere"):
        kernels.build()


@pytest.mark.parametrize("value", ["0", "-1", "two"])
def test_malformed_number_of_jobs_is_refused(tree, kernels, monkeypatch, value):
    monkeypatch.setenv("MAX_JOBS", value)
    with pytest.raises(kernels.KernelBuildError, match=f"`MAX_JOBS` is `{value}`"):
        kernels.build()


def test_missing_tensorflow_is_named_with_what_installs_it(kernels, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(kernels.KernelBuildError, match=r"has none.*tensorflow-ipu\[cpu\]"):
        kernels.find_tensorflow()


def test_other_tensorflow_is_refused_with_both_versions(kernels, monkeypatch, tmp_path):
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").touch()
    (tmp_path / "tensorflow-2.19.1.dist-info").mkdir()
    (tmp_path / "tensorflow-2.19.1.dist-info" / "METADATA").write_text("Name: tensorflow\nVersion: 2.19.1\n")
    (tmp_path / "tensorflow-2.19.1.dist-info" / "top_level.txt").write_text("tensorflow\n")
    spec = importlib.machinery.PathFinder.find_spec("tensorflow", [str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    supported = re.escape(kernels.SUPPORTED_TENSORFLOW)
    with pytest.raises(kernels.KernelBuildError, match=rf"{supported}, and the one in .* is `2\.19\.1`"):
        kernels.find_tensorflow()


def _setup(*, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_kernels"],
        cwd=ROOT,
        env={**os.environ, "PYTHONSAFEPATH": "", **env},  # setup.py imports from its own folder.
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_missing_compiler_is_named_in_words_by_the_build_itself():
    done = _setup(env={"CXX": "/nonexistent/c++"})
    assert done.returncode != 0
    assert "`/nonexistent/c++`, which the variable `CXX` names, is not there" in done.stderr
    assert "apt-get install g++" in done.stderr
    assert "Traceback" not in done.stderr


def test_compiler_that_does_not_start_is_refused(kernels, monkeypatch):
    monkeypatch.setenv("CXX", str(shutil.which("false")))
    with pytest.raises(kernels.KernelBuildError, match=r"false --version` fails"):
        kernels.find_compiler()


def test_default_compiler_that_is_missing_is_named(kernels, monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(kernels.KernelBuildError, match=r"`g\+\+` is not there: .*apt-get install g\+\+"):
        kernels.find_compiler()
