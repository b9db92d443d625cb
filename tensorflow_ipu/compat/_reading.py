"""Finds the imports, the bindings and the uses of names in a Python file."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

# Code is guarded if it handles missing names itself: in a `try` that catches one of these errors, or below a condition
# such as `hasattr(module, "name")` or `tf.__version__ < "2"`.
_GUARDS = frozenset({"AttributeError", "BaseException", "Exception", "ImportError", "ModuleNotFoundError"})
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_SCOPES += (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

# A node, the scope around it, and True if it is guarded.
_Place = tuple[ast.AST, "Scope", bool]


@dataclass
class Scope:
    """The bindings of names in a module, function, class or comprehension.

    A name is bound to the full name of an import, to an expression such as `ipu.loops` that may resolve to a full name,
    or to None for other values.
    """

    parent: Scope | None = None
    is_class: bool = False
    bound: dict[str, list[str | ast.expr | None]] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    elsewhere: dict[str, Scope] = field(default_factory=dict)  # The scopes of `global` and `nonlocal` names.

    def bind(self, name: str, value: str | ast.expr | None = None) -> None:
        """Adds a binding of a name. `name = None` adds no value: code that uses attributes relies on another binding."""
        values = self.elsewhere.get(name, self).bound.setdefault(name, [])
        if not (isinstance(value, ast.Constant) and value.value is None):
            values.append(value if isinstance(value, str) or _renames(value) else None)

    def binding(self, name: str) -> Scope | None:
        """Returns the scope whose binding of `name` is visible in this scope, or None."""
        start = self.elsewhere.get(name, self)
        scope: Scope | None = start
        # Functions in a class do not see the names of the class.
        while scope is not None and (name not in scope.bound or (scope.is_class and scope is not start)):
            scope = scope.parent
        return scope


@dataclass(frozen=True)
class Use:
    """A use of a name, a chain of attributes or a call."""

    line: int
    node: ast.expr
    scope: Scope


class Reading:
    """The bindings of a file, and its imports, uses and calls that are not guarded."""

    def __init__(self, tree: ast.Module, package: str = "") -> None:
        """Reads a syntax tree. Relative imports are relative to `package`."""
        self.scope = Scope()
        self.imports: list[tuple[int, str, str | None]] = []  # Line, module and name.
        self.uses: list[Use] = []
        self.calls: list[Use] = []
        self.modules: dict[str, int] = {}  # Each imported name, guarded or not, with the line of its first import.
        self._package = package
        # A queue, since recursion would exceed Python's limit: the tree of a sum is as deep as the sum has terms.
        waiting = deque[_Place]([(tree, self.scope, False)])
        while waiting:
            waiting.extend(self._read(*waiting.popleft()))

    def _read(self, node: ast.AST, scope: Scope, is_guarded: bool) -> Iterable[_Place]:
        """Records the imports, bindings and uses of a node, and returns the parts that remain to be read."""
        match node:
            case ast.Import():
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    scope.bind(alias.asname or top, alias.name if alias.asname else top)
                    self._import(is_guarded, alias.lineno, alias.name)
                return ()
            case ast.ImportFrom():
                self._import_from(node, scope, is_guarded)
                return ()
            case ast.Name(ctx=ast.Load()) | ast.Attribute():
                if not is_guarded:
                    self.uses.append(Use(node.end_lineno or node.lineno, node, scope))
                root = node
                while isinstance(root, ast.Attribute):
                    root = root.value  # type: ignore[assignment]
                return () if root is node else [(root, scope, is_guarded)]
            case ast.Name():
                scope.bind(node.id)
                return ()
            case ast.Assign() | ast.AnnAssign() | ast.NamedExpr() if node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                parts = [part for target in targets for part in _assigned(target, node.value, scope)]
                return [(part, scope, is_guarded) for part in [node.value, *parts]]
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                scope.bind(name)
            case ast.Global() | ast.Nonlocal():
                outer = scope.parent if isinstance(node, ast.Nonlocal) else self.scope
                scope.elsewhere.update(dict.fromkeys(node.names, outer or self.scope))
            case ast.Call():
                self._call(node, scope, is_guarded)
        return _parts(node, scope, is_guarded)

    def _import_from(self, node: ast.ImportFrom, scope: Scope, is_guarded: bool) -> None:
        parts = self._package.split(".") if self._package else []
        if node.level > len(parts) + 1:
            return  # The import leads above the outermost known package.
        parents = parts[: len(parts) - node.level + 1] if node.level else []
        module = ".".join([*parents, *filter(None, [node.module])])
        for alias in node.names if module else ():
            if alias.name == "*":
                scope.stars.append(module)
                self._import(is_guarded, alias.lineno, module)
            else:
                scope.bind(alias.asname or alias.name, f"{module}.{alias.name}")
                self._import(is_guarded, alias.lineno, module, alias.name)

    def _import(self, is_guarded: bool, line: int, module: str, name: str | None = None) -> None:
        for full in [module, *([f"{module}.{name}"] if name else [])]:
            self.modules[full] = min(line, self.modules.get(full, line))
        if not is_guarded:
            self.imports.append((line, module, name))

    def _call(self, node: ast.Call, scope: Scope, is_guarded: bool) -> None:
        module = imported_by(node)
        if module is not None:
            self._import(is_guarded, node.lineno, module)
        if is_guarded:
            return
        self.calls.append(Use(node.lineno, node, scope))
        match node:
            case ast.Call(func=ast.Name("getattr"), args=[value, ast.Constant(str(name))]):
                self.uses.append(Use(node.end_lineno or node.lineno, ast.Attribute(value, name, ast.Load()), scope))


def imported_by(node: ast.expr) -> str | None:
    """Returns the module that a call such as `importlib.import_module("a.b")` imports, or None."""
    match node:
        case ast.Call(ast.Name("import_module") | ast.Attribute(attr="import_module"), [ast.Constant(str(name))], []):
            return name
        case ast.Call(ast.Name("__import__"), [ast.Constant(str(name))], []):
            return name.partition(".")[0]
    return None


def _parts(node: ast.AST, scope: Scope, is_guarded: bool) -> Iterator[_Place]:
    """Yields the parts of a node. A new scope, and the guard of a `try` or `hasattr`, apply only to its body."""
    inner, is_body_guarded = scope, is_guarded
    if isinstance(node, _SCOPES):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            scope.bind(node.name)
        inner = Scope(scope, isinstance(node, ast.ClassDef))
        for argument in ast.walk(getattr(node, "args", ast.Pass())):
            if isinstance(argument, ast.arg):
                inner.bind(argument.arg)
    elif isinstance(node, (ast.If, ast.IfExp)):
        is_guarded |= _compares_versions(node.test)  # One branch may be for a version that is not installed.
        is_body_guarded |= is_guarded or _tests_existence(node.test)
    elif isinstance(node, ast.Try):
        is_body_guarded |= any(handler.type is None or _is_guard(handler.type) for handler in node.handlers)
    elif isinstance(node, ast.With):
        is_body_guarded |= any(_suppresses(item.context_expr) for item in node.items)
    body = getattr(node, "body", None if inner is scope else [*ast.iter_child_nodes(node)])
    in_body = {id(part) for part in (body if isinstance(body, list) else [body])}
    for part in ast.iter_child_nodes(node):
        yield (part, inner, is_body_guarded) if id(part) in in_body else (part, scope, is_guarded)


def _assigned(target: ast.expr, value: ast.expr, scope: Scope) -> Iterator[ast.expr]:
    """Binds the names in an assignment target, and yields the parts of the target that are not names."""
    if isinstance(target, ast.Name):
        scope.bind(target.id, value)
    elif (
        isinstance(target, (ast.List, ast.Tuple))
        and isinstance(value, (ast.List, ast.Tuple))
        and len(target.elts) == len(value.elts)
        and not any(isinstance(part, ast.Starred) for part in (*target.elts, *value.elts))
    ):
        for part, part_value in zip(target.elts, value.elts, strict=True):
            yield from _assigned(part, part_value, scope)
    else:
        yield target


def _renames(value: ast.expr | None) -> bool:
    return isinstance(value, (ast.Attribute, ast.Name)) or (value is not None and imported_by(value) is not None)


def _suppresses(context: ast.expr) -> bool:
    match context:
        case ast.Call(ast.Name("suppress") | ast.Attribute(attr="suppress"), errors):
            return any(map(_is_guard, errors))
    return False


def _is_guard(node: ast.expr) -> bool:
    kinds = node.elts if isinstance(node, ast.Tuple) else [node]
    return any(isinstance(kind, ast.Name) and kind.id in _GUARDS for kind in kinds)


def _tests_existence(test: ast.expr) -> bool:
    """Returns True if a condition calls `hasattr` or is `TYPE_CHECKING`."""
    names = {getattr(node, "id", getattr(node, "attr", None)) for node in ast.walk(test)}
    return bool(names & {"hasattr", "TYPE_CHECKING"})


def _compares_versions(test: ast.expr) -> bool:
    return any(getattr(node, "attr", None) in ("__version__", "VERSION") for node in ast.walk(test))
