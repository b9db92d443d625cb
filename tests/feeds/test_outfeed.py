"""`IPUOutfeedQueue`: arguments, supported elements, results of `dequeue` and iteration, and the end of a queue."""

from __future__ import annotations

import collections
import gc
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import IPUOutfeedMode, IPUOutfeedQueue
from tensorflow_ipu._native.library import native
from tensorflow_ipu.feeds import ScopedIPUOutfeedQueue, _layout
from tensorflow_ipu.ops.replication_ops import replication_index

Pair = collections.namedtuple("Pair", ["left", "right"])  # noqa: PYI024  (What old code uses.)


def run(strategy: Any, body: Any, *args: Any) -> Any:
    """Runs a plain function as a program."""
    return strategy.run(tf.function(body, jit_compile=True), args)


def enqueuing(queue: IPUOutfeedQueue, *element: Any) -> Any:
    """Returns a program that enqueues this element, or its arguments."""
    return tf.function(lambda *args: queue.enqueue(*element, *args) and None, jit_compile=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"outfeed_mode": "all"}, r"`outfeed_mode` must be an `IPUOutfeedMode`, `ALL` or `LAST`, but is 'all'"),
        ({"outfeed_mode": 1}, r"`outfeed_mode` must be an `IPUOutfeedMode`"),
        ({"buffer_depth": 0}, r"Outfeed buffer depth cannot be less than 1: `buffer_depth` is 0"),
        ({"buffer_depth": -3}, r"Outfeed buffer depth cannot be less than 1"),
        ({"buffer_depth": 2.5}, r"`buffer_depth` must be an integer, but is 2.5"),
    ],
)
def test_faulty_argument_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        IPUOutfeedQueue(**arguments)
    assert {mode.name: mode.value for mode in IPUOutfeedMode} == {"ALL": "all", "LAST": "get_last"}


@pytest.mark.parametrize("ordinal", [8, 2**31, 10**20])
def test_device_that_is_not_registered_is_refused_when_the_queue_is_made(ordinal):
    dataset = tf.data.Dataset.range(1).map(lambda x: tf.cast(x, tf.int32))
    for make in (IPUOutfeedQueue, lambda **options: ipu.IPUInfeedQueue(dataset, **options)):
        with pytest.raises(ipu.errors.DeviceLimitError, match=rf"`device_ordinal` is {ordinal}, and 8 IPU devices are"):
            make(device_ordinal=ordinal)


ELEMENTS = [
    np.float32(1.5),
    [np.int32(1), np.float32(2)],
    (np.int32(1), np.float32(2)),
    (np.int32(1),),
    {"b": np.int32(1), "a": np.float32([2, 3])},
    {"a": (np.int32(1), [np.bool_(True)]), "b": {"c": np.int8(5)}},
    Pair(np.int32(1), np.uint8(2)),
    Pair([np.int32(1)], {"x": np.float16(2)}),
    collections.OrderedDict(z=np.int32(1), a=np.int32(2)),
]


def test_structures_come_back_with_each_leaf_stacked_and_converted(strategy):
    queues, converted = [IPUOutfeedQueue() for _ in ELEMENTS], IPUOutfeedQueue()
    with strategy.scope():
        variable = tf.Variable(2.5)

    def body() -> None:
        converted.enqueue([1, 2.5, True, np.float32([1, 2]), variable])
        for _ in tf.range(3):
            for queue, element in zip(queues, ELEMENTS, strict=True):
                queue.enqueue(tf.nest.map_structure(tf.constant, element))

    run(strategy, body)
    for queue, element in zip(queues, ELEMENTS, strict=True):
        taken = queue.dequeue()
        tf.nest.assert_same_structure(taken, element, check_types=True)
        for actual, expected in zip(tf.nest.flatten(taken), tf.nest.flatten(element), strict=True):
            assert actual.dtype == expected.dtype
            np.testing.assert_array_equal(actual, np.stack([expected] * 3))
    taken = converted.dequeue()
    assert [leaf.dtype.name for leaf in taken] == ["int32", "float32", "bool", "float32", "float32"]
    assert [leaf.numpy().tolist() for leaf in taken] == [[1], [2.5], [True], [[1, 2]], [2.5]]


def test_types_and_shapes_that_an_ipu_can_hand_over_come_back_unchanged(strategy):
    types = ["int32", "float32", "float16", "bool", "int8", "uint8", "int64", "bfloat16", "uint32"]
    element = {
        f"{dtype} {shape}": tf.cast(tf.reshape(tf.range(int(np.prod(shape))), shape), dtype)
        for dtype in types
        for shape in [(), (1,), (2, 3)]
    }
    queues = {name: IPUOutfeedQueue() for name in element}

    def body(values: Any) -> None:
        for name, value in values.items():
            queues[name].enqueue(value)

    run(strategy, body, element)
    for name, value in element.items():
        taken = queues[name].dequeue()
        assert taken.dtype == value.dtype, name
        np.testing.assert_array_equal(taken[0].numpy(), value.numpy(), err_msg=name)


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (lambda: tf.constant(1.0, tf.float64), TypeError, r"type float64 at position 1.*`tf.cast\(x, tf.float32\)`"),
        (lambda: tf.constant(1j), TypeError, r"type complex128 at position 1.*`tf.math.real\(x\)`"),
        (lambda: tf.constant("a"), TypeError, r"type string at position 1.*turn them to numbers"),
        (lambda: tf.sparse.from_dense([[1]]), TypeError, r"at position 1; an outfeed accepts dense tensors only"),
        (lambda: None, TypeError, r"None at position 1; an outfeed accepts dense tensors only"),
    ],
    ids=["float64", "complex", "string", "sparse", "none"],
)
def test_what_an_ipu_cannot_hand_over_is_refused(value, kind, message, strategy):
    queue = IPUOutfeedQueue()
    with pytest.raises(kind, match=message):
        run(strategy, lambda: queue.enqueue((tf.constant(1), value())) and None)


def test_shape_that_is_unknown_or_of_size_zero_is_refused(strategy, refused):
    queue = IPUOutfeedQueue()
    with pytest.raises(ValueError, match=r"shape \(None,\) at position 0.*fully defined"):
        enqueuing(queue).get_concrete_function(tf.TensorSpec([None], tf.float32))
    for nothing in ([], (), {}):
        refused(ValueError, "`tensors` must hold at least one tensor", strategy.run, enqueuing(queue, nothing))
    message = "Detected an input tensor to an outfeed queue with a dimension of size 0"
    refused(tf.errors.InvalidArgumentError, message, strategy.run, enqueuing(queue, np.zeros([0, 3], np.float32)))


def test_enqueue_is_an_operation_of_compiled_programs_alone(strategy, echo, infeed_of, numbers):
    queue, passed = IPUOutfeedQueue(), IPUOutfeedQueue()
    with pytest.raises(RuntimeError, match=r"`enqueue` can only be called in the `tf.function` of a program"):
        queue.enqueue(1)
    assert queue.enqueued is False
    kinds = []
    tf.function(lambda: kinds.append(type(queue.enqueue(1))), jit_compile=True).get_concrete_function()
    assert (queue.enqueued, kinds) == (True, [tf.Operation])
    program = tf.function(lambda: queue.enqueue(1) and None)
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"runs only in a compiled program.*`IPUStrategy.run`"):
        program()
    echo(infeed_of(numbers(3)), passed, 2)
    assert passed.enqueued is True


LAST = IPUOutfeedMode.LAST


@tf.function(jit_compile=True)
def _count(queue: Any, begin: Any, end: Any) -> None:
    i = begin
    while i < end:
        queue.enqueue({"i": i, "row": tf.stack([i, -i])})
        i += 1


@pytest.fixture
def count(strategy: Any) -> Any:
    """Returns a function: `count(queue, a, b)` runs a program that enqueues n and a row [n, -n] for n from a to b - 1."""
    return lambda queue, begin, end: strategy.run(_count, (queue, tf.constant(begin), tf.constant(end)))


def test_dequeue_gives_all_since_the_last_one_in_order_across_runs(count):
    queue = IPUOutfeedQueue()
    count(queue, 0, 3)
    count(queue, 3, 5)
    taken = queue.dequeue()
    np.testing.assert_array_equal(taken["i"], np.arange(5))
    np.testing.assert_array_equal(taken["row"], [[i, -i] for i in range(5)])
    count(queue, 0, 0)
    taken = queue.dequeue()
    assert (taken["i"].shape, taken["row"].shape, taken["row"].dtype) == ((0,), (0, 2), tf.int32)
    count(queue, 7, 8)
    np.testing.assert_array_equal(queue.dequeue()["i"], [7])


def test_dequeue_takes_the_first_elements_where_it_is_to_take_a_few(count):
    queue = IPUOutfeedQueue()
    count(queue, 0, 9)
    np.testing.assert_array_equal(queue.dequeue(max_elements=2)["row"], [[0, 0], [1, -1]])
    assert next(iter(queue))["i"] == 2  # The iteration has taken further elements in the same chunk.
    np.testing.assert_array_equal(queue.dequeue(max_elements=1)["i"], [3])
    count(queue, 9, 12)
    np.testing.assert_array_equal(queue.dequeue(max_elements=6)["i"], range(4, 10))
    np.testing.assert_array_equal(queue.dequeue(max_elements=100)["i"], [10, 11])
    assert queue.dequeue(max_elements=1)["i"].shape == (0,)
    count(queue, 0, 5)
    take_two = tf.function(lambda: queue.dequeue(max_elements=2)["i"])
    assert [take_two().numpy().tolist() for _ in range(4)] == [[0, 1], [2, 3], [4], []]


@pytest.mark.parametrize(
    ("limit", "mode", "error", "says"),
    [
        (0, IPUOutfeedMode.ALL, ValueError, r"`max_elements` must be 1 or more .*but is 0"),
        (2**63, IPUOutfeedMode.ALL, ValueError, r"`max_elements` .* fit in 64 bits"),
        (1.5, IPUOutfeedMode.ALL, TypeError, r"`max_elements` must be an integer or None, but is 1.5"),
        (True, IPUOutfeedMode.ALL, TypeError, r"`max_elements` must be an integer or None, but is True"),
        (
            1,
            LAST,
            ValueError,
            r"`max_elements` must not be set .* `IPUOutfeedMode.LAST`, which has one element, but is 1",
        ),
    ],
)
def test_bad_number_of_elements_is_refused(limit, mode, error, says):
    with pytest.raises(error, match=says):
        IPUOutfeedQueue(mode).dequeue(max_elements=limit)


def test_dequeue_before_any_enqueue_is_refused_on_the_queues_own_thread_and_empty_on_another(start):
    for mode in IPUOutfeedMode:
        with pytest.raises(ValueError, match=r"dequeue an outfeed which has not been enqueued"):
            IPUOutfeedQueue(mode).dequeue()
    queue = IPUOutfeedQueue()
    assert start(queue.dequeue).result(60) == []
    assert start(lambda: queue.dequeue(wait_for_completion=True)).result(60) == []
    with pytest.raises(StopIteration):
        next(iter(queue))
    enqueuing(queue, np.zeros([3], np.float32)).get_concrete_function()
    assert queue.dequeue().shape == (0, 3)  # The program was traced, but never ran.


def test_elements_of_another_kind_are_refused_and_harm_nothing(strategy):
    queue = IPUOutfeedQueue()
    program = enqueuing(queue)
    strategy.run(program, (tf.constant([1.0, 2.0]),))
    for element in (tf.zeros([4000]), tf.zeros([2], tf.int32), tf.zeros([2, 1]), tf.zeros([]), (tf.zeros([2]),)):
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"elements of another structure, type or shape"):
            strategy.run(program, (element,))
    strategy.run(program, (tf.constant([3.0, 4.0]),))
    # The queue once used the shape of the latest trace for older elements, and read past their end.
    program.get_concrete_function(tf.TensorSpec([4001], tf.float32))
    np.testing.assert_array_equal(queue.dequeue(), [[1, 2], [3, 4]])
    assert list(queue) == []


def test_dicts_that_were_filled_in_another_order_are_of_one_kind(strategy):
    queue = IPUOutfeedQueue()
    for order in ("ab", "ba"):
        strategy.run(enqueuing(queue), ({key: tf.constant(ord(key)) for key in order},))
    taken = queue.dequeue()
    assert {key: leaf.numpy().tolist() for key, leaf in taken.items()} == {"a": [97, 97], "b": [98, 98]}


def test_last_mode_gives_the_last_element_without_an_axis_once_and_no_iteration(count):
    queue = IPUOutfeedQueue(LAST)
    with pytest.raises(RuntimeError, match=r"iterated over if the `outfeed_mode` is set to `IPUOutfeedMode.ALL`"):
        iter(queue)
    enqueuing(queue, {"i": 1, "row": [1, 1]}).get_concrete_function()
    for begin in (0, 5):
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"has no value to dequeue.*Run the program first"):
            queue.dequeue()
        count(queue, begin, begin + 3)
        count(queue, begin + 3, begin + 5)
        taken = queue.dequeue()
        assert taken["i"].shape == ()
        assert int(taken["i"]) == begin + 4
        np.testing.assert_array_equal(taken["row"], [begin + 4, -begin - 4])


def test_iteration_gives_an_element_per_enqueue_and_goes_on_when_there_is_more(count):
    queue = IPUOutfeedQueue()
    iterator = iter(queue)
    assert iter(iterator) is iterator
    with pytest.raises(StopIteration):
        next(iterator)
    count(queue, 0, 3)
    elements = [(int(x["i"]), x["row"].numpy().tolist()) for x in iterator]
    assert elements == [(0, [0, 0]), (1, [1, -1]), (2, [2, -2])]
    assert list(queue) == []
    count(queue, 3, 6)
    elements = []
    for x in queue:
        elements.append(int(x["i"]))
        if elements == [3]:  # A run within an iteration adds to it.
            count(queue, 6, 8)
    assert elements == [3, 4, 5, 6, 7]


def test_deleter_ends_the_queue(count):
    queue = IPUOutfeedQueue()
    count(queue, 0, 3)
    with pytest.raises(TypeError, match="`deleter` is a property.*without brackets"):
        queue.deleter()
    for access in (lambda: queue.deleter, queue.dequeue, lambda: list(queue)):
        with pytest.raises(tf.errors.NotFoundError, match=r"it was deleted"):
            access()
    with pytest.raises(tf.errors.NotFoundError, match=r"outfeed queue of this program was deleted"):
        count(queue, 0, 3)


def test_scoped_queue_is_deleted_with_its_object(count):
    queue = ScopedIPUOutfeedQueue()
    number = _number(queue)
    count(queue, 0, 3)
    np.testing.assert_array_equal(queue.dequeue()["i"], [0, 1, 2])
    count(queue, 0, 2)
    assert native.ipu_outfeed_ready(number) == 2
    del queue
    gc.collect()
    assert native.ipu_outfeed_drop(number) == 0
    queue = ScopedIPUOutfeedQueue(LAST, 1)
    assert (queue.device, queue._mode) == ("/device:IPU:1", LAST)


def test_program_of_a_scoped_queue_that_is_gone_fails_in_words(strategy):
    program = enqueuing(ScopedIPUOutfeedQueue(), 1).get_concrete_function()
    gc.collect()
    with pytest.raises(tf.errors.NotFoundError, match=r"Keep the queue as long as programs use it"):
        strategy.run(program)


TYPES = (tf.bool, tf.bfloat16, tf.float16, tf.float32, tf.int8, tf.uint8, tf.int32, tf.uint32, tf.int64)
COUNT = 150  # This is more than one call takes.
NOTHING = (None, ())  # The result of a reader if the queue is empty.


def _number(queue: Any) -> int:
    return queue._feed.number


def _reader(queue: Any) -> Any:
    return queue._current_layout().row_reader


def _taken(queue: IPUOutfeedQueue, ahead: _layout.PreallocatedOutput, limit: int = _layout.MOST) -> Any:
    """Returns the result of a reader that waits for at most a microsecond."""
    return _reader(queue).take(_number(queue), 1, limit, ahead)


@pytest.mark.parametrize("of", [1, 2])
def test_elements_of_all_types_and_ranks_are_those_that_the_operation_gives(replicas, of):
    stacked, iterated, by_operation = (ipu.IPUOutfeedQueue() for _ in range(3))

    @tf.function(jit_compile=True)
    def program() -> None:
        for i in tf.range(COUNT):
            leaves = {type_.name: tf.cast(tf.fill([3, 5], i % 2), type_) for type_ in TYPES}
            number = replication_index() if of > 1 else i
            rows = (tf.fill([1], 2.5), tf.reshape(tf.range(4) + number, [2, 1, 2]))
            for queue in (stacked, iterated, by_operation):
                queue.enqueue({"leaves": leaves, "number": i, "rows": rows})

    replicas(of).run(program)
    elements = list(iterated)
    assert len(elements) == COUNT
    tf.nest.assert_same_structure(elements[0], iterated.element_spec)
    begin = 0
    for limit, count in ((COUNT - 3, COUNT - 3), (COUNT, 3), (COUNT, 0)):
        stacked_elements = _reader(stacked).take_stacked(_number(stacked), 1, limit)
        expected_elements = by_operation._take(stacked._current_layout(), limit)
        for actual, expected in zip(stacked_elements, expected_elements, strict=True):
            assert (actual.dtype, actual.device, actual.shape) == (expected.dtype, expected.device, expected.shape)
            assert actual.shape[0] == count
            np.testing.assert_array_equal(actual, expected)
        rows = [tf.nest.flatten(element) for element in elements[begin : begin + count]]
        for leaves, expected in zip(zip(*rows, strict=True), expected_elements, strict=False):
            assert {(leaf.dtype, leaf.device) for leaf in leaves} == {(expected.dtype, expected.device)}
            np.testing.assert_array_equal(np.stack(leaves), expected)
        begin += count


def test_a_dequeue_needs_no_operation_and_its_result_outlives_the_queue(strategy, monkeypatch):
    queue = ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program() -> None:
        for i in tf.range(COUNT):
            queue.enqueue(tf.range(100) + i)

    strategy.run(program)
    with monkeypatch.context() as patch:
        patch.setattr(queue, "_take", lambda *_: pytest.fail("An operation of TensorFlow dequeued."))
        taken = queue.dequeue()
    strategy.run(program)
    element = next(iter(queue))
    queue.deleter  # noqa: B018  (The access ends it.)
    gc.collect()
    np.testing.assert_array_equal(taken, np.arange(COUNT)[:, None] + np.arange(100))
    assert int(tf.reduce_sum(taken)) == sum(range(100)) * COUNT + 100 * sum(range(COUNT))
    np.testing.assert_array_equal(element, np.arange(100))
    with pytest.raises(tf.errors.NotFoundError, match="it was deleted"):
        next(iter(queue))


def test_a_reader_takes_no_stacked_elements_of_another_layout_and_leaves_them(strategy):
    queue, second_queue = ipu.IPUOutfeedQueue(), ipu.IPUOutfeedQueue()
    run(strategy, lambda: [queue.enqueue(tf.range(3)), second_queue.enqueue(1.5), None][-1])
    number, reader = _number(second_queue), _reader(second_queue)
    assert reader.take_stacked(_number(queue), 0, 1) is None
    np.testing.assert_array_equal(queue.dequeue(), [[0, 1, 2]])
    second_queue.deleter  # noqa: B018  (The access ends it.)
    assert reader.take_stacked(number, 0, 1) is None


def test_an_element_that_was_waited_for_comes_into_tensors_that_were_made_before(strategy):
    waited, dequeued = ipu.IPUOutfeedQueue(), ipu.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def program(begin: tf.Tensor) -> None:
        for i in tf.range(begin, begin + 3):
            leaves = [tf.cast(tf.fill([3, 5], i % 2), type_) for type_ in TYPES]
            waited.enqueue({"number": i, "leaves": leaves})
            dequeued.enqueue((i, leaves))

    strategy.run(program, args=(tf.constant(0),))
    assert len(list(waited)) == len(tf.nest.flatten(dequeued.dequeue())[0]) == 3
    ahead = _layout.PreallocatedOutput()
    assert _taken(waited, ahead) == NOTHING
    place: Any = ahead.buffer
    assert _taken(waited, ahead) == NOTHING
    assert ahead.buffer is place is not None
    strategy.run(program, args=(tf.constant(3),))
    first, rows = _taken(waited, ahead, 2)
    assert first is place.element
    assert ahead.buffer is None
    assert len(rows) == 1
    last, rows = _taken(waited, ahead, 2)
    assert last is not first
    tf.nest.assert_same_structure(last, waited.element_spec)
    assert (int(first["number"]), int(last["number"]), rows) == (3, 5, ())
    number, leaves = dequeued.dequeue()
    assert number.numpy().tolist() == [3, 4, 5]
    for index, element in ((0, first), (2, last)):
        for leaf, rows in zip(element["leaves"], leaves, strict=True):
            assert leaf.dtype == rows.dtype
            np.testing.assert_array_equal(leaf, rows[index])


def test_tensors_that_were_made_for_other_replicas_are_not_used(replicas):
    queue = ipu.IPUOutfeedQueue()
    program = tf.function(lambda: queue.enqueue(replication_index()) and None, jit_compile=True)
    replicas(3).run(program)
    list(queue)
    ahead = _layout.PreallocatedOutput()
    assert _taken(queue, ahead) == NOTHING
    lanes = native.ipu_outfeed_replicas(_number(queue))
    replicas(2).run(program)  # The row contains the elements of all replicas.
    assert (lanes, native.ipu_outfeed_replicas(_number(queue))) == (3, 2)
    stale = ahead.buffer
    assert stale is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            _reader(queue), "_buffer", lambda number, ahead: stale
        )  # This simulates a run that ends during the wait.
        assert _taken(queue, ahead) is None
    assert ahead.buffer is None
    assert [element.numpy().tolist() for element in queue] == [[0, 1]]


def test_a_large_element_gets_its_tensors_when_it_is_there(strategy):
    queue, count = ipu.IPUOutfeedQueue(), (_layout._MAX_PREALLOCATED_BYTES >> 2) + 1
    program = tf.function(lambda: queue.enqueue(tf.range(count)) and None, jit_compile=True)
    strategy.run(program)
    list(queue)
    ahead = _layout.PreallocatedOutput()
    assert _taken(queue, ahead) == NOTHING
    assert ahead.buffer is None
    strategy.run(program)
    first, rows = _taken(queue, ahead)
    assert not rows
    np.testing.assert_array_equal(first, np.arange(count))


def test_types_that_dlpack_does_not_have_come_by_the_operation(count, monkeypatch):
    monkeypatch.setattr(_layout.RowReader, "supports", lambda types: False)
    queue = ipu.IPUOutfeedQueue()
    count(queue, 0, COUNT)
    assert [(int(element["i"]), element["row"].numpy().tolist()) for element in queue] == [
        (i, [i, -i]) for i in range(COUNT)
    ]
