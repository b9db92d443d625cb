"""Builds the kernel library from its C++ sources against the installed TensorFlow, in parallel and incrementally."""

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
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

# The releases that the sources are written for; the last one is what a build installs that has none.
SUPPORTED_TENSORFLOW = ("2.20", "2.21")
TENSORFLOW_REQUIREMENT = f"tensorflow-cpu~={os.environ.get('TENSORFLOW', '') or SUPPORTED_TENSORFLOW[-1]}.0"
HOW_TO_GET_TENSORFLOW = (
    f"`pip install '{TENSORFLOW_REQUIREMENT}'` installs one, as does the extra `tensorflow-ipu[cpu]`"
)
HOW_TO_GET_A_COMPILER = "install one (`apt-get install g++` on Debian and Ubuntu), or let the variable `CXX` name yours"

# The ABI of TensorFlow's wheels. `tf.sysconfig.get_compile_flags()` says the same, after seconds of import.
ABI_FLAGS = ("-D_GLIBCXX_USE_CXX11_ABI=1", "-DEIGEN_MAX_ALIGN_BYTES=64")
COMPILE_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-pthread", "-DNDEBUG", *ABI_FLAGS, "-Wall", "-Wextra")

# When our library is opened, `import tensorflow` has loaded these two, and the loader finds them by name. The run path
# serves tools that look at our library alone; it is relative, since a wheel is installed elsewhere than it is built.
TENSORFLOW_LIBRARIES = ("-l:libtensorflow_framework.so.2", "-l:libtensorflow_cc.so.2")
LINK_FLAGS = ("-shared", "-pthread", "-Wl,-z,defs", "-Wl,-rpath,$ORIGIN/../../tensorflow")

KERNELS = Path("tensorflow_ipu", "kernels")
# Needs the standard library alone. All other folders are compiled as one unit each: TensorFlow's headers take 5 to 40
# times as long as a source of ours, and so they are read once a folder.
STANDARD = KERNELS / "core"
LONGEST = KERNELS / "lowering"  # Reads XLA's compiler. It goes first.
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

    @property
    def include_flags(self) -> list[str]:
        """Its headers as system headers: their warnings are not ours, and they change with the version alone.

        What they log and assert names their files; the map keeps the folder of this machine out of the library.
        """
        include = self.folder / "include"
        external = include / "external"
        folders = (include, external / "farmhash_archive" / "src", external / "highwayhash")
        search = [flag for folder in folders for flag in ("-isystem", str(folder))]
        release = f"-DIPU_TENSORFLOW={self.release.replace('.', '')}"  # For `kernels/host/releases.h`.
        return [*search, f"-ffile-prefix-map={self.folder}=tensorflow", release]


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


@dataclass(frozen=True)
class Unit:
    """What is compiled at once: a source, or all sources of a folder.

    Attributes:
      name: The source or the folder.
      sources: The source, or those of the folder.
      object: The object file.
      command: The compiler's command, without the source and what it makes.
      recipe: The part of the command that decides what the object will be.
    """

    name: Path
    sources: tuple[Path, ...]
    object: Path
    command: tuple[str, ...]
    recipe: str

    @property
    def _depfile(self) -> Path:
        return self.object.with_suffix(".d")

    @property
    def _stamp(self) -> Path:
        return self.object.with_suffix(".stamp")

    def is_current(self) -> bool:
        """Whether the recipe made the object, after the last change of the source and of what it includes."""
        if not (self.object.is_file() and self._depfile.is_file() and self._stamp.is_file()):
            return False
        made_by, _, warnings = self._stamp.read_text().partition("\n")
        if made_by != self.recipe or (warnings and is_on("WERROR")):
            return False
        _, _, inputs = self._depfile.read_text().replace("\\\n", " ").partition(": ")
        started = self._stamp.stat().st_mtime_ns
        return all(Path(name).is_file() and Path(name).stat().st_mtime_ns < started for name in shlex.split(inputs))

    def compile(self) -> tuple[bool, str]:
        """Makes the object. Returns whether the source is without a fault, and in words what came of it."""
        self.object.parent.mkdir(parents=True, exist_ok=True)
        self._stamp.unlink(missing_ok=True)
        source = self._source()
        started = time.time_ns()
        worked, said = run([*self.command, str(source), "-MMD", "-MF", str(self._depfile), "-o", str(self.object)])
        if worked:
            self._stamp.write_text(f"{self.recipe}\n{said}")
            os.utime(self._stamp, ns=(started, started))  # A file that was edited meanwhile is newer than this.
            said += f"{self.name} compiled in {(time.time_ns() - started) / 1e9:.1f} s"
        return worked and not (is_on("WERROR") and "warning:" in said), said

    def _source(self) -> Path:
        """What the compiler reads: the source itself, or one that includes all of them."""
        if self.sources == (self.name,):
            return self.name
        all_of_them = self.object.with_suffix(".cc")
        includes = "".join(f'#include "{source.as_posix()}"\n' for source in self.sources)
        if not all_of_them.is_file() or all_of_them.read_text() != includes:
            all_of_them.write_text(includes)
        return all_of_them


def run(command: list[str]) -> tuple[bool, str]:
    """Runs one command of the build. Returns whether it worked, and what it said: with the command, if anything."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    said = done.returncode or done.stdout
    return done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}" if said else ""


def plan(tensorflow: TensorFlow, compiler: Compiler, objects: Path) -> list[Unit]:
    """Lists what is to be compiled, in paths relative to the root of the source tree.

    The recipe leaves TensorFlow's place out, so that environments with the same TensorFlow share their objects.
    """
    recipe = shlex.join([*compiler.command, compiler.version, *COMPILE_FLAGS, f"TensorFlow {tensorflow.version}"])
    command = (*compiler.command, *COMPILE_FLAGS, "-I.", *tensorflow.include_flags, "-c")
    parts: dict[Path, list[Path]] = {}
    for source in sorted(KERNELS.rglob("*.cc")):
        if not source.stem.endswith("_test"):
            parts.setdefault(source if source.parent == STANDARD else source.parent, []).append(source)
    units = []
    for name, sources in parts.items():
        made = objects / name.relative_to(KERNELS)
        named = shlex.join([recipe, *map(str, sources)])  # A source that is deleted leaves the object.
        units.append(Unit(name, tuple(sources), made.with_suffix(".o"), command, named))
    return sorted(units, key=lambda unit: (unit.name != LONGEST, unit.name in unit.sources))


def compile_units(units: Sequence[Unit], compiler: Compiler) -> None:
    """Compiles, and says how far it is.

    Raises:
        KernelBuildError: a source does not compile, or does so with a warning where those are errors.
    """
    at_once = jobs()
    print(f"compiling {len(units)} units, {at_once} at once: {compiler.version}", flush=True)
    faults = 0
    with ThreadPoolExecutor(at_once) as pool:
        for number, done in enumerate(as_completed([pool.submit(unit.compile) for unit in units]), 1):
            faultless, said = done.result()
            faults += not faultless
            print(f"{said} ({number} of {len(units)})", flush=True)
    if faults:
        raise KernelBuildError(f"{faults} of {len(units)} sources do not compile; the compiler's words are above")


def link(units: Sequence[Unit], tensorflow: TensorFlow, compiler: Compiler, library: Path) -> None:
    """Makes a library of the objects.

    Raises:
        KernelBuildError: it does not link.
    """
    flags = [*LINK_FLAGS, f"-L{tensorflow.folder}", *TENSORFLOW_LIBRARIES]
    if is_on("PORTABLE"):
        try:
            from build_tools import portable
        except ImportError as exc:
            raise KernelBuildError("`PORTABLE` needs pyelftools: `pip install auditwheel` brings it") from exc
        libraries = [tensorflow.folder / name.removeprefix("-l:") for name in TENSORFLOW_LIBRARIES]
        flags += portable.link_flags(compiler.command, libraries, library.parent / "outline")
    objects = [str(unit.object) for unit in units]
    worked, said = run([*compiler.command, *objects, *flags, "-o", str(library)])
    if not worked:
        raise KernelBuildError(f"the kernels do not link:\n{said}")


def _record(info: dict[str, object]) -> str:
    """What `build_info.json` says of the library as it is now: from what it was made, and the digest of its bytes."""
    whole = {**info, "sha256": hashlib.sha256(LIBRARY.read_bytes()).hexdigest()}
    return json.dumps(whole, indent=2) + "\n"


def _is_whole(info: dict[str, object]) -> bool:
    """Whether the library is there, as its record has it; what was cut short or exchanged is linked again."""
    try:
        return BUILD_INFO.read_text() == _record(info)
    except (OSError, ValueError):
        return False


def build() -> None:
    """Brings the kernel library of the source tree in the current folder up to date, and `build_info.json` beside it.

    Raises:
        KernelBuildError: something it needs is missing, a source does not compile, or the library does not link.
    """
    tensorflow = find_tensorflow()
    compiler = find_compiler()
    units = plan(tensorflow, compiler, OBJECTS / tensorflow.release)
    info: dict[str, object] = {"tensorflow": tensorflow.version, "supported": SUPPORTED_TENSORFLOW}
    info |= {"compiler": compiler.version, "python": platform.python_version()}
    objects = [str(unit.object) for unit in units]
    portable = ["PORTABLE"] if is_on("PORTABLE") else []
    recipe = shlex.join([*compiler.command, *objects, *LINK_FLAGS, *TENSORFLOW_LIBRARIES, *portable, json.dumps(info)])

    stamp = OBJECTS / "library.stamp"
    stale = [unit for unit in units if not unit.is_current()]
    if not stale and stamp.is_file() and stamp.read_text() == recipe and _is_whole(info):
        print(f"{LIBRARY} is up to date", flush=True)
        return
    stamp.unlink(missing_ok=True)
    compile_units(stale, compiler)
    scratch = OBJECTS / LIBRARY.name
    link(units, tensorflow, compiler, scratch)
    scratch.replace(LIBRARY)  # In one step: a process that has the old library open keeps it whole.
    BUILD_INFO.write_text(_record(info))
    stamp.write_text(recipe)
    print(f"{LIBRARY} linked", flush=True)
