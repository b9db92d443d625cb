"""Tests that `fit`, `evaluate` and `predict` of models of Keras 2 in a scope equal plain Keras 2."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import tensorflow_ipu as ipu

layers = keras.layers
old = keras.optimizers.legacy


def dense():
    return keras.Sequential([layers.Dense(8, "relu", input_shape=(6,)), layers.Dropout(0.0), layers.Dense(3)])


def unbuilt():
    return keras.Sequential([layers.Dense(8, "tanh", kernel_regularizer="l2"), layers.Dense(3)])


def functional():
    inputs = keras.Input([6], name="x")
    hidden = layers.BatchNormalization()(layers.Dense(8, "relu")(inputs))
    outputs = layers.Dense(3)(layers.concatenate([hidden, tf.square(inputs)]))
    model = keras.Model(inputs, outputs)
    model.add_loss(0.1 * tf.reduce_mean(hidden))
    model.add_metric(tf.reduce_max(hidden), name="peak", aggregation="mean")
    return model


def convolutions():
    parts = [layers.Reshape([6, 1]), layers.Conv1D(4, 3, padding="same"), layers.BatchNormalization(), layers.ReLU()]
    return keras.Sequential([layers.InputLayer([6]), *parts, layers.GlobalMaxPooling1D(), layers.Dense(3)])


def recurrent():
    return keras.Sequential([layers.Reshape([3, 2], input_shape=(6,)), layers.LSTM(4), layers.Dense(3)])


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = layers.Dense(8, activity_regularizer="l1")
        self.last = layers.Dense(3)

    def call(self, inputs, training=None, mask=None):
        return self.last(tf.nn.relu(self.hidden(inputs)) * (0.5 if training else 1.0))


class OwnStep(Subclassed):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                keras.losses.sparse_categorical_crossentropy(y, self(x, training=True), from_logits=True)
            )
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"own": loss, "half": loss / 2}


OPTIMIZERS = {
    "old sgd": lambda: old.SGD(0.1, momentum=0.9, nesterov=True),
    "old adam": lambda: old.Adam(keras.optimizers.schedules.ExponentialDecay(0.01, 3, 0.5)),
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01, clipnorm=1.0),
}
CASES = [
    (dense, "old sgd"),
    (unbuilt, "adam"),
    (functional, "old adam"),
    (convolutions, "sgd"),
    (recurrent, "old adam"),
    (Subclassed, "sgd"),
    (OwnStep, "old sgd"),
]


def compiled(make, optimizer, **options):
    model = make()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metrics = ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2, "top")]
    model.compile(OPTIMIZERS[optimizer](), loss, metrics=metrics, **options)
    return model


@pytest.mark.parametrize(("make", "optimizer"), CASES)
def test_training_equals_plain_keras(make, optimizer, features, labels, in_scope_and_plain, same):
    weights = np.linspace(0.5, 1.5, len(labels), dtype=np.float32)
    weighs = make is not OwnStep

    def train(**options):
        model = compiled(make, optimizer, **options)
        extra = {"sample_weight": weights, "class_weight": {0: 1.0, 1: 2.0, 2: 0.5}} if weighs else {}
        results = [model.fit(features, labels, batch_size=4, epochs=2, verbose=0, **extra).history, model.get_weights()]
        if make in (dense, functional):
            results.append(model.fit(features, labels, 4, verbose=0, validation_data=(features, labels)).history)
            results.append(model.evaluate(features, labels, batch_size=4, verbose=0))
            results.append(model.predict(features[:-5], batch_size=4, verbose=0))  # These batches are padded.
            results.append(model.predict(tf.data.Dataset.from_tensor_slices(features[:-5]).batch(4), verbose=0))
        return results

    # Plain Keras 2 compiles recurrent layers again in each step.
    results, expected = in_scope_and_plain(
        lambda: train(steps_per_execution=6), lambda: train(jit_compile=make is not recurrent)
    )
    same(results, expected, rtol=1e-5)


def test_one_step_at_a_time_equals_plain_keras_to_the_bit(features, labels, in_scope_and_plain, same):
    def train():
        model = compiled(dense, "old sgd", jit_compile=True)
        history = model.fit(features, labels, batch_size=8, epochs=2, verbose=0, validation_split=0.5).history
        single = [model.train_on_batch(features[:8], labels[:8], class_weight={0: 1.0, 1: 2.0, 2: 3.0})]
        single += [
            model.test_on_batch(features[:8], labels[:8], return_dict=True),
            model.predict_on_batch(features[:8]),
        ]
        return [history, single, model.get_weights()]

    same(*in_scope_and_plain(train))


@pytest.mark.parametrize("steps", [None, 3])
def test_order_of_a_dataset_that_is_shuffled_anew_is_that_of_keras_over_epochs(
    steps, features, labels, in_scope_and_plain, same
):
    def train():
        model = dense()
        model.compile(old.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        dataset = (
            tf.data.Dataset.from_tensor_slices((features, labels)).shuffle(48, seed=3).batch(8, drop_remainder=True)
        )
        return model.fit(dataset, epochs=2 if steps else 3, steps_per_epoch=steps, verbose=0).history["loss"]

    same(*in_scope_and_plain(train), rtol=1e-5)


@pytest.mark.parametrize("shuffle", [True, False, "batch"])
def test_order_of_arrays_is_that_of_keras_over_epochs(shuffle, features, in_scope_and_plain, same):
    """The order was drawn again for the second epoch, but Keras 2 continues with the same iterator."""

    class Sums(keras.Model):
        def train_step(self, data):
            return {"sum": tf.reduce_sum(data[0] * tf.range(6.0))}

    def train():
        model = Sums()
        model.compile(old.SGD())
        return model.fit(features, batch_size=8, epochs=3, shuffle=shuffle, verbose=0).history

    same(*in_scope_and_plain(train), rtol=1e-5)


def test_datasets_go_on_between_epochs_where_keras_lets_them(features, labels, in_scope_and_plain, same):
    def train():
        data = tf.data.Dataset.from_tensor_slices((features, labels)).batch(4, drop_remainder=True).repeat()
        model = compiled(unbuilt, "old sgd", steps_per_execution=5)
        return model.fit(data, steps_per_epoch=10, epochs=4, verbose=0).history

    same(*in_scope_and_plain(train), rtol=1e-5)


def test_several_inputs_and_outputs_by_name(features, labels, in_scope_and_plain, same):
    def make():
        first, second = keras.Input([4], name="first"), keras.Input([2], name="second")
        joined = layers.Concatenate()([first, layers.Dense(2, name="inner")(second)])
        return keras.Model([first, second], {"class": layers.Dense(3)(joined), "value": layers.Dense(1)(joined)})

    def train():
        model = make()
        losses = {"class": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "value": "mse"}
        model.compile("rmsprop", losses, metrics={"class": "accuracy"}, loss_weights={"class": 1.0, "value": 0.3})
        x = {"first": features[:, :4], "second": features[:, 4:]}
        y = {"class": labels, "value": features[:, 0]}
        history = model.fit(x, y, batch_size=6, epochs=2, verbose=0).history
        return [history, model.predict(x, batch_size=6, verbose=0)]

    same(*in_scope_and_plain(train), rtol=1e-5)


@pytest.mark.parametrize("names", [("class", "value"), ("value", "class"), ("class",)])
def test_targets_by_name_for_listed_outputs(names, features, labels, in_scope_and_plain, same):
    """The targets did not match the outputs: "The two structures don't have the same sequence type"."""

    def train():
        inputs = keras.Input([6])
        model = keras.Model(inputs, [layers.Dense(3, name="class")(inputs), layers.Dense(1, name="value")(inputs)])
        losses = {"class": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "value": "mse"}
        metrics = {"class": "accuracy", "value": ["mae"]}
        model.compile("sgd", {name: losses[name] for name in names}, {name: metrics[name] for name in names})
        targets = {"class": labels, "value": features[:, 0]}
        y = {name: targets[name] for name in names}
        history = model.fit(features, y, batch_size=8, verbose=0, validation_data=(features, y)).history
        single = model.test_on_batch(features[:8], {name: part[:8] for name, part in y.items()})
        return list(history.items()), single

    (history, single), (plain_history, expected) = in_scope_and_plain(train)
    assert [name for name, _ in history] == [name for name, _ in plain_history]
    same([values for _, values in history], [values for _, values in plain_history], rtol=1e-5)
    same(single, expected, rtol=1e-5)


def test_a_dataset_creator_is_called_for_its_dataset(features, labels, in_scope_and_plain, same):
    def dataset_of(context):
        assert isinstance(context, tf.distribute.InputContext)
        return tf.data.Dataset.from_tensor_slices((features, labels)).batch(8, drop_remainder=True).repeat()

    def train():
        model, creator = compiled(dense, "old sgd"), keras.utils.experimental.DatasetCreator(dataset_of)
        with pytest.raises(ValueError, match="`steps_per_epoch`, .* argument must be provided"):
            model.fit(creator, verbose=0)
        history = model.fit(creator, steps_per_epoch=4, epochs=2, verbose=0).history
        return history, model.evaluate(creator, steps=6, verbose=0)

    same(*in_scope_and_plain(train), rtol=1e-5)


def test_fewer_rows_than_a_batch_are_one_batch(features, labels, in_scope_and_plain, same):
    x, y = features[:5], labels[:5]

    def train(**options):
        model = compiled(dense, "old sgd", **options)
        history = model.fit(x, y, epochs=2, verbose=0, validation_data=(x[:3], y[:3])).history
        return history, model.evaluate(x, y, verbose=0), model.predict(x, verbose=0)

    same(*in_scope_and_plain(train), rtol=1e-5)


def test_a_wrapper_without_a_signature_gets_what_the_user_passed(
    monkeypatch, features, labels, in_scope_and_plain, same
):
    """Arguments were bound to the wrapper's signature: "KeyError: 'validation_split'"."""
    calls = {}

    def wrapped(name, original):
        def method(self, *args, **kwargs):
            calls[name] = (len(args), "batch_size" in kwargs)
            return original(self, *args, **kwargs)

        return method

    for name in ("compile", *METHODS):
        monkeypatch.setattr(keras.Model, name, wrapped(name, getattr(keras.Model, name)))

    def use():
        model = compiled(dense, "old sgd")
        results = [model.fit(features, labels, 8, verbose=0, validation_split=0.5).history]
        results += [model.evaluate(features, y=labels, batch_size=8, verbose=0), model.predict(features, 8, verbose=0)]
        assert (calls["fit"], calls["evaluate"], calls["predict"]) == ((3, False), (1, True), (2, False))
        single = features[:8], labels[:8]
        return [
            *results,
            model.train_on_batch(*single),
            model.test_on_batch(*single),
            model.predict_on_batch(single[0]),
        ]

    same(*in_scope_and_plain(use), rtol=1e-5)
    assert calls.keys() == {"compile", *METHODS}


METHODS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")


@pytest.mark.parametrize("method", METHODS)
def test_a_call_inside_of_a_function_is_refused_as_keras_refuses_it(method, features):
    with ipu.IPUStrategy().scope():
        model = compiled(dense, "sgd")

        @tf.function
        def call():
            getattr(model, method)(features)

        with pytest.raises(RuntimeError, match=f"Detected a call to `Model.{method}` inside a `tf.function`"):
            call()


def test_tensorboard_writes_the_graph_of_training_once(features, labels, tmp_path):
    with ipu.IPUStrategy().scope():
        model = compiled(dense, "sgd", steps_per_execution=3)
    board = keras.callbacks.TensorBoard(tmp_path, profile_batch=0)
    # Without it, Keras does not call `TensorBoard` for batches.
    watch = keras.callbacks.LambdaCallback(on_train_batch_end=lambda *_: None)
    model.fit(features, labels, batch_size=8, epochs=2, verbose=0, callbacks=[board, watch])
    (file,) = (tmp_path / "train").iterdir()
    events = [tf.compat.v1.Event.FromString(record.numpy()) for record in tf.data.TFRecordDataset(str(file))]
    (graph,) = [event.graph_def for event in events if event.HasField("graph_def")]
    assert model.layers[0].name.encode() in graph
    model.save(tmp_path / "saved")  # The file must not hold the program.


def test_a_program_is_traced_once_and_runs_many_steps(features, labels):
    with ipu.IPUStrategy().scope():
        model = compiled(unbuilt, "old adam", steps_per_execution=6)
        model.fit(features, labels, batch_size=4, epochs=2, verbose=0, validation_data=(features, labels))
        model.evaluate(features, labels, batch_size=4, verbose=0)
    assert model._ipu_extension.traces() == {"train": 1, "test": 1}


def test_data_without_static_shapes_is_refused(features, labels):
    with ipu.IPUStrategy().scope():
        model = compiled(dense, "sgd")
        with pytest.raises(ValueError, match=r"partial batch: of 48 examples, batches of 7"):
            model.fit(features, labels, batch_size=7, verbose=0)
        with pytest.raises(ValueError, match=r"The provided set of data is of type `Generator`"):
            model.fit((batch for batch in [(features, labels)]), verbose=0)
        with pytest.raises(ValueError, match="not fully defined"):
            model.fit(tf.data.Dataset.from_tensor_slices((features, labels)).batch(8), verbose=0)


def test_epochs_end_where_callbacks_say_so(features, labels, in_scope_and_plain, same):
    class Notes(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.heard = []

        def on_train_batch_end(self, batch, logs=None):
            self.heard.append((batch, sorted(logs)))

        def on_epoch_end(self, epoch, logs=None):
            self.heard.append((epoch, sorted(logs)))
            self.model.stop_training = epoch == 1

    def train():
        notes = Notes()
        model = compiled(dense, "sgd", steps_per_execution=4)
        rate = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1))
        reduce = keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=0, min_delta=10.0)
        history = model.fit(
            features, labels, batch_size=4, epochs=5, verbose=0, callbacks=[notes, rate, reduce]
        ).history
        return notes.heard, history

    (epochs_run, history), (expected, plain_history) = in_scope_and_plain(train)
    assert epochs_run == expected
    same(history, plain_history, rtol=1e-5)


def test_a_strategy_without_extensions_leaves_models_to_keras(features, labels, in_scope_and_plain, same):
    def train():
        model = compiled(dense, "old sgd", jit_compile=True)
        model.fit(features, labels, batch_size=8, epochs=2, shuffle=False, verbose=0)
        return [
            model.evaluate(features, labels, batch_size=8, verbose=0),
            model.predict(features[:8], batch_size=8, verbose=0),
            model.get_weights(),
        ]

    def plain():
        with ipu.IPUStrategy(enable_keras_extensions=False).scope():
            assert not hasattr(dense(), "set_pipelining_options")
            keras.utils.set_random_seed(11)
            return train()

    same(*in_scope_and_plain(train, plain), rtol=1e-5)


# The error was an `AttributeError` without a reason, or TensorFlow's message on `colocate_vars_with`.
def test_a_model_made_outside_says_so_wherever_it_shows(features, labels):
    model, strategy = compiled(dense, "sgd"), ipu.IPUStrategy()
    with pytest.raises(
        AttributeError, match=r"`ipu_report` is a method .* make the model inside `strategy\.scope\(\)`"
    ):
        model.ipu_report()
    with strategy.scope():
        for call in (
            lambda: model.fit(features, labels, batch_size=8, verbose=0),
            lambda: model.evaluate(features, labels, batch_size=8, verbose=0),
        ):
            with pytest.raises(ValueError, match=r"[mM]ake the model inside `strategy\.scope\(\)`"):
                call()
        with pytest.raises(ValueError, match="layers, model, or optimizer was being created outside"):
            model.compile("sgd", "mse")


@pytest.mark.filterwarnings("ignore:`tf.keras.backend.learning_phase_scope`", "ignore:`Model.state_updates`")
def test_keras_trains_in_a_graph_of_tensorflow_1_as_plain_keras_does(features, labels):
    all_results = []
    for scope in (ipu.IPUStrategy().scope(), contextlib.nullcontext()):
        with tf.Graph().as_default(), scope:
            inputs = keras.Input([6])
            hidden = layers.Dense(4, "relu", kernel_initializer="ones")(inputs)
            outputs = layers.Dense(3, kernel_initializer="ones")(layers.BatchNormalization()(hidden))
            model = keras.Model(inputs, outputs)
            model.compile(old.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["acc"])
            history = model.fit(features, labels, batch_size=12, epochs=2, shuffle=False, verbose=0).history
            all_results.append([*history.values(), model.evaluate(features, labels, 12, verbose=0)])
            with pytest.raises(AttributeError, match="in eager execution, and this one was not"):
                model.set_pipelining_options(2)
    for result, expected in zip(*all_results, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5)
