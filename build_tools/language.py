"""Checks docstrings, names and comments of the sources by a few rules: `make lint`.

    python build_tools/language.py [FILE ...]

The script prints `file:line: finding` for each finding, and exits with status 1 if there are any. Everything else about the
language is for a reader to judge.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# A docstring that begins with one of these has no verb, so the reader has to guess what the function does.
HEADLESS = re.compile(r"(What|Whether|Which|Who|Whose|Where|How|When|Why)\b")

# Names that may hold anything. They hide from the reader which values the next lines use.
EMPTY_NAMES = re.compile(
    r"(each|found|given|said|told|asked|wanted|whole|own|words|things?|made|held"
    r"|here|there|many|much|mine|theirs|ours)"
)

# A comment that names a file of this project must name one that exists. Files of users, of examples and of TensorFlow are
# recognized by these names and by their folders.
FILE_NAME = re.compile(r"(?<![\w/.*}-])((?:\w+/)*)(\w+\.(?:py|cc|h|md))\b")
FOREIGN_FILES = re.compile(r"(train|script|data|model|main|feed|conf|\w)\.py|user\.cc|mpi\.h")
FOREIGN_FOLDERS = ("tensorflow/", "xla/", "absl/", "keras/src/", "site-packages/")


def main() -> None:
    """Checks the files that the command line names, or all sources under version control."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    base_names = {name.rpartition("/")[2] for name in listed}
    checked = sys.argv[1:] or [
        name for name in listed if name.startswith(("tensorflow_ipu/", "tests/", "build_tools/"))
    ]
    findings: list[str] = []
    for name in checked:
        path = ROOT / name
        if path.suffix == ".py" and "/scripts/" not in name:  # `scripts/` has scripts of users.
            findings += [f"{name}:{line}: {finding}" for line, finding in of_python(path.read_text(), base_names, name)]
        elif path.suffix in (".cc", ".h"):
            findings += [f"{name}:{line}: {finding}" for line, finding in of_cpp(path.read_text(), base_names)]
    print(*findings, sep="\n", end="\n" if findings else "")
    sys.exit(bool(findings))


def of_python(source: str, base_names: set[str], name: str = "tensorflow_ipu/module.py") -> Iterator[tuple[int, str]]:
    """Yields the line and text of each finding in a Python source. Tests may have any docstrings and names."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node) or ""
            line = node.body[0].lineno if text else 0
            yield from stale_files(line, text, base_names)
            if not name.startswith("tests/") and (first := HEADLESS.match(text)):
                yield line, f"the docstring begins with `{first[0]}`: begin with a verb, or with the noun of a property"
        if isinstance(node, (ast.Name, ast.arg)):
            identifier = node.id if isinstance(node, ast.Name) else node.arg
            is_read = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
            if identifier == "_" and is_read:
                yield node.lineno, "`_` is read: give the value a name"
            if EMPTY_NAMES.fullmatch(identifier) and not is_read and not name.startswith("tests/"):
                yield node.lineno, f"the name `{identifier}` says nothing of what it holds"
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield from stale_files(token.start[0], token.string, base_names)


def of_cpp(source: str, base_names: set[str]) -> Iterator[tuple[int, str]]:
    """Yields the line and text of each finding in the comments of a C++ source."""
    for number, line in enumerate(source.splitlines(), 1):
        if comment := re.search(r"//\s?(.*)", line):
            yield from stale_files(number, comment[1], base_names)


def stale_files(line: int, text: str, base_names: set[str]) -> Iterator[tuple[int, str]]:
    """Yields a finding for each file of ours that a text names and that does not exist."""
    for folders, file in FILE_NAME.findall(text):
        foreign = FOREIGN_FILES.fullmatch(file) or folders.startswith(FOREIGN_FOLDERS)
        if file not in base_names and not foreign:
            yield line, f"there is no file `{folders}{file}`"


if __name__ == "__main__":
    main()
