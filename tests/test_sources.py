"""Rules for the sources: sizes of files, precise types, and checks that are written once."""

import ast
import functools
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "tensorflow_ipu"

MOST_LINES = 620
MOST_ANY = 800


@functools.cache
def python():
    """Returns (path below the package, syntax tree) for each Python file of the package."""
    return [
        (file.relative_to(PACKAGE).as_posix(), ast.parse(file.read_text())) for file in sorted(PACKAGE.rglob("*.py"))
    ]


def any_annotations(tree):
    return sum(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(tree))


def bare_any(body):
    """Returns the public functions and methods of a module with an argument or result of the type `Any`."""
    functions = []
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            functions += bare_any(node.body)
        if isinstance(node, ast.FunctionDef) and (node.name == "__init__" or not node.name.startswith("_")):
            arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            types = (*(argument.annotation for argument in arguments), node.returns)
            if any(isinstance(type_, ast.Name) and type_.id == "Any" for type_ in types):
                functions.append(node.name)
    return functions


def test_no_file_is_longer_than_one_reads_at_once():
    folders = ("tensorflow_ipu", "tests", "benchmarks", "examples", "build_tools")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*") if file.suffix in (".py", ".cc", ".h")]
    long = {
        file.relative_to(ROOT).as_posix(): lines
        for file in files
        if (lines := file.read_text().count("\n")) > MOST_LINES
    }
    assert len(files) > 400
    assert long == {}


def test_types_are_precise():
    """Structures are `Nested` (`_base/types.py`), and arbitrary values are `object`."""
    assert sum(any_annotations(tree) for _, tree in python()) <= MOST_ANY
    public = [(path, tree) for path, tree in python() if not re.search(r"(^|/)_", path.replace("__init__", ""))]
    assert len(public) > 100
    assert [f"{path}: {name}" for path, tree in public for name in bare_any(tree.body)] == []


def test_checks_of_bools_are_written_once():
    text = {path: (PACKAGE / path).read_text() for path, _ in python()}
    assert [path for path, source in text.items() if re.search(r"must be True(?!, but)", source)] == ["_base/checks.py"]
    assert [path for path, source in text.items() if re.search(r"not isinstance\(\w+, bool\)", source)] == [
        "_base/checks.py"
    ]


def test_files_are_written_in_one_place():
    """A file that is written in place is incomplete if the disk is full, and mixed if two processes write it."""
    writes = re.compile(
        r"""\.write_(text|bytes)\(|\bos\.(replace|rename)\(|mkstemp|[^.]\bopen\([^)]*["'][wax]b?\+?["']"""
    )
    assert [path for path, _ in python() if writes.search((PACKAGE / path).read_text())] == ["_base/files.py"]
