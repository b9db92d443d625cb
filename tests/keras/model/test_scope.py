"""Tests which models a scope extends, and that it does not affect others."""

import abc
import ast
import copy
import inspect
import pickle
import threading
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tensorflow_ipu as ipu
from tensorflow_ipu import keras as keras_extensions

GROUPS = ("gradient_accumulation", "infeed_queue", "outfeed_queue", "pipelining", "replication")
OPTIONS = (
    "set_asynchronous_callbacks",
    "export_for_ipu_serving",
    *(f"{verb}_{group}_options" for verb in ("set", "print", "reset") for group in GROUPS),
)


def is_extended(model):
    has_methods = {hasattr(model, name) for name in OPTIONS}
    assert len(has_methods) == 1
    return has_methods.pop()


def test_models_made_in_a_scope_alone_are_extended(make_model):
    strategy = ipu.IPUStrategy()
    earlier, of_thread = make_model(), []
    with strategy.scope():
        inside = make_model()
        with strategy.scope():
            nested = make_model()
        after_nested = make_model()
        thread = threading.Thread(target=lambda: of_thread.append(make_model()))
        thread.start()
        thread.join()
    with ipu.IPUStrategy(enable_keras_extensions=False).scope():
        of_thread.append(make_model())
    assert all(map(is_extended, (inside, nested, after_nested)))
    assert not any(map(is_extended, (earlier, make_model(), *of_thread)))


def test_a_trainer_that_is_no_model_is_told_so(features, plain_strategy):
    """The error was that it was made outside of the scope."""
    trainer = next(kind for kind in keras.Model.__mro__ if kind.__module__.endswith("tensorflow.trainer"))

    class Own(trainer, layers.Layer):
        def __init__(self):
            layers.Layer.__init__(self)
            trainer.__init__(self)
            self.inner = layers.Dense(1)

        def call(self, inputs):
            return self.inner(inputs)

    def train():
        model = Own()
        model.compile("sgd", "mse")
        return model.fit(features, features[:, :1], batch_size=8, verbose=0).history["loss"]

    with (
        ipu.IPUStrategy().scope(),
        pytest.raises(ValueError, match="`Own` is no `keras.Model`, and the IPU trains only"),
    ):
        train()
    with plain_strategy.scope():
        assert len(train()) == 1
    assert len(train()) == 1


def test_models_made_outside_behave_as_ever_and_exported_ones_are_served_without_this_package(
    features, labels, make_model, scoped, plain_strategy, run_script, tmp_path
):
    """Training equals a process without this package, except for the order in which threads add."""
    for strategy in (ipu.IPUStrategy(), plain_strategy):
        with strategy.scope():
            make_model().train_on_batch(features[:8], labels[:8])
    assert not tf.distribute.has_strategy()
    keras.backend.clear_session(free_memory=False)
    model = make_model()
    assert not model.jit_compile
    history = model.fit(features, labels, batch_size=10, epochs=2, verbose=0, shuffle=False).history
    assert model.variables[0].value.device.endswith("CPU:0")

    def make():
        inputs = keras.Input([6], name="x")
        return keras.Model(inputs, [layers.Dense(3)(inputs), layers.Dense(2)(inputs)])

    folder = tmp_path / "served"
    served_model = scoped(make)
    served_model.export_for_ipu_serving(
        folder,
        batch_size=4,
        output_names=["doubled", "sum"],
        preprocessing_step=tf.function(lambda text: tf.io.parse_tensor(text, tf.float32)[:4] + tf.zeros([4, 6])),
        preprocessing_step_signature=[tf.TensorSpec([], tf.string)],
        postprocessing_step=lambda a, b: (2 * a, tf.reduce_sum(b)),
    )
    expected = served_model(features[:4])
    done = run_script(
        """
        import sys
        import keras, numpy as np, tensorflow as tf

        x = np.random.default_rng(5).normal(size=[48, 6]).astype(np.float32)
        y = np.random.default_rng(6).integers(0, 3, [48])
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"])
        print(model.fit(x, y, batch_size=10, epochs=2, verbose=0, shuffle=False).history)
        served = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
        results = served(tf.io.serialize_tensor(x[:4]))
        print(results["doubled"].numpy().tolist(), ",", float(results["sum"]))
        assert "tensorflow_ipu" not in sys.modules
        """,
        str(folder),
    )
    history_alone, results = done.stdout.splitlines()
    alone = ast.literal_eval(history_alone)
    assert alone.keys() == history.keys()
    for name, values in history.items():
        np.testing.assert_allclose(values, alone[name], rtol=1e-5, err_msg=name)
    doubled, total = ast.literal_eval(f"({results})")
    np.testing.assert_allclose(doubled, 2 * expected[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(total, np.sum(expected[1]), rtol=1e-4)


def test_models_keep_their_class_and_signatures_and_are_instances_of_what_extends_them(make_model, scoped):
    plain_model, model = make_model(), scoped(make_model)
    assert model.__class__ is type(plain_model) is keras.Sequential
    assert repr(type(model)) == repr(keras.Sequential)
    for name in ("compile", "fit", "evaluate", "predict"):
        assert inspect.signature(getattr(model, name)) == inspect.signature(getattr(plain_model, name))
    inputs = keras.Input([6])
    kinds = [getattr(keras_extensions, f"{name}Extension") for name in ("Sequential", "Functional", "Model")]
    makers = (make_model, lambda: keras.Model(inputs, layers.Dense(3)(inputs)), type("Own", (keras.Model,), {}))
    for make, kind in zip(makers, kinds, strict=True):
        model = scoped(make)
        assert [extension_kind for extension_kind in kinds if isinstance(model, extension_kind)] == [kind]
        assert isinstance(model, keras_extensions.KerasExtensionBase)
        assert not isinstance(make(), keras_extensions.KerasExtensionBase)
    with pytest.raises(NotImplementedError, match="`get_pipeline_stage_assignment`"):
        keras_extensions.KerasExtensionBase().get_pipeline_stage_assignment()


# The error was an `AttributeError` without a reason, or it named weights and `colocate_vars_with`.
def test_a_model_made_outside_says_so_wherever_it_shows(features, labels, make_model, refused, caplog):
    config = ipu.IPUConfig()
    config.auto_select_ipus = 2
    strategy = ipu.IPUStrategy()
    advice = r"make the model inside `strategy\.scope\(\)`"
    plain_model, compiled = make_model(), make_model()
    compiled.build([12, 6])
    compiled.compile("adam", "sparse_categorical_crossentropy")
    for name in (*OPTIONS, "ipu_report", "set_pipeline_stage_assignment"):
        refused(AttributeError, f"`{name}` is a method .* {advice}", getattr, plain_model, name)
    refused(AttributeError, "no attribute 'ipu_reports'", getattr, plain_model, "ipu_reports")
    with strategy.scope():
        refused(ValueError, advice, plain_model.compile, "adam", "mse")
        for call in (
            lambda: compiled.fit(features, labels, batch_size=12, verbose=0),
            lambda: compiled.evaluate(features, labels, batch_size=12, verbose=0),
            lambda: compiled.predict(features, batch_size=12, verbose=0),
            lambda: compiled.train_on_batch(features[:4], labels[:4]),
            lambda: strategy.run(tf.function(compiled), (tf.constant(features[:4]),)),
        ):
            refused(ValueError, f"(?i){advice}", call)
    assert "`IPUConfig` was created but not applied" in caplog.text
    with ipu.IPUStrategy(enable_keras_extensions=False).scope():
        plain_model.compile("adam", "sparse_categorical_crossentropy")


def test_models_that_come_of_others_are_extended_too(scoped, features, tmp_path):
    def make():
        inputs = keras.Input([6])
        model = keras.Model(inputs, layers.Dense(3)(inputs))
        model.save(tmp_path / "model.keras")
        return [
            model,
            keras.models.clone_model(model),
            keras.Model.from_config(model.get_config()),
            keras.models.load_model(tmp_path / "model.keras"),
            keras.Model(model.inputs, layers.Activation("relu")(model.outputs[0])),
        ]

    models = scoped(make)
    assert all(is_extended(model) for model in models)
    assert {type(model) for model in models} == {type(models[0])}


@keras.saving.register_keras_serializable("tests", "Registered")
class Registered(keras.Model):
    def __init__(self, units=3, **kwargs):
        super().__init__(**kwargs)
        self.dense = layers.Dense(units)
        self.fits = 0

    def call(self, x):
        return self.dense(x)

    def fit(self, *args, **kwargs):
        self.fits += 1
        return super().fit(*args, **kwargs)


def registered():
    model = Registered(units=3)
    model(np.zeros([12, 6], np.float32))
    return model


def functional():
    inputs = keras.Input([6])
    return keras.Model(inputs, layers.Dense(3)(inputs))


@pytest.mark.parametrize(
    "make", [registered, functional, lambda: keras.Sequential([keras.Input([6]), layers.Dense(3)])]
)
def test_a_model_is_copied_and_made_again_as_a_plain_one_is(make, scoped, features, tmp_path):
    plain_model, model = make(), scoped(make)
    assert scoped(make).__class__ is model.__class__ is type(plain_model)
    assert type(scoped(make)) is type(model)
    described: Any = keras.saving.serialize_keras_object(plain_model)
    saved: Any = keras.saving.serialize_keras_object(model)
    for name in ("module", "class_name", "registered_name"):
        assert saved[name] == described[name]
    model.save(tmp_path / "model.keras")
    inside: Any = None
    ways: Any = (
        lambda: copy.deepcopy(model),
        lambda: pickle.loads(pickle.dumps(model)),
        lambda: keras.models.load_model(tmp_path / "model.keras"),
        lambda: keras.models.clone_model(model),
        lambda: model.from_config(model.get_config()),
        lambda: model.__class__.from_config(model.get_config()),
        lambda: type(model).from_config(model.get_config()),
    )
    for index, way in enumerate(ways):
        outside, inside = way(), scoped(way)
        assert [type(copied) for copied in (outside, inside)] == [type(plain_model), type(model)]
        assert inside._ipu_extension.model is inside
        assert inside.get_config() == outside.get_config() or make is functional  # Keras numbers the names.
        if index < 3:
            np.testing.assert_array_equal(inside.predict(features, verbose=0), model.predict(features, verbose=0))
    if make is registered:
        assert saved["registered_name"] == "tests>Registered"
        inside.compile("sgd", "mse")
        inside.fit(features, features[:, :3], batch_size=12, verbose=0)
        assert inside.fits == 1


def test_a_class_that_checks_its_subclasses_does_not_see_those_of_the_scope(scoped):
    kinds = []

    class Base(keras.Model, metaclass=abc.ABCMeta):
        __slots__ = ("kind",)

        def __init_subclass__(cls, kind, **kwargs):
            super().__init_subclass__(**kwargs)
            kinds.append((cls, kind))

    class Own(Base, kind="own"):
        pass

    model = scoped(Own)
    assert is_extended(model)
    assert isinstance(model, Base)
    assert kinds == [(Own, "own")]


def test_weights_go_to_plain_keras_and_back(features, labels, make_model, scoped, tmp_path, assert_same):
    model = scoped(lambda: make_model(steps_per_execution=2))
    model.fit(features, labels, batch_size=12, verbose=0)
    model.save_weights(tmp_path / "ipu.weights.h5")
    plain_model = make_model()
    plain_model.fit(features, labels, batch_size=12, verbose=0)
    plain_model.load_weights(tmp_path / "ipu.weights.h5")
    assert_same(plain_model.get_weights(), model.get_weights(), rtol=0, atol=0)
    assert_same(plain_model.optimizer.variables, model.optimizer.variables, rtol=0, atol=0)
    plain_model.fit(features, labels, batch_size=12, verbose=0)
    plain_model.save(tmp_path / "plain.keras")
    loaded = scoped(lambda: keras.models.load_model(tmp_path / "plain.keras"))
    assert is_extended(loaded)
    assert_same(loaded.get_weights(), plain_model.get_weights(), rtol=0, atol=0)
    expected = plain_model.predict(features, verbose=0)
    assert_same(loaded.predict(features, batch_size=12, verbose=0), expected)


def test_compiling_after_the_scope_makes_the_optimizer_on_the_device(features, scoped):
    model = scoped(lambda: keras.Sequential([keras.Input([6]), layers.Dense(3)]))
    model.compile("adam", "mse")
    model.fit(features, features[:, :3], batch_size=12, verbose=0)
    assert {variable.value.device[-5:] for variable in model.optimizer.variables} == {"IPU:0"}
    with pytest.raises(ValueError, match="optimizer of model .* was not made in the scope"):
        model.compile(keras.optimizers.Adam(), "mse")


# Serving.


def assert_served(folder, model, x):
    """Asserts that a model exported to a folder computes the same as the model."""
    served = tf.saved_model.load(str(folder)).signatures["serving_default"]
    np.testing.assert_allclose(served(tf.constant(x))["output_0"], model(x), rtol=1e-5, atol=1e-6)


class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3)

    def call(self, x):
        return self.dense(x)


def test_exported_model_is_served_and_replaced_on_request_alone(features, scoped, tmp_path):
    folder = tmp_path / "served"
    model = scoped(lambda: keras.Sequential([keras.Input([6]), layers.Dense(3)]))
    model.export_for_ipu_serving(folder, batch_size=4)
    with pytest.raises(ValueError, match="not empty"):
        model.export_for_ipu_serving(folder, batch_size=4)
    model.export_for_ipu_serving(folder, batch_size=2, purge_export_dir=True)
    assert_served(folder, model, features[:2])
    subclassed = scoped(Own)
    with pytest.raises(RuntimeError, match="was not called yet"):
        subclassed.export_for_ipu_serving(tmp_path / "own", batch_size=2)
    subclassed(features[:2])
    subclassed.export_for_ipu_serving(tmp_path / "own", batch_size=2)
    assert_served(tmp_path / "own", subclassed, features[:2])


def test_export_takes_the_batch_size_of_the_input(features, scoped, tmp_path):
    def make():
        inputs = keras.Input([6], batch_size=4, name="x")
        return keras.Model({"x": inputs}, layers.Dense(3)(inputs))

    model, x = scoped(make), features[:4]
    served = model.export_for_ipu_serving(tmp_path / "served")
    assert served.input_signature == (tf.TensorSpec([4, 6], name="x"),)
    np.testing.assert_allclose(served(tf.constant(x))["output_0"], model({"x": x}), rtol=1e-5, atol=1e-6)


def test_exports_that_cannot_be_served_are_refused(scoped, tmp_path):
    model = scoped(lambda: keras.Sequential([keras.Input([6], name="x"), layers.Dense(3)]))
    step = {"batch_size": 2, "preprocessing_step": abs}
    for options, message in (
        ({}, r"`x` of model .* has shape \(None, 6\).*Set `batch_size`"),
        ({"batch_size": 0}, "`batch_size` must be a positive integer"),
        (step, "set `preprocessing_step_signature`"),
        ({**step, "preprocessing_step_signature": [tf.TensorSpec([3, 6])]}, r"shape \(3, 6\) .* takes shape \(2, 6\)"),
        ({"batch_size": 2, "postprocessing_step": lambda _: 3.0}, "3.0 at position 0, which is no tensor"),
    ):
        with pytest.raises(ValueError, match=message):
            model.export_for_ipu_serving(tmp_path / "served", **options)
