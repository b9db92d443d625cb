"""Programs in the style of 2021, unmodified, train to the numbers of their models in plain Keras 2."""

from pathlib import Path

import numpy as np
import pytest

from tensorflow_ipu.__main__ import main

# Counts of what is right, which rounding may change by one in a few dozens.
COUNTED = ("accuracy", "bright", "dice", "val_dice")


def _agree(found, expected, rtol, atol=1e-6):
    """Whether results are the same to rounding: lists of numbers, or of dicts of numbers, of all that is expected."""
    if isinstance(expected, dict):
        assert expected.keys() <= found.keys()
        for name, one in expected.items():
            _agree(found[name], one, rtol, 0.1 if name in COUNTED else atol)
    elif isinstance(expected, list) and isinstance(expected[0], dict):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            _agree(one, other, rtol)
    else:
        np.testing.assert_allclose(found, expected, rtol, atol)


@pytest.mark.parametrize("name", ["bert", "message_passing", "resnet", "unet"])
def test_reading_a_program_finds_what_needs_keras_2_and_nothing_missing(name, capsys):
    pytest.importorskip("tf_keras", reason="Keras 2 is not installed")
    assert main(["--check", str(Path(__file__).with_name(f"{name}.py"))]) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == "is of Keras 2 alone:"
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
