"""A model that saw data reports on batches like those, and is asked for nothing."""

import keras
import numpy as np
import pytest
import tensorflow as tf


def batch_of(report):
    """What the report says that it took for a batch."""
    (line,) = [each for each in report.assumptions if each.startswith("a batch of a replica is ")]
    return line.removeprefix("a batch of a replica is ")


def in_batches(features, labels, size):
    return tf.data.Dataset.from_tensor_slices((features, labels)).batch(size, drop_remainder=True)


def fit_arrays(model, x, y):
    model.fit(x, y, batch_size=8, verbose=0)


def fit_arrays_in_default_batches(model, x, y):
    model.fit(np.tile(x, (2, 1))[:64], np.tile(y, 2)[:64], verbose=0)


def fit_dataset(model, x, y):
    model.fit(in_batches(x, y, 12), shuffle=False, verbose=0)


def fit_generator(model, x, y):
    signature = (tf.TensorSpec([6, 6]), tf.TensorSpec([6], tf.int64))
    batches = [(x[at : at + 6], y[at : at + 6]) for at in range(0, 48, 6)]
    dataset = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)
    model.fit(dataset, steps_per_epoch=8, shuffle=False, verbose=0)


def fit_weighted(model, x, y):
    model.fit(x, y, batch_size=8, class_weight={0: 1.0, 1: 2.0, 2: 3.0}, verbose=0)


def train_on_batch(model, x, y):
    model.train_on_batch(x[:5], y[:5])


def fit_then_others(model, x, y):
    model.fit(x, y, batch_size=8, verbose=0)
    model.evaluate(x, y, batch_size=16, verbose=0)
    model.predict(x, batch_size=24, verbose=0)


def fit_twice(model, x, y):
    model.fit(x, y, batch_size=16, verbose=0)
    model.fit(x, y, batch_size=8, verbose=0)


@pytest.mark.parametrize(
    ("see", "batch"),
    [
        (fit_arrays, "float32[8, 6], int32[8]"),
        (fit_arrays_in_default_batches, "float32[32, 6], int32[32]"),
        (fit_dataset, "float32[12, 6], int32[12]"),
        (fit_generator, "float32[6, 6], int32[6]"),
        (fit_weighted, "float32[8, 6], int32[8], float32[8]"),
        (train_on_batch, "float32[5, 6], int32[5]"),
        (fit_then_others, "float32[8, 6], int32[8]"),
        (fit_twice, "float32[8, 6], int32[8]"),
    ],
)
def test_a_report_takes_the_batch_of_the_last_training(make_model, scoped, features, labels, see, batch):
    model = scoped(make_model)
    see(model, features, labels)
    assert batch_of(model.ipu_report()) == f"{batch}, as the last one that the model saw"


def test_each_mode_takes_its_own_batches(make_model, scoped, features, labels):
    model = scoped(make_model)
    model.fit(features, labels, batch_size=8, validation_data=(features, labels), validation_batch_size=16, verbose=0)
    assert batch_of(model.ipu_report(mode="evaluate")).startswith("float32[16, 6], int32[16], as")
    assert batch_of(model.ipu_report(mode="predict")).startswith("float32[8, 6], as")
    model.predict(features, batch_size=24, verbose=0)
    assert batch_of(model.ipu_report(mode="predict")).startswith("float32[24, 6], as")
    assert batch_of(model.ipu_report()).startswith("float32[8, 6], int32[8], as")


def test_a_mode_that_saw_nothing_takes_the_batch_of_another(make_model, scoped, features, labels):
    model = scoped(make_model)
    model.predict(features, batch_size=12, verbose=0)
    for mode in ("train", "evaluate"):  # The losses tell the labels.
        assert batch_of(model.ipu_report(mode=mode)).startswith("float32[12, 6], int32[12], as")
    model.evaluate(features, labels, batch_size=16, verbose=0)
    assert batch_of(model.ipu_report()).startswith("float32[16, 6], int32[16], as")


def test_single_batches_are_seen(make_model, scoped, features, labels):
    model = scoped(lambda: make_model(lambda: keras.Input([6])))
    model.predict_on_batch(features[:4])
    model.test_on_batch(features[:3], labels[:3])
    assert batch_of(model.ipu_report(mode="predict")).startswith("float32[4, 6], as")
    assert batch_of(model.ipu_report(mode="evaluate")).startswith("float32[3, 6], int32[3], as")


def test_arguments_say_otherwise(make_model, scoped, features, labels):
    model = scoped(make_model)
    bytes_of_images = np.abs(features).astype(np.uint8)
    model.fit(bytes_of_images, labels, batch_size=8, verbose=0)
    assert batch_of(model.ipu_report()).startswith("uint8[8, 6], int32[8], as")
    assert batch_of(model.ipu_report(16)).startswith("uint8[16, 6], int32[16], as")
    given = (tf.TensorSpec([4, 6]), tf.TensorSpec([4], tf.int32))
    assert batch_of(model.ipu_report(spec=given)) == "float32[4, 6], int32[4]"


# Nothing of such a model but its data tells shapes.
def test_a_subclassed_model_with_a_loss_of_its_own_reports_after_training(scoped, features):
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(3)

        def call(self, inputs):
            return self.dense(inputs["x"])

    model = scoped(Own)
    model.compile("sgd", lambda y, p: keras.ops.mean((y - p) ** 2))
    model.fit({"x": features}, features[:, :3], batch_size=8, verbose=0)
    assert batch_of(model.ipu_report()).startswith("float32[8, 6], float32[8, 3], as")
    assert batch_of(model.ipu_report(16, "predict")).startswith("float32[16, 6], as")


def test_missing_parts_of_the_data_stay_missing(scoped, features):
    def make():
        inputs = keras.Input([6])
        outputs = {name: keras.layers.Dense(2, name=name)(inputs) for name in "ab"}
        made = keras.Model(inputs, outputs)
        made.compile(loss={"a": "mse"})
        return made

    model = scoped(make)
    model.evaluate(features, {"a": features[:, :2], "b": None}, batch_size=8, verbose=0)
    assert batch_of(model.ipu_report(mode="evaluate")).startswith("float32[8, 6], float32[8, 2], as")


def test_a_batch_that_failed_was_not_seen(make_model, scoped, features):
    model = scoped(lambda: make_model(lambda: keras.Input([6])))
    with pytest.raises(ValueError, match="shape"):
        model.fit(features, features, batch_size=8, verbose=0)
    with pytest.raises(ValueError, match="`batch_size` is missing"):
        model.ipu_report()


def test_other_options_keep_what_was_seen(make_model, scoped, features, labels):
    model = scoped(make_model)
    model.fit(features, labels, batch_size=8, verbose=0)
    model.set_gradient_accumulation_options(4)
    model.compile("sgd", "sparse_categorical_crossentropy", steps_per_execution=4)
    report = model.ipu_report()
    assert report.steps == 4
    assert batch_of(report).startswith("float32[8, 6], int32[8], as")
