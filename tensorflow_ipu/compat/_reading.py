"""Finds the old names that files of Python use."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tensorflow_ipu.compat import _names, _table
from tensorflow_ipu.compat._table import Absent

# A handler of one of these around an import or a use expects the case.
_GUARDS = frozenset({"AttributeError", "BaseException", "Exception", "ImportError", "ModuleNotFoundError"})

_IMPORTERS = frozenset({"__import__", "import_module"})


@dataclass
class Scope:
    """A module, function, class or comprehension."""

    parent: Scope | None = None
    is_class: bool = False
    bound: dict[str, list[str | ast.expr | None]] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    elsewhere: dict[str, Scope] = field(default_factory=dict)


@dataclass(frozen=True)
class Import:
    """An import that has to succeed."""

    line: int
    module: str
    name: str | None = None


@dataclass(frozen=True)
class Use:
    """A name, or a chain of attributes, that has to be there."""

    line: int
    node: ast.expr
    scope: Scope


class Reading(ast.NodeVisitor):
    """Reads a file."""

    def __init__(self, tree: ast.Module, package: str = "") -> None:
        """Takes a syntax tree, and the full name of the package that relative imports begin at."""
        self.scope = Scope()
        self.imports: list[Import] = []
        self.uses: list[Use] = []
        self.calls: list[Use] = []
        self.classes: list[tuple[int, list[str], list[ast.expr], Scope]] = []  # Line, functions, bases, around.
        self.modules: set[str] = set()
        self._package = package
        self._here = self.scope
        self._guarded = False
        self._is_fallback = False  # In a handler of a failed import, as with `module = None`.
        self.visit(tree)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            top = alias.name.partition(".")[0]
            self._bind(alias.asname or top, alias.name if alias.asname else top)
            self._note_import(alias.lineno, alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = self._absolute(node)
        if not module:
            return
        for alias in node.names:
            if alias.name == "*":
                self._here.stars.append(module)
                self._note_import(alias.lineno, module)
            else:
                self._bind(alias.asname or alias.name, f"{module}.{alias.name}")
                self._note_import(alias.lineno, module, alias.name)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:
            self._assign(target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.annotation)
        if node.value is not None:
            self.visit(node.value)
            self._assign(node.target, node.value)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        self._assign(node.target, node.value)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._note_use(node, node)
        else:
            self._bind(node.id, None)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._note_use(node, node)
        root: ast.expr = node
        while isinstance(root, ast.Attribute):
            root = root.value
        self.visit(root)

    def visit_Call(self, node: ast.Call) -> None:
        module = imported_by(node)
        if module is not None:
            self._note_import(node.lineno, module)
        if _is_call(node, "getattr") and len(node.args) == 2:
            self._note_use(node, _attribute(node))
        if not self._guarded:
            self.calls.append(Use(node.lineno, node, self._here))
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._bind(node.name, None)
        self._visit_all(node.decorator_list)
        if node.returns is not None:
            self.visit(node.returns)
        self._function(node.args, node.body)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._function(node.args, [node.body])

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._bind(node.name, None)
        self._visit_all([*node.decorator_list, *node.bases, *node.keywords])
        functions = [one.name for one in node.body if isinstance(one, ast.FunctionDef)]
        self.classes.append((node.lineno, functions, node.bases, self._here))
        with self._inner(is_class=True):
            self._visit_all(node.body)

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            with self._inner():
                self.generic_visit(node)
        else:
            super().visit(node)

    def visit_Global(self, node: ast.Global) -> None:
        self._here.elsewhere.update(dict.fromkeys(node.names, self.scope))

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        for name in node.names:
            scope = self._here.parent
            while scope is not None and (scope.is_class or name not in scope.bound):
                scope = scope.parent
            self._here.elsewhere[name] = scope or self.scope

    def visit_Try(self, node: ast.Try) -> None:
        is_guard = any(handler.type is None or _is_guard(handler.type) for handler in node.handlers)
        with self._guard(is_guard):
            self._visit_all(node.body)
        before, self._is_fallback = self._is_fallback, self._is_fallback or is_guard
        self._visit_all(node.handlers)
        self._is_fallback = before
        self._visit_all([*node.orelse, *node.finalbody])

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self._bind(node.name, None)
        self.generic_visit(node)

    def visit_With(self, node: ast.With) -> None:
        self._visit_all(node.items)
        with self._guard(any(_suppresses(item.context_expr) for item in node.items)):
            self._visit_all(node.body)

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        with self._guard(_asks(node.test)):
            self._visit_all(node.body)
        self._visit_all(node.orelse)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.visit(node.test)
        with self._guard(_asks(node.test)):
            self.visit(node.body)
        self.visit(node.orelse)

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        if node.name:
            self._bind(node.name, None)
        self.generic_visit(node)

    def _function(self, args: ast.arguments, body: Sequence[ast.AST]) -> None:
        all_args = [*args.posonlyargs, *args.args, *args.kwonlyargs, *filter(None, (args.vararg, args.kwarg))]
        self._visit_all([*args.defaults, *filter(None, args.kw_defaults)])
        self._visit_all([arg.annotation for arg in all_args if arg.annotation is not None])
        with self._inner():
            for arg in all_args:
                self._bind(arg.arg, None)
            self._visit_all(body)

    def _visit_all(self, nodes: Sequence[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            if not (self._is_fallback and isinstance(value, ast.Constant) and value.value is None):
                is_renaming = isinstance(value, (ast.Attribute, ast.Name)) or imported_by(value) is not None
                self._bind(target.id, value if is_renaming else None)
        elif isinstance(target, (ast.List, ast.Tuple)) and _pairs_with(target, value):
            for each, part in zip(target.elts, value.elts, strict=True):  # type: ignore[attr-defined]
                self._assign(each, part)
        else:
            self.visit(target)

    def _bind(self, name: str, value: str | ast.expr | None) -> None:
        scope = self._here.elsewhere.get(name, self._here)
        scope.bound.setdefault(name, []).append(value)

    def _note_import(self, line: int, module: str, name: str | None = None) -> None:
        self.modules |= {module} if name is None else {module, f"{module}.{name}"}
        if not self._guarded:
            self.imports.append(Import(line, module, name))

    def _note_use(self, place: ast.expr, node: ast.expr) -> None:
        if not self._guarded:
            self.uses.append(Use(place.end_lineno or place.lineno, node, self._here))

    def _absolute(self, node: ast.ImportFrom) -> str:
        """The full name of the module that a `from` names; empty outside of the known package."""
        if not node.level:
            return node.module or ""
        words = self._package.split(".") if self._package else []
        if node.level - 1 > len(words):
            return ""
        return ".".join([*words[: len(words) - node.level + 1], *filter(None, [node.module])])

    @contextmanager
    def _inner(self, is_class: bool = False) -> Iterator[None]:
        self._here = Scope(self._here, is_class)
        yield
        self._here = self._here.parent or self.scope

    @contextmanager
    def _guard(self, holds: bool) -> Iterator[None]:
        before, self._guarded = self._guarded, self._guarded or holds
        yield
        self._guarded = before


def imported_by(node: ast.expr) -> str | None:
    """The module that a call such as `importlib.import_module("a.b")` imports, or None."""
    if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords:
        return None
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
    argument = node.args[0]
    if name in _IMPORTERS and isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        # `__import__` gives the package at the top.
        return argument.value.partition(".")[0] if name == "__import__" else argument.value
    return None


def _attribute(node: ast.Call) -> ast.expr:
    """The attribute that `getattr(value, "name")` reads; the call itself for a computed name."""
    value, name = node.args
    if isinstance(name, ast.Constant) and isinstance(name.value, str):
        return ast.copy_location(ast.Attribute(value, name.value, ast.Load()), node)
    return node


def _is_call(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _pairs_with(target: ast.List | ast.Tuple, value: ast.expr) -> bool:
    if not isinstance(value, (ast.List, ast.Tuple)) or len(value.elts) != len(target.elts):
        return False
    return not any(isinstance(each, ast.Starred) for each in (*target.elts, *value.elts))


def _suppresses(context: ast.expr) -> bool:
    return (
        isinstance(context, ast.Call)
        and "suppress" in (getattr(context.func, "id", None), getattr(context.func, "attr", None))
        and any(map(_is_guard, context.args))
    )


def _is_guard(node: ast.expr) -> bool:
    kinds = node.elts if isinstance(node, ast.Tuple) else [node]
    return any(isinstance(kind, ast.Name) and kind.id in _GUARDS for kind in kinds)


def _asks(test: ast.expr) -> bool:
    """Whether a condition asks for a name by `hasattr`, or holds for type checkers alone."""
    return any(
        _is_call(node, "hasattr") or "TYPE_CHECKING" in (getattr(node, "id", None), getattr(node, "attr", None))
        for node in ast.walk(test)
    )


_MAIN = "__main__"


class Project:
    """Files, read together; names lead through all of them to modules outside."""

    def __init__(self, script: Path, folders: Sequence[Path], package: str = "", source: bytes | None = None) -> None:
        """Reads a script, which is in a file or in `source`, and its imports; a file that does not parse is left out."""
        self.files: dict[Path, Reading] = {}  # In the order of imports.
        self.unreadable: list[Found] = []
        self._modules: dict[str, Reading] = {}
        queue, seen = [(script, package, _MAIN)], set[Path]()
        while queue:
            file, package, name = queue.pop(0)
            if file.resolve() in seen:
                continue
            seen.add(file.resolve())
            try:
                given = source if name == _MAIN else None
                tree = ast.parse(file.read_bytes() if given is None else given, str(file))
            except (SyntaxError, ValueError, OSError) as exc:
                self.unreadable.append(Found(str(file), getattr(exc, "lineno", None) or 1, f"{exc.args[0]}"))
                continue
            reading = Reading(tree, package)
            self.files[file] = self._modules[name] = reading
            queue += [found for module in sorted(reading.modules) for found in _files(folders, module)]

    def meanings(self, use: Use) -> set[str]:
        """All full names that an expression can stand for; none where it may be anything else."""
        return self._of(use.node, use.scope, frozenset())

    def full(self, name: str) -> str:
        """What a full name stands for where a module of the project imports it."""
        for _ in range(len(self._modules) + 1):  # Two modules can have a name from each other.
            words = name.split(".")
            for end in range(len(words) - 1, 0, -1):
                reading = self._modules.get(".".join(words[:end]))
                found = self._bound(reading.scope, words[end], frozenset()) if reading is not None else set()
                if len(found) == 1:
                    name = ".".join([found.pop(), *words[end + 1 :]])
                    break
            else:
                break
        return name

    def sources(self, use: Use) -> Iterator[str]:
        """The old modules that an unbound name can only come from, by `from module import *`."""
        if not isinstance(use.node, ast.Name) or _scope_of(use.node.id, use.scope) is not None:
            return
        seen = set[str]()
        queue = list(_outermost(use.scope).stars)
        while queue:
            module = queue.pop()
            if module in seen:
                continue
            seen.add(module)
            if module in self._modules:
                queue += self._modules[module].scope.stars
            elif _names.module_exists(module):
                yield module

    def _of(self, node: ast.expr, scope: Scope, asked: frozenset[tuple[int, str]]) -> set[str]:
        if isinstance(node, ast.Attribute):
            return {self.full(f"{name}.{node.attr}") for name in self._of(node.value, scope, asked)}
        if isinstance(node, ast.Name):
            around = _scope_of(node.id, scope)
            return self._bound(around or _outermost(scope), node.id, asked)
        if isinstance(node, ast.NamedExpr):
            return self._of(node.value, scope, asked)
        module = imported_by(node)
        return set() if module is None else {module}

    def _bound(self, scope: Scope, name: str, asked: frozenset[tuple[int, str]]) -> set[str]:
        """What a name of a scope stands for, by its bindings or by star imports."""
        if (id(scope), name) in asked:  # It is bound to itself, by way of another.
            return set()
        asked |= {(id(scope), name)}
        found = set[str]()
        for value in scope.bound.get(name, ()):
            full = {value} if isinstance(value, str) else self._of(value, scope, asked) if value is not None else set()
            if not full:
                return set()
            found |= full
        if found or name in scope.bound:
            return found
        for module in scope.stars:
            if module in self._modules:
                found |= self._bound(self._modules[module].scope, name, asked)
            elif _names.module_exists(module) and name in _names.existing(module):
                found.add(f"{module}.{name}")
        return found


def _scope_of(name: str, scope: Scope) -> Scope | None:
    """The scope that binds a name for an expression in `scope`, or None."""
    scope = scope.elsewhere.get(name, scope)
    around: Scope | None = scope
    while around is not None and (name not in around.bound or (around.is_class and around is not scope)):
        around = around.parent
    return around


def _outermost(scope: Scope) -> Scope:
    while scope.parent is not None:
        scope = scope.parent
    return scope


def _files(folders: Sequence[Path], module: str) -> Iterator[tuple[Path, str, str]]:
    """The files of a module and of the packages around it, each with its package and full name."""
    words = module.split(".")
    for folder in folders:
        for end in range(1, len(words) + 1):
            name, start = ".".join(words[:end]), folder.joinpath(*words[:end])
            beside = start.with_suffix(".py")
            if beside.is_file():
                yield beside, name.rpartition(".")[0], name
            if (start / "__init__.py").is_file():
                yield start / "__init__.py", name, name


@dataclass(frozen=True, order=True)
class Found:
    """A place with a message."""

    path: str
    line: int
    message: str


def of_script(script: Path) -> Project:
    """Reads a script, and the modules of its folder that it imports."""
    return Project(script, [script.parent])


def of_all(paths: Iterable[Path]) -> list[Project]:
    """Reads scripts and the Python files of folders."""
    roots = list(paths)
    folders = [path for path in roots if path.is_dir()]
    # A folder may have other things under such a name, such as a pipe, at which a read would wait.
    files = [path for path in roots if path not in folders]
    files += [file for folder in folders for file in sorted(folder.rglob("*.py")) if file.is_file()]
    return [Project(file, [file.parent, *(folder for folder in folders if folder in file.parents)]) for file in files]


def missing(project: Project) -> list[Found]:
    """What does not exist of what files use, but for Keras's own names."""
    # Left out is what stands in a `try` that catches the error, or below `hasattr`; so are uses of a name that its scope
    # also binds otherwise than by an import or a renaming.
    return list(_found(project, _missing))


def recorded(project: Project) -> list[Found]:
    """What has no effect of what files use."""
    return list(_found(project, _recorded))


def _found(project: Project, say: Callable[[Project, Reading], Iterator[tuple[int, str]]]) -> Iterator[Found]:
    for file, reading in project.files.items():
        yield from sorted({Found(str(file), line, message) for line, message in say(project, reading)})


def _missing(project: Project, reading: Reading) -> Iterator[tuple[int, str]]:
    for needed in reading.imports:
        message = _missing_import(needed.module, needed.name)
        if message is not None:
            yield needed.line, message
    for use in reading.uses:
        # What is missing of its first name is told at the import.
        if isinstance(use.node, ast.Attribute) and not _all_missing(project.meanings(begin(use))):
            messages = _all_missing(project.meanings(use))
            if messages:
                yield use.line, messages[0]
        for module in project.sources(use):
            if isinstance(use.node, ast.Name) and isinstance(_names.target(module, use.node.id), Absent):
                yield use.line, _names.missing_name(module, use.node.id) or ""


def _all_missing(names: set[str]) -> list[str]:
    """The messages for names of which one has to exist; none where one does."""
    messages = [_missing_use(full) for full in sorted(names)]
    return [] if None in messages else [message for message in messages if message]


def begin(use: Use) -> Use:
    """The name that a chain of attributes begins with."""
    node = use.node
    while isinstance(node, ast.Attribute):
        node = node.value
    return Use(use.line, node, use.scope)


def _recorded(project: Project, reading: Reading) -> Iterator[tuple[int, str]]:
    for use in reading.uses:
        for full in sorted(project.meanings(use)):
            module, name = _split(full)
            what = _table.recorded(_names.target(module, name)) if name else None
            if what is not None:
                yield use.line, f"`{module}.{name}` changes no result: {what}"


def _missing_import(module: str, name: str | None) -> str | None:
    if _names.is_of_keras(module) or (name and _names.is_of_keras(f"{module}.{name}")):
        return None
    words = module.split(".")
    around = (".".join(words[:end]) for end in range(1, len(words) + 1))
    message = next(filter(None, map(_names.missing_module, around)), None) or _missing_companion(module)
    if message is not None or name is None:
        return message
    if _names.module_exists(module):
        return _names.missing_name(module, name)
    return _names.missing_module(f"{module}.{name}")


def _missing_companion(module: str) -> str | None:
    top = module.partition(".")[0]
    if top not in _names.COMPANIONS or importlib.util.find_spec(top) is not None:
        return None
    return f"there is no package `{top}`: it belongs to Graphcore's SDK, and tensorflow_ipu has nothing in its place"


def _missing_use(full: str) -> str | None:
    module, name = _split(full)
    return _names.missing_name(module, name) if name and not _names.is_of_keras(module) else None


def _split(full: str) -> tuple[str, str]:
    """The innermost old module in a full name, and the word after it; empty where there is neither."""
    words = full.split(".")
    for end in range(len(words) - 1, 0, -1):
        module = ".".join(words[:end])
        if _names.module_exists(module):
            return module, words[end]
    return "", ""
