"""Random operations in programs: each replica has a random stream, which `config.utils.reset_ipu_seed` restarts.

XLA compiles TensorFlow's stateful random operations to a single generator without a seed. So these operations are
replaced by stateless ones while a program is traced. Their seeds come from the replica's stream.
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

# In a `repeated` block: the list of seeds, and an iterator over those that the block has not reused yet.
_repeated: contextvars.ContextVar[tuple[list[tf.Tensor], Iterator[tf.Tensor]] | None] = contextvars.ContextVar(
    "_repeated", default=None
)


@contextlib.contextmanager
def repeated(seeds: list[tf.Tensor]) -> Iterator[None]:
    """Runs the block with the random seeds in `seeds`, in order. Seeds drawn beyond these are appended to the list.

    A function that is traced twice, with the same list, draws the same random values both times.
    """
    token = _repeated.set((seeds, iter(list(seeds))))
    try:
        yield
    finally:
        _repeated.reset(token)


def seed() -> tf.Tensor:
    """Draws a new seed for a stateless operation: an int64 vector of 2, different at each use and on each replica."""
    return ops.ipu_random_seed(sites.random("seed"), advance=not programs.in_condition())


def stream() -> tf.Tensor:
    """Returns the index of the replica's random stream, an int64 scalar; it is 0 if all replicas share one stream."""
    return ops.ipu_random_stream(sites.random("stream"))


def _of_type(draw: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Wraps a stateless function in the signature of the stateful functions that take a shape and a dtype."""

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
    # XLA cannot compile TensorFlow's stateless shuffle: sort by random keys instead.
    value = tf.convert_to_tensor(value)
    count = tf.shape(value)[:1]
    keys = tf.random.stateless_uniform(count, _seed_of(seed, seed2), tf.int64.min, tf.int64.max, tf.int64)
    return tf.gather(value, tf.argsort(keys), name=name)


def _categorical(
    logits: tf.Tensor,
    num_samples: tf.Tensor | int,
    seed: int = 0,
    seed2: int = 0,
    output_dtype: DTypeLike = tf.int64,
    name: str | None = None,
) -> tf.Tensor:
    seed_32 = tf.cast(_seed_of(seed, seed2), tf.int32)  # XLA compiles this operation only with int32 seeds.
    return tf.random.stateless_categorical(logits, num_samples, seed_32, output_dtype, name)


def _seed_of(first: int | None, second: int | None) -> tf.Tensor:
    """Draws a seed. The operation's own seeds distinguish it from other operations with the same stream."""
    drawn_seeds, earlier_seeds = _repeated.get() or ([], iter(()))
    next_seed = next(earlier_seeds, None)
    if next_seed is None:
        next_seed = seed() + tf.constant([(first or 0) * 31 + (second or 0), 0], tf.int64)
        drawn_seeds.append(next_seed)
    return next_seed


_STATELESS: dict[str, Callable[..., tf.Tensor]] = {
    "multinomial": _categorical,
    "parameterized_truncated_normal": _bounded_normal,
    "random_shuffle": _shuffle,
    "random_standard_normal": _of_type(tf.random.stateless_normal),
    "random_uniform": _of_type(tf.random.stateless_uniform),
    "random_uniform_int": _uniform_int,
    "truncated_normal": _of_type(tf.random.stateless_truncated_normal),
}


# A graph's attribute. It maps the name of each random operation to a function that draws on the host instead.
_DRAWN = "_ipu_drawn"


def in_programs(stateful: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Returns a function that calls the stateless form of `stateful` while a program is traced."""
    stateless = _STATELESS[stateful.__name__]

    @functools.wraps(stateful)
    def draw(*args: Any, **kwargs: Any) -> tf.Tensor:
        if not programs.is_tracing():
            return stateful(*args, **kwargs)
        drawn = stateless(*args, **kwargs)
        host_draws = getattr(drawn.graph, _DRAWN, {})
        host_draws[drawn.op.name] = functools.partial(stateful, *args, **kwargs)
        setattr(drawn.graph, _DRAWN, host_draws)
        return drawn

    return draw


def on_host(value: tf.Tensor) -> tf.Tensor:
    """Returns a copy of `value` that the host computes, with TensorFlow's own stateful random operations.

    Initial values of variables need it, since the host has no random stream of a replica. Returns `value` itself if
    it does not depend on random operations of the program.
    """
    graph = value.graph
    host_draws: dict[str, functools.partial[tf.Tensor]] = getattr(graph, _DRAWN, {})
    operations: dict[str, tf.Operation] = {}  # The operations between the random ones and the value.
    sources: set[str] = set()
    waiting = [value.op]
    while waiting:
        operation = waiting.pop()
        if operation.name in host_draws:
            sources.add(operation.name)
        elif operation.name not in operations:
            operations[operation.name] = operation
            waiting += [tensor.op for tensor in operation.inputs]
    if not sources:
        return value
    with graph.as_default(), tf.control_dependencies(None), programs.on_host():
        host_tensors = {f"{name}:0": _draw_on_host(host_draws[name]) for name in sources}
        if value.name in host_tensors:
            return host_tensors[value.name]
        definition = tf.compat.v1.GraphDef(versions=graph.graph_def_versions)
        definition.node.extend(operation.node_def for operation in operations.values())
        for node in definition.node:  # The host cannot wait for operations of the program.
            node.input[:] = [name for name in node.input if not name.startswith("^")]
        return tf.graph_util.import_graph_def(definition, host_tensors, [value.name], name="on_host")[0]


def _draw_on_host(draw: functools.partial[tf.Tensor]) -> tf.Tensor:
    """Calls `draw` on the host. Its arguments, such as a shape or a limit, may be random themselves."""
    args = [on_host(value) if isinstance(value, tf.Tensor) else value for value in draw.args]
    return draw.func(*args, **draw.keywords)


def key_in_programs(original: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Returns a function that derives a separate key of a `tf.random.Generator` for each replica of a program."""

    @functools.wraps(original)
    def key_of(generator: tf.random.Generator, key: tf.Tensor) -> tf.Tensor:
        if not programs.is_tracing():
            return original(generator, key)
        if not devices.is_of_strategy(generator):
            return key
        replica = stream()
        derived = tf.raw_ops.StatelessRandomUniformFullIntV2(
            shape=[1],
            key=key,
            counter=tf.bitcast(tf.stack([replica, 0]), tf.uint64),
            alg=generator.algorithm,
            dtype=tf.uint64,
        )
        # The first replica keeps the key, so that it draws the same values as without a strategy.
        return tf.where(tf.equal(replica, 0), key, derived)

    return key_of


def _also_seed_streams(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def set_seed(context: object, seed: int | None) -> None:
        original(context, seed)
        _state.follow_global_seed(seed)

    return set_seed


if environment.uses_keras_2():  # Layers of Keras 2 use TensorFlow's global seed.
    patches.GLOBAL_SEED.apply_for_good(_also_seed_streams)
