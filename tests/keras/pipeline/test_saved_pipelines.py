"""Files of models with pipeline stages: a scope reads the stages back, and plain Keras reads the rest."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from tensorflow_ipu.keras import PipelineStage

STAGES = {"shared": 0, "first": 0, "n0": 0, "n1": 1, "last": 1}


def functional():
    """A layer that is called in two stages, and a nested model that is to be cut."""
    inputs, inner = keras.Input([6]), keras.Input([6])
    shared = layers.Activation("tanh", name="shared")
    nested = keras.Sequential([layers.Dense(5, name="n0"), layers.Dense(6, name="n1")], name="nested")
    wrapped = keras.Model(inner, nested(inner), name="wrapped")
    with PipelineStage(0):
        hidden = shared(layers.Dense(6, name="first")(inputs))
    middle = wrapped(hidden)
    with PipelineStage(1):
        return keras.Model(inputs, layers.Dense(3, name="last")(shared(middle)))


def sequential():
    nested = keras.Sequential([layers.Dense(5, name="n0"), layers.Dense(6, name="n1")], name="nested")
    return keras.Sequential([keras.Input([6]), layers.Dense(6, name="first"), nested, layers.Dense(3, name="last")])


@pytest.fixture
def make_cut(leaves):
    """`make_cut(make)` is such a model with all of its layers in stages."""

    def cut(make):
        model = make()
        assignment = model.get_pipeline_stage_assignment()
        for one in leaves(assignment):
            if one.pipeline_stage is None:
                one.pipeline_stage = STAGES[one.layer.name]
        model.set_pipeline_stage_assignment(assignment)
        return model

    return cut


@pytest.mark.parametrize("make", [functional, sequential])
def test_a_file_keeps_the_stages(make, make_cut, scoped, stages_of, tmp_path):
    def use():
        model, file = make_cut(make), tmp_path / "model.keras"
        model.set_pipelining_options(4, device_mapping=[1, 0])
        model.save(file)
        again: Any = keras.models.load_model(file)
        assert stages_of(again) == stages_of(model)
        assert {stage for _, stage in stages_of(again)} == {0, 1}
        assert again._ipu_extension.options == model._ipu_extension.options
        again.reset_pipeline_stage_assignment()
        again.save(file)
        assert {stage for _, stage in stages_of(keras.models.load_model(file))} == {None}

    scoped(use)


def test_a_loaded_pipeline_trains_on_and_plain_keras_reads_the_file(
    features, make_cut, replicas, run_script, tmp_path, assert_same
):
    file = tmp_path / "model.keras"

    def use(model):
        history = model.fit(features[:32], features[:32, :3], batch_size=4, verbose=0, shuffle=False).history
        return [history, model.get_weights()]

    with replicas(2).scope():
        keras.utils.set_random_seed(4)
        model = make_cut(functional)
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", steps_per_execution=8)
        model.set_pipelining_options(4, gradient_accumulation_reduction_method="mean")
        use(model)
        model.save(file)
        again: Any = keras.models.load_model(file)
    expected = model(features)
    assert_same(use(again), use(model))
    done = run_script(
        """
        import sys
        import keras, numpy as np

        model = keras.models.load_model(sys.argv[1])
        assert "tensorflow_ipu" not in sys.modules
        x = np.random.default_rng(5).normal(size=[48, 6]).astype(np.float32)
        print(model.predict(x, verbose=0).tolist())
        model.fit(x, x[:, :3], verbose=0)
        """,
        str(file),
    )
    assert_same(np.array(eval(done.stdout)), expected)  # What the script above printed.
