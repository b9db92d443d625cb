"""Tests that models of Keras 2 with stages, replicas and accumulated gradients train as in plain Keras 2."""

import contextlib
from typing import Any

import pytest
import tensorflow as tf
import tf_keras as keras

import tensorflow_ipu as ipu

layers = keras.layers
old = keras.optimizers.legacy
PipelineStage = ipu.keras.PipelineStage


def staged(stage):
    """Returns a stage scope inside a strategy's scope, and an empty context outside."""
    inside = isinstance(tf.distribute.get_strategy(), ipu.IPUStrategy)
    return PipelineStage(stage) if inside else contextlib.nullcontext()


def sequential():
    model = keras.Sequential([layers.Dense(8, "relu", input_shape=(6,)), layers.Dense(8, "tanh"), layers.Dense(3)])
    if hasattr(model, "set_pipeline_stage_assignment"):
        model.set_pipeline_stage_assignment([0, 1, 1])
    return model


def functional():
    inputs = keras.Input([6])
    with staged(0):
        hidden = layers.Dense(8, "relu", kernel_regularizer="l2")(inputs)
        scaled = hidden * 0.5 + 1.0
    with staged(1):
        second_hidden = layers.Dense(8, "tanh", activity_regularizer="l1")(layers.Concatenate()([inputs, scaled]))
        outputs = layers.Dense(3)(layers.Dropout(0.0)(second_hidden))
    return keras.Model(inputs, outputs)


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.parts = [layers.Dense(8, "relu"), layers.Dense(8, "tanh"), layers.Dense(3)]

    def call(self, inputs, training=None, mask=None):
        with staged(0):
            hidden = self.parts[0](inputs)
        with staged(1):
            return self.parts[2](self.parts[1](hidden))


def nested():
    inputs = keras.Input([6])
    inner = keras.Sequential([layers.Dense(8, "relu", input_shape=(6,)), layers.Dense(8, "tanh")])
    outputs = layers.Dense(3)(inner(inputs))
    model = keras.Model(inputs, outputs)
    if hasattr(model, "get_pipeline_stage_assignment"):
        assignments: Any = model.get_pipeline_stage_assignment()
        for assignment, stage in zip(assignments[0].pipeline_stage_assignments, (0, 1), strict=True):
            assignment.pipeline_stage = stage
        assignments[1].pipeline_stage = 1
        model.set_pipeline_stage_assignment(assignments)
    return model


def compiled(make, optimizer, **options):
    model = make()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer(), loss, metrics=["accuracy"], **options)
    return model


def accumulated(make, optimizer, features, labels, size, count, epochs, scale):
    """Returns the weights of a loop without Keras in which gradients of `count` batches make one update."""
    model = compiled(make, optimizer)
    model.build([None, features.shape[1]])
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for _ in range(epochs):
        for begin in range(0, len(features), size * count):
            sums = None
            for row in range(begin, begin + size * count, size):
                with tf.GradientTape() as tape:
                    loss = loss_of(labels[row : row + size], model(features[row : row + size], training=True))
                    loss += sum(model.losses)
                gradients = tape.gradient(loss, model.trainable_variables)
                sums = gradients if sums is None else [a + b for a, b in zip(sums, gradients, strict=True)]
            model.optimizer.apply_gradients(
                [(scale * a, b) for a, b in zip(sums, model.trainable_variables, strict=True)]
            )
    return model.get_weights(), model.predict(features, verbose=0)


OPTIMIZERS = {"old": lambda: old.SGD(0.1, momentum=0.9), "adam": lambda: keras.optimizers.Adam(0.01)}


@pytest.mark.parametrize(
    ("make", "optimizer"), [(sequential, "old"), (functional, "old"), (Subclassed, "adam"), (nested, "adam")]
)
def test_a_pipeline_trains_as_accumulation_by_hand(
    make, optimizer, features, labels, configure, in_scope_and_plain, same
):
    configure(2)

    def train():
        model = compiled(make, OPTIMIZERS[optimizer], steps_per_execution=12)
        if make is Subclassed:
            model.build([None, 6])
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
        history = model.fit(features, labels, batch_size=4, epochs=2, shuffle=False, verbose=0).history
        assert list(history) == [
            "loss",
            "accuracy",
        ]  # Logs are in Keras's order, which `CSVLogger` and the progress bar keep.
        weights, predicted = model.get_weights(), model.predict(features, batch_size=4, verbose=0)
        evaluated = model.evaluate(features, labels, batch_size=4, verbose=0)
        return (weights, predicted), evaluated

    def plain():
        return accumulated(make, OPTIMIZERS[optimizer], features, labels, 4, 4, 2, 1.0)

    (results, evaluated), expected = in_scope_and_plain(train, plain)
    same(results, expected, rtol=1e-4)
    scores = keras.losses.sparse_categorical_crossentropy(labels, expected[1], from_logits=True)
    assert evaluated[0] == pytest.approx(float(tf.reduce_mean(scores)), abs=0.3)  # Regularization losses are added.


class Joined(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.add, self.last = layers.Dense(4), layers.Add(), layers.Dense(3)

    def call(self, inputs):
        several = (
            inputs.values() if isinstance(inputs, dict) else inputs if isinstance(inputs, (list, tuple)) else [inputs]
        )
        hidden = [self.hidden(one) for one in several]
        return self.last(self.add(hidden) if len(hidden) > 1 else hidden[0])


@pytest.mark.parametrize("shape", [(None, 6), [4, 6], [[4, 6], (4, 6)], {"a": tf.TensorShape([4, 6]), "b": (4, 6)}])
def test_a_model_that_was_built_for_a_shape_has_stages(shape, features, labels, configure):
    """Assigning stages failed: "no attribute 'input_dtype'"."""
    configure(2)
    with ipu.IPUStrategy().scope():
        model = compiled(Joined, OPTIMIZERS["old"], steps_per_execution=12)
        model.build(shape)
        assignments: Any = model.get_pipeline_stage_assignment()
        for assignment in assignments:
            assignment.pipeline_stage = int(assignment.layer is model.last)
        model.set_pipeline_stage_assignment(assignments)
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    x = (
        {"a": features, "b": features}
        if isinstance(shape, dict)
        else (features, features)
        if len(assignments) > 2
        else features
    )
    assert [assignment.layer.name for assignment in assignments][-1] == model.last.name
    assert len(model.fit(x, labels, batch_size=4, verbose=0).history["loss"]) == 1


@pytest.mark.parametrize("count", [1, 3])
def test_replicas_and_accumulation_train_as_one_large_batch(
    count, features, labels, configure, in_scope_and_plain, same
):
    configure(2)

    def train():
        model = compiled(lambda: sequential_without_stages(), OPTIMIZERS["old"], steps_per_execution=6)
        model.set_gradient_accumulation_options(gradient_accumulation_steps_per_replica=count)
        model.fit(features, labels, batch_size=4, epochs=2, shuffle=False, verbose=0)
        return model.get_weights(), model.predict(features, batch_size=4, verbose=0)

    def plain():
        return accumulated(sequential_without_stages, OPTIMIZERS["old"], features, labels, 4, 2 * count, 2, 1.0)

    results, expected = in_scope_and_plain(train, plain)
    same(results, expected, rtol=1e-4)


def sequential_without_stages():
    return keras.Sequential([layers.Dense(8, "relu", input_shape=(6,)), layers.Dense(3)])


def test_scopes_name_stages_and_a_reset_takes_them_back(configure):
    configure(2)
    with ipu.IPUStrategy().scope():
        model: Any = functional()
        stages = {
            assignment.layer.name: assignment.pipeline_stage for assignment in model.get_pipeline_stage_assignment()
        }
        assert set(stages.values()) == {0, 1}
        assert stages["tf.math.multiply"] == stages["tf.__operators__.add"] == 0
        assert isinstance(model, ipu.keras.FunctionalExtension)
        model.reset_pipeline_stage_assignment()
        assert {getattr(assignment, "pipeline_stage", 0) for assignment in model.get_pipeline_stage_assignment()} == {
            None
        }


def test_stages_that_make_no_pipeline_are_refused(features, labels, configure):
    configure(2)
    with ipu.IPUStrategy().scope():
        model = compiled(sequential_without_stages, OPTIMIZERS["old"])
        with pytest.raises(ValueError, match="The first layer in a pipelined sequential model needs to be assigned"):
            model.set_pipeline_stage_assignment([1, 0])
        model.set_pipeline_stage_assignment([0, 1])
        with pytest.raises(
            ValueError, match="Set `gradient_accumulation_steps_per_replica` with `set_pipelining_options`"
        ):
            model.fit(features, labels, batch_size=4, verbose=0)
        with (
            pytest.raises(RuntimeError, match="Pipeline stages must not be nested"),
            PipelineStage(0),
            PipelineStage(1),
        ):
            pass


def test_losses_and_metrics_of_layers_are_in_the_stages_of_what_they_take(
    features, labels, configure, in_scope_and_plain, same
):
    configure(2)

    def make():
        inputs = keras.Input([6])
        with staged(0):
            hidden = layers.Dense(8, "relu")(inputs)
        with staged(1):
            outputs = layers.Dense(3)(hidden)
        model = keras.Model(inputs, outputs)
        model.add_loss(0.1 * tf.reduce_mean(tf.square(hidden)))
        return model

    def train():
        model = compiled(make, OPTIMIZERS["old"], steps_per_execution=12)
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
        model.fit(features, labels, batch_size=4, epochs=2, shuffle=False, verbose=0)
        return model.get_weights(), model.predict(features, batch_size=4, verbose=0)

    results, expected = in_scope_and_plain(
        train, lambda: accumulated(make, OPTIMIZERS["old"], features, labels, 4, 4, 2, 1.0)
    )
    same(results, expected, rtol=1e-4)
