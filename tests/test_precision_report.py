"""Reports on precision: what float16 makes of models whose gradients vanish and whose activations overflow, and the advice."""

from __future__ import annotations

import html.parser
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.cli import precision
from tensorflow_ipu.precision import Figures, PrecisionReport, TensorRow
from tensorflow_ipu.precision._figures import figures_of
from tensorflow_ipu.precision._report import scales_for

Array = Any


def numbers(*values: float) -> Array:
    return np.array(values, np.float32)


def counted(values: Array) -> Figures:
    with np.errstate(over="ignore"):
        return figures_of(values, values.astype(np.float16))


# Figures.


def test_figures_tell_what_float16_makes_of_numbers() -> None:
    figures = counted(numbers(0.0, 1.0, -3.0, 2.0**-26, 2.0**-20, 65519.0, 65520.0, 1e9))
    assert (figures.elements, figures.zeros, figures.zeros_half, figures.subnormal) == (8, 1, 2, 1)
    assert (figures.beyond, figures.infinite, figures.lost) == (2, 3, 1)
    assert (figures.largest_exponent, figures.smallest_exponent) == (29, -26)
    assert figures.underflow == 1 / 8
    assert sum(figures.exponents) == 7


def test_figures_of_steps_add_up() -> None:
    total = counted(numbers(1.0, 0.0)) + counted(numbers(4.0, 2.0**-30))
    assert (total.elements, total.zeros, total.largest, total.smallest) == (4, 1, 4.0, 2.0**-30)
    assert sum(total.exponents) == 3


def test_what_is_saturated_has_overflowed() -> None:
    assert figures_of(numbers(1e6), np.array([65504], np.float16)).infinite == 1
    assert figures_of(numbers(np.nan), np.array([np.nan], np.float16)).infinite == 1


def test_figures_of_zeros_have_no_exponents() -> None:
    figures = counted(np.zeros([3], np.float32))
    assert (figures.largest_exponent, figures.smallest_exponent, figures.overflow) == (None, None, 0.0)


# Scales.


def test_scales_keep_all_from_vanishing_and_overflowing() -> None:
    scales = scales_for([counted(numbers(2.0**-30, 2.0**-28)), counted(numbers(1.5))])
    # The greatest: 1.5 * 2 ** 15 is below 65504. The least: 2 ** -30 is a fifth of its sum, and the smallest is 2 ** -25.
    assert (scales.least, scales.greatest) == (2.0**5, 2.0**15)
    assert scales.fit
    assert scales.advised == 2.0**13


def test_scales_need_not_save_what_is_nothing_beside_the_rest() -> None:
    scales = scales_for([counted(numbers(1.0, 2.0**-40))])
    assert scales.least <= 1.0
    assert scales.advised == 1.0


def test_no_scale_may_fit() -> None:
    scales = scales_for([counted(numbers(2.0**-40)), counted(numbers(2.0**10))])
    assert not scales.fit
    assert scales.advised == scales.greatest == 2.0**5


def test_gradients_of_nothing_need_no_scale() -> None:
    assert scales_for([counted(np.zeros([2], np.float32))]).advised == 1.0


# Models.


def data() -> tuple[Array, Array]:
    random = np.random.default_rng(0)
    return random.normal(size=(32, 8)).astype(np.float32), random.normal(size=(32, 1)).astype(np.float32)


def made(*layers: keras.layers.Layer, policy: str = "float32") -> keras.Model:
    """A model in a strategy's scope, with layers between two dense ones."""
    keras.utils.set_random_seed(1)
    with ipu.IPUStrategy().scope():
        model = keras.Sequential(
            [
                keras.Input((8,)),
                keras.layers.Dense(6, activation="tanh", name="first", dtype=policy),
                *layers,
                keras.layers.Dense(1, name="last", dtype=policy),
            ]
        )
        model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


@pytest.fixture(scope="module")
def vanishing() -> PrecisionReport:
    ipu.config.reset_ipu_configuration()
    tiny = keras.layers.Rescaling(2.0**-18, name="tiny")
    return ipu.precision_report(made(tiny, keras.layers.Rescaling(1.0, name="on")), data(), steps=2, batch_size=16)


@pytest.fixture(scope="module")
def overflowing() -> PrecisionReport:
    ipu.config.reset_ipu_configuration()
    large = keras.layers.Rescaling(2.0**18, name="large")
    small = keras.layers.Rescaling(2.0**-18, name="small")
    return ipu.precision_report(made(large, small), data(), steps=2, batch_size=16)


def test_gradients_that_vanish_get_a_loss_scale_that_saves_them(vanishing: PrecisionReport) -> None:
    lost = [row for row in vanishing.rows if row.kind == "gradient of weight" and row.layer == "first"]
    assert any(row.total.underflow > 0.01 for row in lost)
    scales = vanishing.scales
    assert scales.fit
    assert 1 < scales.least <= scales.advised < scales.greatest
    assert vanishing.float32_layers == ()
    trial = vanishing.trial
    assert trial is not None
    assert (trial.scale, trial.overflowing, trial.vanishing) == (scales.advised, 0, 0)
    assert any(f"take {int(scales.advised)}" in sentence for sentence in vanishing.advice)


def test_activations_that_overflow_get_float32_for_all_that_they_pass(overflowing: PrecisionReport) -> None:
    rows = {row.layer: row.total for row in overflowing.rows if row.kind == "activation"}
    assert rows["large"].beyond > 0
    assert rows["large"].overflow > 0
    assert rows["small"].beyond == 0
    assert overflowing.float32_layers == ("large", "small")
    trial = overflowing.trial
    assert trial is not None
    assert trial.overflowing == 0
    advice = " ".join(overflowing.advice)
    assert "`large` computes numbers up to 2^" in advice
    assert "`small` would then get numbers that are beyond float16" in advice


def test_model_that_float16_suits_is_left_alone() -> None:
    model = made()
    weights, layers = model.get_weights(), [layer.dtype_policy.name for layer in model.layers]
    report = ipu.precision_report(model, data(), steps=1, batch_size=16)
    assert report.trial is None
    assert report.advice[0].startswith("the loss scale 1 fits")
    assert report.steps == 1
    assert report.losses[0][0] == pytest.approx(report.losses[0][1], rel=0.05)
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)
    assert [layer.dtype_policy.name for layer in model.layers] == layers
    assert all("call" not in vars(layer) for layer in model.layers)


def test_weights_of_float16_that_updates_do_not_move_are_told_of() -> None:
    model = made(policy="float16")
    model.optimizer.learning_rate = 1e-6
    report = ipu.precision_report(model, data(), steps=1, batch_size=16)
    assert report.half_weights
    assert any("they are too small for weights of float16" in sentence for sentence in report.advice)


def test_exceptions_that_are_configured_do_not_end_the_report() -> None:
    config = ipu.IPUConfig()
    config.floating_point_behaviour.oflo = True
    config.configure_ipu_system()
    model = made(keras.layers.Rescaling(2.0**18, name="large"))
    report = ipu.precision_report(model, data(), steps=1, batch_size=16)
    # Here the machine saturates, which a report on it counts as an overflow.
    assert report.float32_layers[0] == "large"
    assert ipu.IPUStrategy().extended.target.floating_point.oflo


def test_models_of_no_strategy_are_reported_on_as_xla_computes_them() -> None:
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    dataset = tf.data.Dataset.from_tensor_slices(data()).batch(16)
    assert ipu.precision_report(model, dataset, steps=1).device == "the host by XLA"


# Functions.


def test_function_in_float32_is_compared_with_itself_in_float16() -> None:
    strategy = ipu.IPUStrategy()
    with strategy.scope():
        weights = tf.Variable(np.full([8, 1], 2.0**-12, np.float32))

        @tf.function
        def step(x: tf.Tensor) -> tf.Tensor:
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


def test_function_in_float16_is_compared_with_itself_in_float32() -> None:
    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.name_scope("double"):
            doubled = tf.while_loop(lambda i, _: i < 3, lambda i, x: [i + 1, x * 16.0], [0, tf.cast(x, tf.float16)])[1]
            return tf.exp(doubled)

    with ipu.IPUStrategy().scope():
        report = ipu.precision_report(step, [(np.full([3], 0.01, np.float32),)])
    [row] = [row for row in report.rows if row.name == "Exp"]
    assert row.total.overflow == 1.0
    assert row.total.largest_exponent == 59


# What is refused.


class OfItsOwn(keras.Sequential):
    def train_step(self, data: Any) -> dict[str, Any]:
        return super().train_step(data)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"steps": 0}, ValueError, "`steps` must be a positive integer, but is 0"),
        ({"batch_size": 0}, ValueError, "`batch_size`"),
        ({"loss_scale": -1.0}, ValueError, "`loss_scale` must be a positive number, but is -1.0"),
        ({"data": []}, ValueError, "`data` has no batch"),
        ({"data": [[1.0]]}, TypeError, "`data` must give tuples, but gives list"),
        ({"model": OfItsOwn()}, ValueError, "`OfItsOwn.train_step`.* Give the step as a `tf.function`"),
        ({"model": len}, TypeError, "`model` must be a Keras model or a `tf.function`"),
        (
            {"model": tf.function(lambda x: x + 1), "data": [(1,)]},
            ValueError,
            "computes no tensors of float16 or float32",
        ),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], kind: type[Exception], message: str) -> None:
    plain = keras.Sequential([keras.layers.Dense(1)])
    given: dict[str, Any] = {"model": plain, "data": data(), **arguments}
    with pytest.raises(kind, match=message):
        ipu.precision_report(given.pop("model"), given.pop("data"), **given)


# Text, files and pages.


def test_text_has_the_advice_and_all_tensors(overflowing: PrecisionReport) -> None:
    text = str(overflowing)
    assert all(sentence.split(":")[0][:40] in text for sentence in overflowing.advice)
    assert text.count("activation") >= 4
    assert max(map(len, text.splitlines())) <= 130


def test_report_is_the_same_from_its_file(
    vanishing: PrecisionReport, overflowing: PrecisionReport, tmp_path: Path
) -> None:
    vanishing.save(tmp_path / "a.json")
    assert PrecisionReport.load(tmp_path / "a.json") == vanishing
    overflowing.save(tmp_path / "b.json")  # Its losses are no numbers, for which JSON has none.
    assert str(PrecisionReport.load(tmp_path / "b.json")) == str(overflowing)


def test_files_of_others_are_refused(overflowing: PrecisionReport, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must end in `.json` or `.html`"):
        overflowing.save(tmp_path / "a.png")
    (tmp_path / "b.json").write_text('{"schema": 99}')
    with pytest.raises(ValueError, match="is of version 99"):
        PrecisionReport.load(tmp_path / "b.json")
    (tmp_path / "c.json").write_text("[]")
    with pytest.raises(ValueError, match="holds no report on precision"):
        PrecisionReport.load(tmp_path / "c.json")


class Reader(html.parser.HTMLParser):
    """Which elements are open, and how many of each there were."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count: dict[str, int] = {}
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_whole(vanishing: PrecisionReport, tmp_path: Path) -> None:
    vanishing.save(tmp_path / "a.html")
    page = Reader((tmp_path / "a.html").read_text())
    assert page.open == []
    assert page.ids == ["advice", "activations", "gradients", "weights", "steps", "tensors"]
    assert page.count["svg"] == 4
    assert page.count["tr"] == 1 + len(vanishing.rows)


def test_command_shows_a_saved_report(
    vanishing: PrecisionReport, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vanishing.save(tmp_path / "a.json")
    assert precision.main([str(tmp_path / "a.json"), "--html", str(tmp_path / "a.html")]) == 0
    assert capsys.readouterr().out == f"{vanishing}\n"
    assert (tmp_path / "a.html").read_text().startswith("<!doctype html>")
    assert precision.main([str(tmp_path / "missing.json")]) == 2
    assert "missing.json" in capsys.readouterr().err


def test_a_tensor_counts_all_of_its_steps() -> None:
    row = TensorRow("a", "activation", "", (counted(numbers(1.0)), counted(numbers(2.0, 3.0))))
    assert row.total.elements == 3
