"""Random numbers in programs: a stream a replica, that `config.utils.reset_ipu_seed` starts anew.

XLA would draw them from one source, which has no seed: so while a program is traced, TensorFlow's stateful operations
become stateless ones, seeded by the replica's own stream.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu._base import environment
from tensorflow_ipu._native.library import ops
from tensorflow_ipu._tensorflow import devices, patches
from tensorflow_ipu.config import _state
from tensorflow_ipu.ops import sites

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import DTypeLike, TensorLike

__all__ = ["repeated", "seed", "stream"]

# The seeds that a block draws, and those among them that it is to take again.
_repeated: contextvars.ContextVar[tuple[list[tf.Tensor], Iterator[tf.Tensor]] | None] = contextvars.ContextVar(
    "_repeated", default=None
)


@contextlib.contextmanager
def repeated(seeds: list[tf.Tensor]) -> Iterator[None]:
    """Opens a block that takes the seeds of a list; it draws and adds those that are not there yet."""
    token = _repeated.set((seeds, iter(list(seeds))))
    try:
        yield
    finally:
        _repeated.reset(token)


def seed() -> tf.Tensor:
    """Draws a new seed for a stateless operation: an int64 vector of 2, another at each use and on each replica."""
    return ops.ipu_random_seed(sites.random("seed"), advance=not programs.in_condition())


def stream() -> tf.Tensor:
    """Returns the random stream of the replica, an int64 scalar: its index, or 0 if all replicas draw the same."""
    return ops.ipu_random_stream(sites.random("stream"))


def _of_type(draw: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Wraps a stateless function in the form of the stateful ones that take a shape and a type."""

    def drawn(
        shape: tf.Tensor | Sequence[int], dtype: DTypeLike, seed: int = 0, seed2: int = 0, name: str | None = None
    ) -> tf.Tensor:
        return draw(shape, _seed_of(seed, seed2), dtype=dtype, name=name)

    return drawn


def _uniform_int(
    shape: tf.Tensor | Sequence[int],
    minval: tf.Tensor | float,
    maxval: tf.Tensor | float,
    seed: int = 0,
    seed2: int = 0,
    name: str | None = None,
) -> tf.Tensor:
    lowest = tf.convert_to_tensor(minval)
    return tf.random.stateless_uniform(shape, _seed_of(seed, seed2), lowest, maxval, lowest.dtype, name=name)


def _bounded_normal(
    shape: tf.Tensor | Sequence[int],
    means: tf.Tensor | float,
    stdevs: tf.Tensor | float,
    minvals: tf.Tensor | float,
    maxvals: tf.Tensor | float,
    seed: int = 0,
    seed2: int = 0,
    name: str | None = None,
) -> tf.Tensor:
    return tf.random.stateless_parameterized_truncated_normal(
        shape, _seed_of(seed, seed2), means, stdevs, minvals, maxvals, name
    )


def _shuffle(value: TensorLike, seed: int = 0, seed2: int = 0, name: str | None = None) -> tf.Tensor:
    # By the order of random numbers, since XLA compiles no stateless shuffle.
    value = tf.convert_to_tensor(value)
    count = tf.shape(value)[:1]
    places = tf.random.stateless_uniform(count, _seed_of(seed, seed2), tf.int64.min, tf.int64.max, tf.int64)
    return tf.gather(value, tf.argsort(places), name=name)


def _categorical(
    logits: tf.Tensor,
    num_samples: tf.Tensor | int,
    seed: int = 0,
    seed2: int = 0,
    output_dtype: DTypeLike = tf.int64,
    name: str | None = None,
) -> tf.Tensor:
    narrow = tf.cast(_seed_of(seed, seed2), tf.int32)  # XLA compiles this one with no other seeds.
    return tf.random.stateless_categorical(logits, num_samples, narrow, output_dtype, name)


def _seed_of(first: int | None, second: int | None) -> tf.Tensor:
    """Draws a seed. The operation's own seeds make it differ from others of the same stream."""
    seeds, again = _repeated.get() or ([], iter(()))
    drawn = next(again, None)
    if drawn is None:
        drawn = seed() + tf.constant([(first or 0) * 31 + (second or 0), 0], tf.int64)
        seeds.append(drawn)
    return drawn


_STATELESS: dict[str, Callable[..., tf.Tensor]] = {
    "multinomial": _categorical,
    "parameterized_truncated_normal": _bounded_normal,
    "random_shuffle": _shuffle,
    "random_standard_normal": _of_type(tf.random.stateless_normal),
    "random_uniform": _of_type(tf.random.stateless_uniform),
    "random_uniform_int": _uniform_int,
    "truncated_normal": _of_type(tf.random.stateless_truncated_normal),
}


# On a graph: for each tensor that was drawn in it, what draws its like on the host.
_DRAWN = "_ipu_drawn"


def in_programs(stateful: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    stateless = _STATELESS[stateful.__name__]

    @functools.wraps(stateful)
    def draw(*args: Any, **kwargs: Any) -> tf.Tensor:
        if not programs.is_tracing():
            return stateful(*args, **kwargs)
        drawn = stateless(*args, **kwargs)
        known = getattr(drawn.graph, _DRAWN, {})
        known[drawn.op.name] = functools.partial(stateful, *args, **kwargs)
        setattr(drawn.graph, _DRAWN, known)
        return drawn

    return draw


def on_host(value: tf.Tensor) -> tf.Tensor:
    """Copies a value for the host to compute: random numbers in it are those of plain TensorFlow."""
    graph = value.graph
    drawn: dict[str, functools.partial[tf.Tensor]] = getattr(graph, _DRAWN, {})
    operations: dict[str, tf.Operation] = {}  # Those between the random numbers and the value.
    sources: set[str] = set()
    waiting = [value.op]
    while waiting:
        operation = waiting.pop()
        if operation.name in drawn:
            sources.add(operation.name)
        elif operation.name not in operations:
            operations[operation.name] = operation
            waiting += [tensor.op for tensor in operation.inputs]
    if not sources:
        return value
    with graph.as_default(), tf.control_dependencies(None), programs.on_host():
        hosts = {f"{name}:0": _drawn_on_host(drawn[name]) for name in sources}
        if value.name in hosts:
            return hosts[value.name]
        definition = tf.compat.v1.GraphDef(versions=graph.graph_def_versions)
        definition.node.extend(operation.node_def for operation in operations.values())
        for node in definition.node:  # Nothing on the host waits for the program.
            node.input[:] = [name for name in node.input if not name.startswith("^")]
        return tf.graph_util.import_graph_def(definition, hosts, [value.name], name="on_host")[0]


def _drawn_on_host(draw: functools.partial[tf.Tensor]) -> tf.Tensor:
    """Draws on the host; a shape or a limit may have been drawn itself."""
    args = [on_host(value) if isinstance(value, tf.Tensor) else value for value in draw.args]
    return draw.func(*args, **draw.keywords)


def key_in_programs(plain: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Derives the key of a `tf.random.Generator` for each replica of a program."""

    @functools.wraps(plain)
    def key_of(generator: tf.random.Generator, key: tf.Tensor) -> tf.Tensor:
        if not programs.is_tracing():
            return plain(generator, key)
        if not devices.is_of_strategy(generator):
            return key
        number = stream()
        derived = tf.raw_ops.StatelessRandomUniformFullIntV2(
            shape=[1],
            key=key,
            counter=tf.bitcast(tf.stack([number, 0]), tf.uint64),
            alg=generator.algorithm,
            dtype=tf.uint64,
        )
        # TensorFlow derives a key for the first replica too, which would draw otherwise than without a strategy.
        return tf.where(tf.equal(number, 0), key, derived)

    return key_of


def _followed(plain: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(plain)
    def set_seed(context: object, seed: int | None) -> None:
        plain(context, seed)
        _state.follow_global_seed(seed)

    return set_seed


if environment.uses_keras_2():  # Whose layers draw TensorFlow's own random numbers.
    patches.GLOBAL_SEED.apply_for_good(_followed)
