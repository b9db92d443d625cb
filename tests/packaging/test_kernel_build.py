"""The build of the kernels says in words what it lacks, and compiles again what has changed, and that alone."""

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

import pytest

from tensorflow_ipu._base import requirements

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
    for variable in ("MAX_JOBS", "PORTABLE", "WERROR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(kernels, "TENSORFLOW_LIBRARIES", ())  # To link against them would take a second each time.
    return tmp_path


def _compiled(capsys: pytest.CaptureFixture[str]) -> set[str]:
    """Names the sources that were compiled since the last call."""
    return {Path(line.split()[0]).name for line in capsys.readouterr().out.splitlines() if " compiled in " in line}


def test_builds_compile_what_has_changed_alone_and_leave_library_and_record(tree, kernels, capsys, monkeypatch):
    library, folder = tree / kernels.LIBRARY, tree / kernels.KERNELS / "core"

    def built() -> set[str]:
        kernels.build()
        return _compiled(capsys)

    assert built() == {"two.cc", "three.cc"}
    record = json.loads((tree / kernels.BUILD_INFO).read_text())
    assert record["sha256"] == hashlib.sha256(library.read_bytes()).hexdigest()
    made, whole = library.stat().st_mtime_ns, library.read_bytes()
    kernels.build()
    assert "is up to date" in capsys.readouterr().out
    assert library.stat().st_mtime_ns == made
    for content in (b"", b"another library"):  # It is linked again.
        library.write_bytes(content)
        assert built() == set()
        assert library.read_bytes() == whole
    for changed in ("two.cc", "two.h"):
        (folder / changed).write_text((folder / changed).read_text() + f"int {changed.partition('.')[2].upper()}();\n")
        assert built() == {"two.cc"}
    tensorflow = kernels.find_tensorflow()
    monkeypatch.setattr(kernels, "find_tensorflow", lambda: kernels.TensorFlow(tensorflow.folder, "2.21.99"))
    assert built() == {"two.cc", "three.cc"}
    monkeypatch.setattr(kernels, "COMPILE_FLAGS", (*kernels.COMPILE_FLAGS, "-O1"))
    assert built() == {"two.cc", "three.cc"}
    assert b"Three" in library.read_bytes()
    (folder / "three.cc").unlink()
    kernels.build()
    assert b"Three" not in library.read_bytes()


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


def test_sources_that_do_not_compile_or_link_are_all_reported_and_tried_again(tree, kernels, capsys, monkeypatch):
    folder = tree / kernels.KERNELS / "core"
    (folder / "two.cc").write_text("int Nowhere();\nint Two() { return Nowhere(); }\n")
    with pytest.raises(kernels.KernelBuildError, match=r"(?s)do not link.*Nowhere"):
        kernels.build()
    for name in ("two.cc", "three.cc"):
        (folder / name).write_text(f"#error {name} is wrong\n")
    for _ in range(2):
        with pytest.raises(kernels.KernelBuildError, match="2 of 2 sources do not compile"):
            kernels.build()
        said = capsys.readouterr().out
        assert "two.cc is wrong" in said
        assert "three.cc is wrong" in said
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
    other = importlib.machinery.PathFinder.find_spec("tensorflow", [str(tmp_path)])
    both = rf"{re.escape(kernels.SUPPORTED_TENSORFLOW[-1])}, and the one in .* is `2\.19\.1`"
    for spec, message in ((None, r"has none.*tensorflow-ipu\[cpu\]"), (other, both)):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, spec=spec: spec)
        with pytest.raises(kernels.KernelBuildError, match=message):
            kernels.find_tensorflow()


def test_missing_compiler_is_named_in_words_by_the_build_itself():
    done = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_kernels"],
        cwd=ROOT,
        env={**os.environ, "PYTHONSAFEPATH": "", "CXX": "/nonexistent/c++"},  # setup.py imports from its own folder.
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


def test_warnings_fail_where_they_are_asked_to_and_a_build_says_how_far_it_is(tree, kernels, capsys, monkeypatch):
    (tree / kernels.KERNELS / "core" / "two.cc").write_text("int Two() { int unused = 1; return 2; }\n")
    kernels.build()
    said = capsys.readouterr().out
    assert "compiling 2 units" in said
    assert "two.cc:1:17: warning: unused variable" in said
    assert "(1 of 2)" in said
    assert "(2 of 2)" in said
    monkeypatch.setenv("WERROR", "1")
    for _ in range(2):  # An object that was made with a warning is made again.
        with pytest.raises(kernels.KernelBuildError, match="1 of 1 sources do not compile"):
            kernels.build()
    monkeypatch.setenv("WERROR", "0")
    kernels.build()


def test_older_python_is_told_which_one_is_needed(monkeypatch):
    """By pip, which asks the backend, and by the import in a checkout; what they read first is in the words of 3.9."""
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
