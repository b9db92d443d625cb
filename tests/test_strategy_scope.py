"""A scope that is entered without `with` lasts over lines and cells until it is left."""

import gc
import threading

import keras
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu

PLAIN_ITER = tf.data.Dataset.__iter__


def _leave(strategy):
    strategy.scope().__exit__(None, None, None)


def _check_entered(strategy):
    assert tf.distribute.get_strategy() is strategy
    assert tf.Variable(1.0).device.endswith("IPU:0")
    assert isinstance(iter(tf.data.Dataset.from_tensors(1)), ipu.feeds.IPUIterator)


def _check_left():
    assert not tf.distribute.has_strategy()
    assert tf.Variable(1.0).device.endswith("CPU:0")
    assert tf.data.Dataset.__iter__ is PLAIN_ITER


# The variable creator was once collected with the scope object, and the next `tf.Variable` was on the CPU.
def test_a_scope_whose_object_nobody_keeps_lasts_until_another_object_leaves_it(strategy):
    strategy.scope().__enter__()
    gc.collect()
    _check_entered(strategy)
    _leave(strategy)
    _check_left()


def test_a_scope_that_is_entered_twice_is_left_twice(strategy):
    strategy.scope().__enter__()
    with strategy.scope():
        strategy.scope().__enter__()
        _leave(strategy)
        _check_entered(strategy)
    _check_entered(strategy)
    _leave(strategy)
    _check_left()


def test_what_was_not_entered_cannot_be_left(strategy, refused):
    with pytest.raises(
        RuntimeError, match=r"no scope of this strategy is entered on this thread.*`with strategy.scope\(\):`"
    ):
        _leave(strategy)
    strategy.scope().__enter__()
    refused(RuntimeError, "no scope of this strategy is entered", _leave, ipu.IPUStrategy())
    _check_entered(strategy)
    _leave(strategy)
    refused(RuntimeError, "no scope of this strategy is entered", _leave, strategy)


def test_a_scope_is_left_once_in_the_order_of_nesting_and_by_no_traced_function_in_it(strategy):
    with strategy.scope():
        scope, inner = strategy.scope(), strategy.scope()
        scope.__enter__()
        inner.__enter__()
        with pytest.raises(RuntimeError, match="another scope was entered after this one, and must be left first"):
            scope.__exit__(None, None, None)
        inner.__exit__(None, None, None)
        _leave(strategy)
        with pytest.raises(RuntimeError, match="this scope was left before, or entered on another thread"):
            scope.__exit__(None, None, None)
        with pytest.raises(RuntimeError, match="is left in a `tf.function` or graph that does not enter it"):
            tf.function(lambda: _leave(strategy), autograph=False)()
        _check_entered(strategy)
    _check_left()


# TensorFlow once raised `IndexError: pop from empty list`.
def test_a_scope_whose_session_was_cleared_can_be_left(strategy):
    with strategy.scope():
        keras.backend.clear_session(free_memory=False)
    _check_left()
    with strategy.scope():
        _check_entered(strategy)
    _check_left()


def test_a_thread_enters_and_leaves_its_own_scopes(strategy, refused):
    results = []

    def run():
        results.append(tf.distribute.has_strategy())
        refused(RuntimeError, "on this thread", _leave, strategy)
        strategy.scope().__enter__()  # The scope ends with the thread.
        results.append(tf.Variable(1.0).device)

    with strategy.scope():
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert results == [False, "/job:localhost/replica:0/task:0/device:IPU:0"]
    _check_left()


def test_a_script_that_never_leaves_its_scope_trains_and_ends_quietly(run_script):
    done = run_script(
        """
        import keras, numpy as np, tensorflow as tf
        import tensorflow_ipu as ipu
        strategy = ipu.IPUStrategy()
        strategy.scope().__enter__()
        print(tf.Variable(1.0).device)
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(np.ones((8, 2), "float32"), np.ones((8, 1), "float32"), batch_size=4, verbose=0)
        print(model.weights[0].value.device[-5:], int(model.optimizer.iterations))
        """
    )
    assert done.stdout.split() == ["/job:localhost/replica:0/task:0/device:IPU:0", "IPU:0", "2"]
    assert "ignored" not in done.stderr
    assert "Error" not in done.stderr
