"""The elements and arguments of an infeed and of `BufferDataset`, supported and unsupported ones."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.feeds import BufferDataset

Pair = collections.namedtuple("Pair", ["left", "right"])  # noqa: PYI024  (What old code uses.)
Dataset = tf.data.Dataset
ALLOWED = (tf.int32, tf.float32, tf.float16, tf.bool, tf.int8, tf.uint8)
REFUSED = (tf.int64, tf.float64, tf.bfloat16, tf.int16, tf.uint16, tf.uint32, tf.uint64, tf.complex64, tf.string)
X, Y, Z = np.int32(7), np.arange(3, dtype=np.float32), np.array([[True], [False]])


def same(taken: Any, expected: Any) -> None:
    """Asserts equal structures, dtypes and values."""
    tf.nest.assert_same_structure(taken, expected, check_types=True)
    for actual_leaf, expected_leaf in zip(tf.nest.flatten(taken), tf.nest.flatten(expected), strict=True):
        assert actual_leaf.dtype == expected_leaf.dtype
        np.testing.assert_array_equal(actual_leaf, expected_leaf)


STRUCTURES = [
    X,
    (X,),
    (X, Y, Z),
    {"y": Y, "x": X},
    ({"x": X, "z": Z}, Y),
    ({"x": X},),
    ({"inputs": {"x": X}, "y": Y}, Z),
    Pair({"x": X}, Y),
    collections.OrderedDict(z=Z, a=X),
    np.random.default_rng(1).random((512, 2048), np.float32),
]


def test_structures_arrive_as_the_dataset_has_them(infeed_of, strategy):
    datasets = [Dataset.from_tensors(element) for element in STRUCTURES]
    datasets.append(Dataset.from_tensors(Y).repeat().batch(4, drop_remainder=True))
    lists = [Dataset.from_tensors(Y).map(lambda y: [y, y + 1]), Dataset.from_tensors(Y).map(lambda y: [y])]
    queues = [infeed_of(dataset) for dataset in (*datasets, *lists)]
    program = tf.function(lambda: [queue._dequeue() for queue in queues], jit_compile=True, autograph=False)
    taken = strategy.run(program)
    for element, dataset in zip(taken, datasets, strict=False):
        same(element, next(dataset.as_numpy_iterator()))
    assert isinstance(taken[-2], tuple)
    same(taken[-2], (Y, Y + 1))
    assert isinstance(taken[-1], tuple)
    same(taken[-1], (Y,))


def test_elements_that_no_feed_carries_are_refused():
    single = Dataset.from_tensors(X)
    lists = [(X, (Y, Z)), ((X,),), {"x": (X, Y)}, ({"x": (X, Y)}, Z), (X, Pair(X, Y)), {"a": {"b": (X,)}}]
    refused = {
        r"Nested list/tuple input shapes are not supported: .* Map the dataset": map(Dataset.from_tensors, lists),
        r"Output shape .* is not fully defined.*`drop_remainder=True`": [
            Dataset.from_tensors(tf.zeros([4, 2])).batch(2),
            Dataset.from_tensors((X, tf.zeros([4]))).batch(2),
            Dataset.from_tensors({"x": X, "y": Y}).padded_batch(2),
            Dataset.from_generator(lambda: [Y], output_types=tf.float32),
            single.map(lambda x: tf.py_function(lambda x: x, [x], tf.int32)),
        ],
        r"the dataset's elements hold .*; a feed carries dense tensors only": [
            Dataset.from_tensors(tf.ragged.constant([[1], [2, 3]])),
            Dataset.from_tensors(tf.sparse.from_dense([[1]])),
            Dataset.from_tensors((X, None)),
            single.repeat(4).window(2),
        ],
        # One error reports all problems.
        r"(?s)Nested list/tuple.*\(None, 4, 2\) is not fully defined.*drop_remainder": [
            Dataset.from_tensors((tf.zeros([4, 2]), (1, 2))).batch(3)
        ],
    }
    for message, datasets in refused.items():
        for dataset in datasets:
            with pytest.raises(ValueError, match=message):
                ipu.IPUInfeedQueue(dataset)


def test_types_and_shapes_that_an_ipu_takes_arrive_unchanged(infeed_of, echo):
    random = np.random.default_rng(0)
    values = {
        f"{dtype.name} {shape}": random.integers(0, 100, (6, *shape)).astype(dtype.as_numpy_dtype)
        for dtype in ALLOWED
        for shape in [(), (1,), (5,), (2, 3, 4)]
    }
    bits = np.array([0, 1, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7FC12345, 0x00800000], np.uint32)
    values["bits"] = np.stack([bits] * 6).view(np.float32)
    outfeed = ipu.IPUOutfeedQueue()
    echo(infeed_of(Dataset.from_tensor_slices(values)), outfeed, 6)
    taken = outfeed.dequeue()
    np.testing.assert_array_equal(taken["bits"].numpy().view(np.uint32), [bits] * 6)
    del taken["bits"], values["bits"]
    same(taken, values)


@pytest.mark.parametrize("dtype", REFUSED, ids=lambda dtype: dtype.name)
def test_type_that_no_ipu_takes_is_refused_by_the_initializer(dtype):
    name = "double" if dtype == tf.float64 else dtype.name
    value = tf.constant(["a"]) if dtype == tf.string else tf.zeros([1], dtype)
    queue = ipu.IPUInfeedQueue(Dataset.from_tensors(({"a": X}, value)))  # Creating the queue raises no error.
    message = (
        rf"Unsupported datatype {name} on index 1 of .*\(int32, float32, float16, bool, int8, uint8\).*dataset\.map"
    )
    with pytest.raises(tf.errors.FailedPreconditionError, match=message) as info:
        queue.initializer  # noqa: B018
    ways = {"floating": "`tf.cast(x, tf.float32)`", "integer": "`tf.cast(x, tf.int32)`", "complex": "`tf.math.real(x)`"}
    way_out = next((way for kind, way in ways.items() if getattr(dtype, f"is_{kind}")), "turn them to numbers")
    assert way_out in str(info.value)
    assert dtype.is_integer or "tf.cast(x, tf.int32)" not in str(info.value)


def test_dimension_of_size_zero_is_refused_when_the_queue_starts():
    message = "^Detected an input tensor to an infeed queue with a dimension of size 0: that on index {} .*leave it out"
    for shape in [(0,), (3, 0), (0, 0, 2)]:
        queue = ipu.IPUInfeedQueue(
            Dataset.from_tensors({"a": X, "b": tf.zeros(shape)})
        )  # Creating the queue raises no error.
        with pytest.raises(tf.errors.InvalidArgumentError, match=message.format(1)):
            queue.initializer  # noqa: B018
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        queue = ipu.IPUInfeedQueue(Dataset.from_tensors(np.zeros([3, 0], np.float32)))
        with ipu.scopes.ipu_scope("/device:IPU:0"):
            compiled = ipu.compiler.compile(lambda: ipu.loops.repeat(2, lambda x: None, infeed_queue=queue))
        start = queue.initializer
        with pytest.raises(tf.errors.InvalidArgumentError, match=message.format(0)):
            session.run(start)
        with pytest.raises(tf.errors.InvalidArgumentError, match="to an infeed queue with a dimension of size 0"):
            session.run(compiled)


def test_loop_body_gets_a_tuple_by_position_and_a_dict_by_name(infeed_of, strategy):
    cases = [
        (X, [7], {}),
        ((X,), [7], {}),
        ((X, X + 1), [7, 8], {}),
        (Pair(X, X + 1), [7, 8], {}),
        ({"b": X, "a": X + 1}, [], {"a": 8, "b": 7}),
        (({"b": X, "a": X + 1},), [], {"a": 8, "b": 7}),
        (({"b": X, "a": X + 1}, X + 2), [{"a": 8, "b": 7}, 9], {}),
    ]
    queues = [infeed_of(Dataset.from_tensors(element).repeat()) for element, *_ in cases]
    calls: list[Any] = []

    @tf.function(jit_compile=True, autograph=False)
    def program() -> None:
        for queue in queues:
            outfeed = ipu.IPUOutfeedQueue()

            def body(total: Any, *args: Any, **kwargs: Any) -> Any:
                outfeed.enqueue((args, kwargs) if args and kwargs else args or kwargs)  # noqa: B023
                return total + 1

            ipu.loops.repeat(2, body, [0], queue)
            calls.append(outfeed)

    strategy.run(program)
    for queue, outfeed, (_, positional, named) in zip(queues, calls, cases, strict=True):
        assert queue.number_of_tuple_elements == len(positional) + len(named)
        got = tf.nest.map_structure(lambda leaf: leaf.numpy().tolist(), outfeed.dequeue())
        assert got == tf.nest.map_structure(lambda value: [value, value], tuple(positional) or named)


ONES = tf.data.Dataset.from_tensors(np.float32(1)).repeat()


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("device_ordinal", ("0", 0.0, True, np.int64(0)), "Device ordinal must be an integer: `device_ordinal` is"),
        ("device_ordinal", (-1,), "Device ordinal must be >= 0: `device_ordinal` is -1"),
        ("prefetch_depth", (0, -1), "prefetch_depth must be greater than zero, but it is (0|-1)"),
        ("prefetch_depth", (256,), "prefetch_depth must be less than 256, but it is 256"),
        ("prefetch_depth", ("3", 2.0, True), "`prefetch_depth` must be an integer, but it is ('3'|2.0|True)"),
        ("optimise_latency", (1,), "`optimise_latency` must be True or False, but is 1"),
        ("dataset", ([1, 2], None, np.zeros(3), iter(ONES)), "`dataset` must be a `tf.data.Dataset`"),
    ],
)
def test_faulty_argument_is_refused(name, values, message):
    error = TypeError if name in ("optimise_latency", "dataset") else ValueError
    for value in values:
        with pytest.raises(error, match=message):
            ipu.IPUInfeedQueue(**{"dataset": ONES, name: value})
        if name in ("device_ordinal", "optimise_latency"):
            with pytest.raises(error, match=message):
                ipu.IPUOutfeedQueue(**{name: value})


def test_device_is_that_of_the_ordinal_or_of_the_strategy_in_whose_scope_the_queue_is_made(configure):
    configure(1, 1)
    for make in (lambda **options: ipu.IPUInfeedQueue(ONES, **options), ipu.IPUOutfeedQueue):
        with ipu.IPUStrategy("/device:IPU:1").scope():
            assert make().device == "/device:IPU:1"
            assert make(device_ordinal=0).device == "/device:IPU:0"
        assert make().device == "/device:IPU:0"
        assert make(device_ordinal=3).device == "/device:IPU:3"


def test_prefetch_depth_is_three_where_it_is_none():
    for depth, used in ((None, 3), (1, 1), (7, 7), (255, 255)):
        assert ipu.IPUInfeedQueue(ONES, prefetch_depth=depth).prefetch_depth == used
    # Arguments of earlier releases are accepted silently.
    old: Any = {"feed_name": "mine", "replication_factor": 2}
    assert ipu.IPUInfeedQueue(ONES, _internal_id="x", data_to_prefetch=2, **old).prefetch_depth == 3
    for is_all, mode in ((None, "ALL"), (True, "ALL"), (False, "LAST")):
        queue = ipu.IPUOutfeedQueue(io_batch_size=4, outfeed_all=is_all, **old)
        assert queue.outfeed_mode is ipu.IPUOutfeedMode[mode]
    assert ipu.IPUOutfeedQueue(ipu.IPUOutfeedMode.ALL, outfeed_all=False).outfeed_mode is ipu.IPUOutfeedMode.ALL


@pytest.mark.parametrize("names", [("foo",), ("depth", "feed_names")])
def test_argument_by_an_unknown_name_is_refused(names):
    with pytest.raises(TypeError, match=f"no argument {', '.join(f'`{name}`' for name in names)}; it has.*prefetch"):
        ipu.IPUInfeedQueue(ONES, **dict.fromkeys(names, 1))
    with pytest.raises(TypeError, match=f"`IPUOutfeedQueue` has no argument `{names[0]}`.*; it has.*buffer_depth"):
        ipu.IPUOutfeedQueue(**dict.fromkeys(names, 1))


def test_names_of_queues_are_unique_in_the_process():
    names = {ipu.IPUInfeedQueue(ONES)._name for _ in range(5)} | {ipu.IPUOutfeedQueue()._name for _ in range(5)}
    assert len(names) == 10


def test_options_that_tune_transfers_change_no_result(echo, infeed_of, numbers):
    for of_infeed, of_outfeed in (
        ({}, {"buffer_depth": 1}),
        ({"prefetch_depth": 1}, {"buffer_depth": 50}),
        ({"prefetch_depth": 255}, {}),
        ({"optimise_latency": True}, {"optimise_latency": True}),
    ):
        infeed, outfeed = infeed_of(numbers(200), **of_infeed), ipu.IPUOutfeedQueue(**of_outfeed)
        echo(infeed, outfeed, 200)
        np.testing.assert_array_equal(outfeed.dequeue(), np.arange(200))


NUMBERS = tf.data.Dataset.range(7)


@pytest.mark.parametrize(
    "dataset",
    [
        NUMBERS,
        NUMBERS.map(lambda x: (x, {"twice": [2 * x]})),
        NUMBERS.map(lambda x: {"x": x}),
        NUMBERS.map(lambda x: (tf.range(x),)),  # The elements have different shapes.
    ],
)
def test_elements_are_those_of_the_dataset_without_the_rest(dataset):
    groups = BufferDataset(dataset, 3)
    assert groups.element_spec == dataset.element_spec
    for element, expected in zip(list(groups), list(dataset.take(6)), strict=True):
        tf.nest.map_structure(lambda a, b: tf.debugging.assert_equal(a, b), element, expected)
    assert len(list(groups.batch(1) if dataset is NUMBERS else groups.map(lambda *x: x))) == 6


def test_infeed_ends_with_the_last_whole_buffer(strategy):
    infeed = ipu.IPUInfeedQueue(BufferDataset(NUMBERS.map(lambda x: tf.cast(x, tf.int32)), 3))
    infeed.initializer  # noqa: B018
    program = tf.function(lambda: ipu.loops.repeat(3, lambda total, x: total + x, [0], infeed), jit_compile=True)
    assert [strategy.run(program).numpy() for _ in range(2)] == [3, 12]
    with pytest.raises(tf.errors.OutOfRangeError):
        strategy.run(program)
    infeed.deleter  # noqa: B018


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [(([1], 2), TypeError, "`input_dataset`"), ((NUMBERS, 2.0), TypeError, "`buffer_size`"),
     ((NUMBERS, 0), ValueError, "`buffer_size=0`")],
)  # fmt: skip
def test_arguments_that_cannot_be_are_refused(arguments, kind, message):
    with pytest.raises(kind, match=message):
        BufferDataset(*arguments)
