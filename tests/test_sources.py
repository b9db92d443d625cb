"""What the sources keep to, so that whoever reads them finds his way: sizes, names, types, and checks written once."""

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
    """(path below the package, its syntax tree)."""
    return [
        (file.relative_to(PACKAGE).as_posix(), ast.parse(file.read_text())) for file in sorted(PACKAGE.rglob("*.py"))
    ]


def any_annotations(tree):
    return sum(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(tree))


def bare_any(body):
    """Public functions of a module, and methods of its public classes, with an argument or result of `Any` and no more."""
    found = []
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            found += bare_any(node.body)
        if isinstance(node, ast.FunctionDef) and (node.name == "__init__" or not node.name.startswith("_")):
            said = [one.annotation for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            if any(isinstance(one, ast.Name) and one.id == "Any" for one in (*said, node.returns)):
                found.append(node.name)
    return found


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


def test_types_are_said():
    """Structures are `Nested` (`_base/types.py`), and what may be anything is `object`."""
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
    """What is written in place is left half when the disk is full, or mixed by two processes."""
    writes = re.compile(
        r"""\.write_(text|bytes)\(|\bos\.(replace|rename)\(|mkstemp|[^.]\bopen\([^)]*["'][wax]b?\+?["']"""
    )
    assert [path for path, _ in python() if writes.search((PACKAGE / path).read_text())] == ["_base/files.py"]


def words(name):
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)}


def glossary():
    """The terms of the glossary in docs/architecture.md."""
    rows = (ROOT / "docs" / "architecture.md").read_text().split("## Glossary")[1].splitlines()
    return [row.split("|")[1].strip() for row in rows if row.startswith("| ")][2:]


def test_names_of_modules_and_classes_use_words_of_the_field_or_of_the_glossary():
    assert 0 < len(glossary()) <= 60
    known = words((ROOT / "tests" / "field_words.txt").read_text()) | words(" ".join(glossary()))
    named = {path: {path.rpartition("/")[2].removesuffix(".py")} for path, _ in python() if "__init__" not in path}
    for path, tree in python():
        named.setdefault(path, set()).update(node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    unknown = {f"{path}: {name}" for path, names in named.items() for name in names if words(name) - known}
    assert unknown == set(), "take a word of the field, or add one to field_words.txt or to the glossary"
