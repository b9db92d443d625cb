"""Tests recipes for models that do not fit: code that makes the model fit, by the report on the changed model."""

import dataclasses

import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.analysis.machine.search import FITS
from tensorflow_ipu.keras._keras import keras
from tensorflow_ipu.machine import GC200, Report, system_of

# 15 MB, of which code takes 1.
CHIP = dataclasses.replace(system_of("IPU-POD4"), machine=dataclasses.replace(GC200, tiles=24))


def make_model(width=768, layers=6):
    with ipu.IPUStrategy().scope():
        stack = [keras.layers.Dense(width, "relu", name=f"layer_{number}") for number in range(layers)]
        model = keras.Sequential([keras.Input([width]), *stack])
        model.compile(keras.optimizers.Adam(1e-4), "mse")
    return model


@pytest.fixture
def dtype_policy():
    """Restores the dtype policy, which pasted code may set."""
    original = keras.mixed_precision.dtype_policy()
    yield
    keras.mixed_precision.set_dtype_policy(original)


def test_pasted_code_makes_a_model_that_fits_as_its_report_says(configure, dtype_policy, tmp_path):
    report = make_model().ipu_report(64, machine=CHIP)
    assert report.fits is False
    assert not [answer for answer in report.advice() if answer.verdict == FITS]
    recipe = report.advice(retrace=True).recipe
    assert recipe is not None
    assert recipe.fits
    assert recipe.traced
    assert not recipe.left
    # Changes without a cost in time are first, and each change reduces memory.
    assert recipe.steps[0].change.startswith("float16")
    sizes = [report.memory.high, *(answer.memory for answer in recipe.steps[:-1])]
    assert sizes == sorted(sizes, reverse=True)
    assert "changes that help together, each in addition to those above" in str(report)
    report.save(tmp_path / "report.json")
    assert Report.load(tmp_path / "report.json").advice().recipe == recipe

    code_before_compile, _, code_after_compile = recipe.code.partition(
        "# After `model.compile`. `fit` then takes batches of "
    )
    names = {"ipu": ipu, "tf": tf}
    configure()  # As in a new process.
    ipu.config.reset_ipu_configuration()
    exec(code_before_compile, names)
    names["model"] = model = make_model()
    samples, _, code_after_compile = code_after_compile.partition(":")
    exec(code_after_compile, names)
    changed_report = model.ipu_report(int(samples), machine=CHIP)
    last = recipe.steps[-1]
    assert changed_report.fits
    assert changed_report.memory.high == pytest.approx(last.memory, rel=0.1)
    speed = report.step_seconds / 64 / (changed_report.step_seconds / int(samples))
    assert speed == pytest.approx(last.speed, rel=0.25)


def test_what_fits_in_no_way_says_what_is_too_large_and_how_many_ipus_would_do(configure):
    report = make_model(width=1024, layers=3).ipu_report(64, machine=dataclasses.replace(CHIP, ipus=1))
    untraced = report.advice().recipe
    assert untraced is not None
    assert not untraced.traced
    assert "`report.advice(retrace=True)` also tries" in untraced.left
    recipe = report.advice(retrace=True).recipe
    assert recipe is not None
    assert not recipe.fits
    assert recipe.left.startswith(
        "no combination of changes surely fits: the fullest of 1 IPU of 14.6 MiB has variables"
    )
    assert recipe.left.endswith("IPUs would suffice, and the machine has 1")
