"""Tests that `fit`, `evaluate` and `predict` in a scope run programs of many steps and equal plain Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = layers.Dense(4, activation="tanh", kernel_regularizer="l2")
        self.normalization = layers.BatchNormalization(momentum=0.5)
        self.head = layers.Dense(3)

    def call(self, x, training=False):
        return self.head(self.normalization(self.hidden(x), training=training))


class Injected(keras.Model):
    """A subclass that is made with inputs and outputs."""

    def fit(self, *args, **kwargs):
        return super().fit(*args, **kwargs)


def injected():
    inputs = keras.Input([6])
    return Injected(inputs, layers.Dense(3)(inputs))


def nested():
    return keras.Sequential([keras.Sequential([layers.Dense(4, activation="relu")]), layers.Dense(3)])


def dropping():
    """Returns layers: convolutions, pools, and dropout with and without a seed."""
    parts = [layers.Conv2D(8, 2, activation="relu"), layers.MaxPooling2D(), layers.Dropout(0.5, seed=7)]
    return keras.Sequential(
        [layers.Dense(18), layers.Reshape([3, 3, 2]), *parts, layers.Flatten(), layers.Dropout(0.2), layers.Dense(3)]
    )


def sgd():
    return keras.optimizers.SGD(0.1, momentum=0.9)


def adam():
    return keras.optimizers.Adam(0.05, clipnorm=1.0)


def scheduled():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    return keras.optimizers.SGD(schedule, gradient_accumulation_steps=2)


def averaging():
    return keras.optimizers.RMSprop(0.05, use_ema=True, ema_overwrite_frequency=3)


def trained(make, x, y, optimizer, validation=False, **options):
    """Trains a model, shuffled in the same order for the same seed, and returns it with its results."""
    keras.utils.set_random_seed(3)
    model = make()
    model.compile(
        optimizer=optimizer(),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        **options,
    )
    data = {"validation_data": (x[:16], y[:16])} if validation else {}
    history = model.fit(x, y, batch_size=8, epochs=2, verbose=0, **data).history
    state = [np.asarray(variable) for variable in (*model.variables, *model.optimizer.variables)]
    return model, {**history, "state": state}


def test_fit_evaluate_and_predict_equal_plain_keras(features, labels, scoped, assert_same):
    case = (Subclassed, features, labels, sgd, True)
    plain_model, expected = trained(*case)
    model, results = scoped(lambda: trained(*case, steps_per_execution=2))
    assert results.keys() == expected.keys()
    assert_same(results, expected)
    evaluated = [
        evaluated_model.evaluate(features[:32], labels[:32], batch_size=8, verbose=0)
        for evaluated_model in (model, plain_model)
    ]
    assert_same(*evaluated)
    # No release of Keras returns tensors.
    assert [list(map(type, losses)) for losses in evaluated] == [[float, float]] * 2
    assert_same(model.predict(features, batch_size=8, verbose=0), plain_model(features))
    assert model.variables[0].value.device.endswith("IPU:0")


# A model that overrides `fit` trains on the device too.
@pytest.mark.parametrize(("make", "optimizer"), [(nested, adam), (injected, averaging), (dropping, scheduled)])
def test_training_equals_plain_keras(make, optimizer, features, labels, scoped, assert_same):
    _, expected = trained(make, features, labels, optimizer, jit_compile=False)
    _, results = scoped(lambda: trained(make, features, labels, optimizer, steps_per_execution=2))
    assert_same(results, expected)


def test_two_models_of_a_scope_train_in_turn_whatever_jit_compile_is(features, labels, make_model, scoped, assert_same):
    plain_model = make_model()
    models = [
        scoped(lambda value=value: make_model(jit_compile=value, steps_per_execution=2)) for value in (True, False)
    ]
    for _ in range(2):
        for model in (plain_model, *models):
            model.fit(features, labels, batch_size=12, class_weight={0: 1.0, 1: 2.0, 2: 0.5}, verbose=0, shuffle=False)
    for model in models:
        assert_same(model.get_weights(), plain_model.get_weights())
        assert model._ipu_extension.traces() == {"train": 1}
    assert_same(models[0].get_weights(), models[1].get_weights(), rtol=0, atol=0)


def test_single_batches_train_test_and_predict(features, labels, make_model, scoped, assert_same):
    def use(model):
        # Batches of any size, and of dtypes that IPUs do not support.
        results = [model.train_on_batch(features[:n].astype(np.float64), labels[:n]) for n in (8, 8, 5)]
        results.append(model.train_on_batch(features[:8], labels[:8], class_weight={0: 1.0, 1: 2.0, 2: 0.5}))
        results.append(model.test_on_batch(features[:7], labels[:7], return_dict=True))
        return [*results, model.predict_on_batch(features[:3]), model.get_weights()]

    assert_same(use(scoped(make_model)), use(make_model()))

    def new():
        keras.utils.set_random_seed(1)
        return keras.Sequential([layers.Dense(2)]).predict(features, batch_size=16, verbose=0)

    assert_same(scoped(new), new())  # A model that was not called yet predicts.


def test_custom_steps_run_in_the_program(features, labels, scoped, plain_strategy, assert_same):
    class Custom(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(1, kernel_initializer="ones")

        def call(self, x):
            return self.dense(x)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x, training=True)[:, 0] - y) ** 2)
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return {"mine": loss, "largest": tf.argmax(x[0])}

        def test_step(self, data):
            return {"mean": tf.reduce_mean(self(data[0]))}

        def predict_step(self, data):
            return {"doubled": 2 * self(data), "sum": tf.reduce_sum(data)}

    def use():
        model = Custom()
        model.compile(optimizer=keras.optimizers.SGD(0.1), steps_per_execution=2)
        targets = labels.astype(np.float32)
        history = model.fit(features, targets, batch_size=12, epochs=2, verbose=0, shuffle=False).history
        assert history.keys() == {"mine", "largest"}
        evaluated = model.evaluate(features, targets, batch_size=12, verbose=0, return_dict=True)
        predicted = model.predict(features, batch_size=12, verbose=0)
        assert predicted["sum"].shape == (4,)
        return [history, evaluated, predicted]

    expected = use()
    assert_same(scoped(use), expected)
    with plain_strategy.scope():
        assert_same(use(), expected)


def test_several_inputs_outputs_and_losses_equal_plain_keras(features, labels, scoped, assert_same):
    def use():
        keras.utils.set_random_seed(2)
        a, b = keras.Input([4], name="a"), keras.Input([2], name="b")
        hidden = layers.concatenate([layers.Dense(3)(a), b])
        outputs = {"p": layers.Dense(3, name="p")(hidden), "q": layers.Dense(1, name="q")(hidden)}
        model = keras.Model({"a": a, "b": b}, outputs)
        model.compile(
            optimizer="sgd",
            loss={"p": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "q": "mse"},
            loss_weights={"p": 1.0, "q": 0.5},
            steps_per_execution=2,
        )
        x = {"a": features[:, :4], "b": features[:, 4:]}
        y = {"p": labels, "q": features[:, :1]}
        dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(12, drop_remainder=True)
        history = model.fit(dataset, epochs=2, verbose=0, shuffle=False).history
        return [history, model.evaluate(x, y, batch_size=12, verbose=0), model.predict(x, batch_size=12, verbose=0)]

    expected = use()
    assert_same(scoped(use), expected)


def test_eager_models_and_those_that_make_their_own_function_are_refused(features, labels, make_model, scoped):
    eager = scoped(lambda: make_model(run_eagerly=True))
    with pytest.raises(RuntimeError, match="`run_eagerly=True`"):
        eager.fit(features, labels, batch_size=12, verbose=0)

    class Own(keras.Sequential):
        def make_train_function(self, force=False):
            raise AssertionError

    model = scoped(lambda: Own([layers.Dense(3)]))
    model.compile(loss="mse")
    with pytest.raises(RuntimeError, match="`make_train_function` for the model .* has been overridden"):
        model.fit(features, features[:, :3], batch_size=12, verbose=0)
