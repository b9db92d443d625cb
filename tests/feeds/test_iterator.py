"""`IPUIterator`, and `iter(dataset)` inside a strategy's scope; queues and iterators as composite tensors."""

from __future__ import annotations

import collections
import gc
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._native.library import native
from tensorflow_ipu.feeds import IPUIterator, IPUOwnedIterator


def test_iter_of_a_dataset_is_an_ipu_iterator_in_the_scope_alone(numbers, strategy, start):
    of_tensorflow_1 = tf.compat.v1.data.Dataset.from_tensor_slices([1.0, 2.0])
    with strategy.scope():
        iterator = iter(numbers(3))
        assert type(iter(of_tensorflow_1)) is IPUOwnedIterator
        assert list(of_tensorflow_1.as_numpy_iterator()) == [1.0, 2.0]
        assert list(numbers(3).as_numpy_iterator()) == [0, 1, 2]
        assert start(lambda: [int(x) for x in numbers(3)]).result(60) == [0, 1, 2]  # This runs on another thread.
    assert type(iterator) is IPUOwnedIterator
    assert iterator.element_spec == tf.TensorSpec([], tf.int32)
    assert not isinstance(iter(numbers(3)), IPUIterator)
    assert [int(x) for x in numbers(3)] == [0, 1, 2]
    assert [float(x) for x in of_tensorflow_1] == [1.0, 2.0]
    with ipu.IPUStrategy(enable_dataset_iterators=False).scope():
        assert [int(x) for x in iter(numbers(3))] == [0, 1, 2]


def test_next_takes_an_element_in_a_program_and_is_refused_outside_of_one(numbers, strategy):
    takes = [next, lambda iterator: iterator.next(), lambda iterator: iterator.get_next()]
    with strategy.scope():
        iterator = iter(numbers(9))
        for take in takes:
            with pytest.raises(RuntimeError, match=r"can not be accessed in eager mode when inside `IPUStrategy`"):
                take(iterator)
    assert iter(iterator) is iterator
    program = tf.function(lambda: [take(iterator) for take in takes], jit_compile=True, autograph=False)
    assert [[int(x) for x in strategy.run(program)] for _ in range(2)] == [[0, 1, 2], [3, 4, 5]]


def test_loops_over_iterators_optionals_and_checkpoints_are_refused(numbers, strategy, tmp_path):
    with strategy.scope():
        iterator = iter(numbers(3))

    @tf.function(jit_compile=True)
    def program(iterator: Any) -> Any:
        total = tf.constant(0)
        for x in iterator:
            total += x
        return total

    with pytest.raises(NotImplementedError, match=r"`get_next_as_optional\(\)`.*Loop over `tf.range\(n\)`"):
        strategy.run(program, (iterator,))
    with strategy.scope(), pytest.raises(NotImplementedError, match="get_next_as_optional"):
        iterator.get_next_as_optional()
    with pytest.raises(NotImplementedError, match=r"not saveable: leave it out of the checkpoint"):
        tf.train.Checkpoint(iterator=iterator).save(tmp_path / "checkpoint")


def test_other_iterators_of_the_same_elements_in_structures_need_no_new_trace(numbers, strategy):
    traces = []

    @tf.function(jit_compile=True)
    def program(feeds: Any) -> Any:
        traces.append(None)
        return next(feeds["a"]) + next(feeds["b"][0]) + feeds["b"][1]

    for first in range(3):
        with strategy.scope():
            feeds = {"a": iter(numbers(first, 9)), "b": [iter(numbers(10, 13)), tf.constant(100)]}
        taken = [int(strategy.run(program, kwargs={"feeds": feeds})) for _ in range(3)]
        assert taken == [first + 110, first + 112, first + 114]
    assert len(traces) == 1


def test_owned_iterator_takes_its_queue_along(numbers, take_one):
    for kind in (IPUOwnedIterator, IPUIterator):
        iterator = kind(numbers(3))
        queue = iterator._infeed_queue
        number = queue._feed.number  # pyright: ignore[reportOptionalMemberAccess]
        assert native.ipu_infeed_ready(number) >= 0
        del iterator
        gc.collect()
        if kind is IPUIterator:
            assert int(take_one(queue)) == 0
            continue
        assert native.ipu_infeed_ready(number) == -1
        with pytest.raises(tf.errors.NotFoundError, match="its Python object was deleted"):
            queue.deleter  # noqa: B018


def test_program_of_an_owned_iterator_that_is_gone_fails_in_words(numbers, strategy):
    def program_alone() -> Any:
        iterator = IPUOwnedIterator(numbers(3))
        return tf.function(lambda: next(iterator), jit_compile=True, autograph=False).get_concrete_function()

    program = program_alone()
    gc.collect()
    with pytest.raises(tf.errors.NotFoundError, match=r"was deleted with its Python object. Keep the queue"):
        strategy.run(program)


def test_iterator_is_made_of_a_dataset_and_options_or_of_specs_and_components(numbers, infeed_of, take_one):
    iterator = IPUIterator(numbers(3), prefetch_depth=9, device_ordinal=0)
    assert iterator._infeed_queue.prefetch_depth == 9
    assert int(take_one(iterator)) == 0
    queue = infeed_of(numbers(3))
    for kind in (IPUIterator, IPUOwnedIterator):
        iterator = kind(infeed_spec=queue._type_spec, element_spec=queue.element_spec, components=[queue])
        assert (iterator.element_spec, iterator.infeed_spec) == (queue.element_spec, queue._type_spec)
        assert int(take_one(iterator)) == (0 if kind is IPUIterator else 1)


def test_iterator_of_faulty_arguments_or_elements_is_refused(numbers, infeed_of, strategy):
    spec = infeed_of(numbers(3))._type_spec
    for arguments in ({}, {"infeed_spec": spec}, {"element_spec": spec.element_spec}):
        with pytest.raises(ValueError, match=r"must both be given where `dataset` is not"):
            IPUIterator(**arguments)
        if arguments:
            with pytest.raises(ValueError, match=r"must not be given along with `dataset`"):
                IPUIterator(numbers(3), **arguments)
    with strategy.scope():
        with pytest.raises(tf.errors.FailedPreconditionError, match="Unsupported datatype int64"):
            iter(tf.data.Dataset.range(3))
        with pytest.raises(ValueError, match="not fully defined"):
            iter(tf.data.Dataset.from_tensors(np.float32([1, 2])).batch(2))


Pair = collections.namedtuple("Pair", ["left", "right"])  # noqa: PYI024  (What old code uses.)
X = np.int32(1)


def spec_of(element: Any, infeed_of: Any, **options: Any) -> Any:
    return infeed_of(tf.data.Dataset.from_tensors(element), **options)._type_spec


def test_specs_of_equal_elements_are_equal_and_others_differ(infeed_of, configure):
    configure(1, 1)
    elements = [X, np.float32(1), np.int32([1]), (X,), (X, X), (X, X, X), {"a": X}, {"b": X}, {"b": X, "a": X},
                ({"x": X}, X), Pair(X, X)]  # fmt: skip
    specs = [spec_of(element, infeed_of) for element in elements]
    for index, (first, element) in enumerate(zip(specs, elements, strict=True)):
        second = spec_of(element, infeed_of, prefetch_depth=7)
        assert first == second
        assert hash(first) == hash(second)
        assert first.is_compatible_with(second)
        for earlier in specs[:index]:
            assert first != earlier
            assert not first.is_compatible_with(earlier)
    assert specs[0] != spec_of(X, infeed_of, device_ordinal=1)
    first = ipu.IPUOutfeedQueue(buffer_depth=2)._type_spec
    assert first == ipu.IPUOutfeedQueue(optimise_latency=True)._type_spec
    assert first != ipu.IPUOutfeedQueue(ipu.IPUOutfeedMode.LAST)._type_spec
    assert first != ipu.IPUOutfeedQueue(device_ordinal=1)._type_spec


def test_values_and_their_specs_can_be_taken_apart_and_put_together(infeed_of):
    dataset = tf.data.Dataset.from_tensors(Pair(X, X))
    queue, iterator = infeed_of(dataset), IPUOwnedIterator(dataset)
    assert queue._type_spec.element_spec == queue.element_spec
    assert iterator._type_spec == IPUIterator(dataset)._type_spec
    outfeed = ipu.IPUOutfeedQueue()
    for value, kind in ((queue, ipu.IPUInfeedQueue), (iterator, IPUIterator), (outfeed, ipu.IPUOutfeedQueue)):
        spec: Any = value._type_spec
        assert spec.value_type is kind
        copy = type(spec)._deserialize(spec._serialize())
        assert copy == spec
        assert hash(copy) == hash(spec)
        assert spec.most_specific_common_supertype([copy]) == spec
        assert tf.nest.flatten({"a": value, "b": 1}) == [value, 1]
        (component,) = tf.nest.flatten(value, expand_composites=True)
        assert component.dtype == tf.resource
        packed = tf.nest.pack_sequence_as(value, [component], expand_composites=True)
        assert packed._type_spec == spec


def test_queues_that_inner_functions_get_or_that_were_packed_again_reach_the_same_stream(infeed_of, numbers, strategy):
    infeed, outfeed = infeed_of(numbers(5)), ipu.IPUOutfeedQueue()

    @tf.function
    def inner(source: Any, sinks: Any) -> Any:
        x = source._dequeue()
        sinks["sink"].enqueue(x * 10)
        return x

    @tf.function(jit_compile=True)
    def program(source: Any, sink: Any) -> Any:
        return inner(*tf.nest.map_structure(tf.identity, (source, {"sink": sink}), expand_composites=True))

    assert [int(strategy.run(program, (infeed, outfeed))) for _ in range(3)] == [0, 1, 2]
    np.testing.assert_array_equal(outfeed.dequeue(), [0, 10, 20])


def test_concrete_function_takes_queues_by_their_specs(infeed_of, numbers, strategy):
    first, second = infeed_of(numbers(5)), infeed_of(numbers(50, 55))
    with strategy.scope():
        program = tf.function(lambda queue: queue._dequeue(), jit_compile=True).get_concrete_function(first._type_spec)
    assert [int(strategy.run(program, (queue,))) for queue in (first, second, first)] == [0, 50, 1]


def test_queue_that_is_a_traced_argument_cannot_be_read_or_deleted_in_the_program():
    @tf.function
    def trace(queue: Any) -> None:
        queue.enqueue(1)
        assert queue.enqueued
        assert queue.buffer_depth is None
        with pytest.raises(RuntimeError, match="cannot be dequeued in the program"):
            queue.dequeue()
        with pytest.raises(RuntimeError, match="cannot be deleted in the program"):
            queue.deleter  # noqa: B018

    trace.get_concrete_function(ipu.IPUOutfeedQueue())


def test_reprs_say_what_it_is(infeed_of, numbers):
    infeed = infeed_of(numbers(5))
    assert repr(infeed).startswith("<IPUInfeedQueue infeed_")
    assert "on /device:IPU:0, elements TensorSpec" in repr(infeed)
    assert "mode LAST" in repr(ipu.IPUOutfeedQueue(ipu.IPUOutfeedMode.LAST))
    assert repr(IPUOwnedIterator(numbers(5))).startswith("<IPUOwnedIterator over <IPUInfeedQueue")
