"""Tests files of models of Keras 2 made in a scope: three formats, weights, checkpoints, copies and exports."""

import contextlib
import copy
import json
import zipfile

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import tensorflow_ipu as ipu
from tensorflow_ipu import serving
from tensorflow_ipu.keras import layers


@keras.saving.register_keras_serializable("tests")
class Own(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.first, self.last = keras.layers.Dense(4, "relu"), keras.layers.Dense(3)

    def call(self, x):
        return self.last(self.first(x))


def sequential():
    return keras.Sequential([
        keras.Input([6]),
        layers.SerialDense(4, 2, "kernel_rows", "relu"),
        layers.LayerNormalization(),
        layers.Dropout(0.5),
        layers.Recompute(keras.layers.Dense(3)),
    ])  # fmt: skip


def functional():
    x = keras.Input([6])
    return keras.Model(x, keras.layers.Dense(3)(keras.layers.BatchNormalization()(keras.layers.Dense(4, "relu")(x))))


@pytest.fixture
def trained(strategy, features, labels):
    """Returns a model of the scope after an epoch of updates of two steps."""

    def make_one(make, adam=keras.optimizers.Adam):
        keras.utils.set_random_seed(1)
        with strategy.scope():
            model = make()
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(adam(0.01), loss, ["accuracy"], steps_per_execution=6)
        model.set_gradient_accumulation_options(2)
        model.fit(features, labels, batch_size=8, verbose=0)
        return model

    return make_one


def predicted(model, x):
    return model.predict(x, batch_size=8, verbose=0)


FILES = [
    (functional, "model.keras", keras.optimizers.Adam),
    (sequential, "model.h5", keras.optimizers.legacy.Adam),
    (sequential, "model", keras.optimizers.Adam),
]


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
@pytest.mark.parametrize(("make", "name", "adam"), FILES)
def test_model_is_loaded_in_the_scope_and_outside(strategy, trained, features, labels, tmp_path, make, name, adam):
    model = trained(make, adam)
    model.save(tmp_path / name)
    with strategy.scope():
        loaded = keras.models.load_model(tmp_path / name)
    plain_model = keras.models.load_model(tmp_path / name)
    np.testing.assert_array_equal(predicted(loaded, features), predicted(model, features))
    np.testing.assert_allclose(predicted(plain_model, features), predicted(model, features), 1e-4, 1e-5)
    assert not hasattr(plain_model, "set_replication_options")
    assert loaded._ipu_extension.options.accumulation.gradient_accumulation_steps_per_replica == 2
    if name == "model":  # Keras 2 saves it without the optimizer's slots.
        return
    assert [int(compiled_model.optimizer.iterations.numpy()) for compiled_model in (model, loaded, plain_model)] == [
        3,
        3,
        3,
    ]
    if name == "model.keras":
        for compiled_model in (model, loaded):
            compiled_model.fit(features, labels, batch_size=8, verbose=0, shuffle=False)
        np.testing.assert_array_equal(predicted(loaded, features), predicted(model, features))


def test_subclassed_model_is_kept_in_a_folder(strategy, trained, features, tmp_path):
    model = trained(Own)
    model.save(tmp_path / "model")
    with strategy.scope():
        loaded = keras.models.load_model(tmp_path / "model")
    np.testing.assert_array_equal(predicted(loaded, features), predicted(model, features))
    assert isinstance(loaded, ipu.keras.ModelExtension)


def test_stages_are_in_the_file(strategy, tmp_path):
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input([6]), keras.layers.Dense(4, name="one"), keras.layers.Dense(3, name="two")]
        )
        model.set_pipeline_stage_assignment([0, 1])
        model.save(tmp_path / "model.keras")
    with zipfile.ZipFile(tmp_path / "model.keras") as file:
        (name,) = [name for name in file.namelist() if name.endswith("ipu_options.json")]
        assert json.loads(file.read(name)) == {"pipeline_stages": [["one", 0], ["two", 1]]}
    try:
        keras.models.load_model(tmp_path / "model.keras")
    except EOFError:
        pytest.skip("Python reads no `.keras` file with assets; see https://github.com/python/cpython/issues/127847")
    with strategy.scope():
        loaded = keras.models.load_model(tmp_path / "model.keras")
    assert [layer_assignment.pipeline_stage for layer_assignment in loaded.get_pipeline_stage_assignment()] == [0, 1]


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
@pytest.mark.parametrize("name", ["model", "model.h5"])
@pytest.mark.parametrize("make", [sequential, functional])
def test_options_and_stages_are_in_saved_models_and_hdf5_files(strategy, tmp_path, make, name):
    path = str(tmp_path / name)
    with strategy.scope():
        model = make()
        assignment = model.get_pipeline_stage_assignment()
        for index, layer_assignment in enumerate(assignment):
            layer_assignment.pipeline_stage = min(index, 1)
        model.set_pipeline_stage_assignment(assignment)
    model.set_pipelining_options(6, [1, 0], gradient_accumulation_reduction_method="mean", offload_activations=True)
    model.set_infeed_queue_options(prefetch_depth=7)
    model.set_asynchronous_callbacks(True)
    model.save(path)  # Scripts save outside of the scope.
    with strategy.scope():
        loaded = keras.models.load_model(path)
    assert loaded._ipu_extension.options == model._ipu_extension.options
    stages = [layer_assignment.pipeline_stage for layer_assignment in loaded.get_pipeline_stage_assignment()]
    assert stages == [layer_assignment.pipeline_stage for layer_assignment in assignment]
    plain_model = keras.models.load_model(path)
    assert not hasattr(plain_model, "set_pipelining_options")
    plain_model.save(path)  # The options of the other model are gone from the file.
    with strategy.scope():
        last = keras.models.load_model(path)
    assert not last._ipu_extension.stages.is_pipelined
    assert last._ipu_extension.options.pipelining.changed() == {}


@pytest.mark.parametrize(("make", "name"), [(Own, "weights"), (functional, "weights.h5")])
def test_weights_go_to_models_of_the_scope_and_of_none(strategy, trained, features, tmp_path, make, name):
    model = trained(make)
    model.save_weights(tmp_path / name)
    plain_model = make()
    plain_model.build([None, 6])
    with strategy.scope():
        scoped_model = make()
        scoped_model.build([None, 6])
    for loading_model in (plain_model, scoped_model):
        loading_model.load_weights(tmp_path / name)
        np.testing.assert_allclose(predicted(loading_model, features), predicted(model, features), 1e-4, 1e-5)


def test_checkpoints_have_the_optimizer(trained, features, labels, tmp_path):
    model, restored = (trained(functional, keras.optimizers.legacy.Adam) for _ in range(2))
    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(tmp_path / "checkpoint")
    tf.train.Checkpoint(model=restored, optimizer=restored.optimizer).restore(path).assert_consumed()
    for compiled_model in (model, restored):
        compiled_model.fit(features, labels, batch_size=8, verbose=0, shuffle=False)
    np.testing.assert_array_equal(predicted(restored, features), predicted(model, features))


@pytest.mark.parametrize("make", [sequential, Own])
def test_copies_are_models_of_their_own(strategy, trained, features, make):
    model = trained(make)
    with strategy.scope():
        copies = [copy.deepcopy(model)]
        if make is not Own:  # Keras does not build clones of these.
            copies.append(keras.models.clone_model(model))
            copies[-1].set_weights(model.get_weights())
    for copied in copies:
        assert copied._ipu_extension.model is copied
        np.testing.assert_array_equal(predicted(copied, features), predicted(model, features))


@pytest.mark.parametrize("make", [sequential, Own])
def test_export_answers_as_the_model(trained, features, tmp_path, make, capsys):
    model = trained(make)
    served = serving.export_keras(model, tmp_path / "served", 8, "scores")
    loaded = tf.saved_model.load(str(tmp_path / "served")).signatures["serving_default"]
    for function in (served, loaded):
        answer = function(tf.constant(features[:8]))["scores"]
        np.testing.assert_allclose(answer, predicted(model, features)[:8], 1e-4, 1e-5)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("steps", [None, 3])
def test_files_and_copies_of_models_load_in_the_scope_with_any_steps_at_once(
    strategy, features, labels, tmp_path, steps
):
    plain_model = functional()
    with strategy.scope():
        scoped = functional()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for name, model in (("plain.keras", plain_model), ("scoped.keras", scoped)):
        with strategy.scope() if model is scoped else contextlib.nullcontext():
            model.compile("sgd", loss, ["accuracy"], steps_per_execution=steps)
        model.save(tmp_path / name)
        with strategy.scope():
            loaded = [keras.models.load_model(tmp_path / name), copy.deepcopy(model), copy.copy(model)]
        for loaded_model in loaded:
            np.testing.assert_allclose(
                predicted(loaded_model, features), predicted(model, features), rtol=1e-5, atol=1e-6
            )
        loaded[0].fit(features, labels, batch_size=8, verbose=0)
