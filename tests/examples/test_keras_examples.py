"""The example of `fit` trains like plain Keras in each of its modes."""

import re
import runpy

import numpy as np
import pytest


def test_keras_digits_trains_two_pipelines_as_keras_alone_trains_and_says_what_each_part_does(run_example, read_line):
    flags = ["--replicas", "2", "--stages", "2", "--epochs", "2"]
    first, second, ipus, updates, *stages, accuracy, losses, weights = run_example("keras_digits", *flags)
    for number, line in enumerate((first, second), 1):
        assert re.fullmatch(rf"epoch {number}  training loss \S+  test accuracy \S+", line)
    assert ipus == "4 IPU(s); an update: 2 replica(s) x 4 batch(es) x 8 images = 64 images"
    assert updates == "40 updates, 4 in each run of the program"
    assert stages == ["stage 0: hidden_0", "stage 0: hidden_1", "stage 1: hidden_2", "stage 1: answer"]
    in_scope, alone = map(float, read_line(r"test accuracy: (\S+), Keras alone: (\S+)", accuracy))
    assert in_scope == pytest.approx(alone, abs=0.003)
    assert in_scope > 0.7
    assert float(losses.removeprefix("largest difference of an epoch's loss: ")) < 1e-4
    assert float(weights.removeprefix("largest difference of a weight: ")) < 1e-4


def test_keras_digits_learns_the_same_with_accumulated_gradients_and_no_stages(source_of, capsys):
    digits = runpy.run_path(str(source_of("keras_digits")))
    alone = digits["make_model"]()
    digits["compile_model"](alone, 0.05, 4)
    losses, _ = digits["train"](alone, 64, 1)
    mode = (2, 2, 1)
    model, (own_losses, _) = digits["train_on_ipus"](*mode, epochs=1)
    np.testing.assert_allclose(own_losses, losses, rtol=1e-4)
    for actual, weight in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(actual, weight, atol=1e-4)
    digits["describe"](model, *mode)
    line = "2 IPU(s); an update: 2 replica(s) x 2 batch(es) x 16 images = 64 images"
    assert line in capsys.readouterr().out.splitlines()


def test_keras_digits_says_which_accumulation_would_do(run_example, capsys):
    with pytest.raises(SystemExit):
        run_example("keras_digits", "--replicas", "2", "--stages", "2", "--accumulate", "2")
    errors = capsys.readouterr().err
    assert "--accumulate 2: 64 images an update are shared by 2 replica(s)" in errors
    assert "give a divisor of 32 that 4 divides, to fill 2 stages" in errors
