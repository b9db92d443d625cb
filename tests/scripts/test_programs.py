"""Programs in the style of 2021, unmodified, train to the numbers of their models in plain Keras 2."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from tensorflow_ipu.__main__ import main

# Counts of what is right, which rounding may change by one in a few dozens.
COUNTED = ("accuracy", "bright", "dice", "val_dice")


def _agree(found, expected, rtol, atol=None):
    """Whether results are the same to rounding: numbers, or dicts and lists of them, of all that is expected."""
    if isinstance(expected, dict):
        assert expected.keys() <= found.keys()
        for name, values in expected.items():
            _agree(found[name], values, rtol, 0.1 if name in COUNTED else None)
    elif isinstance(expected, list) and isinstance(expected[0], dict):
        for pair in zip(found, expected, strict=True):
            _agree(*pair, rtol)
    else:
        np.testing.assert_allclose(found, expected, rtol, rtol if atol is None else atol)


# Only BERT names what Keras 3 lacks; the others are run with Keras 2 as all scripts for the SDK are.
@pytest.mark.parametrize(
    ("name", "heading"),
    [
        ("bert", "exists only in Keras 2:"),
        ("message_passing", "makes scripts run with Keras 2:"),
        ("resnet", "makes scripts run with Keras 2:"),
        ("unet", "makes scripts run with Keras 2:"),
    ],
)
def test_reading_a_program_finds_that_it_runs_with_keras_2_and_nothing_missing(name, heading, capsys):
    pytest.importorskip("tf_keras", reason="Keras 2 is not installed")
    assert main(["--check", str(Path(__file__).with_name(f"{name}.py"))]) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == heading
    assert last.startswith("Nothing is missing")


def test_resnet_in_a_pipeline_of_two_replicas_trains_as_on_batches_of_both(trained):
    found, expected = trained("resnet")
    _agree(found, expected, 2e-4)
    losses = [logs["loss"] for logs in found["executions"]]
    assert losses[-1] < losses[0]


def test_rewritten_bert_in_a_pipeline_trains_as_the_model_that_was_rewritten(trained):
    found, expected = trained("bert")
    _agree(found, expected, 5e-3)  # Logs are in float16, as all metrics of Keras 2 are then.
    assert found[-1]["loss"] < found[0]["loss"]


def test_unet_with_an_operation_for_tiles_trains_as_with_a_layer_of_keras(trained):
    found, expected = trained("unet")
    _agree(found, expected, 1e-4)
    assert found["loss"][-1] < found["loss"][0]


def test_message_passing_in_a_loop_of_its_own_trains_as_pack_by_pack(trained):
    found, expected = trained("message_passing")
    _agree(found, expected, 1e-4)
    assert np.mean(found["loss"][-6:]) < np.mean(found["loss"][:6])


def test_time_series_trains_is_saved_and_forecasts_as_in_plain_keras(trained):
    found, expected = trained("time_series")
    _agree(found, expected, 1e-4)
    assert found.keys() == expected.keys()
    assert len(found["norms"]) == 4


def test_two_players_train_in_a_loop_as_one_step_after_the_other(trained):
    found, expected = trained("two_players")
    _agree(found, expected, 1e-3)
    assert found["updates"] == [60, 120]


@pytest.mark.skipif(
    importlib.util.find_spec("tensorflow_probability") is None, reason="tensorflow_probability is not installed"
)
def test_simulation_on_two_replicas_keeps_the_samples_near_the_data_that_plain_tensorflow_finds(trained):
    found, expected = trained("abc_simulation")
    _agree(found, expected, 1e-3)
    assert np.max(found["distances"]) <= 0.2
    assert found["losses"][-1] < found["losses"][0] / 2
