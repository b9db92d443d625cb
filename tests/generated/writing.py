"""Writes the source text of a random TensorFlow program from a seed.

A program is a function of tensors and variables that returns a dict of tensors. Expressions are written top-down, from
the type and the shape of the result to its operands, so that every program is valid:

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

# The arguments of a program: types and shapes by name.
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
# The bounds of values. Larger floats are mapped into (-1, 1), so that float16 can hold them and rounding stays small.
_INPUT, _LARGEST, _WHOLE = 2.0, 12.0, 9


@dataclasses.dataclass
class Program:
    """A program and its arguments."""

    source: str
    tensors: dict[str, np.ndarray]
    variables: dict[str, np.ndarray]

    @property
    def uses_half(self) -> bool:
        """True if the program uses its float16 tensor or casts a tensor to float16."""
        _, _, body = self.source.partition(":")
        return "g0" in body or "float16" in body


@dataclasses.dataclass(frozen=True)
class Expression:
    """The source text of a tensor.

    Attributes:
      text: The source.
      bound: The largest absolute value of its floats.
      rough: True if two correct computations may differ, such as sums in another order. Its values must not reach an
        operation that is not continuous, such as a comparison.
    """

    text: str
    bound: float = _INPUT
    rough: bool = False


@dataclasses.dataclass(frozen=True)
class Name:
    """A tensor that has a name in a program."""

    dtype: str
    shape: Shape
    value: Expression


def write(seed: int, statements: int, *, draws: bool = True) -> Program:
    """Writes the program of a seed; `draws` allows random floats. Fewer `statements` give a prefix of the program."""
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
    """Writes statements one after the other, and stores the names that they define."""

    def __init__(self, seed: int, *, draws: bool = True) -> None:
        self.draws = draws
        self._random = random.Random(seed)
        self._count = 9
        self._indent = 1
        self.lines: list[str] = []
        self.results: list[str] = []
        self.is_smooth = False  # True while the operand of a gradient is written.
        self.names: dict[str, Name] = {}
        for name, (dtype, shape) in (*TENSORS.items(), *VARIABLES.items()):
            # Programs assign to variables, so that their values are read when they are used.
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
        """A context with additional names, such as the arguments of a lambda."""
        outer_names = dict(self.names)
        self.names.update(names)
        try:
            yield
        finally:
            self.names = outer_names

    @contextmanager
    def smooth(self) -> Iterator[None]:
        was_smooth, self.is_smooth = self.is_smooth, True
        try:
            yield
        finally:
            self.is_smooth = was_smooth

    # Expressions.

    def expression(self, dtype: str, shape: Shape, depth: int, *, exact: bool = False) -> Expression:
        """Writes an expression of a type and shape; if `exact`, it is not rough."""
        if depth > 0:
            rules = [rule for rule in RULES[_kind(dtype)] if not self.is_smooth or rule in SMOOTH]
            for _ in range(4):
                rule = self.one_of(rules)
                if exact and rule in ROUGH:
                    continue
                result = rule(self, dtype, shape, depth - 1)
                if result is not None and not (exact and result.rough):
                    return self._pushed(result, dtype)
        return self._leaf(dtype, shape, exact)

    def exact(self, dtype: str, shape: Shape, depth: int) -> Expression:
        return self.expression(dtype, shape, depth, exact=True)

    def index(self, size: int, depth: int) -> str:
        """Writes an integer scalar from 0 to `size - 1`."""
        return f"tf.math.floormod({self.exact('int32', (), depth).text}, {size})"

    def _pushed(self, expression: Expression, dtype: str) -> Expression:
        if dtype == "int32" and expression.bound > _WHOLE:
            return Expression(f"tf.math.floormod({expression.text}, {self.number(2, _WHOLE)})", _WHOLE)
        if dtype.startswith("float") and expression.bound > _LARGEST:
            squashed = self.one_of(("tf.tanh", "tf.sin", "tf.sigmoid"))
            return Expression(f"{squashed}({expression.text})", 1.0, True)
        return expression

    def _leaf(self, dtype: str, shape: Shape, exact: bool) -> Expression:
        """Writes a constant, or a name of this type that is reshaped to this shape."""
        fitting = [name for name in self.names.values() if name.dtype == dtype and not (exact and name.value.rough)]
        if not fitting or self.number(0, 5) == 0:
            return self._constant(dtype, shape)
        name = self.one_of(fitting)
        if name.shape == shape:
            return name.value
        size, count = math.prod(name.shape), math.prod(shape)
        text = name.value.text
        if size == count:
            text = f"tf.reshape({text}, {list(shape)})"
        elif size > count:
            first = self.number(0, size - count)
            text = f"tf.reshape(tf.reshape({text}, [-1])[{first}:{first + count}], {list(shape)})"
        else:
            text = f"tf.reshape(tf.tile(tf.reshape({text}, [-1]), [{-(-count // size)}])[:{count}], {list(shape)})"
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
        of = self.one_of([name for name, tensor in self.names.items() if tensor.dtype == "float32" and name != "v0"])
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
        choice = self.number(0, 3)
        if choice == 0:
            part, target = shape[1:], f"{name}[{self.index(shape[0], 1)}]"
        elif choice == 1 and len(shape) == 2:
            part, target = shape[:1], f"{name}[:, {self.index(shape[1], 1)}]"
        elif choice == 2:
            begin = self.fresh("n")
            self.line(f"{begin} = {self.index(shape[0] - 1, 1)}")
            part, target = (2, *shape[1:]), f"{name}[{begin}:{begin} + 2]"
        else:
            part, target = shape, name
        value = self.expression(dtype, part, 2, exact=dtype == "int32").text
        self.line(f"{target}.assign({f'4 * tf.tanh({value})' if dtype == 'float32' else value})")

    def _loop(self) -> None:
        """Writes a loop that carries a tensor and contains statements."""
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
# Rules with continuous gradients, and rules whose results are always rough.
SMOOTH: set[Rule] = set()
ROUGH: set[Rule] = set()


def rule(*kinds: str, rank: int = 0, smooth: bool = False, rough: bool = False) -> Callable[[Rule], Rule]:
    """Registers a rule for these types and at least this rank. A rule returns None if it cannot produce the shape."""

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
