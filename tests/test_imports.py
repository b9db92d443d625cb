"""Imports follow the architecture: modules import only from lower layers, and no private names of other packages."""

import ast
import functools
import pathlib

import pytest

import tensorflow_ipu

ROOT = pathlib.Path(tensorflow_ipu.__file__).parent


def layers(*rows):
    return {name: index for index, names in enumerate(rows) for name in names.split()}


# The packages and modules of each layer, from the lowest: each may import from itself and from lower layers.
LAYERS = layers(
    "_base errors",
    "_tensorflow",
    "_native",
    "_upcalls",
    "config hosts metrics",
    "programs",
    "feeds sharding tracing",
    "distributed ops",
    "loops optimizers scopes",
    "pipelining",
    "strategy",
    "serving",
    "compiler executables keras multi_worker_strategy",
    "analysis",
    "machine precision",
    "compat",
    "cli",
    "__init__ __main__",
)

# Only this module contains calls from lower layers to higher ones.
UPCALLS = "_upcalls"

# The package runs without this room. Predictions import it inside of functions.
ON_DEMAND = "analysis"

# The rooms of each package, from the lowest: a room may import from itself and from lower rooms.
ROOMS = {
    "pipelining": layers(
        "schedule",
        "stage_graphs",
        "traced_stage",
        "execution weight_update",
        "options",
        "stages",
        "instructions",
        "program",
        "_pipeline",
        "__init__",
    ),
    "keras": layers(
        *(
            "_version",
            "_keras3 _keras2_training",
            "_keras2",
            "_keras",
            "layers optimizers data",
            "options",
            "pipeline",
        ),
        *("model tensor_probes", "__init__"),
    ),
    "analysis": layers(
        "saved",
        "machine",
        "pipelines",
        "models program_report precision predicted_trace",
        "pages",
        "__init__",
    ),
}


# Rooms that do not import TensorFlow.
PLAIN = ("pipelining/schedule",)

# Modules that are private for users but open to other layers: the configured system, the Keras of the process, and the
# lifetime of native objects, which feeds and collectives share.
OPEN = {"tensorflow_ipu.config._state", "tensorflow_ipu.feeds._native_object", "tensorflow_ipu.keras._keras"}


def part(module):
    """Returns the package or module directly below the root that contains a dotted name."""
    return module.split(".")[1]


def nodes_of(tree):
    """Returns the nodes of a module, except imports of `ON_DEMAND` in functions and for type checkers."""
    loaded = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.If)]
    demanded = {
        id(inner)
        for node in loaded
        if isinstance(node, ast.FunctionDef) or ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
        if isinstance(inner, ast.ImportFrom) and (inner.module or "").startswith(f"tensorflow_ipu.{ON_DEMAND}")
    }
    return [node for node in ast.walk(tree) if id(node) not in demanded]


@functools.cache
def imports():
    """Returns (file, its part, imported module or name) for each import of this package, except imports on demand."""
    found_imports = []
    for file in sorted(ROOT.rglob("*.py")):
        relative = file.relative_to(ROOT)
        importer = relative.parts[0].removesuffix(".py")
        for node in nodes_of(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tensorflow_ipu":
                found_imports += [(str(relative), importer, f"{node.module}.{alias.name}") for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names if alias.name.startswith("tensorflow_ipu.")]
                found_imports += [(str(relative), importer, name) for name in names]
    return found_imports


def test_every_module_has_a_layer_and_imports_run_downward():
    parts = {file.relative_to(ROOT).parts[0].removesuffix(".py") for file in ROOT.rglob("*.py")}
    assert parts <= set(LAYERS), "give the new part a layer"
    assert not [
        f"{file} imports {target}"
        for file, importer, target in imports()
        if importer != UPCALLS and part(target) != importer and LAYERS[part(target)] >= LAYERS[importer]
    ]


def test_calls_upward_are_few_and_import_as_they_are_called():
    tree = ast.parse((ROOT / f"{UPCALLS}.py").read_text())
    modules = [node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert all(LAYERS[part(module)] < LAYERS[UPCALLS] for module in modules if module.startswith("tensorflow_ipu."))
    rows = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr.isupper()]
    assert 0 < len(rows) + sum(isinstance(node, ast.FunctionDef) for node in tree.body) <= 15


def test_no_import_goes_through_a_private_name_of_another_package():
    private = [
        f"{file} imports {target}"
        for file, importer, target in imports()
        if part(target) != importer
        and importer not in ("__main__", "cli")  # They combine commands, which users do not call.
        and any(name.startswith("_") and name != "__all__" for name in target.split(".")[2:])
        and not any(target == open_ or target.startswith(f"{open_}.") for open_ in OPEN)
    ]
    assert not private


def test_the_picture_of_the_architecture_has_all_packages_and_imports_run_downward():
    """The picture in docs/architecture.md has the names of packages and modules in rows, from the highest."""
    page = (pathlib.Path(__file__).parents[1] / "docs" / "architecture.md").read_text()
    rows = page.split("```")[1].strip("\n").splitlines()
    row_of = {name: index for index, row in enumerate(rows) for name in row[:43].split() if name in LAYERS}
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} <= set(row_of)
    assert not [
        f"{file} imports {target}"
        for file, importer, target in imports()
        if importer in row_of and part(target) in row_of and row_of[part(target)] < row_of[importer]
    ]


def imports_between_rooms():
    """Yields (file, its room, imported room, imported name) for each import of another room of the same package."""
    for file, importer, target in imports():
        rooms = ROOMS.get(importer, {})
        names = target.split(".")[2:]
        room = pathlib.Path(file).parts[1].removesuffix(".py") if rooms else ""
        if part(target) == importer and names and names[0] in rooms and names[0] != room:
            yield file, (importer, room), (importer, names[0]), names[1:]


def test_modules_of_packages_with_rooms_are_in_one_and_imports_run_downward_and_through_public_names():
    for package, rooms in ROOMS.items():
        paths = (ROOT / package).iterdir()
        names_of_files = {path.stem for path in paths if path.suffix == ".py" or (path / "__init__.py").exists()}
        assert names_of_files == set(rooms), package
    for file, (package, importer), target, names in imports_between_rooms():
        assert ROOMS[package][target[1]] < ROOMS[package][importer], f"{file} imports from {'/'.join(target)}"
        assert not any(name.startswith("_") for name in names), f"{file} imports {'.'.join((*target, *names))}"


@pytest.mark.parametrize("room", PLAIN)
def test_plans_and_reports_import_no_tensorflow(room):
    """Nor do the modules of this package that they import. One error class needs TensorFlow, and is imported late."""
    waiting, checked = sorted((ROOT / room).glob("*.py")), set()
    while waiting:
        file = waiting.pop()
        if file in checked:
            continue
        checked.add(file)
        for node in ast.parse(file.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            module = getattr(node, "module", None) or ""
            full_names = [f"{module}.{name}" if isinstance(node, ast.ImportFrom) else name for name in names]
            assert not any(full_name.split(".")[0] in ("tensorflow", "keras") for full_name in full_names), file
            for full_name in (*full_names, module):
                path = ROOT.parent / f"{full_name.replace('.', '/')}.py"
                if full_name.startswith("tensorflow_ipu.") and path.exists():
                    waiting.append(path)


def test_the_library_is_loaded_by_one_module_alone():
    loaders = [
        str(file.relative_to(ROOT))
        for file in sorted(ROOT.rglob("*.py"))
        # Modules that the process has already imported are not loaded again.
        if any(
            call in file.read_text().replace("CDLL(None)", "")
            for call in ("load_op_library(", "load_library(", "CDLL(")
        )
    ]
    assert loaders == ["_native/library.py"]
