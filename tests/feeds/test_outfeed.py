"""`IPUOutfeedQueue`: its arguments, what programs may enqueue, and what the host gets."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import IPUOutfeedMode, IPUOutfeedQueue

Pair = collections.namedtuple("Pair", ["left", "right"])  # noqa: PYI024  (What old code uses.)


def run(strategy: Any, body: Any, *args: Any) -> Any:
    """Runs a plain function as a program."""
    return strategy.run(tf.function(body, jit_compile=True), args)


def test_modes_have_the_values_that_old_code_knows() -> None:
    assert {mode.name: mode.value for mode in IPUOutfeedMode} == {"ALL": "all", "LAST": "get_last"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"outfeed_mode": "all"}, r"`outfeed_mode` must be an `IPUOutfeedMode`, `ALL` or `LAST`, but is 'all'"),
        ({"outfeed_mode": 1}, r"`outfeed_mode` must be an `IPUOutfeedMode`"),
        ({"device_ordinal": "0"}, r"Device ordinal must be an integer: `device_ordinal` is '0'"),
        ({"device_ordinal": True}, r"Device ordinal must be an integer"),
        ({"device_ordinal": -1}, r"Device ordinal must be >= 0: `device_ordinal` is -1"),
        ({"buffer_depth": 0}, r"Outfeed buffer depth cannot be less than 1: `buffer_depth` is 0"),
        ({"buffer_depth": -3}, r"Outfeed buffer depth cannot be less than 1"),
        ({"buffer_depth": 2.5}, r"`buffer_depth` must be an integer, but is 2.5"),
    ],
)
def test_faulty_argument_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        IPUOutfeedQueue(**arguments)


@pytest.mark.parametrize("ordinal", [8, 2**31, 10**20])
def test_device_that_is_not_registered_is_refused_when_the_queue_is_made(ordinal: int) -> None:
    dataset = tf.data.Dataset.range(1).map(lambda x: tf.cast(x, tf.int32))
    for make in (IPUOutfeedQueue, lambda **options: ipu.IPUInfeedQueue(dataset, **options)):
        with pytest.raises(ipu.errors.DeviceLimitError, match=rf"`device_ordinal` is {ordinal}, and 8 IPU devices are"):
            make(device_ordinal=ordinal)


def test_optimise_latency_must_be_a_bool() -> None:
    with pytest.raises(TypeError, match=r"`optimise_latency` must be True or False"):
        IPUOutfeedQueue(optimise_latency=1)  # type: ignore[arg-type]


def test_device_is_that_of_the_strategy_in_whose_scope_the_queue_is_made() -> None:
    config = ipu.IPUConfig()
    config.auto_select_ipus = [1, 1]
    config.configure_ipu_system()
    with ipu.IPUStrategy("/device:IPU:1").scope():
        assert IPUOutfeedQueue().device == "/device:IPU:1"
        assert IPUOutfeedQueue(device_ordinal=0).device == "/device:IPU:0"
    assert IPUOutfeedQueue().device == "/device:IPU:0"


@pytest.mark.parametrize("options", [{"buffer_depth": 1}, {"buffer_depth": 50}, {"optimise_latency": True}])
def test_options_that_tune_transfers_change_no_result(options: dict[str, Any], strategy: Any) -> None:
    queue = IPUOutfeedQueue(**options)

    def body() -> None:
        for i in tf.range(200):
            queue.enqueue(i)

    run(strategy, body)
    np.testing.assert_array_equal(queue.dequeue(), np.arange(200))


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


def test_structures_come_back_with_each_leaf_stacked(strategy: Any) -> None:
    queues = [IPUOutfeedQueue() for _ in ELEMENTS]

    def body() -> None:
        for _ in tf.range(3):
            for queue, element in zip(queues, ELEMENTS, strict=True):
                queue.enqueue(tf.nest.map_structure(tf.constant, element))

    run(strategy, body)
    for queue, element in zip(queues, ELEMENTS, strict=True):
        taken = queue.dequeue()
        tf.nest.assert_same_structure(taken, element, check_types=True)
        for ours, given in zip(tf.nest.flatten(taken), tf.nest.flatten(element), strict=True):
            assert ours.dtype == given.dtype
            np.testing.assert_array_equal(ours, np.stack([given] * 3))


def test_what_is_no_tensor_is_converted(strategy: Any) -> None:
    queue = IPUOutfeedQueue()
    variable = None
    with strategy.scope():
        variable = tf.Variable(2.5)
    run(strategy, lambda: queue.enqueue([1, 2.5, True, np.float32([1, 2]), variable]) and None)
    taken = queue.dequeue()
    assert [leaf.dtype.name for leaf in taken] == ["int32", "float32", "bool", "float32", "float32"]
    assert [leaf.numpy().tolist() for leaf in taken] == [[1], [2.5], [True], [[1, 2]], [2.5]]


def test_types_and_shapes_that_an_ipu_can_hand_over_come_back_unchanged(strategy: Any) -> None:
    types = ["int32", "float32", "float16", "bool", "int8", "uint8", "int64", "bfloat16", "uint32"]
    given = {
        f"{dtype} {shape}": tf.cast(tf.reshape(tf.range(int(np.prod(shape))), shape), dtype)
        for dtype in types
        for shape in [(), (1,), (2, 3)]
    }
    queues = {name: IPUOutfeedQueue() for name in given}

    def body(values: Any) -> None:
        for name, value in values.items():
            queues[name].enqueue(value)

    run(strategy, body, given)
    for name, value in given.items():
        taken = queues[name].dequeue()
        assert taken.dtype == value.dtype, name
        np.testing.assert_array_equal(taken[0].numpy(), value.numpy(), err_msg=name)


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        (lambda: tf.constant(1.0, tf.float64), TypeError, r"type float64 at position 1.*`tf.cast\(x, tf.float32\)`"),
        (lambda: tf.constant(1j), TypeError, r"type complex128 at position 1.*`tf.math.real\(x\)`"),
        (lambda: tf.constant("a"), TypeError, r"type string at position 1.*turn them to numbers"),
        (lambda: tf.sparse.from_dense([[1]]), TypeError, r"at position 1; an outfeed takes dense tensors alone"),
        (lambda: None, TypeError, r"None at position 1; an outfeed takes dense tensors alone"),
    ],
    ids=["float64", "complex", "string", "sparse", "none"],
)
def test_what_an_ipu_cannot_hand_over_is_refused(value: Any, kind: Any, words: str, strategy: Any) -> None:
    queue = IPUOutfeedQueue()
    with pytest.raises(kind, match=words):
        run(strategy, lambda: queue.enqueue((tf.constant(1), value())) and None)


def test_shape_that_is_unknown_at_the_trace_is_refused(strategy: Any) -> None:
    queue = IPUOutfeedQueue()
    program = tf.function(
        lambda x: queue.enqueue(x) and None, jit_compile=True, input_signature=[tf.TensorSpec([None], tf.float32)]
    )
    with pytest.raises(ValueError, match=r"shape \(None,\) at position 0.*fully defined"):
        strategy.run(program, (tf.zeros([3]),))


@pytest.mark.parametrize("nothing", [[], (), {}], ids=repr)
def test_element_without_tensors_is_refused(nothing: Any, strategy: Any) -> None:
    queue = IPUOutfeedQueue()
    with pytest.raises(ValueError, match=r"`tensors` must hold at least one tensor"):
        run(strategy, lambda: queue.enqueue(nothing) and None)


def test_dimension_of_size_zero_fails_the_run(strategy: Any) -> None:
    queue = IPUOutfeedQueue()
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"a dimension of size 0, and an outfeed queue cannot carry"
    ):
        run(strategy, lambda: queue.enqueue(tf.zeros([0, 3])) and None)


def test_eager_enqueue_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"`enqueue` can only be called in the `tf.function` of a program"):
        IPUOutfeedQueue().enqueue(1)


def test_enqueue_returns_an_operation(strategy: Any) -> None:
    queue = IPUOutfeedQueue()
    kinds = []
    run(strategy, lambda: kinds.append(type(queue.enqueue(1))))
    assert kinds == [tf.Operation]


def test_enqueue_in_a_function_that_is_not_compiled_fails_in_words() -> None:
    queue = IPUOutfeedQueue()
    program = tf.function(lambda: queue.enqueue(1) and None)
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"runs in a compiled program alone.*`IPUStrategy.run`"):
        program()


def test_enqueued_tells_whether_a_traced_program_enqueues(strategy: Any) -> None:
    queue = IPUOutfeedQueue()
    assert queue.enqueued is False
    tf.function(lambda: queue.enqueue(1) and None, jit_compile=True).get_concrete_function()
    assert queue.enqueued is True


def test_enqueued_is_learnt_of_a_queue_that_was_passed(echo: Any, infeed_of: Any, numbers: Any) -> None:
    queue = IPUOutfeedQueue()
    echo(infeed_of(numbers(3)), queue, 2)
    assert queue.enqueued is True
