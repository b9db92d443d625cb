"""Builds the kernel library from its C++ sources against the installed TensorFlow, by CMake."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# The releases that the sources are written for; the last one is what a build installs that has none.
SUPPORTED_TENSORFLOW = ("2.20", "2.21")
TENSORFLOW_REQUIREMENT = f"tensorflow-cpu~={os.environ.get('TENSORFLOW', '') or SUPPORTED_TENSORFLOW[-1]}.0"
HOW_TO_GET_TENSORFLOW = (
    f"`pip install '{TENSORFLOW_REQUIREMENT}'` installs one, as does the extra `tensorflow-ipu[cpu]`"
)
HOW_TO_GET_CMAKE = "`pip install cmake ninja` installs it"
HOW_TO_GET_A_COMPILER = "install one (`apt-get install g++` on Debian and Ubuntu), or let the variable `CXX` name yours"

KERNELS = Path("tensorflow_ipu", "kernels")
LIBRARY = KERNELS / "libtensorflow_ipu.so"
BUILD_INFO = KERNELS / "build_info.json"
OBJECTS = Path("build", "kernels")


class KernelBuildError(Exception):
    """The kernel library cannot be built; the message says why in words, with the way out."""


@dataclass(frozen=True)
class TensorFlow:
    """The installed TensorFlow: the folder of its package, and its version."""

    folder: Path
    version: str

    @property
    def release(self) -> str:
        """The first two numbers of the version."""
        return ".".join(self.version.split(".")[:2])


def release() -> str:
    """The release of TensorFlow that a wheel built here is for: of the installed one, else the newest."""
    try:
        return find_tensorflow().release
    except KernelBuildError:
        return SUPPORTED_TENSORFLOW[-1]


def find_tensorflow() -> TensorFlow:
    """Finds the installed TensorFlow without importing it, which would take seconds.

    Raises:
        KernelBuildError: there is none, or it is of a version that the kernels are not written for.
    """
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or spec.origin is None:
        raise KernelBuildError(
            f"the kernels are built against TensorFlow, and `{sys.executable}` has none: {HOW_TO_GET_TENSORFLOW}"
        )
    folder = Path(spec.origin).parent
    versions = [
        distribution.version
        for distribution in importlib.metadata.distributions(path=[str(folder.parent)])
        if "tensorflow" in (distribution.read_text("top_level.txt") or "").split()
    ]
    version = versions[0] if versions else "of an unknown version"
    if TensorFlow(folder, version).release not in SUPPORTED_TENSORFLOW:
        raise KernelBuildError(
            f"the kernels are written for TensorFlow {' and '.join(SUPPORTED_TENSORFLOW)}, and the one in `{folder}` is"
            f" `{version}`: {HOW_TO_GET_TENSORFLOW}"
        )
    return TensorFlow(folder, version)


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler: the command that starts it, and how it names itself."""

    command: tuple[str, ...]
    version: str


def find_compiler() -> Compiler:
    """Finds the C++ compiler: what the variable `CXX` names, else `g++`.

    Raises:
        KernelBuildError: there is none, or it does not start.
    """
    named = os.environ.get("CXX", "")
    command = shlex.split(named) or ["g++"]
    if shutil.which(command[0]) is None:
        said = f"`{named}`, which the variable `CXX` names, is not there" if named else "`g++` is not there"
        raise KernelBuildError(f"the kernels need a C++ compiler, and {said}: {HOW_TO_GET_A_COMPILER}")
    answer = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise KernelBuildError(
            f"the kernels need a C++ compiler, and `{shlex.join(command)} --version` fails: {HOW_TO_GET_A_COMPILER}\n"
            f"{answer.stderr}"
        )
    return Compiler(tuple(command), answer.stdout.partition("\n")[0])


def is_on(variable: str) -> bool:
    """Whether a variable of the build is set, to other than 0.

    `WERROR` makes the compiler's warnings errors, `PORTABLE` links for older standard libraries (`build_tools/portable.py`).
    """
    return os.environ.get(variable, "") not in ("", "0")


def jobs() -> int:
    """How many compilers may run at once: the variable `MAX_JOBS`, else one a processor.

    Raises:
        KernelBuildError: the variable is not a whole number from 1 up.
    """
    named = os.environ.get("MAX_JOBS", "")
    if not named:
        return os.cpu_count() or 1
    if not named.isdecimal() or int(named) == 0:
        raise KernelBuildError(f"the variable `MAX_JOBS` is `{named}`: give it a whole number from 1 up")
    return int(named)


def compile_library(tensorflow: TensorFlow, compiler: Compiler, objects: Path, more: Sequence[str] = ()) -> Path:
    """Compiles what has changed, and returns the library in the folder of the objects.

    Args:
      tensorflow: The TensorFlow whose headers and libraries it uses.
      compiler: The compiler.
      objects: The folder of what CMake makes.
      more: Further arguments of `cmake`.

    Raises:
      KernelBuildError: CMake is missing, a source does not compile, or the library does not link.
    """
    link_flags: list[str] = []
    if is_on("PORTABLE"):
        try:
            from build_tools import portable
        except ImportError as exc:
            raise KernelBuildError("`PORTABLE` needs pyelftools: `pip install auditwheel` brings it") from exc
        libraries = [tensorflow.folder / f"libtensorflow_{name}.so.2" for name in ("framework", "cc")]
        link_flags = portable.link_flags(compiler.command, libraries, objects.absolute() / "outline")
    variables = {
        "CMAKE_CXX_COMPILER": ";".join(compiler.command),
        "TENSORFLOW": str(tensorflow.folder),
        "TENSORFLOW_RELEASE": tensorflow.release.replace(".", ""),
        "LINK_FLAGS": ";".join(link_flags),
        "WERROR": str(int(is_on("WERROR"))),
    }
    ninja = _tool("ninja")
    at_once = jobs()
    cmake = _tool("cmake") or "cmake"
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else ["-G", "Unix Makefiles"]
    named = [f"-D{name}={value}" for name, value in variables.items()]
    run([cmake, "-S", ".", "-B", str(objects), *generator, *named, *more, "--log-level=WARNING"])
    print(f"compiling with {compiler.version}, {at_once} at once", flush=True)
    # All faults, not the first alone.
    keep_going = ["-k", "0"] if ninja else ["-k"]
    run([cmake, "--build", str(objects), "--parallel", str(at_once), "--", *keep_going])
    return objects / LIBRARY.name


def _tool(name: str) -> str | None:
    """Finds a tool of the build that a package installs beside this Python, or the system has."""
    return shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))


def run(command: list[str]) -> None:
    """Runs one command of the build, which prints what it does.

    Raises:
      KernelBuildError: It is not there, or fails.
    """
    try:
        done = subprocess.run(command, check=False)
    except FileNotFoundError:
        raise KernelBuildError(
            f"the kernels are built by `{command[0]}`, which is not there: {HOW_TO_GET_CMAKE}"
        ) from None
    if done.returncode != 0:
        raise KernelBuildError("the kernels do not compile or link; the compiler's words are above")


def build() -> None:
    """Brings the kernel library of the source tree in the current folder up to date, and `build_info.json` beside it.

    Raises:
        KernelBuildError: something it needs is missing, a source does not compile, or the library does not link.
    """
    tensorflow = find_tensorflow()
    compiler = find_compiler()
    made = compile_library(tensorflow, compiler, OBJECTS / tensorflow.release)
    info: dict[str, object] = {"tensorflow": tensorflow.version, "supported": SUPPORTED_TENSORFLOW}
    info |= {"compiler": compiler.version, "python": platform.python_version()}
    info["sha256"] = hashlib.sha256(made.read_bytes()).hexdigest()
    record = json.dumps(info, indent=2) + "\n"
    if not _is_current(record):
        scratch = made.with_suffix(".new")
        shutil.copy2(made, scratch)
        scratch.replace(LIBRARY)  # In one step: a process that has the old library open keeps it whole.
        BUILD_INFO.write_text(record)
    print(f"{LIBRARY} is up to date", flush=True)


def _is_current(record: str) -> bool:
    """Returns whether the library in the source tree is the one of this record, whole."""
    try:
        digest = hashlib.sha256(LIBRARY.read_bytes()).hexdigest()
        return BUILD_INFO.read_text() == record and json.loads(record)["sha256"] == digest
    except OSError:
        return False
