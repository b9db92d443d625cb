"""Elements go through a program and back unchanged and in order, whatever they are; and programs compute what they
compute in plain TensorFlow."""

from __future__ import annotations

from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from hypothesis.extra import numpy as hnp

import tensorflow_ipu as ipu

DTYPES = ("int32", "float32", "float16", "bool", "int8", "uint8")

# One deadline a test, by pytest: the first example of a kind compiles. The database would write beside the tests.
quick = hypothesis.settings(
    max_examples=25,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(hypothesis.HealthCheck),
)


def leaves() -> st.SearchStrategy[Any]:
    shapes = st.lists(st.integers(1, 4), max_size=3).map(tuple)
    return st.tuples(st.sampled_from(DTYPES), shapes)


def structures() -> st.SearchStrategy[Any]:
    """Structures that an infeed takes: a leaf, a dict, or a tuple of such."""
    names = st.text("abcxyz", min_size=1, max_size=3)
    dicts = st.recursive(
        st.dictionaries(names, leaves(), min_size=1, max_size=3),
        lambda inner: st.dictionaries(names, st.one_of(inner, leaves()), min_size=1, max_size=2),
        max_leaves=3,
    )
    parts = st.one_of(leaves(), dicts)
    return st.one_of(parts, st.lists(parts, min_size=1, max_size=3).map(lambda parts: ("tuple", *parts)))


def build(structure: Any, leaf: Any) -> Any:
    """Puts `leaf(dtype, shape)` for each leaf of a structure that `structures` drew."""
    if isinstance(structure, dict):
        return {key: build(part, leaf) for key, part in structure.items()}
    if structure[0] == "tuple":
        return tuple(build(part, leaf) for part in structure[1:])
    return leaf(*structure)


def is_same(ours: Any, given: Any) -> bool:
    """Whether two structures are equal, bit for bit."""
    tf.nest.assert_same_structure(ours, given)
    return all(
        a.numpy().dtype == b.dtype and a.numpy().tobytes() == b.tobytes()
        for a, b in zip(tf.nest.flatten(ours), tf.nest.flatten(given), strict=True)
    )


@quick
@hypothesis.given(data=st.data(), structure=structures(), count=st.integers(1, 40), depth=st.sampled_from([1, 3, 255]))
def test_any_element_goes_through_unchanged_and_in_order(data: Any, structure: Any, count: int, depth: int) -> None:
    seed = data.draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)

    def random_bits(dtype: str, shape: Any) -> Any:
        kind = np.dtype(dtype)
        if dtype == "bool":
            return random.integers(0, 2, (count, *shape)).astype(bool)
        size = count * int(np.prod(shape)) * kind.itemsize
        return np.frombuffer(random.bytes(size), kind).reshape(count, *shape)

    rows = build(structure, random_bits)
    infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(rows), prefetch_depth=depth)
    outfeed = ipu.IPUOutfeedQueue()
    infeed.initializer  # noqa: B018

    @tf.function(jit_compile=True)
    def program(n: Any) -> None:
        i = 0
        while i < n:
            outfeed.enqueue(infeed._dequeue())
            i += 1

    first = data.draw(st.integers(0, count))
    strategy = ipu.IPUStrategy()
    strategy.run(program, (tf.constant(first),))
    head = outfeed.dequeue()
    strategy.run(program, (tf.constant(count - first),))
    tail = outfeed.dequeue()
    assert is_same(tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), head, tail), rows)


@quick
@hypothesis.given(
    runs=st.lists(st.tuples(st.sampled_from(["run", "dequeue", "iterate", "one"]), st.integers(0, 20)), max_size=12)
)
def test_reads_and_runs_in_any_order_give_one_stream(runs: list[tuple[str, int]]) -> None:
    infeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(np.arange(1000, dtype=np.int32)))
    outfeed = ipu.IPUOutfeedQueue()
    infeed.initializer  # noqa: B018
    strategy = ipu.IPUStrategy()
    strategy.run(_pass_on, (infeed, outfeed, tf.constant(1)))
    got: list[int] = []
    total = 1
    for action, n in runs:
        if action == "run":
            strategy.run(_pass_on, (infeed, outfeed, tf.constant(n)))
            total += n
        elif action == "dequeue":
            got.extend(int(x) for x in outfeed.dequeue())
        elif action == "iterate":
            got.extend(int(x) for x in outfeed)
        else:
            got.extend(int(x) for _, x in zip(range(n), outfeed, strict=False))
    got.extend(int(x) for x in outfeed.dequeue())
    assert got == list(range(total))


@tf.function(jit_compile=True)
def _pass_on(infeed: Any, outfeed: Any, n: Any) -> None:
    i = 0
    while i < n:
        outfeed.enqueue(infeed._dequeue())
        i += 1


@pytest.mark.parametrize("replicas", [1, 4])
@pytest.mark.parametrize("floats", [1, 254, 255, 256, 5000], ids=lambda floats: f"{4 * (floats + 1)}_bytes")
def test_elements_are_whole_on_either_side_of_the_size_up_to_which_they_are_copied(floats, replicas):
    # Small elements go through the queue as a copy of their bytes, larger ones by reference.
    config = ipu.IPUConfig()
    config.auto_select_ipus = replicas
    config.configure_ipu_system()
    count = 300 * replicas
    rows = (np.arange(count, dtype=np.int32), np.random.default_rng(0).random((count, floats), np.float32))
    infeed, outfeed = ipu.IPUInfeedQueue(tf.data.Dataset.from_tensor_slices(rows)), ipu.IPUOutfeedQueue()
    infeed.initializer  # noqa: B018
    strategy = ipu.IPUStrategy()
    for n in (100, 200):
        strategy.run(_pass_on, (infeed, outfeed, tf.constant(n)))
    lanes = () if replicas == 1 else (replicas,)
    for ours, given in zip(outfeed.dequeue(), rows, strict=True):
        np.testing.assert_array_equal(ours, given.reshape(300, *lanes, *given.shape[1:]))


@quick
@hypothesis.given(array=hnp.arrays(np.float32, hnp.array_shapes(max_dims=3, max_side=5)))
def test_any_float_array_keeps_its_bits(array: np.ndarray) -> None:
    outfeed = ipu.IPUOutfeedQueue()
    program = tf.function(lambda x: outfeed.enqueue(x) and None, jit_compile=True)
    ipu.IPUStrategy().run(program, (tf.constant(array),))
    assert outfeed.dequeue()[0].numpy().tobytes() == array.tobytes()


def test_training_loop_is_bit_exact_with_the_same_loop_on_tensorflows_own_data(infeed_of: Any) -> None:
    random = np.random.default_rng(3)
    features = random.random((32, 16, 8), np.float32)
    labels = random.random((32, 16, 2), np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((features, labels))
    start = random.random((8, 2), np.float32)

    def step(weights: Any, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.tanh(x @ weights) - y) ** 2)
        weights.assign_sub(0.5 * tape.gradient(loss, weights))
        return loss

    plain = tf.Variable(start)
    plain_step = tf.function(lambda x, y: step(plain, x, y), jit_compile=True)
    plain_losses = [plain_step(x, y).numpy() for x, y in dataset]

    strategy, outfeed = ipu.IPUStrategy(), ipu.IPUOutfeedQueue()
    with strategy.scope():
        ours = tf.Variable(start)
    infeed = infeed_of(dataset)

    @tf.function(jit_compile=True)
    def program() -> None:
        for _ in tf.range(32):
            x, y = infeed._dequeue()
            outfeed.enqueue(step(ours, x, y))

    strategy.run(program)
    np.testing.assert_array_equal(outfeed.dequeue(), plain_losses)
    np.testing.assert_array_equal(ours, plain)


@pytest.mark.parametrize("transform", ["shuffle", "repeat", "interleave", "cache"])
def test_pipeline_of_transformations_gives_the_elements_that_it_gives_on_the_host(
    transform: str, infeed_of: Any, numbers: Any, echo: Any
) -> None:
    dataset = {
        "shuffle": lambda: numbers(64).shuffle(64, seed=7, reshuffle_each_iteration=False).prefetch(4),
        "repeat": lambda: numbers(8).repeat(8),
        "interleave": lambda: numbers(8).interleave(
            lambda x: tf.data.Dataset.from_tensors(x).repeat(8), cycle_length=3, num_parallel_calls=2
        ),
        "cache": lambda: numbers(64).map(lambda x: x * 3, num_parallel_calls=2).cache(),
    }[transform]()
    outfeed = ipu.IPUOutfeedQueue()
    echo(infeed_of(dataset), outfeed, 64)
    np.testing.assert_array_equal(outfeed.dequeue(), list(dataset.as_numpy_iterator()))
