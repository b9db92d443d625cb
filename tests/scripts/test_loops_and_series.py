"""A time series model, a simulation and a two-player training have the numbers of the same models in plain Keras 2."""

import importlib.util

import numpy as np
import pytest


def _agree(found, expected, rtol):
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol, rtol, err_msg=name)


def test_time_series_trains_is_saved_and_forecasts_as_in_plain_keras(trained):
    found, expected = trained("time_series")
    for one, other in zip(found.pop("epochs"), expected.pop("epochs"), strict=True):
        _agree(one, other, 1e-4)
    _agree(found.pop("evaluated"), expected.pop("evaluated"), 1e-4)
    _agree(found, expected, 1e-4)
    assert len(found["norms"]) == 4


def test_two_players_train_in_a_loop_as_one_step_after_the_other(trained):
    found, expected = trained("two_players")
    _agree(found.pop("points"), expected.pop("points"), 1e-3)
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
