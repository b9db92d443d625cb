"""The elements of an infeed: structures, types and shapes that a program can take, and those that it cannot."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu

Pair = collections.namedtuple("Pair", ["left", "right"])  # noqa: PYI024  (What old code uses.)
Dataset = tf.data.Dataset
ALLOWED = (tf.int32, tf.float32, tf.float16, tf.bool, tf.int8, tf.uint8)
REFUSED = {
    tf.int64: "int64",
    tf.float64: "double",
    tf.bfloat16: "bfloat16",
    tf.int16: "int16",
    tf.uint16: "uint16",
    tf.uint32: "uint32",
    tf.uint64: "uint64",
    tf.complex64: "complex64",
    tf.string: "string",
}
X, Y, Z = np.int32(7), np.arange(3, dtype=np.float32), np.array([[True], [False]])


def same(taken: Any, given: Any) -> None:
    """Asserts equal structures, dtypes and values."""
    tf.nest.assert_same_structure(taken, given, check_types=True)
    for ours, theirs in zip(tf.nest.flatten(taken), tf.nest.flatten(given), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "element",
    [
        X,
        (X,),
        (X, Y),
        (X, Y, Z),
        {"x": X},
        {"y": Y, "x": X},
        ({"x": X, "z": Z}, Y),
        ({"x": X},),
        ({"x": X}, {"y": Y}),
        {"inputs": {"x": X, "y": Y}, "label": Z},
        ({"inputs": {"x": X}, "y": Y}, Z),
        Pair(X, Y),
        Pair({"x": X}, Y),
        collections.OrderedDict(z=Z, a=X),
    ],
    ids=repr,
)
def test_structure_arrives_as_the_dataset_has_it(element: Any, infeed_of: Any, take_one: Any) -> None:
    dataset = Dataset.from_tensors(element)
    taken = take_one(infeed_of(dataset))
    same(taken, next(dataset.as_numpy_iterator()))


def test_list_from_a_map_arrives_as_a_tuple(infeed_of: Any, take_one: Any) -> None:
    taken = take_one(infeed_of(Dataset.from_tensors(Y).map(lambda y: [y, y + 1])))
    assert isinstance(taken, tuple)
    same(taken, (Y, Y + 1))


def test_list_of_one_from_a_map_arrives_as_a_tuple_of_one(infeed_of: Any, take_one: Any) -> None:
    taken = take_one(infeed_of(Dataset.from_tensors(Y).map(lambda y: [y])))
    assert isinstance(taken, tuple)
    same(taken, (Y,))


@pytest.mark.parametrize(
    "element",
    [(X, (Y, Z)), ((X,),), {"x": (X, Y)}, ({"x": (X, Y)}, Z), (X, Pair(X, Y)), {"a": {"b": (X,)}}],
    ids=repr,
)
def test_list_or_tuple_inside_of_an_element_is_refused(element: Any) -> None:
    dataset = Dataset.from_tensors(0).map(lambda _: element)
    with pytest.raises(ValueError, match=r"Nested list/tuple input shapes are not supported: .* Map the dataset to"):
        ipu.IPUInfeedQueue(dataset)


@pytest.mark.parametrize(
    "dataset",
    [
        Dataset.from_tensors(tf.zeros([4, 2])).batch(2),
        Dataset.from_tensors((X, tf.zeros([4]))).batch(2),
        Dataset.from_tensors({"x": X, "y": Y}).padded_batch(2),
        Dataset.from_generator(lambda: [Y], output_types=tf.float32),
        Dataset.from_tensors(X).map(lambda x: tf.py_function(lambda x: x, [x], tf.int32)),
    ],
    ids=["batch", "batch of tuples", "padded batch", "generator", "py_function"],
)
def test_shape_that_is_not_fully_defined_is_refused(dataset: Any) -> None:
    with pytest.raises(ValueError, match=r"Output shape .* is not fully defined.*`drop_remainder=True`"):
        ipu.IPUInfeedQueue(dataset)


def test_batch_that_drops_the_remainder_is_taken(infeed_of: Any, take_one: Any) -> None:
    taken = take_one(infeed_of(Dataset.from_tensors(Y).repeat().batch(4, drop_remainder=True)))
    same(taken, np.stack([Y] * 4))


@pytest.mark.parametrize(
    "dataset",
    [
        Dataset.from_tensors(tf.ragged.constant([[1], [2, 3]])),
        Dataset.from_tensors(tf.sparse.from_dense([[1]])),
        Dataset.from_tensors((X, None)),
        Dataset.from_tensors(X).repeat(4).window(2),
    ],
    ids=["ragged", "sparse", "none", "dataset"],
)
def test_what_is_no_dense_tensor_is_refused(dataset: Any) -> None:
    with pytest.raises(ValueError, match=r"the dataset's elements hold .*; a feed carries dense tensors alone"):
        ipu.IPUInfeedQueue(dataset)


@pytest.mark.parametrize("dtype", ALLOWED, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3, 4)], ids=str)
def test_type_and_shape_that_an_ipu_takes_arrives_unchanged(
    dtype: tf.DType, shape: tuple[int, ...], infeed_of: Any, echo: Any
) -> None:
    values = np.random.default_rng(0).integers(0, 100, (6, *shape)).astype(dtype.as_numpy_dtype)
    outfeed = ipu.IPUOutfeedQueue()
    echo(infeed_of(Dataset.from_tensor_slices(values)), outfeed, 6)
    same(outfeed.dequeue(), values)


def test_float_bits_arrive_unchanged(infeed_of: Any, echo: Any) -> None:
    bits = np.array([0, 1, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7FC12345, 0x00800000], np.uint32)
    outfeed = ipu.IPUOutfeedQueue()
    echo(infeed_of(Dataset.from_tensors(bits.view(np.float32))), outfeed, 1)
    np.testing.assert_array_equal(outfeed.dequeue()[0].numpy().view(np.uint32), bits)


@pytest.mark.parametrize(("dtype", "name"), REFUSED.items(), ids=list(REFUSED.values()))
def test_type_that_no_ipu_takes_is_refused_by_the_initializer(dtype: tf.DType, name: str) -> None:
    value = tf.constant(["a"]) if dtype == tf.string else tf.zeros([1], dtype)
    queue = ipu.IPUInfeedQueue(Dataset.from_tensors(({"a": X}, value)))  # Made without complaint.
    words = (
        rf"Unsupported datatype {name} on index 1 of .*\(int32, float32, float16, bool, int8, uint8\).*`dataset\.map"
    )
    with pytest.raises(tf.errors.FailedPreconditionError, match=words) as info:
        queue.initializer  # noqa: B018
    ways = {"floating": "`tf.cast(x, tf.float32)`", "integer": "`tf.cast(x, tf.int32)`", "complex": "`tf.math.real(x)`"}
    way_out = next((way for kind, way in ways.items() if getattr(dtype, f"is_{kind}")), "turn them to numbers")
    assert way_out in str(info.value)
    assert dtype.is_integer or "tf.cast(x, tf.int32)" not in str(info.value)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 0, 2)], ids=str)
def test_dimension_of_size_zero_is_refused_when_the_queue_starts(shape: tuple[int, ...]) -> None:
    queue = ipu.IPUInfeedQueue(Dataset.from_tensors({"a": X, "b": tf.zeros(shape)}))  # Made without complaint.
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"^The tensor on index 1 of .* of size 0.*leave it out"):
        queue.initializer  # noqa: B018


def test_dimension_of_size_zero_is_refused_when_a_session_starts_the_queue() -> None:
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        queue = ipu.IPUInfeedQueue(Dataset.from_tensors(np.zeros([3, 0], np.float32)))
        with ipu.scopes.ipu_scope("/device:IPU:0"):
            compiled = ipu.compiler.compile(lambda: ipu.loops.repeat(2, lambda x: None, infeed_queue=queue))
        start = queue.initializer
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"The tensor on index 0 .* of size 0.*leave it out"):
            session.run(start)
        with pytest.raises(tf.errors.InvalidArgumentError, match="of size 0, and an infeed queue cannot carry it"):
            session.run(compiled)


def test_large_element_arrives_unchanged(infeed_of: Any, take_one: Any) -> None:
    big = np.random.default_rng(1).random((512, 2048), np.float32)
    same(take_one(infeed_of(Dataset.from_tensors(big))), big)


@pytest.mark.parametrize(
    ("element", "positional", "named"),
    [
        (X, [7], {}),
        ((X,), [7], {}),
        ((X, X + 1), [7, 8], {}),
        (Pair(X, X + 1), [7, 8], {}),
        ({"b": X, "a": X + 1}, [], {"a": 8, "b": 7}),
        (({"b": X, "a": X + 1},), [], {"a": 8, "b": 7}),
        (({"b": X, "a": X + 1}, X + 2), [{"a": 8, "b": 7}, 9], {}),
    ],
    ids=repr,
)
def test_loop_body_gets_a_tuple_by_position_and_a_dict_by_name(
    element: Any, positional: list[Any], named: dict[str, Any], infeed_of: Any, strategy: Any
) -> None:
    queue = infeed_of(Dataset.from_tensors(element).repeat())
    outfeed = ipu.IPUOutfeedQueue()
    assert queue.number_of_tuple_elements == len(positional) + len(named)

    @tf.function(jit_compile=True, autograph=False)
    def program() -> Any:
        def body(total: Any, *args: Any, **kwargs: Any) -> Any:
            outfeed.enqueue({"positional": args, "named": kwargs} if kwargs else {"positional": args})
            return total + 1

        return ipu.loops.repeat(2, body, [0], queue)

    assert strategy.run(program) == 2
    got = tf.nest.map_structure(lambda leaf: leaf.numpy().tolist(), outfeed.dequeue())
    twice = tf.nest.map_structure(lambda value: [value, value], {"positional": tuple(positional), "named": named})
    assert got == twice if named else got["positional"] == twice["positional"]
