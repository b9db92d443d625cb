"""The kernels' includes are their architecture, as imports are the package's: they run downward."""

import pathlib
import re

KERNELS = pathlib.Path(__file__).parents[1] / "tensorflow_ipu" / "kernels"

# The folders, each above those that it may include.
LAYERS = (
    "control",
    "ops",
    "lowering",
    "precision",
    "ffi",
    "device",
    "replicas",
    "collectives",
    "feeds",
    "host",
    "core",
)

# The folders that may read the headers of XLA's compiler, which take most of the time of a build.
COMPILER = {"lowering", "precision"}


def sources() -> list[pathlib.Path]:
    return sorted(path for path in KERNELS.rglob("*") if path.suffix in (".cc", ".h"))


def includes(path: pathlib.Path) -> list[str]:
    return re.findall(r'^#include ["<]([^">]+)[">]', path.read_text(), re.MULTILINE)


def folder_of(include: str) -> str | None:
    match = re.match(r"tensorflow_ipu/kernels/([a-z_]+)/", include)
    return match and match[1]


def test_every_folder_has_a_layer():
    assert {path.relative_to(KERNELS).parts[0] for path in sources()} == set(LAYERS), "give the new folder a layer"


def test_includes_run_downward():
    upward = [
        f"{path.relative_to(KERNELS)} includes {include}"
        for path in sources()
        for include in includes(path)
        if (folder := folder_of(include)) is not None
        and LAYERS.index(folder) < LAYERS.index(path.relative_to(KERNELS).parts[0])
    ]
    assert not upward


def test_the_core_needs_the_standard_library_alone():
    foreign = [
        f"{path.relative_to(KERNELS)} includes {include}"
        for path in sources()
        if path.relative_to(KERNELS).parts[0] == "core"
        for include in includes(path)
        if "/" in include and folder_of(include) != "core" and not include.startswith("sys/")
    ]
    assert not foreign


def test_headers_of_the_compiler_are_read_where_programs_are_lowered_alone():
    """A unit that reads them takes five times as long to compile."""
    heavy = [
        f"{path.relative_to(KERNELS)} includes {include}"
        for path in sources()
        if path.relative_to(KERNELS).parts[0] not in COMPILER
        for include in includes(path)
        if include.startswith(("tensorflow/compiler/tf2xla/xla_", "xla/hlo/"))
    ]
    assert not heavy
