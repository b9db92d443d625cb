"""The operations of random programs. Each rule writes one of them for a given type and shape of the result."""

from __future__ import annotations

import math
import re

from writing import Expression, Name, Shape, Writer, rule

_MOST_ELEMENTS = 128
# `tf.vectorized_map` calls these operations in loops, which compile slowly.
_IN_LOOPS = r"while_loop|cond|switch_case|map|stateless|image|conv|pool|function"
ALL = ("float", "int32", "bool")
NUMBERS = ("float", "int32")


def _joined(text: str, *parts: Expression) -> Expression:
    """Returns an expression that moves elements of its operands without changing them."""
    return Expression(text, max(part.bound for part in parts), any(part.rough for part in parts))


def _computed(text: str, bound: float) -> Expression:
    return Expression(text, bound, True)


def _fits(shape: Shape) -> bool:
    return math.prod(shape) <= _MOST_ELEMENTS and len(shape) <= 4


# Elementwise.


@rule("float", smooth=True, rough=True)
def unary(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression:
    x = w.expression(dtype, shape, depth)
    functions = [
        *((f"tf.{name}({{}})", 1.0) for name in ("sin", "cos", "tanh", "sigmoid")),
        *(("tf.exp(tf.sin({}))", 3.0), ("tf.square({})", x.bound**2), ("tf.sqrt(tf.square({}) + 1)", x.bound + 1)),
        *((f"tf.{name}", x.bound + 1) for name in ("math.log1p(tf.square({}))", "nn.softplus({})")),
        *(("tf.nn.gelu({})", x.bound), ("tf.math.rsqrt(tf.square({}) + 1)", 1.0), ("tf.math.erf({})", 1.0)),
        ("-{}", x.bound),
    ]
    text, bound = w.one_of(functions)
    return _computed(text.format(x.text), bound)


@rule("float")
def continuous(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression:
    x = w.expression(dtype, shape, depth)
    text = w.one_of(
        ("tf.nn.relu({})", "tf.abs({})", "tf.clip_by_value({}, -1.0, 1.5)", "tf.nn.relu6({})", "tf.nn.elu({})")
    )
    return Expression(text.format(x.text), x.bound, x.rough or "elu(" in text)


@rule("float", smooth=True, rough=True)
def binary(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression:
    narrow = tuple(1 if w.number(0, 3) == 0 else size for size in shape)
    x, y = w.expression(dtype, shape, depth), w.expression(dtype, narrow, depth)
    text, bound = w.one_of(
        (
            ("({} + {})", x.bound + y.bound),
            ("({} - {})", x.bound + y.bound),
            ("({} * {})", x.bound * y.bound),
            ("({} / (tf.square({}) + 1))", x.bound),
            ("tf.math.squared_difference({}, {})", (x.bound + y.bound) ** 2),
        )
    )
    return _computed(text.format(x.text, y.text), bound)


@rule("int32")
def whole_binary(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression:
    narrow = tuple(1 if w.number(0, 3) == 0 else size for size in shape)
    x, y = w.exact(dtype, shape, depth), w.exact(dtype, narrow, depth)
    text, bound = w.one_of(
        (
            ("({} + {})", 20.0),
            ("({} - {})", 20.0),
            ("({} * {})", 99.0),
            ("({} // (tf.abs({}) + 1))", 9.0),
            ("tf.math.floormod({}, tf.abs({}) + 2)", 9.0),
            ("tf.maximum({}, {})", 9.0),
            ("tf.minimum({}, {})", 9.0),
            ("tf.bitwise.bitwise_xor({}, {})", 20.0),
        )
    )
    return Expression(text.format(x.text, y.text), bound)


@rule("float")
def extremes(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression:
    x, y = w.expression(dtype, shape, depth), w.expression(dtype, shape, depth)
    return _joined(f"tf.{w.one_of(('maximum', 'minimum'))}({x.text}, {y.text})", x, y)


@rule("bool")
def compared(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression:
    kind = w.one_of(("int32", "float32", "float16"))
    x, y = w.exact(kind, shape, depth), w.exact(kind, shape, depth)
    return Expression(f"({x.text} {w.one_of(('<', '<=', '>', '>='))} {y.text})")


@rule("bool")
def logical(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression:
    x, y = w.exact(dtype, shape, depth), w.exact(dtype, shape, depth)
    name = w.one_of(("logical_and", "logical_or", "math.logical_xor"))
    return Expression(f"tf.{name}({x.text}, tf.logical_not({y.text}))")


@rule(*ALL, smooth=True)
def chosen(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression:
    condition = w.exact("bool", shape, depth)
    x, y = w.expression(dtype, shape, depth), w.expression(dtype, shape, depth)
    return _joined(f"tf.where({condition.text}, {x.text}, {y.text})", x, y)


@rule(*NUMBERS)
def cast(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression:
    sources = {
        "float32": ("float16", "int32", "bool"),
        "float16": ("float32", "int32", "bool"),
        "int32": ("bool", "float32"),
    }
    kind = w.one_of(sources[dtype])
    x = w.expression(kind, shape, depth, exact=dtype == "int32" or kind != "float16")
    bound = x.bound if kind != "bool" else 1.0
    return Expression(f"tf.cast({x.text}, tf.{dtype})", bound, x.rough or dtype == "float16")


# Reductions and products.


@rule(*ALL, smooth=True)
def reduced(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression | None:
    axis, size = w.number(0, len(shape)), w.number(2, 4)
    operand_shape = (*shape[:axis], size, *shape[axis:])
    if not _fits(operand_shape):
        return None
    if dtype == "bool":
        x = w.exact(dtype, operand_shape, depth)
        return Expression(f"tf.reduce_{w.one_of(('any', 'all'))}({x.text}, {axis})")
    whole_names = ("sum", "max", "min") if dtype == "int32" else ("sum", "mean", "max", "min")
    name = w.one_of(("sum", "mean") if w.is_smooth else whole_names)
    x = w.expression(dtype, operand_shape, depth, exact=dtype == "int32")
    text = f"tf.reduce_{name}({x.text}, {axis})"
    if name == "sum":
        return Expression(text, size * x.bound, dtype != "int32")
    return _computed(text, x.bound) if name == "mean" else _joined(text, x)


@rule(*NUMBERS, smooth=True)
def product(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression | None:
    if len(shape) < 2 or len(shape) > 3:
        return None
    *batch, rows, columns = shape
    depth_of_product = w.number(1, 4)
    x = w.expression(dtype, (*batch, rows, depth_of_product), depth, exact=dtype == "int32")
    y = w.expression(dtype, (*batch, depth_of_product, columns), depth, exact=dtype == "int32")
    equation = "bij,bjk->bik" if batch else "ij,jk->ik"
    text = w.one_of((f"tf.matmul({x.text}, {y.text})", f'tf.einsum("{equation}", {x.text}, {y.text})'))
    return Expression(text, depth_of_product * x.bound * y.bound, dtype != "int32")


@rule("float", smooth=True, rough=True, rank=1)
def normalized(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression | None:
    x = w.expression(dtype, shape, depth)
    text = w.one_of(("tf.nn.softmax({})", "tf.nn.l2_normalize({}, -1, 0.5)", "tf.nn.log_softmax(tf.sin({}))"))
    return _computed(text.format(x.text), 4.0)


@rule(*NUMBERS, rank=1)
def summed_up(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression | None:
    axis = w.number(0, len(shape) - 1)
    x = w.expression(dtype, shape, depth, exact=dtype == "int32")
    text = f"tf.cumsum({x.text}, {axis}, exclusive={w.number(0, 1) == 1})"
    return Expression(text, shape[axis] * x.bound, dtype != "int32")


@rule(*NUMBERS, rank=1)
def sorted_along(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression | None:
    if dtype == "int32" and w.number(0, 1):
        kind = w.one_of(("int32", "float32"))
        return Expression(f"tf.argsort({w.exact(kind, shape, depth).text}, stable=True)", 4.0)
    x = w.expression(dtype, shape, depth, exact=dtype == "int32")
    return _joined(w.one_of((f"tf.sort({x.text})", f"tf.math.top_k({x.text}, {shape[-1]})[0]")), x)


@rule("int32")
def place(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression | None:
    axis = w.number(0, len(shape))
    operand_shape = (*shape[:axis], 3, *shape[axis:])
    if not _fits(operand_shape):
        return None
    x = w.exact(w.one_of(("int32", "float32")), operand_shape, depth)
    return Expression(f"tf.{w.one_of(('argmax', 'argmin'))}({x.text}, {axis}, tf.int32)", 3.0)


# Layers.


@rule("float", smooth=True, rough=True, rank=4)
def convolution(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression | None:
    *batch_and_space, features = shape
    channels, side = w.number(1, 3), w.number(1, 3)
    images = w.expression(dtype, (*batch_and_space, channels), depth)
    if w.number(0, 3) == 0:
        weights = w.expression(dtype, (side, side, features, 1), depth)
        images = w.expression(dtype, shape, depth)
        text = f'tf.nn.depthwise_conv2d({images.text}, {weights.text}, [1, 1, 1, 1], "SAME")'
    else:
        weights = w.expression(dtype, (side, side, channels, features), depth)
        text = f'tf.nn.conv2d({images.text}, {weights.text}, 1, "SAME")'
    return _computed(f"0.1 * {text}", 0.1 * side * side * channels * images.bound * weights.bound)


@rule("float", smooth=True)
def pooling(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression | None:
    if len(shape) != 4 or not _fits((shape[0], 2 * shape[1], shape[2], shape[3])):
        return None
    x = w.expression(dtype, (shape[0], 2 * shape[1], shape[2], shape[3]), depth)
    name = "avg" if w.is_smooth else w.one_of(("avg", "max"))
    text = f'tf.nn.{name}_pool2d({x.text}, [{w.number(1, 3)}, 2], [2, 1], "SAME")'
    return _joined(text, x) if name == "max" else _computed(text, x.bound)


@rule("float", smooth=True, rough=True)
def resized(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression | None:
    if len(shape) != 4 or dtype != "float32":
        return None
    x = w.expression(dtype, (shape[0], w.number(1, 4), w.number(1, 4), shape[3]), depth)
    return _computed(f"tf.image.resize({x.text}, [{shape[1]}, {shape[2]}])", x.bound)


# Operations that move elements.


@rule(*ALL, smooth=True)
def reshaped(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression:
    x = w.expression(dtype, (math.prod(shape),), depth)
    return _joined(f"tf.reshape({x.text}, {list(shape)})", x)


@rule(*ALL, smooth=True, rank=2)
def turned(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression | None:
    order = sorted(range(len(shape)), key=lambda _: w.number(0, 99))
    operand_shape = [0] * len(shape)
    for index, axis in enumerate(order):
        operand_shape[axis] = shape[index]
    x = w.expression(dtype, tuple(operand_shape), depth)
    return _joined(f"tf.transpose({x.text}, {order})", x)


@rule(*ALL, smooth=True, rank=1)
def reversed_or_rolled(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression | None:
    axis, x = w.number(0, len(shape) - 1), w.expression(dtype, shape, depth)
    if w.number(0, 1):
        return _joined(f"tf.reverse({x.text}, [{axis}])", x)
    return _joined(f"tf.roll({x.text}, {w.index(4, depth - 1)}, {axis})", x)


@rule(*ALL, smooth=True)
def sliced(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression | None:
    if not shape:
        operand_shape = (w.number(1, 4),)
        x = w.expression(dtype, operand_shape, depth)
        return _joined(f"({x.text})[{w.index(operand_shape[0], depth - 1)}]", x)
    axis, more = w.number(0, len(shape) - 1), w.number(1, 3)
    operand_shape = (*shape[:axis], shape[axis] + more, *shape[axis + 1 :])
    if not _fits(operand_shape):
        return None
    x = w.expression(dtype, operand_shape, depth)
    begin = w.index(more + 1, depth - 1) if w.number(0, 1) else str(w.number(0, more))
    if w.number(0, 1) or axis:
        starts = ", ".join(begin if index == axis else "0" for index in range(len(shape)))
        return _joined(f"tf.slice({x.text}, [{starts}], {list(shape)})", x)
    return _joined(f"(lambda x, i: x[i : i + {shape[0]}])({x.text}, {begin})", x)


@rule(*ALL, smooth=True)
def row(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression | None:
    size = w.number(2, 4)
    if not _fits((size, *shape)):
        return None
    if w.number(0, 1) or not shape:
        x = w.expression(dtype, (size, *shape), depth)
        return _joined(f"({x.text})[{w.index(size, depth - 1)}]", x)
    x = w.expression(dtype, (shape[0], size, *shape[1:]), depth)
    return _joined(f"({x.text})[:, {w.index(size, depth - 1)}]", x)


@rule(*ALL, smooth=True, rank=1)
def gathered(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression | None:
    axis, size = w.number(0, len(shape) - 1), w.number(1, 4)
    x = w.expression(dtype, (*shape[:axis], size, *shape[axis + 1 :]), depth)
    places = w.exact("int32", (shape[axis],), depth - 1)
    return _joined(f"tf.gather({x.text}, tf.math.floormod({places.text}, {size}), axis={axis})", x)


@rule(*NUMBERS, smooth=True, rank=1)
def scattered(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression | None:
    x, rows = w.expression(dtype, shape, depth), w.expression(dtype, (2, *shape[1:]), depth)
    if w.number(0, 1):
        first = w.number(0, shape[0] - 1)
        places = f"[[{first}], [{(first + 1) % shape[0]}]]"
        if shape[0] < 2:
            return None
        return _joined(f"tf.tensor_scatter_nd_update({x.text}, {places}, {rows.text})", x, rows)
    places = w.exact("int32", (2, 1), depth - 1)
    text = f"tf.tensor_scatter_nd_add({x.text}, tf.math.floormod({places.text}, {shape[0]}), {rows.text})"
    return Expression(text, x.bound + 2 * rows.bound, dtype != "int32")


@rule(*NUMBERS, smooth=True)
def segments(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression | None:
    if not shape or not _fits((4, *shape[1:])):
        return None
    x = w.expression(dtype, (4, *shape[1:]), depth, exact=dtype == "int32")
    places = w.exact("int32", (4,), depth - 1)
    text = f"tf.math.unsorted_segment_sum({x.text}, tf.math.floormod({places.text}, {shape[0]}), {shape[0]})"
    return Expression(text, 4 * x.bound, dtype != "int32")


@rule(*ALL, smooth=True, rank=1)
def joined(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression | None:
    axis = w.number(0, len(shape) - 1)
    if shape[axis] == 1:
        x = w.expression(dtype, (*shape[:axis], *shape[axis + 1 :]), depth)
        return _joined(f"tf.expand_dims({x.text}, {axis})", x)
    first = w.number(1, shape[axis] - 1)
    x, y = (
        w.expression(dtype, (*shape[:axis], size, *shape[axis + 1 :]), depth) for size in (first, shape[axis] - first)
    )
    return _joined(f"tf.concat([{x.text}, {y.text}], {axis})", x, y)


@rule(*NUMBERS, smooth=True)
def padded(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression | None:
    if not shape or shape[0] < 2:
        return None
    low, high = (1, 0) if w.number(0, 1) else (0, 1)
    x = w.expression(dtype, (shape[0] - 1, *shape[1:]), depth)
    pads = [[low, high], *([0, 0] for _ in shape[1:])]
    return _joined(f"tf.pad({x.text}, {pads})", x)


@rule(*ALL, smooth=True, rank=1)
def repeated(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression | None:
    axis = w.number(0, len(shape) - 1)
    x = w.expression(dtype, (*shape[:axis], 1, *shape[axis + 1 :]), depth)
    if w.number(0, 1):
        return _joined(f"tf.broadcast_to({x.text}, {list(shape)})", x)
    times = [size if index == axis else 1 for index, size in enumerate(shape)]
    return _joined(f"tf.tile({x.text}, {times})", x)


@rule("float", rank=1)
def one_hot(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression | None:
    return Expression(f"tf.one_hot({w.exact('int32', shape[:-1], depth).text}, {shape[-1]}, dtype=tf.{dtype})", 1.0)


# Random numbers from seeds that a program computes.


@rule(*NUMBERS)
def drawn(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression | None:
    seed = f"tf.stack([{w.exact('int32', (), depth - 1).text}, {w.number(0, 99)}])"
    if dtype == "int32":
        return Expression(f"tf.random.stateless_uniform({list(shape)}, {seed}, -9, 9, tf.int32)", 9.0)
    if not w.draws:
        return None
    name = w.one_of(("uniform", "normal", "truncated_normal"))
    return Expression(f"tf.random.stateless_{name}({list(shape)}, {seed}, dtype=tf.{dtype})", 5.0, dtype == "float16")


# Control flow.


@rule(*ALL, smooth=True)
def branch(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression:
    x, y = w.expression(dtype, shape, depth), w.expression(dtype, shape, depth)
    if w.number(0, 2):
        return _joined(f"tf.cond({w.exact('bool', (), depth).text}, lambda: {x.text}, lambda: {y.text})", x, y)
    z = w.expression(dtype, shape, depth)
    cases = ", ".join(f"lambda: {branch_result.text}" for branch_result in (x, y, z))
    return _joined(f"tf.switch_case({w.index(3, depth)}, [{cases}])", x, y, z)


@rule(*NUMBERS, smooth=True)
def loop(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression:
    counter, carried = w.fresh("i"), w.fresh("a")
    first = w.expression(dtype, shape, depth, exact=dtype == "int32")
    rough = dtype != "int32"
    names = {
        counter: Name("int32", (), Expression(counter, 3.0)),
        carried: Name(dtype, shape, Expression(carried, 12.0, rough)),
    }
    with w.named(**names):
        body = w.expression(dtype, shape, depth, exact=not rough)
    trips = w.number(1, 3)
    text = (
        f"tf.while_loop(lambda {counter}, _: {counter} < {trips}, lambda {counter}, {carried}: ({counter} + 1, {body.text}),"
        f" [0, {first.text}], maximum_iterations={trips})[1]"
    )
    return Expression(text, max(first.bound, body.bound), rough)


@rule(*NUMBERS, smooth=True, rank=1)
def mapped(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression | None:
    kind, inner = w.one_of(("float32", "int32")), w.shape()[:2]
    if w.is_smooth:
        kind = "float32"
    over = w.expression(kind, (shape[0], *inner), depth, exact=kind == "int32")
    element = w.fresh("x")
    with w.named(**{element: Name(kind, inner, Expression(element, over.bound, over.rough))}):
        body = w.expression(dtype, shape[1:], depth, exact=dtype == "int32")
    if w.number(0, 1) and not re.search(_IN_LOOPS, body.text):
        text = f"tf.vectorized_map(lambda {element}: {body.text}, {over.text})"
    else:
        text = f"tf.map_fn(lambda {element}: {body.text}, {over.text}, fn_output_signature=tf.{dtype})"
    return Expression(text, body.bound, dtype != "int32")


@rule(*NUMBERS, smooth=True)
def called(w: Writer, dtype: str, shape: Shape, depth: int) -> Expression:
    argument = w.fresh("x")
    x = w.expression(dtype, shape, depth)
    with w.named(**{argument: Name(dtype, shape, Expression(argument, x.bound, x.rough))}):
        body = w.expression(dtype, shape, depth)
    text = f"tf.function(lambda {argument}: {body.text}, autograph=False)({x.text})"
    return Expression(text, body.bound, x.rough or body.rough)
