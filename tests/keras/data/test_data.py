"""Tests the data of models in a scope: supported kinds, counts of steps, and rejected data."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

from tensorflow_ipu.keras.data import elements as data_elements


def linear():
    """Returns a linear model of 6 features, compiled for 2 steps per execution."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input([6]), layers.Dense(3)])
    model.compile(optimizer="sgd", loss="mse", steps_per_execution=2)
    return model


@pytest.fixture
def model(scoped):
    """Returns a linear model made in a scope."""
    return scoped(linear)


@pytest.fixture
def plain_model():
    """Returns the same model made without a scope."""
    return linear()


def dataset_of(*arrays, batch=8):
    return tf.data.Dataset.from_tensor_slices(arrays).batch(batch, drop_remainder=True)


FORMS = {
    "arrays": lambda x, y, w: {"x": x, "y": y, "sample_weight": w, "batch_size": 8},
    "tensors": lambda x, y, w: {"x": tf.constant(x), "y": tf.constant(y), "sample_weight": w, "batch_size": 8},
    "dataset": lambda x, y, w: {"x": dataset_of(x, y, w)},
    "doubles": lambda x, y, w: {"x": dataset_of(x.astype(np.float64), y.astype(np.float64), w.astype(np.float64))},
    "repeated": lambda x, y, w: {"x": dataset_of(x, y, w).repeat(), "steps_per_epoch": 6},
    "generator": lambda x, y, w: {
        "x": tf.data.Dataset.from_generator(
            lambda: zip(x.reshape(6, 8, 6), y.reshape(6, 8, 3), w.reshape(6, 8), strict=True),
            output_signature=tuple(tf.TensorSpec(shape) for shape in ([8, 6], [8, 3], [8])),
        ).apply(tf.data.experimental.assert_cardinality(6))
    },
}


def test_every_form_of_data_trains_alike(features, model, plain_model, assert_same):
    weights = np.linspace(0.1, 2, len(features)).astype(np.float32)
    start, targets = plain_model.get_weights(), features[:, :3]
    expected = plain_model.fit(
        **FORMS["arrays"](features, targets, weights), epochs=2, shuffle=False, verbose=0
    ).history
    for form in FORMS.values():
        model.set_weights(start)
        result = model.fit(**form(features, targets, weights), epochs=2, shuffle=False, verbose=0).history
        assert_same([result, model.get_weights()], [expected, plain_model.get_weights()])


def test_shuffles_splits_and_epochs_are_those_of_keras(features, model, plain_model, assert_same):
    split = {"batch_size": 4, "validation_split": 0.5, "epochs": 5, "initial_epoch": 2, "validation_freq": 2}
    shuffled = [{"batch_size": 8, "epochs": 2, "shuffle": order} for order in (True, "batch")]
    for options, epochs in ((shuffled[0], [0, 1]), (shuffled[1], [0, 1]), (split, [2, 3, 4])):
        plain_model.set_weights(model.get_weights())
        runs = []
        for trained_model in (plain_model, model):
            keras.utils.set_random_seed(4)
            runs.append(trained_model.fit(features, features[:, :3], verbose=0, **options))
        assert_same([runs[1].history, model.get_weights()], [runs[0].history, plain_model.get_weights()])
        assert runs[1].epoch == runs[0].epoch == epochs


def test_a_dataset_is_shuffled_in_each_epoch_and_call_as_in_plain_keras(features, model, plain_model, assert_same):
    plain_model.set_weights(model.get_weights())
    runs, quiet = [], {"verbose": 0, "shuffle": False}
    for trained_model in (plain_model, model):
        source = tf.data.Dataset.from_tensor_slices((features, features[:, :3]))
        train, held_out = (source.shuffle(48, seed=seed).batch(8, drop_remainder=True) for seed in (5, 6))
        runs.append([trained_model.fit(train, epochs=3, validation_data=held_out.take(2), **quiet).history])
        runs[-1].append(trained_model.evaluate(train.take(2), verbose=0))
        runs[-1].append(trained_model.fit(train.repeat(), epochs=2, steps_per_epoch=4, **quiet).history)
    assert_same([runs[1], model.get_weights()], [runs[0], plain_model.get_weights()])


def test_a_dataset_goes_on_from_epoch_to_epoch_with_a_number_of_steps(model):
    numbers = tf.data.Dataset.range(20).map(lambda i: (tf.fill([4, 6], tf.cast(i, tf.float32)), tf.zeros([4, 3])))
    model.layers[0].kernel.assign(tf.eye(6, 3))
    model.compile(optimizer="sgd", loss="mae", steps_per_execution=2)
    model.optimizer.learning_rate = 0.0
    history = model.fit(numbers, steps_per_epoch=4, epochs=3, verbose=0, shuffle=False).history
    assert history["loss"] == [1.5, 5.5, 9.5]
    # If the steps are the whole dataset, each pass begins with the first element.
    history = model.fit(numbers, epochs=2, verbose=0, shuffle=False).history
    assert history["loss"] == [9.5, 9.5]


def test_steps_an_execution_may_be_the_size_of_a_dataset_and_more_than_there_are_become_one_execution(features, model):
    data = dataset_of(features, features[:, :3])
    for steps in (data.repeat().cardinality(), 0, 2.5, "all"):
        with pytest.raises(ValueError, match="`steps_per_execution` must be a positive integer, but is"):
            model.compile("sgd", "mse", steps_per_execution=steps)
    with pytest.raises(ValueError, match="`steps_per_execution` must be at most 2147483647, but is 2147483648"):
        model.compile("sgd", "mse", steps_per_execution=2**31)
    for steps in (data.cardinality(), np.int64(6)):
        model.compile("sgd", "mse", steps_per_execution=steps)
        assert model.steps_per_execution == 6
    with pytest.warns(UserWarning, match="`steps_per_execution` is 6, and there are 1 steps"):
        model.fit(features, features[:, :3], batch_size=48, verbose=0)
    assert model.steps_per_execution == 6


def test_fewer_rows_than_a_batch_are_one_batch(features, labels, make_model, scoped, assert_same):
    x, y, held_out = features[:6], labels[:6], (features[6:9], labels[6:9])

    def train(steps):
        model = make_model(steps_per_execution=steps)
        results = [list(model.fit(x, y, epochs=2, verbose=0, validation_data=held_out).history.values())]
        results.append(list(model.fit(x, y, batch_size=7, verbose=0, validation_split=0.5).history.values()))
        return [*results, model.evaluate(x, y, verbose=0), model.predict(x, verbose=0)]

    plain_model = train(1)
    assert_same(scoped(lambda: train(1)), plain_model)
    with pytest.warns(UserWarning, match="`steps_per_execution` is 4, and there are 1 steps"):
        assert_same(scoped(lambda: train(4)), plain_model)


def test_one_batch_is_too_few_for_replicas_and_updates_of_several_steps(
    features, labels, make_model, scoped, configure
):
    model = scoped(make_model)
    model.set_gradient_accumulation_options(4)
    with pytest.raises(
        RuntimeError, match="The data makes 1 steps .* multiple of 4. A smaller `batch_size` makes more"
    ):
        model.fit(features[:5], labels[:5], verbose=0)
    configure(2)
    with pytest.raises(ValueError, match="Give 2 batches or more, such as by a smaller `batch_size`"):
        scoped(make_model).fit(features[:5], labels[:5], verbose=0)


# Rejected data.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x, y: {"x": x, "y": y, "batch_size": 9}, "of 48 examples, batches of 9 leave .* 3, .* such as 8 or 12"),
        (lambda x, y: {"x": x, "y": y}, "a partial batch: of 48 examples, batches of 32 .* such as 24 or 48"),
        (
            lambda x, y: {"x": x, "y": y, "batch_size": 16},
            r"`steps_per_execution` \(2\) .* \(3\) .*=1 or 3`.* as 2 or 4",
        ),
        (
            lambda x, y: {"x": tf.data.Dataset.from_tensor_slices((x, y)).batch(8)},
            r"a shape \(None, 6\) which is not fully defined.*`drop_remainder=True`",
        ),
        (lambda x, y: {"x": dataset_of(x, y).repeat()}, "Could not infer the size of the data.*`steps_per_epoch`"),
        (lambda x, y: {"x": dataset_of(x, y).filter(lambda *_: True)}, "Could not infer the size of the data"),
        (
            lambda x, y: {"x": dataset_of(x, y), "steps_per_epoch": 8},
            "not have enough data: `steps_per_epoch` is 8, but the data makes 6 batches",
        ),
        (lambda x, y: {"x": ((x[:8], y[:8]) for _ in range(4))}, "of type `Generator`.*`tf.data.Dataset"),
        (lambda x, y: {"x": None, "y": y}, "Expect `x` to be a non-empty"),
        (lambda x, y: {"x": x[:0], "y": y[:0]}, "Expect `x` to be a non-empty"),
        (lambda x, y: {"x": dataset_of(np.full([8, 6], "a"), y[:8])}, "holds strings"),
        (lambda x, y: {"x": x[:8], "y": np.full([8, 1], "a"), "batch_size": 8}, "`y` holds strings.*`np.unique"),
        (
            lambda x, y: {"x": x, "y": y, "batch_size": 8, "validation_data": (x[:10], y[:10])},
            "of 10 examples, batches of 8 leave",
        ),
    ],
)
def test_data_that_does_not_fit_is_refused_with_numbers_that_do(make, message, features, model):
    arguments = make(features, features[:, :3])
    shuffles = arguments["x"] is None or isinstance(arguments["x"], np.ndarray)
    with pytest.raises(ValueError, match=message):
        model.fit(**arguments, shuffle=shuffles, verbose=0)


# The outfeed raised the error, without the name of the layer.
def test_a_layer_in_float64_is_named_where_its_results_are_float64(features, scoped):
    model = scoped(
        lambda: keras.Sequential([keras.layers.Dense(3), keras.layers.Dense(2, dtype="float64", name="wide")])
    )
    with pytest.raises(TypeError, match="float64, which no IPU has: layer `wide` computes in it"):
        model.predict(features, batch_size=8, verbose=0)


def test_evaluation_refuses_a_partial_batch_too(features, model):
    with pytest.raises(ValueError, match="a partial batch: of 48 examples, batches of 32"):
        model.evaluate(features, verbose=0)
    for method in (model.evaluate, model.predict):
        with pytest.raises(ValueError, match="`steps` is 8, but the data makes 6 batches"):
            method(dataset_of(features), steps=8, verbose=0)


def test_data_that_fails_or_ends_early_does_as_in_keras_and_the_model_goes_on(features, model):
    def check(x, y):
        with tf.control_dependencies([tf.debugging.assert_less(x, 1e9, "too large")]):
            return tf.identity(x), y

    bad = features.copy()
    bad[30] = 1e10
    with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
        model.fit(dataset_of(bad, features[:, :3]).map(check), verbose=0, shuffle=False)
    assert model.fit(features, features[:, :3], batch_size=8, verbose=0).history["loss"]
    asserted = dataset_of(features, features[:, :3]).apply(tf.data.experimental.assert_cardinality(6))
    ends = asserted.take(6).filter(lambda x, _: x[0, 0] < 1e9).take(4)
    with pytest.warns(UserWarning, match="ran out of data"):
        model.fit(ends, steps_per_epoch=6, verbose=0, shuffle=False)


def test_no_data_is_read_after_fit(features, model):
    reads = []

    def note(i):
        reads.append(int(i))
        return np.float32(0)

    numbers = tf.data.Dataset.range(10**9).map(
        lambda i: (tf.zeros([4, 6]) + tf.ensure_shape(tf.numpy_function(note, [i], tf.float32), []), tf.zeros([4, 3]))
    )
    model.fit(numbers, steps_per_epoch=4, verbose=0, shuffle=False)
    count = len(reads)
    assert 4 <= count < 1000
    model.predict(features, batch_size=8, verbose=0)
    assert len(reads) == count


def test_replicas_take_the_batches_in_turn(features, scoped, configure, assert_same):
    configure(2)
    model = scoped(linear)
    data = features, features[:, :3]
    with pytest.raises(ValueError, match=r"\(2\) must be a divisor of the number of batches \(3\)"):
        model.fit(*data, batch_size=8, verbose=0)
    with pytest.raises(ValueError, match="contains 1 items, but all 2 replicas"):
        model.fit(*data, batch_size=48, verbose=0)
    with pytest.raises(ValueError, match="contains 1 items, but all 2 replicas"):
        model.train_on_batch(*data)
    expected = features @ model.get_weights()[0]
    assert_same(model.predict(features, batch_size=12, verbose=0), expected)
    # `steps` counts the batches of all replicas.
    assert_same(model.predict(dataset_of(features), steps=4, verbose=0), expected[:32])


SIZE = 3


def adapter(batches, shuffle=True, width=2):
    x = np.arange(batches * SIZE * width, dtype=np.float32).reshape([-1, width])
    return ArrayDataAdapter(x, np.arange(batches * SIZE), batch_size=SIZE, shuffle=shuffle)


def elements(dataset):
    return [tf.nest.map_structure(lambda part: part.tolist(), element) for element in dataset.as_numpy_iterator()]


LARGE = data_elements._CHUNK_BYTES // 4 // SIZE + 1  # Batches of this width are gathered separately.


@pytest.mark.parametrize(
    ("batches", "shuffle", "width"), [(5, True, 2), (75, "batch", 2), (75, True, 2), (6, False, 2), (3, True, LARGE)]
)
def test_batches_have_the_order_of_keras_for_each_seed(batches, shuffle, width):
    for seed in (1, 2):
        tf.random.set_seed(seed)
        expected = elements(adapter(batches, shuffle, width).get_tf_dataset())
        dataset: Any = data_elements.dataset_of(adapter(batches, shuffle, width))
        assert elements(dataset) == elements(dataset) == expected
        assert dataset.element_spec[0] == tf.TensorSpec([SIZE, width], tf.float32)


@pytest.fixture
def no_seed():
    from tensorflow.python.eager import context

    original = context.global_seed()
    context.set_global_seed(None)
    yield
    context.set_global_seed(original)


def test_without_a_seed_each_pass_has_an_order_of_its_own(no_seed):
    dataset = data_elements.dataset_of(adapter(40))
    passes = [elements(dataset) for _ in range(2)]
    assert passes[0] != passes[1]
    for batches in passes:
        labels = np.concatenate([label for _, label in batches])
        assert sorted(labels) == list(range(40 * SIZE))
        np.testing.assert_array_equal(np.concatenate([x for x, _ in batches])[:, 0], 2 * labels)


@pytest.mark.parametrize("shuffle", [True, "batch", False])
def test_an_iteration_begins_without_a_search_or_a_thread_for_each_processor(shuffle):
    options = data_elements.dataset_of(adapter(4, shuffle)).options()
    assert options.experimental_optimization.apply_default_optimizations is False
    assert options.experimental_optimization.inject_prefetch is False
    assert options.autotune.enabled is False
    assert options.threading.private_threadpool_size == 1


@pytest.mark.parametrize(("shuffle", "traced"), [(True, "_traced"), (False, "without_optimizations")])
def test_a_second_dataset_of_the_same_specs_traces_nothing_and_outlives_the_record_of_its_functions(
    shuffle, traced, monkeypatch
):
    tf.random.set_seed(1)
    expected = elements(data_elements.dataset_of(adapter(6, shuffle)))
    monkeypatch.setattr(data_elements, traced, None)  # A call would raise an error.
    tf.random.set_seed(1)
    dataset = data_elements.dataset_of(adapter(6, shuffle))
    assert elements(dataset) == expected
    data_elements._ordered_maker.cache_clear()
    assert elements(dataset) == expected
