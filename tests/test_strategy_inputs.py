"""The iterators that `IPUStrategy` creates, as in TensorFlow 1, from datasets, input functions and arrays."""

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu

v1 = tf.compat.v1


def from_function(strategy, dataset, session):
    del session
    return strategy.make_input_fn_iterator(lambda context: dataset.shard(context.num_input_pipelines, 0))


def from_calls(strategy, dataset, session):
    del dataset, session
    return strategy.make_input_fn_iterator(lambda _: lambda: tf.constant([1.0, 2.0]))


def from_dataset(strategy, dataset, session):
    del session
    return strategy.make_dataset_iterator(dataset)


def from_arrays(strategy, dataset, session):
    del dataset
    rows = strategy.experimental_make_numpy_dataset(np.array([1.0, 2.0], np.float32), session=session)
    return strategy.make_dataset_iterator(rows.batch(2).repeat())


@pytest.mark.filterwarnings("ignore:To make it possible to preserve")  # A mirrored strategy in a graph warns so.
@pytest.mark.parametrize("make", [from_function, from_calls, from_dataset, from_arrays])
def test_session_trains_from_an_input_iterator_as_with_a_mirrored_strategy(make, configure):
    configure(1)
    weights = []
    for strategy in (ipu.IPUStrategy(), v1.distribute.MirroredStrategy(["/cpu:0"])):
        with tf.Graph().as_default(), v1.Session() as session, strategy.scope():
            weight = v1.get_variable("weight", initializer=5.0, use_resource=True)
            optimizer = v1.train.GradientDescentOptimizer(0.2)

            def step(x, weight=weight, optimizer=optimizer):
                return optimizer.minimize(tf.reduce_mean((weight - x) ** 2))

            iterator = make(strategy, tf.data.Dataset.from_tensors([1.0, 2.0]).repeat(), session)
            program = strategy.experimental_run(step, iterator)
            traced_outside = strategy.group(strategy.extended.call_for_each_replica(step, (iterator.get_next(),)))
            session.run([iterator.initializer, weight.initializer])
            for operation in (program, traced_outside, program):
                session.run(operation)
            weights.append(session.run(weight))
    assert weights[0] == pytest.approx(weights[1], rel=1e-6) != 5.0


def test_iterator_is_ready_in_eager_execution_and_begins_anew_when_it_is_initialized(strategy, refused):
    with strategy.scope():
        iterator = strategy.make_dataset_iterator(tf.data.Dataset.range(3))
        assert [int(iterator.get_next()) for _ in range(2)] == [0, 1]
        assert iterator.initialize() is None
        assert int(iterator.get_next()) == 0
        assert v1.data.get_output_shapes(iterator) == []
        refused(ValueError, "`input_fn` must return .* but returned 3", strategy.make_input_fn_iterator, lambda _: 3)
