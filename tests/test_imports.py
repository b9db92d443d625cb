"""The import graph is the architecture: it runs downward, and past no other package's private names."""

import ast
import pathlib

import pytest

import tensorflow_ipu

ROOT = pathlib.Path(tensorflow_ipu.__file__).parent

# A package or module: the layer it is in. It may import from its own layer's own package and from lower layers.
LAYERS = {
    "__init__": 11,
    "__main__": 11,
    "compat": 10,
    "keras": 9,
    "pipelining": 8,
    "strategy": 8,
    "_extended": 7,
    "compiler": 7,
    "loops": 7,
    "optimizers": 7,
    "scopes": 7,
    "ops": 6,
    "feeds": 5,
    "machine": 4,
    "replicas": 4,
    "config": 3,
    "_library": 2,
    "_autograph": 1,
    "_environment": 1,
    "_faults": 1,
    "_units": 1,
    "_poplar_options": 1,
    "_tracebacks": 1,
    "errors": 0,
}

# The state of the system is private to users, and open to the layers that act on it. A collective's site lives as a
# feed does.
OPEN = {"tensorflow_ipu.config._state", "tensorflow_ipu.feeds._feed"}


def part(module):
    """The package or module right below the root that a dotted name belongs to."""
    return module.split(".")[1]


def imports():
    """(file, its part, imported module or name) for each import of this package in it."""
    for file in sorted(ROOT.rglob("*.py")):
        relative = file.relative_to(ROOT)
        own = relative.parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tensorflow_ipu":
                for alias in node.names:
                    yield str(relative), own, f"{node.module}.{alias.name}"
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.startswith("tensorflow_ipu."):
                        yield str(relative), own, alias.name


def test_every_module_has_a_layer():
    parts = {file.relative_to(ROOT).parts[0].removesuffix(".py") for file in ROOT.rglob("*.py")}
    assert parts <= set(LAYERS), "give the new part a layer"


def test_imports_run_downward():
    upward = [
        f"{file} imports {target}"
        for file, own, target in imports()
        if part(target) != own and LAYERS[part(target)] >= LAYERS[own]
    ]
    assert not upward


def test_no_import_goes_through_a_private_name_of_another_package():
    private = [
        f"{file} imports {target}"
        for file, own, target in imports()
        if part(target) != own
        and own != "__main__"  # It is put together from commands, which no user calls.
        and any(name.startswith("_") for name in target.split(".")[2:])
        and not any(target == open_ or target.startswith(f"{open_}.") for open_ in OPEN)
    ]
    assert not private


def test_kernels_are_reached_through_the_one_door_alone():
    doors = [
        str(file.relative_to(ROOT))
        for file in sorted(ROOT.rglob("*.py"))
        if any(call in file.read_text() for call in ("load_op_library(", "load_library(", "CDLL("))
    ]
    assert doors == ["_library.py"]


@pytest.mark.parametrize("upper", ["feeds", "replicas", "config"])
def test_a_layer_is_found_to_reach_up_when_it_does(upper):
    """The check itself can fail."""
    assert LAYERS[upper] < LAYERS["strategy"]
