"""The import graph is the architecture: it runs downward, and past no other package's private names."""

import ast
import pathlib

import pytest

import tensorflow_ipu

ROOT = pathlib.Path(tensorflow_ipu.__file__).parent

# A package or module: the layer it is in. It may import from its own layer's own package and from lower layers.
LAYERS = {
    "__init__": 15,
    "__main__": 15,
    "cli": 14,
    "compat": 14,
    "precision": 13,
    "compiler": 12,
    "executables": 12,
    "keras": 12,
    "multi_worker_strategy": 12,
    "serving": 11,
    "strategy": 10,
    "pipelining": 9,
    "loops": 7,
    "optimizers": 7,
    "scopes": 7,
    "distributed": 6,
    "ops": 6,
    "feeds": 5,
    "sharding": 5,
    "tracing": 5,
    "machine": 4,
    "replicas": 4,
    "config": 3,
    "hosts": 3,
    "metrics": 3,
    "_native": 2,
    "_tensorflow": 1,
    "errors": 0,
    "_base": 0,
}

# The rooms of a package, as its layers: a room may import from lower rooms, and from itself.
ROOMS = {
    "pipelining": {
        "schedule": 0,
        "report": 1,
        "stages": 1,
        "training": 2,
        "arguments": 3,
        "program": 4,
        "_pipeline": 5,
        "parts": 5,
        "__init__": 6,
    },
    "keras": {
        "_keras_internals": 0,
        "_version": 0,
        "layers": 1,
        "optimizers": 1,
        "data": 1,
        "options": 2,
        "pipeline": 2,
        "model": 3,
        "tensor_probes": 3,
        "__init__": 4,
    },
}

# Rooms that need no TensorFlow.
PLAIN = ("pipelining/schedule", "pipelining/report")

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
        and own not in ("__main__", "cli")  # They are put together from commands, which no user calls.
        and any(name.startswith("_") for name in target.split(".")[2:])
        and not any(target == open_ or target.startswith(f"{open_}.") for open_ in OPEN)
    ]
    assert not private


def picture():
    """The rows of the picture in docs/architecture.md, from above: the names of packages and modules in each."""
    page = (pathlib.Path(__file__).parents[1] / "docs" / "architecture.md").read_text()
    rows = page.split("```")[1].strip("\n").splitlines()
    return [[name for name in row[:43].split() if name in LAYERS] for row in rows]


def test_the_picture_of_the_architecture_has_all_packages():
    drawn = {name for row in picture() for name in row}
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} <= drawn


def test_the_picture_of_the_architecture_has_imports_run_downward():
    row_of = {name: at for at, row in enumerate(picture()) for name in row}
    upward = [
        f"{file} imports {target}"
        for file, own, target in imports()
        if own in row_of and part(target) in row_of and row_of[part(target)] < row_of[own]
    ]
    assert not upward


def imports_between_rooms():
    """(file, its room, the imported room, the imported name) for each import of another room of the same package."""
    for file, own, target in imports():
        rooms = ROOMS.get(own, {})
        names = target.split(".")[2:]
        room = pathlib.Path(file).parts[1].removesuffix(".py") if rooms else ""
        if part(target) == own and names and names[0] in rooms and names[0] != room:
            yield file, (own, room), (own, names[0]), names[1:]


def test_every_module_of_a_package_with_rooms_is_in_a_room():
    for package, rooms in ROOMS.items():
        found = {
            path.name.removesuffix(".py")
            for path in (ROOT / package).iterdir()
            if path.suffix == ".py" or (path / "__init__.py").exists()
        }
        assert found == set(rooms), package


def test_imports_between_rooms_run_downward():
    upward = [
        f"{file} imports from {'/'.join(target)}"
        for file, (package, own), target, _ in imports_between_rooms()
        if ROOMS[package][target[1]] >= ROOMS[package][own]
    ]
    assert not upward


def test_no_import_goes_through_a_private_name_of_another_room():
    private = [
        f"{file} imports {'.'.join((*target, *names))}"
        for file, _, target, names in imports_between_rooms()
        if any(name.startswith("_") for name in names)
    ]
    assert not private


@pytest.mark.parametrize("room", PLAIN)
def test_plans_and_reports_import_no_tensorflow(room):
    """Neither do they by way of what they import from here. The kind of one error is TensorFlow's, and imported late."""
    waiting, seen = sorted((ROOT / room).glob("*.py")), set()
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        for node in ast.parse(file.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            module = getattr(node, "module", None) or ""
            wholes = [f"{module}.{name}" if isinstance(node, ast.ImportFrom) else name for name in names]
            assert not any(whole.split(".")[0] in ("tensorflow", "keras") for whole in wholes), file
            for whole in (*wholes, module):
                path = ROOT.parent / f"{whole.replace('.', '/')}.py"
                if whole.startswith("tensorflow_ipu.") and path.exists():
                    waiting.append(path)


def test_the_library_is_loaded_by_one_module_alone():
    loaders = [
        str(file.relative_to(ROOT))
        for file in sorted(ROOT.rglob("*.py"))
        # What the process has already is loaded from nowhere.
        if any(
            call in file.read_text().replace("CDLL(None)", "")
            for call in ("load_op_library(", "load_library(", "CDLL(")
        )
    ]
    assert loaders == ["_native/library.py"]


@pytest.mark.parametrize("upper", ["feeds", "replicas", "config"])
def test_a_layer_is_found_to_reach_up_when_it_does(upper):
    """The check itself can fail."""
    assert LAYERS[upper] < LAYERS["strategy"]
