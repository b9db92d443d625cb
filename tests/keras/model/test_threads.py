"""Tests threads that share a model: results equal those without other threads, and a thread waits for one execution."""

import itertools
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu

ROWS, SIZE, THREADS = 16, 4, 16


@pytest.fixture
def model(scoped):
    def make():
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
        model.compile(keras.optimizers.SGD(0.0), "mse", metrics=["mae"], steps_per_execution=2)
        return model

    return scoped(make)


def rows(seed):
    """Returns inputs and labels that differ between seeds by more than rounding."""
    generator = np.random.default_rng(seed)
    return generator.normal(size=[ROWS, 3]).astype("f"), (seed % 5 + 1) * generator.normal(size=[ROWS, 2]).astype("f")


def fit(model, seed, **options):
    (x, y), held_out = rows(seed), rows(seed + 100)
    options = {"batch_size": SIZE, "epochs": 2, "validation_data": held_out, "shuffle": False, "verbose": 0, **options}
    return list(model.fit(x, y, **options).history.values())


USES = {
    "fit": fit,
    "evaluate": lambda model, seed: model.evaluate(*rows(seed), batch_size=SIZE, verbose=0),
    "predict": lambda model, seed: model.predict(rows(seed)[0], batch_size=SIZE, verbose=0),
    "predict_on_batch": lambda model, seed: model.predict_on_batch(rows(seed)[0][:SIZE]),
    "test_on_batch": lambda model, seed: model.test_on_batch(*(part[:SIZE] for part in rows(seed))),
    "train_on_batch": lambda model, seed: model.train_on_batch(*(part[:SIZE] for part in rows(seed))),
}


@pytest.fixture
def together():
    """Returns a function that calls functions on one thread each: `together(*functions)` returns results and errors."""
    pools = []

    def call(*functions):
        pools.append(ThreadPoolExecutor(len(functions)))
        begin = threading.Barrier(len(functions))

        def run(function):
            begin.wait(60)
            return function()

        waiting = [pools[-1].submit(run, function) for function in functions]
        return [future.exception(120) or future.result() for future in waiting]

    yield call
    for pool in pools:
        pool.shutdown()


@pytest.mark.parametrize(("replicas", "asynchronous"), [(1, False), (2, True)])
def test_each_of_many_threads_gets_the_numbers_that_it_gets_alone(
    model, together, configure, assert_same, replicas, asynchronous
):
    configure(replicas)
    model.set_asynchronous_callbacks(asynchronous)
    names = list(USES) if replicas == 1 else ["fit", "evaluate", "predict"]
    jobs = [(USES[name], seed) for seed, name in zip(range(THREADS), itertools.cycle(names))]
    alone = [use(model, seed) for use, seed in jobs]
    x, _ = rows(names.index("predict"))
    assert_same(alone[names.index("predict")], model(x))

    def repeat(use, seed):
        return [use(model, seed) for _ in range(4)]

    all_results = together(*(lambda job=job: repeat(*job) for job in jobs))
    for results, expected in zip(all_results, alone, strict=True):
        for result in results:
            assert_same(result, expected)


class Then(keras.callbacks.Callback):
    """Calls a function once, after the first execution of training."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.result = None

    def on_train_batch_end(self, batch, logs=None):
        if self.function is not None:
            function, self.function = self.function, None
            self.result = function()


@pytest.mark.parametrize("use", ["predict", "evaluate", "train_on_batch"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_thread_uses_the_model_between_two_executions_of_a_fit_and_disturbs_no_metric(
    model, assert_same, use, asynchronous
):
    model.set_asynchronous_callbacks(asynchronous)
    alone = fit(model, 1), USES[use](model, 2)
    with ThreadPoolExecutor(1) as pool:
        then = Then(lambda: pool.submit(USES[use], model, 2).result(60))
        history = fit(model, 1, callbacks=[then])
    assert_same((history, then.result), alone)


def test_a_callback_that_is_called_while_the_program_runs_predicts(model, assert_same):
    model.set_asynchronous_callbacks(True)
    alone = fit(model, 1)
    then = Then(lambda: USES["predict"](model, 2))
    assert_same(fit(model, 1, callbacks=[then]), alone)
    assert_same(then.result, model(rows(2)[0]))


def test_calls_with_other_steps_an_execution_do_not_mix(model, together, assert_same):
    """With one batch, an execution has one step. With four, it has the number for which the model was compiled."""

    def evaluate(count):
        x, y = (part[: count * SIZE] for part in rows(count))
        return model.evaluate(x, y, batch_size=SIZE, verbose=0)

    def evaluate_all():
        alone = [evaluate(count) for count in (1, 4)]
        return alone, together(*(lambda count=count: [evaluate(count) for _ in range(8)] for count in (1, 4)))

    with pytest.warns(UserWarning, match="`steps_per_execution` is 2, and there are 1 steps"):
        alone, all_results = evaluate_all()
    assert model.steps_per_execution == 2
    for results, expected in zip(all_results, alone, strict=True):
        assert_same(results, [expected] * 8)


def test_a_second_fit_begins_when_the_first_has_ended(model, together):
    running, counts = [], []

    class Watch(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            running.append(self)

        def on_epoch_end(self, epoch, logs=None):
            counts.append(len(running))

        def on_train_end(self, logs=None):
            running.remove(self)

    def train():
        return model.fit(*rows(1), batch_size=SIZE, verbose=0, callbacks=[Watch()])

    histories = together(train, train, train)
    assert counts == [1, 1, 1]
    assert len({id(history) for history in histories}) == 3
    assert [len(history.epoch) for history in histories] == [1, 1, 1]


def test_the_first_calls_of_a_model_build_it_once(together, scoped, assert_same):
    unbuilt = scoped(lambda: keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(2)]))
    predictions = together(*(lambda: unbuilt.predict(rows(1)[0], verbose=0) for _ in range(6)))
    assert_same(predictions, [unbuilt(rows(1)[0])] * 6)
    unbuilt.compile("adam", "mse")
    together(*(lambda: unbuilt.train_on_batch(*rows(1)) for _ in range(6)))
    assert (len(unbuilt.weights), len(unbuilt.optimizer.variables)) == (4, 10)


def test_several_models_train_and_predict_at_once(scoped, together, assert_same):
    def make(units):
        keras.utils.set_random_seed(units)
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(units), keras.layers.Dense(2)])
        model.compile(keras.optimizers.SGD(0.001), "mse")
        return model

    def use(model):
        return fit(model, 1), model.predict(rows(2)[0], verbose=0)

    units = (3, 4, 5)
    alone = [use(scoped(lambda count=count: make(count))) for count in units]
    models = [scoped(lambda count=count: make(count)) for count in units]
    assert_same(together(*(lambda model=model: use(model) for model in models)), alone)


def test_a_model_that_another_thread_compiles_ends_its_fit_with_an_error_and_predicts_on(model, scoped, assert_same):
    with ThreadPoolExecutor(1) as pool:

        def compile_anew():
            return pool.submit(model.compile, "sgd", "mae").result(60)

        with pytest.raises(RuntimeError, match="was compiled, or got other options, while its `fit` was running"):
            fit(model, 1, callbacks=[Then(compile_anew)])
        with pytest.raises(RuntimeError, match="was compiled, or got other options, while its `fit` was running"):
            fit(model, 1, callbacks=[Then(lambda: model.set_outfeed_queue_options(buffer_depth=4))])

        class OfPrediction(keras.callbacks.Callback):
            def on_predict_batch_end(self, batch, logs=None):
                compile_anew()

        predicted = model.predict(rows(2)[0], batch_size=SIZE, verbose=0, callbacks=[OfPrediction()])
    assert_same(predicted, model(rows(2)[0]))
    assert fit(model, 1)


def test_an_error_of_one_thread_leaves_the_others_what_they_get_alone(model, together, assert_same):
    class Fail(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise ZeroDivisionError("on purpose")

    bad = tf.data.Dataset.range(4).map(lambda i: tf.fill([SIZE, 3], tf.cast(8 // (2 - i), tf.float32)))
    alone = [use(model, seed) for seed, use in enumerate(USES.values())]

    def end_of_data():
        for _ in range(20):
            list(tf.data.Dataset.range(1))

    results = together(
        *(lambda seed=seed, use=use: use(model, seed) for seed, use in enumerate(USES.values())),
        lambda: fit(model, 1, callbacks=[Fail()]),
        lambda: model.predict(bad, verbose=0),
        end_of_data,
    )
    assert isinstance(results[-3], ZeroDivisionError)
    assert isinstance(results[-2], tf.errors.InvalidArgumentError)
    assert_same(results[: len(alone)], alone)


def test_ctrl_c_ends_the_wait_for_another_thread(model, assert_same):
    """The other thread waits for data in its turn."""
    begun, interrupted = threading.Event(), threading.Event()

    def element(i):
        begun.set()
        assert interrupted.wait(60)
        return np.zeros([SIZE, 3], np.float32)

    slow = tf.data.Dataset.range(2).map(
        lambda i: tf.ensure_shape(tf.numpy_function(element, [i], tf.float32), [SIZE, 3])
    )
    predicted = USES["predict"](model, 1)
    turns = model._ipu_extension.calls._turns

    def interrupt():
        while not turns._waiting:
            assert not interrupted.wait(0.001)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    with ThreadPoolExecutor(2) as pool:
        prediction = pool.submit(model.predict, slow, verbose=0)
        assert begun.wait(60)
        while turns._holder is None:
            assert not prediction.done()
        pool.submit(interrupt)
        try:
            with pytest.raises(KeyboardInterrupt):
                model.predict(rows(1)[0], batch_size=SIZE, verbose=0)
        finally:
            interrupted.set()
        assert prediction.result(60).shape == (2 * SIZE, 2)
    assert_same(USES["predict"](model, 1), predicted)


def test_a_model_of_a_thread_that_is_in_no_scope_is_used_in_its_own(model, together, assert_same):
    with ipu.IPUStrategy().scope():
        results = together(lambda: USES["predict"](model, 1))
    assert_same(results, [model(rows(1)[0])])


def test_a_file_is_written_in_a_turn(model, tmp_path):
    """While a thread has the turn, another thread cannot write parts of a file between steps."""
    path = tmp_path / "of.weights.h5"
    turns = model._ipu_extension.calls._turns
    with ThreadPoolExecutor(1) as pool:
        with turns:
            saving = pool.submit(model.save_weights, path)
            while not turns._waiting:
                assert not saving.done()
        saving.result(60)
    assert path.exists()


def test_threads_that_make_models_of_one_class_share_its_ipu_class(strategy, together):
    """A class could get two IPU classes, and `isinstance` and pickling then failed for some of its models."""

    class Model(keras.Model):
        pass

    def make():
        with strategy.scope():
            return Model()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        models = together(*[make] * 8)
    finally:
        sys.setswitchinterval(before)
    assert len({type(model) for model in models}) == 1
