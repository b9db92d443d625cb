"""`IPUIterator` and `iter(dataset)` inside a strategy's scope."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu._native.library import native
from tensorflow_ipu.feeds import IPUIterator, IPUOwnedIterator


def test_iter_of_a_dataset_in_the_scope_is_an_ipu_iterator(numbers: Any, strategy: Any) -> None:
    with strategy.scope():
        iterator = iter(numbers(3))
    assert type(iterator) is IPUOwnedIterator
    assert iterator.element_spec == tf.TensorSpec([], tf.int32)


def test_iter_of_a_dataset_of_tensorflow_1_follows_the_scope_as_well(strategy: Any) -> None:
    outfeed, dataset = ipu.IPUOutfeedQueue(), tf.compat.v1.data.Dataset.from_tensor_slices([1.0, 2.0, 3.0])
    with strategy.scope():
        iterator = iter(dataset)
        assert type(iterator) is IPUOwnedIterator

        @tf.function(jit_compile=True)
        def program() -> None:
            for _ in tf.range(3):
                outfeed.enqueue(next(iterator) * 2)

        strategy.run(program)
        assert list(dataset.as_numpy_iterator()) == [1.0, 2.0, 3.0]
    np.testing.assert_array_equal(outfeed.dequeue(), [2.0, 4.0, 6.0])
    assert [float(x) for x in dataset] == [1.0, 2.0, 3.0]


def test_iter_of_a_dataset_outside_of_the_scope_is_tensorflows_own(numbers: Any, strategy: Any) -> None:
    with strategy.scope():
        pass
    assert not isinstance(iter(numbers(3)), IPUIterator)
    assert [int(x) for x in numbers(3)] == [0, 1, 2]


def test_iter_of_a_dataset_is_tensorflows_own_without_dataset_iterators(numbers: Any) -> None:
    with ipu.IPUStrategy(enable_dataset_iterators=False).scope():
        assert [int(x) for x in iter(numbers(3))] == [0, 1, 2]


def test_numpy_iterator_in_the_scope_reads_on_the_host(numbers: Any, strategy: Any) -> None:
    with strategy.scope():
        assert list(numbers(3).as_numpy_iterator()) == [0, 1, 2]


def test_scope_of_another_thread_changes_nothing_here(numbers: Any, strategy: Any, start: Any) -> None:
    with strategy.scope():
        elements = start(lambda: [int(x) for x in numbers(3)]).result(60)
    assert elements == [0, 1, 2]


@pytest.mark.parametrize(
    "take", [next, lambda it: it.next(), lambda it: it.get_next()], ids=["next", ".next", "get_next"]
)
def test_next_takes_an_element_in_a_program(take: Any, numbers: Any, strategy: Any) -> None:
    with strategy.scope():
        iterator = iter(numbers(4))
    assert iter(iterator) is iterator
    program = tf.function(lambda: take(iterator), jit_compile=True, autograph=False)
    assert [int(strategy.run(program)) for _ in range(4)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "take", [next, lambda it: it.next(), lambda it: it.get_next()], ids=["next", ".next", "get_next"]
)
def test_next_outside_of_a_function_is_refused(take: Any, numbers: Any, strategy: Any) -> None:
    with strategy.scope():
        iterator = iter(numbers(3))
        with pytest.raises(RuntimeError, match=r"can not be accessed in eager mode when inside `IPUStrategy`"):
            take(iterator)


def test_each_traced_next_is_one_dequeue(numbers: Any, strategy: Any) -> None:
    with strategy.scope():
        iterator = iter(numbers(100))

    @tf.function(jit_compile=True)
    def program(iterator: Any) -> Any:
        first, second = next(iterator), next(iterator)
        total = tf.constant(0)
        for _ in tf.range(10):
            total += next(iterator)
        return first, second, total

    assert [int(x) for x in strategy.run(program, (iterator,))] == [0, 1, sum(range(2, 12))]
    assert [int(x) for x in strategy.run(program, (iterator,))] == [12, 13, sum(range(14, 24))]


def test_for_over_an_iterator_in_a_program_is_refused(numbers: Any, strategy: Any) -> None:
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


def test_get_next_as_optional_is_not_implemented(numbers: Any, strategy: Any) -> None:
    with strategy.scope(), pytest.raises(NotImplementedError, match="get_next_as_optional"):
        iter(numbers(3)).get_next_as_optional()


def test_iterator_is_not_saveable(numbers: Any, strategy: Any, tmp_path: Any) -> None:
    with strategy.scope():
        checkpoint = tf.train.Checkpoint(iterator=iter(numbers(3)))
    with pytest.raises(NotImplementedError, match=r"not saveable: leave it out of the checkpoint"):
        checkpoint.save(tmp_path / "checkpoint")


def test_iterator_may_be_captured(numbers: Any, strategy: Any) -> None:
    with strategy.scope():
        iterator = iter(numbers(3))
    program = tf.function(lambda: next(iterator) * 2, jit_compile=True, autograph=False)
    assert [int(strategy.run(program)) for _ in range(3)] == [0, 2, 4]


def test_another_iterator_of_the_same_elements_needs_no_new_trace(numbers: Any, strategy: Any) -> None:
    traces = []

    @tf.function(jit_compile=True)
    def program(iterator: Any) -> Any:
        traces.append(None)
        return next(iterator)

    with strategy.scope():
        for start in range(5):
            assert int(strategy.run(program, (iter(numbers(start, 9)),))) == start
    assert len(traces) == 1


def test_iterator_is_an_element_of_other_structures(numbers: Any, strategy: Any) -> None:
    with strategy.scope():
        feeds = {"a": iter(numbers(3)), "b": [iter(numbers(10, 13)), tf.constant(100)]}
    program = tf.function(
        lambda feeds: next(feeds["a"]) + next(feeds["b"][0]) + feeds["b"][1], jit_compile=True, autograph=False
    )
    assert [int(strategy.run(program, kwargs={"feeds": feeds})) for _ in range(3)] == [110, 112, 114]


def test_owned_iterator_takes_its_queue_along(numbers: Any, strategy: Any) -> None:
    with strategy.scope():
        iterator = iter(numbers(3))
    number = iterator._infeed_queue._feed.number
    queue = iterator._infeed_queue
    assert native.ipu_infeed_ready(number) >= 0
    del iterator
    gc.collect()
    assert native.ipu_infeed_ready(number) == -1
    with pytest.raises(tf.errors.NotFoundError, match="its Python object is gone"):
        queue.deleter  # noqa: B018


def test_iterator_that_is_not_owned_leaves_its_queue(numbers: Any, strategy: Any, take_one: Any) -> None:
    iterator = IPUIterator(numbers(3))
    queue = iterator._infeed_queue
    del iterator
    gc.collect()
    assert int(take_one(queue)) == 0


def test_program_of_an_owned_iterator_that_is_gone_fails_in_words(numbers: Any, strategy: Any) -> None:
    def program_alone() -> Any:
        iterator = IPUOwnedIterator(numbers(3))
        return tf.function(lambda: next(iterator), jit_compile=True, autograph=False).get_concrete_function()

    program = program_alone()
    gc.collect()
    with pytest.raises(tf.errors.NotFoundError, match=r"was deleted with its Python object. Keep the queue"):
        strategy.run(program)


def test_iterator_is_made_of_a_dataset_and_options(numbers: Any, take_one: Any) -> None:
    iterator = IPUIterator(numbers(3), prefetch_depth=9, device_ordinal=0)
    assert iterator._infeed_queue.prefetch_depth == 9
    assert int(take_one(iterator)) == 0


def test_iterator_is_made_of_specs_and_components(numbers: Any, infeed_of: Any, take_one: Any) -> None:
    queue = infeed_of(numbers(3))
    for kind in (IPUIterator, IPUOwnedIterator):
        iterator = kind(infeed_spec=queue._type_spec, element_spec=queue.element_spec, components=[queue])
        assert iterator.element_spec == queue.element_spec
        assert iterator.infeed_spec == queue._type_spec
        assert int(take_one(iterator)) == (0 if kind is IPUIterator else 1)


def test_iterator_of_neither_dataset_nor_specs_is_refused(numbers: Any, infeed_of: Any) -> None:
    spec = infeed_of(numbers(3))._type_spec
    for arguments in ({}, {"infeed_spec": spec}, {"element_spec": spec.element_spec}):
        with pytest.raises(ValueError, match=r"must both be given where `dataset` is not"):
            IPUIterator(**arguments)


def test_iterator_of_both_dataset_and_specs_is_refused(numbers: Any, infeed_of: Any) -> None:
    spec = infeed_of(numbers(3))._type_spec
    for arguments in ({"infeed_spec": spec}, {"element_spec": spec.element_spec}):
        with pytest.raises(ValueError, match=r"must not be given along with `dataset`"):
            IPUIterator(numbers(3), **arguments)


def test_iterator_over_faulty_elements_is_refused(strategy: Any) -> None:
    with strategy.scope():
        with pytest.raises(tf.errors.FailedPreconditionError, match="Unsupported datatype int64"):
            iter(tf.data.Dataset.range(3))
        with pytest.raises(ValueError, match="not fully defined"):
            iter(tf.data.Dataset.from_tensors(np.float32([1, 2])).batch(2))


def test_exhausted_iterator_ends_the_run(numbers: Any, echo: Any) -> None:
    iterator, outfeed = IPUOwnedIterator(numbers(3)), ipu.IPUOutfeedQueue()
    with pytest.raises(tf.errors.OutOfRangeError, match="ended after 3 elements"):
        echo(iterator, outfeed, 5)
    np.testing.assert_array_equal(outfeed.dequeue(), [0, 1, 2])
