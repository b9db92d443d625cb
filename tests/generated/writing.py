"""Writes random programs of TensorFlow as source text, the same one for the same seed.

A program is a function of tensors and variables that returns a dict of tensors. Expressions are written from the type and the
shape that is wanted down to what they need, so that every program is legal:

    def program(f0, f1, f2, g0, n0, n1, b0, v0, v1):
        r10 = tf.where(n1 < 2, tf.sin(f0), tf.transpose(v0))
        return {"r10": r10}
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import numpy as np

Shape = tuple[int, ...]
_T = TypeVar("_T")

# What a program is called with: types and shapes by name.
TENSORS: dict[str, tuple[str, Shape]] = {
    "f0": ("float32", (3, 4)),
    "f1": ("float32", (2, 4, 4, 3)),
    "f2": ("float32", (4,)),
    "g0": ("float16", (3, 4)),
    "n0": ("int32", (4,)),
    "n1": ("int32", ()),
    "b0": ("bool", (3, 1)),
}
VARIABLES: dict[str, tuple[str, Shape]] = {"v0": ("float32", (4, 3)), "v1": ("int32", (5,))}

_MOST_ELEMENTS = 128
# The bounds of numbers. Floats beyond theirs are pushed into (-1, 1), so that float16 has them and rounding stays small.
_INPUT, _LARGEST, _WHOLE = 2.0, 12.0, 9


@dataclasses.dataclass
class Program:
    """A program, and what it is called with."""

    source: str
    tensors: dict[str, np.ndarray]
    variables: dict[str, np.ndarray]

    @property
    def uses_half(self) -> bool:
        """Whether the program computes with float16: the tensor of that type, or one that is cast to it."""
        _, _, body = self.source.partition(":")
        return "g0" in body or "float16" in body


@dataclasses.dataclass(frozen=True)
class Expression:
    """Source text of a tensor.

    Attributes:
      text: The source.
      bound: No float in it is larger.
      rough: Whether two right computations may differ, as sums in another order do. Nothing may jump where such a number
        changes a little, as a comparison does.
    """

    text: str
    bound: float = _INPUT
    rough: bool = False


@dataclasses.dataclass(frozen=True)
class Name:
    """A tensor that a program knows by a name."""

    dtype: str
    shape: Shape
    value: Expression


def write(seed: int, statements: int, *, draws: bool = True) -> Program:
    """Writes the program of a seed; with `draws`, it has random floats. One of fewer statements is the beginning of it."""
    writer = Writer(seed, draws=draws)
    for _ in range(statements):
        writer.statement()
    arguments = ", ".join((*TENSORS, *VARIABLES))
    results = ", ".join(f'"{name}": {name}' for name in writer.results)
    source = "\n".join([f"def program({arguments}):", *writer.lines, f"    return {{{results}}}", ""])
    numbers = np.random.default_rng(seed)

    def array(dtype: str, shape: Shape) -> np.ndarray:
        if dtype.startswith("float"):
            return np.asarray(numbers.uniform(-_INPUT, _INPUT, shape), dtype)
        return np.asarray(numbers.integers(0, 2, shape) if dtype == "bool" else numbers.integers(-9, 9, shape), dtype)

    tensors, variables = ({name: array(*kind) for name, kind in kinds.items()} for kinds in (TENSORS, VARIABLES))
    return Program(source, tensors, variables)


class Writer:
    """Writes statements one after the other, and knows the names so far."""

    def __init__(self, seed: int, *, draws: bool = True) -> None:
        self.draws = draws
        self._random = random.Random(seed)
        self._count = 9
        self._indent = 1
        self.lines: list[str] = []
        self.results: list[str] = []
        self.is_smooth = False  # Whether a gradient is taken of what is being written.
        self.names: dict[str, Name] = {}
        for name, (dtype, shape) in (*TENSORS.items(), *VARIABLES.items()):
            # A program assigns what it computes to variables.
            text = f"tf.identity({name})" if name in VARIABLES else name
            self.names[name] = Name(dtype, shape, Expression(text, 4.0, rough=name == "v0"))

    def one_of(self, values: Sequence[_T]) -> _T:
        return values[self._random.randrange(len(values))]

    def number(self, first: int, last: int) -> int:
        return self._random.randint(first, last)

    def fresh(self, letter: str) -> str:
        self._count += 1
        return f"{letter}{self._count}"

    def shape(self) -> Shape:
        rank = self.one_of((0, 1, 2, 2, 3, 4))
        return tuple(self.number(1, 3 if rank == 4 else 4) for _ in range(rank))

    def line(self, text: str) -> None:
        self.lines.append("    " * self._indent + text)

    @contextmanager
    def named(self, **names: Name) -> Iterator[None]:
        """A block that knows some more names, such as the arguments of a lambda."""
        before = dict(self.names)
        self.names.update(names)
        try:
            yield
        finally:
            self.names = before

    @contextmanager
    def smooth(self) -> Iterator[None]:
        before, self.is_smooth = self.is_smooth, True
        try:
            yield
        finally:
            self.is_smooth = before

    # Expressions.

    def expression(self, dtype: str, shape: Shape, depth: int, *, exact: bool = False) -> Expression:
        """Writes a tensor; an `exact` one is not rough."""
        if depth > 0:
            rules = [rule for rule in RULES[_kind(dtype)] if not self.is_smooth or rule in SMOOTH]
            for _ in range(4):
                rule = self.one_of(rules)
                if exact and rule in ROUGH:
                    continue
                found = rule(self, dtype, shape, depth - 1)
                if found is not None and not (exact and found.rough):
                    return self._pushed(found, dtype)
        return self._leaf(dtype, shape, exact)

    def exact(self, dtype: str, shape: Shape, depth: int) -> Expression:
        return self.expression(dtype, shape, depth, exact=True)

    def index(self, size: int, depth: int) -> str:
        """Writes a scalar from 0 to `size - 1`."""
        return f"tf.math.floormod({self.exact('int32', (), depth).text}, {size})"

    def _pushed(self, found: Expression, dtype: str) -> Expression:
        if dtype == "int32" and found.bound > _WHOLE:
            return Expression(f"tf.math.floormod({found.text}, {self.number(2, _WHOLE)})", _WHOLE)
        if dtype.startswith("float") and found.bound > _LARGEST:
            squashed = self.one_of(("tf.tanh", "tf.sin", "tf.sigmoid"))
            return Expression(f"{squashed}({found.text})", 1.0, True)
        return found

    def _leaf(self, dtype: str, shape: Shape, exact: bool) -> Expression:
        """Writes a name of the type, brought into the shape, or a constant."""
        fitting = [name for name in self.names.values() if name.dtype == dtype and not (exact and name.value.rough)]
        if not fitting or self.number(0, 5) == 0:
            return self._constant(dtype, shape)
        name = self.one_of(fitting)
        if name.shape == shape:
            return name.value
        size, wanted = math.prod(name.shape), math.prod(shape)
        text = name.value.text
        if size == wanted:
            text = f"tf.reshape({text}, {list(shape)})"
        elif size > wanted:
            first = self.number(0, size - wanted)
            text = f"tf.reshape(tf.reshape({text}, [-1])[{first}:{first + wanted}], {list(shape)})"
        else:
            text = f"tf.reshape(tf.tile(tf.reshape({text}, [-1]), [{-(-wanted // size)}])[:{wanted}], {list(shape)})"
        return dataclasses.replace(name.value, text=text)

    def _constant(self, dtype: str, shape: Shape) -> Expression:
        if dtype == "bool":
            return Expression(f"tf.fill({list(shape)}, {self.one_of((True, False))})")
        if dtype == "int32":
            return Expression(f"tf.fill({list(shape)}, {self.number(-_WHOLE, _WHOLE)})", _WHOLE)
        value = self.number(-8, 8) / 4
        return Expression(f"tf.fill({list(shape)}, tf.constant({value}, tf.{dtype}))", 2.0)

    # Statements.

    def statement(self) -> None:
        self.one_of((self._result, self._result, self._gradient, self._assignment, self._loop))()

    def _keep(self, name: str, dtype: str, shape: Shape, value: Expression) -> None:
        self.names[name] = Name(dtype, shape, dataclasses.replace(value, text=name))
        if self._indent == 1:
            self.results.append(name)

    def _result(self) -> None:
        dtype = self.one_of(("float32", "float32", "float16", "int32", "bool"))
        shape, name = self.shape(), self.fresh("r")
        value = self.expression(dtype, shape, 3)
        self.line(f"{name} = {value.text}")
        self._keep(name, dtype, shape, value)

    def _gradient(self) -> None:
        name, tape, loss = (self.fresh(letter) for letter in ("r", "tape", "y"))
        of = self.one_of([name for name, known in self.names.items() if known.dtype == "float32" and name != "v0"])
        with self.smooth():
            value = self.expression("float32", self.shape(), 3)
        shape = self.names[of].shape
        self.line(f"with tf.GradientTape() as {tape}:")
        self.line(f"    {tape}.watch({of})")
        self.line(f"    {loss} = tf.reduce_sum({value.text}) + tf.reduce_sum(tf.sin({of}))")
        self.line(f"{name} = tf.tanh({tape}.gradient({loss}, {of}))")
        self._keep(name, "float32", shape, Expression(name, 1.0, True))

    def _assignment(self) -> None:
        name = self.one_of(list(VARIABLES))
        dtype, shape = VARIABLES[name]
        at = self.number(0, 3)
        if at == 0:
            part, target = shape[1:], f"{name}[{self.index(shape[0], 1)}]"
        elif at == 1 and len(shape) == 2:
            part, target = shape[:1], f"{name}[:, {self.index(shape[1], 1)}]"
        elif at == 2:
            begin = self.fresh("n")
            self.line(f"{begin} = {self.index(shape[0] - 1, 1)}")
            part, target = (2, *shape[1:]), f"{name}[{begin}:{begin} + 2]"
        else:
            part, target = shape, name
        value = self.expression(dtype, part, 2, exact=dtype == "int32").text
        self.line(f"{target}.assign({f'4 * tf.tanh({value})' if dtype == 'float32' else value})")

    def _loop(self) -> None:
        """A loop with statements in it, that carries a tensor."""
        dtype, shape = self.one_of(("float32", "int32")), self.shape()
        body, counter, carried, name = (self.fresh(letter) for letter in ("body", "i", "a", "r"))
        trips = f"{self.number(1, 3)}" if self.number(0, 1) else f"1 + {self.index(3, 1)}"
        first = self.expression(dtype, shape, 1, exact=dtype == "int32")
        self.line(f"def {body}({counter}, {carried}):")
        names = {
            counter: Name("int32", (), Expression(counter, 3.0)),
            carried: Name(dtype, shape, Expression(carried, _LARGEST, dtype == "float32")),
        }
        self._indent += 1
        with self.named(**names):
            for _ in range(self.number(0, 2)):
                self.one_of((self._result, self._assignment))()
            value = self.expression(dtype, shape, 2, exact=dtype == "int32")
            self.line(f"return {counter} + 1, {value.text}")
        self._indent -= 1
        self.line(f"_, {name} = tf.while_loop(lambda {counter}, _: {counter} < {trips}, {body}, [0, {first.text}])")
        rough = dtype == "float32"
        self._keep(name, dtype, shape, Expression(name, _LARGEST if rough else _WHOLE, rough))


def _kind(dtype: str) -> str:
    return "float" if dtype.startswith("float") else dtype


Rule = Callable[[Writer, str, Shape, int], Expression | None]
RULES: dict[str, list[Rule]] = {"float": [], "int32": [], "bool": []}
# Rules whose results have gradients without jumps, and those whose results are always rough.
SMOOTH: set[Rule] = set()
ROUGH: set[Rule] = set()


def rule(*kinds: str, rank: int = 0, smooth: bool = False, rough: bool = False) -> Callable[[Rule], Rule]:
    """Registers what writes an expression of these kinds and of this rank or more, or None if it has none of the shape."""

    def register(write_any: Rule) -> Rule:
        def write_rank(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression | None:
            return write_any(w, dtype, shape, depth) if len(shape) >= rank else None

        for kind in kinds:
            RULES[kind].append(write_rank)
        if smooth:
            SMOOTH.add(write_rank)
        if rough:
            ROUGH.add(write_rank)
        return write_any

    return register
