"""Precision reports on models whose gradients vanish or whose activations overflow, and their advice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.analysis.precision.figures import figures_of
from tensorflow_ipu.analysis.precision.report import scales_for
from tensorflow_ipu.cli import precision as command
from tensorflow_ipu.keras._keras import keras
from tensorflow_ipu.precision import PrecisionReport, TensorRow


def numbers(*values):
    return np.array(values, np.float32)


def counted(values):
    with np.errstate(over="ignore"):
        return figures_of(values, values.astype(np.float16))


# Figures.


def test_figures_tell_what_float16_makes_of_numbers_and_add_up():
    figures = counted(numbers(0.0, 1.0, -3.0, 2.0**-26, 2.0**-20, 65519.0, 65520.0, 1e9))
    assert (figures.elements, figures.zeros, figures.zeros_half, figures.subnormal) == (8, 1, 2, 1)
    assert (figures.beyond, figures.infinite, figures.lost) == (2, 3, 1)
    assert (figures.largest_exponent, figures.smallest_exponent) == (29, -26)
    assert (figures.underflow, sum(figures.exponents)) == (1 / 8, 7)
    total = counted(numbers(1.0, 0.0)) + counted(numbers(4.0, 2.0**-30))
    assert (total.elements, total.zeros, total.largest, total.smallest) == (4, 1, 4.0, 2.0**-30)
    assert sum(total.exponents) == 3
    for value, half in ((1e6, 65504), (np.nan, np.nan)):  # Saturated values count as overflows.
        assert figures_of(numbers(value), np.array([half], np.float16)).infinite == 1
    figures = counted(np.zeros([3], np.float32))
    assert (figures.largest_exponent, figures.smallest_exponent, figures.overflow) == (None, None, 0.0)
    row = TensorRow("a", "activation", "", (counted(numbers(1.0)), counted(numbers(2.0, 3.0))))
    assert row.total.elements == 3


# Scales.


def test_scales_keep_all_from_vanishing_and_overflowing():
    scales = scales_for([counted(numbers(2.0**-30, 2.0**-28)), counted(numbers(1.5))])
    # Greatest: 1.5 * 2 ** 15 is below 65504. Least: 2 ** -30 is a fifth of its tensor's sum, and must become 2 ** -25.
    assert (scales.least, scales.greatest, scales.fit, scales.advised) == (2.0**5, 2.0**15, True, 2.0**13)
    scales = scales_for([counted(numbers(1.0, 2.0**-40))])  # The second value is negligible in the sum.
    assert scales.least <= scales.advised == 1.0
    scales = scales_for([counted(numbers(2.0**-40)), counted(numbers(2.0**10))])
    assert (scales.fit, scales.advised, scales.greatest) == (False, 2.0**5, 2.0**5)
    assert scales_for([counted(np.zeros([2], np.float32))]).advised == 1.0


# Models.


def data():
    random = np.random.default_rng(0)
    return random.normal(size=(32, 8)).astype(np.float32), random.normal(size=(32, 1)).astype(np.float32)


def made(*layers, policy="float32"):
    """Returns a model in a strategy's scope, with the given layers between two dense layers."""
    keras.utils.set_random_seed(1)
    with ipu.IPUStrategy().scope():
        first = keras.layers.Dense(6, activation="tanh", name="first", dtype=policy)
        model = keras.Sequential([keras.Input((8,)), first, *layers, keras.layers.Dense(1, name="last", dtype=policy)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


@pytest.fixture(scope="module")
def vanishing():
    ipu.config.reset_ipu_configuration()
    tiny = keras.layers.Rescaling(2.0**-18, name="tiny")
    return ipu.precision_report(made(tiny, keras.layers.Rescaling(1.0, name="on")), data(), steps=2, batch_size=16)


@pytest.fixture(scope="module")
def overflowing():
    ipu.config.reset_ipu_configuration()
    large = keras.layers.Rescaling(2.0**18, name="large")
    small = keras.layers.Rescaling(2.0**-18, name="small")
    return ipu.precision_report(made(large, small), data(), steps=2, batch_size=16)


def test_gradients_that_vanish_get_a_loss_scale_that_saves_them(vanishing):
    lost = [row for row in vanishing.rows if row.kind == "gradient of weight" and row.layer == "first"]
    assert any(row.total.underflow > 0.01 for row in lost)
    scales = vanishing.scales
    assert scales.fit
    assert 1 < scales.least <= scales.advised < scales.greatest
    assert vanishing.float32_layers == ()
    trial = vanishing.trial
    assert trial is not None
    assert (trial.scale, trial.overflowing, trial.vanishing) == (scales.advised, 0, 0)
    assert any(f"use {int(scales.advised)}" in sentence for sentence in vanishing.advice)


def test_activations_that_overflow_get_float32_for_all_that_they_pass(overflowing):
    rows = {row.layer: row.total for row in overflowing.rows if row.kind == "activation"}
    assert rows["large"].beyond > 0
    assert rows["large"].overflow > 0
    assert rows["small"].beyond == 0
    assert overflowing.float32_layers == ("large", "small")
    trial = overflowing.trial
    assert trial is not None
    assert trial.overflowing == 0
    advice = " ".join(overflowing.advice)
    assert "`large` computes values up to 2^" in advice
    assert "`small` would then receive values beyond float16" in advice


def test_model_that_float16_suits_is_left_alone():
    model = made()
    weights, layers = model.get_weights(), [layer.dtype_policy.name for layer in model.layers]
    report = ipu.precision_report(model, data(), steps=1, batch_size=16)
    assert report.trial is None
    assert report.advice[0].startswith("the loss scale 1 fits")
    assert report.steps == 1
    assert report.losses[0][0] == pytest.approx(report.losses[0][1], rel=0.05)
    for old, new in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    assert [layer.dtype_policy.name for layer in model.layers] == layers
    assert all("call" not in vars(layer) for layer in model.layers)


def test_weights_of_float16_that_updates_do_not_move_are_told_of():
    model = made(policy="float16")
    model.optimizer.learning_rate = 1e-6
    report = ipu.precision_report(model, data(), steps=1, batch_size=16)
    assert report.half_weights
    assert any("they are too small for float16 weights" in sentence for sentence in report.advice)


def test_exceptions_that_are_configured_do_not_end_the_report():
    config = ipu.IPUConfig()
    config.floating_point_behaviour.oflo = True
    config.configure_ipu_system()
    model = made(keras.layers.Rescaling(2.0**18, name="large"))
    report = ipu.precision_report(model, data(), steps=1, batch_size=16)
    # With this option float16 saturates, which the report counts as an overflow.
    assert report.float32_layers[0] == "large"
    assert ipu.IPUStrategy().extended.target.floating_point.oflo


def test_models_of_no_strategy_are_reported_on_as_xla_computes_them():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    dataset = tf.data.Dataset.from_tensor_slices(data()).batch(16)
    assert ipu.precision_report(model, dataset, steps=1).device == "the host by XLA"


# Functions.


def test_function_in_float32_is_compared_with_itself_in_float16():
    strategy = ipu.IPUStrategy()
    with strategy.scope():
        weights = tf.Variable(np.full([8, 1], 2.0**-12, np.float32))

        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                with tf.name_scope("square"):
                    squared = tf.square(tf.matmul(x, weights))
                loss = tf.reduce_mean(squared)
            gradient: Any = tape.gradient(loss, weights)
            weights.assign_sub(0.1 * gradient)
            return loss

        report = ipu.precision_report(step, [(data()[0] * 2.0**-6,)] * 2)
    rows = {(row.layer, row.kind, row.name): row for row in report.rows}
    assert report.steps == 2
    assert rows["square", "activation", "Square"].total.lost > 0
    assert rows["square", "activation", "Square"].total.zeros_half > 0
    assert any(kind == "gradient of activation" for _, kind, _ in rows)
    np.testing.assert_array_equal(weights.numpy(), np.full([8, 1], 2.0**-12, np.float32))


def test_function_in_float16_is_compared_with_itself_in_float32():
    @tf.function
    def step(x):
        with tf.name_scope("double"):
            doubled = tf.while_loop(lambda i, _: i < 3, lambda i, x: [i + 1, x * 16.0], [0, tf.cast(x, tf.float16)])[1]
            return tf.exp(doubled)

    with ipu.IPUStrategy().scope():
        report = ipu.precision_report(step, [(np.full([3], 0.01, np.float32),)])
    [row] = [row for row in report.rows if row.name == "Exp"]
    assert row.total.overflow == 1.0
    assert row.total.largest_exponent == 59


# Errors.


class WithTrainStep(keras.Sequential):
    def train_step(self, data):
        return super().train_step(data)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"steps": 0}, ValueError, "`steps` must be a positive integer, but is 0"),
        ({"batch_size": 0}, ValueError, "`batch_size`"),
        ({"loss_scale": -1.0}, ValueError, "`loss_scale` must be a positive number, but is -1.0"),
        ({"data": []}, ValueError, "`data` has no batch"),
        ({"data": [[1.0]]}, TypeError, "`data` must yield tuples, .* but yields list"),
        ({"model": WithTrainStep()}, ValueError, "`WithTrainStep.train_step`.* Pass the step as a `tf.function`"),
        ({"model": len}, TypeError, "`model` must be a Keras model or a `tf.function`"),
        (
            {"model": tf.function(lambda x: x + 1), "data": [(1,)]},
            ValueError,
            "computes no tensors of float16 or float32",
        ),
    ],
)
def test_bad_arguments_are_refused(arguments, kind, message, refused):
    uncompiled = keras.Sequential([keras.layers.Dense(1)])
    values = {"model": uncompiled, "data": data(), **arguments}
    refused(kind, message, ipu.precision_report, values.pop("model"), values.pop("data"), **values)


# Text, files and pages.


def test_text_has_the_advice_and_all_tensors(overflowing):
    text = str(overflowing)
    assert all(sentence.split(":")[0][:40] in text for sentence in overflowing.advice)
    assert text.count("activation") >= 4
    assert max(map(len, text.splitlines())) <= 130


def test_report_is_the_same_from_its_file_and_files_of_others_are_refused(vanishing, overflowing, tmp_path, refused):
    vanishing.save(tmp_path / "a.json")
    assert PrecisionReport.load(tmp_path / "a.json") == vanishing
    overflowing.save(tmp_path / "b.json")  # Its losses are NaN, which JSON cannot encode.
    assert str(PrecisionReport.load(tmp_path / "b.json")) == str(overflowing)
    refused(ValueError, r"must end in `.json` or `.html`", overflowing.save, tmp_path / "a.png")
    for content, message in (('{"schema": 99}', "has schema 99"), ("[]", "is no report")):
        (tmp_path / "c.json").write_text(content)
        refused(ValueError, message, PrecisionReport.load, tmp_path / "c.json")


def test_page_is_whole(vanishing, tmp_path, read_page):
    vanishing.save(tmp_path / "a.html")
    page = read_page((tmp_path / "a.html").read_text())
    assert page.open == []
    assert page.ids == ["advice", "activations", "gradients", "weights", "steps", "tensors"]
    assert (page.elements["svg"], page.elements["tr"]) == (4, 1 + len(vanishing.rows))


def test_command_shows_a_saved_report(vanishing, tmp_path, capsys):
    vanishing.save(tmp_path / "a.json")
    assert command.main([str(tmp_path / "a.json"), "--html", str(tmp_path / "a.html")]) == 0
    assert capsys.readouterr().out == f"{vanishing}\n"
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")
    assert command.main([str(tmp_path / "missing.json")]) == 2
    assert "missing.json" in capsys.readouterr().err
