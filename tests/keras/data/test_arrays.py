"""Arrays as a dataset: the order of Keras for each seed, made of functions that are traced once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

from tensorflow_ipu.keras.data import _arrays

SIZE = 3


def adapter(batches, shuffle=True, width=2):
    x = np.arange(batches * SIZE * width, dtype=np.float32).reshape([-1, width])
    return ArrayDataAdapter(x, np.arange(batches * SIZE), batch_size=SIZE, shuffle=shuffle)


def elements(dataset):
    return [tf.nest.map_structure(lambda part: part.tolist(), element) for element in dataset.as_numpy_iterator()]


@pytest.mark.parametrize(("batches", "shuffle"), [(5, True), (75, "batch"), (75, True)])
def test_batches_have_the_order_of_keras_for_each_seed(batches, shuffle):
    for seed in (1, 2):
        tf.random.set_seed(seed)
        expected = elements(adapter(batches, shuffle).get_tf_dataset())
        dataset: Any = _arrays.dataset_of(adapter(batches, shuffle))
        assert elements(dataset) == elements(dataset) == expected
        assert dataset.element_spec[0] == tf.TensorSpec([SIZE, 2], tf.float32)


@pytest.fixture
def no_seed():
    from tensorflow.python.eager import context

    before = context.global_seed()
    context.set_global_seed(None)
    yield
    context.set_global_seed(before)


def test_without_a_seed_each_pass_has_an_order_of_its_own(no_seed):
    dataset = _arrays.dataset_of(adapter(40))
    passes = [elements(dataset) for _ in range(2)]
    assert passes[0] != passes[1]
    for one in passes:
        labels = np.concatenate([label for _, label in one])
        assert sorted(labels) == list(range(40 * SIZE))
        np.testing.assert_array_equal(np.concatenate([x for x, _ in one])[:, 0], 2 * labels)


def test_large_batches_are_gathered_one_by_one():
    wide = (_arrays._CHUNK_BYTES // 4 // SIZE) + 1
    tf.random.set_seed(1)
    expected = [y.tolist() for _, y in adapter(3, width=wide).get_tf_dataset().as_numpy_iterator()]
    got = [y.tolist() for _, y in _arrays.dataset_of(adapter(3, width=wide)).as_numpy_iterator()]
    assert got == expected


@pytest.mark.parametrize("shuffle", [True, "batch", False])
def test_an_iteration_begins_without_a_search_or_a_thread_for_each_processor(shuffle):
    options = _arrays.dataset_of(adapter(4, shuffle)).options()
    assert options.experimental_optimization.apply_default_optimizations is False
    assert options.experimental_optimization.inject_prefetch is False
    assert options.autotune.enabled is False
    assert options.threading.private_threadpool_size == 1


def test_batches_of_arrays_in_order_are_those_of_keras():
    expected = elements(adapter(6, shuffle=False).get_tf_dataset())
    assert elements(_arrays.dataset_of(adapter(6, shuffle=False))) == expected


@pytest.mark.parametrize(("shuffle", "traced"), [(True, "_traced"), (False, "as_it_is")])
def test_a_second_dataset_of_the_same_specs_traces_nothing_and_outlives_the_record_of_its_functions(
    shuffle, traced, monkeypatch
):
    tf.random.set_seed(1)
    expected = elements(_arrays.dataset_of(adapter(6, shuffle)))
    monkeypatch.setattr(_arrays, traced, None)  # To call it would raise.
    tf.random.set_seed(1)
    dataset = _arrays.dataset_of(adapter(6, shuffle))
    assert elements(dataset) == expected
    _arrays._maker.cache_clear()
    assert elements(dataset) == expected
