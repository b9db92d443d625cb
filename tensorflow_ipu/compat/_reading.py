"""Reads a file of Python: what it imports, binds and uses."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

# A handler of one of these around an import or a use expects the case.
_GUARDS = frozenset({"AttributeError", "BaseException", "Exception", "ImportError", "ModuleNotFoundError"})

_IMPORTERS = frozenset({"__import__", "import_module"})


@dataclass
class Scope:
    """A module, function, class or comprehension."""

    parent: Scope | None = None
    is_class: bool = False
    name: str = ""  # That of a function or class.
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
        self.names: list[tuple[str, Scope]] = []  # All that are read, also as attributes.
        self.assigned: list[tuple[ast.expr, ast.expr, Scope]] = []  # Target, value.
        self.loops: list[Use] = []  # What `for` goes over.
        self.modules: dict[str, int] = {}  # All that is imported or may be, and the line of the first such import.
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
            self.assigned.append((target, node.value, self._here))
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
            self.names.append((node.id, self._here))
            self._note_use(node, node)
        else:
            self._bind(node.id, None)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._note_use(node, node)
        root: ast.expr = node
        while isinstance(root, ast.Attribute):
            self.names.append((root.attr, self._here))
            root = root.value
        self.visit(root)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        # A sum is as deep as it has terms, which may be more than Python has frames.
        terms, left = list[ast.expr](), node.left
        terms.append(node.right)
        while isinstance(left, ast.BinOp):
            terms.append(left.right)
            left = left.left
        self._visit_all([left, *reversed(terms)])

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
        self._function(node.args, node.body, node.name)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_FunctionDef(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._function(node.args, [node.body])

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._bind(node.name, None)
        self._visit_all([*node.decorator_list, *node.bases, *node.keywords])
        functions = [one.name for one in node.body if isinstance(one, ast.FunctionDef)]
        self.classes.append((node.lineno, functions, node.bases, self._here))
        with self._inner(is_class=True, name=node.name):
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

    def visit_For(self, node: ast.For) -> None:
        self.loops.append(Use(node.lineno, node.iter, self._here))
        self.generic_visit(node)

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            if item.optional_vars is not None:
                self.assigned.append((item.optional_vars, item.context_expr, self._here))
        self._visit_all(node.items)
        with self._guard(any(_suppresses(item.context_expr) for item in node.items)):
            self._visit_all(node.body)

    def visit_If(self, node: ast.If | ast.IfExp) -> None:
        with self._guard(False):
            rest: Sequence[ast.AST] = [node]
            # Each `elif` is one level deeper than that before.
            while len(rest) == 1 and isinstance(rest[0], (ast.If, ast.IfExp)):
                one = rest[0]
                self.visit(one.test)
                by_version = _asks_for_version(one.test)
                with self._guard(by_version or _asks(one.test)):
                    self._visit_all(_branch(one.body))
                self._guarded |= by_version
                rest = _branch(one.orelse)
            self._visit_all(rest)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.visit_If(node)

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        if node.name:
            self._bind(node.name, None)
        self.generic_visit(node)

    def _function(self, args: ast.arguments, body: Sequence[ast.AST], name: str = "") -> None:
        all_args = [*args.posonlyargs, *args.args, *args.kwonlyargs, *filter(None, (args.vararg, args.kwarg))]
        self._visit_all([*args.defaults, *filter(None, args.kw_defaults)])
        self._visit_all([arg.annotation for arg in all_args if arg.annotation is not None])
        with self._inner(name=name):
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
        for full in [module] if name is None else [module, f"{module}.{name}"]:
            self.modules.setdefault(full, line)
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
    def _inner(self, is_class: bool = False, name: str = "") -> Iterator[None]:
        self._here = Scope(self._here, is_class, name)
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


def _branch(nodes: Sequence[ast.AST] | ast.AST) -> Sequence[ast.AST]:
    return [nodes] if isinstance(nodes, ast.AST) else nodes


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


def _asks_for_version(test: ast.expr) -> bool:
    """Whether a condition compares the version of a package, so that neither branch has to fit the one that is installed."""
    return any(getattr(node, "attr", None) in ("__version__", "VERSION") for node in ast.walk(test))
