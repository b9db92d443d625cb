"""A Keras model that is cut into stages by what its layers would take of a machine."""

import keras
import numpy as np

from tensorflow_ipu import pipelining


def test_a_functional_model_is_balanced_and_takes_the_proposal(scoped):
    def make():
        x = inputs = keras.Input([64])
        for number in range(2):
            x = keras.layers.Dense(64, activation="relu", name=f"small_{number}")(x)
        parts = [keras.layers.Dense(1024, name=name)(x) for name in ("up", "side")]
        x = keras.layers.Add(name="join")(parts)
        for number in range(2):
            x = keras.layers.Dense(1024, activation="relu", name=f"large_{number}")(x)
        made = keras.Model(inputs, keras.layers.Dense(4, name="head")(x), name="net")
        made.compile("adam", "mse")
        return made

    model = scoped(make)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=12)
    weights = model.get_weights()
    proposal = pipelining.balance(model, 3, "GC200", batch_size=16)
    assert proposal.cost.plan.micro_batches == 12
    assert set(proposal.names) >= {"small_0", "large_1", "head"}
    of = dict(zip(proposal.names, proposal.stages, strict=True))
    assert of["small_0"] == 0
    assert of["large_0"] != of["large_1"]  # Each takes longer than all others together.
    assert of["head"] == 2
    assert "large_1" in str(proposal)
    assert proposal.costs[2].state_bytes > 0
    # The model is as before, until it is given what was proposed.
    assert {one.pipeline_stage for one in model.get_pipeline_stage_assignment()} == {None}
    for one, other in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(one, other)
    model.set_pipeline_stage_assignment(proposal.assignment)
    given = [one.pipeline_stage for one in proposal.assignment]
    assert [one.pipeline_stage for one in model.get_pipeline_stage_assignment()] == given


def test_a_sequential_model_is_balanced(scoped):
    def make():
        made = keras.Sequential([keras.Input([8]), *(keras.layers.Dense(8) for _ in range(4))])
        made.compile("sgd", "mse")
        return made

    model = scoped(make)
    proposal = pipelining.balance(model, 2, "Bow", batch_size=4, micro_batches=8)
    model.set_pipeline_stage_assignment(proposal.assignment)
    assert [one.pipeline_stage for one in model.get_pipeline_stage_assignment()] == list(proposal.stages)
