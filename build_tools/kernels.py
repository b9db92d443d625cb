"""Builds the kernel library from its C++ sources against the installed TensorFlow, with CMake."""

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

# The supported releases. A build without TensorFlow installs the last one.
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
    """Raised if the kernel library cannot be built. The message gives the reason and the solution."""


@dataclass(frozen=True)
class TensorFlow:
    """An installed TensorFlow: the folder of its package, and its version."""

    folder: Path
    version: str

    @property
    def release(self) -> str:
        """The first two numbers of the version."""
        return ".".join(self.version.split(".")[:2])


def release() -> str:
    """Returns the release of TensorFlow that wheels are built for: the installed one, otherwise the newest."""
    try:
        return find_tensorflow().release
    except KernelBuildError:
        return SUPPORTED_TENSORFLOW[-1]


def find_tensorflow() -> TensorFlow:
    """Finds the installed TensorFlow without importing it, which would take seconds.

    Raises:
        KernelBuildError: TensorFlow is not installed, or its version is not supported.
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
    """A C++ compiler: the command that starts it, and the first line of its `--version`."""

    command: tuple[str, ...]
    version: str


def find_compiler() -> Compiler:
    """Finds the C++ compiler that the variable `CXX` names, or `g++` if it is not set.

    Raises:
        KernelBuildError: The compiler does not exist, or does not start.
    """
    cxx = os.environ.get("CXX", "")
    command = shlex.split(cxx) or ["g++"]
    if shutil.which(command[0]) is None:
        reason = f"`{cxx}`, which the variable `CXX` names, is not there" if cxx else "`g++` is not there"
        raise KernelBuildError(f"the kernels need a C++ compiler, and {reason}: {HOW_TO_GET_A_COMPILER}")
    process = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    if process.returncode != 0:
        raise KernelBuildError(
            f"the kernels need a C++ compiler, and `{shlex.join(command)} --version` fails: {HOW_TO_GET_A_COMPILER}\n"
            f"{process.stderr}"
        )
    return Compiler(tuple(command), process.stdout.partition("\n")[0])


def is_on(variable: str) -> bool:
    """Returns True if a variable of the build is set and not 0.

    With `WERROR`, compiler warnings are errors. With `PORTABLE`, the library also runs with older standard libraries
    (`build_tools/portable.py`).
    """
    return os.environ.get(variable, "") not in ("", "0")


def jobs() -> int:
    """Returns the number of compilers that may run at once: the variable `MAX_JOBS`, or the number of processors.

    Raises:
        KernelBuildError: The variable is not a positive integer.
    """
    value = os.environ.get("MAX_JOBS", "")
    if not value:
        return os.cpu_count() or 1
    if not value.isdecimal() or int(value) == 0:
        raise KernelBuildError(f"the variable `MAX_JOBS` is `{value}`, but must be a positive integer")
    return int(value)


def compile_library(tensorflow: TensorFlow, compiler: Compiler, objects: Path, more: Sequence[str] = ()) -> Path:
    """Compiles the sources that have changed, and returns the library in the folder of the objects.

    Args:
      tensorflow: The TensorFlow whose headers and libraries are used.
      compiler: The compiler.
      objects: The build folder of CMake.
      more: Additional arguments for `cmake`.

    Raises:
      KernelBuildError: CMake is missing, a source does not compile, or the library does not link.
    """
    link_flags: list[str] = []
    if is_on("PORTABLE"):
        try:
            from build_tools import portable
        except ImportError as exc:
            raise KernelBuildError("`PORTABLE` needs pyelftools: `pip install auditwheel` installs it") from exc
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
    job_count = jobs()
    cmake = _tool("cmake") or "cmake"
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else ["-G", "Unix Makefiles"]
    definitions = [f"-D{name}={value}" for name, value in variables.items()]
    run([cmake, "-S", ".", "-B", str(objects), *generator, *definitions, *more, "--log-level=WARNING"])
    print(f"compiling with {compiler.version}, {job_count} jobs", flush=True)
    # Report the errors of all sources, not only of the first.
    keep_going = ["-k", "0"] if ninja else ["-k"]
    run([cmake, "--build", str(objects), "--parallel", str(job_count), "--", *keep_going])
    return objects / LIBRARY.name


def _tool(name: str) -> str | None:
    """Finds a program of the build in the folder of this Python, or on the `PATH`."""
    return shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))


def run(command: list[str]) -> None:
    """Runs a command of the build, and shows its output.

    Raises:
      KernelBuildError: The command does not exist, or fails.
    """
    try:
        process = subprocess.run(command, check=False)
    except FileNotFoundError:
        raise KernelBuildError(
            f"the kernels are built by `{command[0]}`, which is not there: {HOW_TO_GET_CMAKE}"
        ) from None
    if process.returncode != 0:
        raise KernelBuildError("the kernels do not compile or link; the errors of the compiler are above")


def build() -> None:
    """Updates the kernel library in the source tree of the current folder, and its `build_info.json`.

    Raises:
        KernelBuildError: A requirement is missing, a source does not compile, or the library does not link.
    """
    tensorflow = find_tensorflow()
    compiler = find_compiler()
    library = compile_library(tensorflow, compiler, OBJECTS / tensorflow.release)
    info: dict[str, object] = {"tensorflow": tensorflow.version, "supported": SUPPORTED_TENSORFLOW}
    info |= {"compiler": compiler.version, "python": platform.python_version()}
    info["sha256"] = hashlib.sha256(library.read_bytes()).hexdigest()
    record = json.dumps(info, indent=2) + "\n"
    if not _is_current(record):
        scratch = library.with_suffix(".new")
        shutil.copy2(library, scratch)
        scratch.replace(LIBRARY)  # Atomically, so that a process with the old library open is not affected.
        BUILD_INFO.write_text(record)
    print(f"{LIBRARY} is up to date", flush=True)


def _is_current(record: str) -> bool:
    """Returns True if the build info in the source tree equals `record`, and the library has the digest in it."""
    try:
        digest = hashlib.sha256(LIBRARY.read_bytes()).hexdigest()
        return BUILD_INFO.read_text() == record and json.loads(record)["sha256"] == digest
    except OSError:
        return False
