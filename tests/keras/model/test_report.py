"""Tests `ipu_report`: it runs and changes nothing, and derives shapes from the model."""

import keras
import numpy as np
import pytest
import tensorflow as tf

SPARSE = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def rows(report, kind):
    return [row for row in report.operations if row.kind == kind]


def host_bytes(report):
    return sum(row.host_bytes for row in rows(report, "infeed")) / report.steps


def variables_of(model):
    generators = [state for layer in model._flatten_layers() for state in layer.variables]
    return [
        variable.numpy()
        for variable in (*model.variables, *model.optimizer.variables, *model.metrics_variables, *generators)
    ]


@pytest.fixture
def model(scoped):
    def make():
        layers = [keras.Input([6]), keras.layers.Dense(4), keras.layers.Dropout(0.5), keras.layers.Dense(3)]
        digits = keras.Sequential(layers, name="digits")
        digits.compile("adam", SPARSE, metrics=["accuracy"], steps_per_execution=6)
        return digits

    return scoped(make)


def test_each_mode_is_the_program_that_it_runs_and_nothing_is_run_or_changed(model, features, labels):
    model.fit(features, labels, batch_size=8, verbose=0)
    function, initial_values = model.train_function, variables_of(model)
    train = model.ipu_report(16, machine="Bow Pod16")
    assert (train.program, train.system.name, train.steps) == ("train digits", "Bow Pod16", 6)
    assert host_bytes(train) == 16 * (6 * 4 + 4)
    evaluate, predict = model.ipu_report(16, "evaluate"), model.ipu_report(16, "predict")
    assert train.flops > evaluate.flops > predict.flops
    assert host_bytes(predict) == 16 * 6 * 4
    for value, initial_value in zip(variables_of(model), initial_values, strict=True):
        np.testing.assert_array_equal(value, initial_value)
    assert model.train_function is function
    losses = model.fit(features, labels, batch_size=8, verbose=0).history["loss"]
    assert np.isfinite(losses).all()
    assert model._ipu_extension.traces() == {"train": 1}


def test_accumulation_and_structures_are_in_the_program(model, scoped):
    model.set_gradient_accumulation_options(4)
    report = model.ipu_report(16)
    assert any("a batch of a replica is float32[16, 6], int32[16]" in line for line in report.assumptions)
    assert report.steps == 8  # 6 steps are not a multiple of an update.
    assert {row.count for row in rows(report, "sqrt")} == {2}

    def make():
        inputs = {"a": keras.Input([4], name="a"), "b": keras.Input([2], dtype="int32", name="b")}
        hidden = keras.layers.Concatenate()([inputs["a"], keras.ops.cast(inputs["b"], "float32")])
        outputs = [keras.layers.Dense(3, name="kind")(hidden), keras.layers.Dense(5, name="size")(hidden)]
        compiled_model = keras.Model(inputs, outputs)
        compiled_model.compile("sgd", [SPARSE, "mse"])
        return compiled_model

    assert host_bytes(scoped(make).ipu_report(8)) == 8 * (4 * 4 + 2 * 4 + 4 + 5 * 4)


class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, inputs):
        return self.dense(inputs["x"] if isinstance(inputs, dict) else inputs)


def test_a_subclassed_model_is_built_by_what_is_given_or_seen(scoped, features):
    unseen, trained = scoped(Own), scoped(Own)
    for compiled_model in (unseen, trained):
        compiled_model.compile("sgd", lambda y, p: keras.ops.mean((y - p) ** 2))
    with pytest.raises(ValueError, match=r"the shape of the inputs of model `own` is unknown.*`spec`"):
        unseen.ipu_report(8)
    x, y = tf.TensorSpec([None, 6]), np.zeros([8, 3], np.float32)
    assert host_bytes(unseen.ipu_report(8, spec=(x, y))) == 8 * (6 + 3) * 4
    dataset = tf.data.Dataset.from_tensors((tf.zeros([8, 6]), tf.zeros([8, 3])))
    assert unseen.ipu_report(spec=dataset).steps == 1
    with pytest.raises(ValueError, match=r"the shape of the labels of loss .* is unknown: pass `spec`"):
        unseen.ipu_report(8)
    assert unseen.ipu_report(8, "predict").steps == 1
    trained.fit({"x": features}, features[:, :3], batch_size=8, verbose=0)
    assert batch_of(trained.ipu_report()).startswith("float32[8, 6], float32[8, 3], as")
    assert batch_of(trained.ipu_report(16, "predict")).startswith("float32[16, 6], as")


def test_wrong_arguments_and_models_are_refused_in_words(model, scoped):
    for arguments, message in (
        ({"mode": "fit"}, "`mode` must be one of `train`, `evaluate`, `predict`, but is 'fit'"),
        ({"batch_size": 0}, "`batch_size` must be a positive integer, but is 0"),
        ({}, "`batch_size` is missing"),
        ({"batch_size": 4, "spec": (tf.zeros([8, 6]), tf.zeros([8]))}, "`spec` has batches of 8"),
        ({"batch_size": 4, "machine": "GC300"}, "`machine` is 'GC300'"),
    ):
        with pytest.raises(ValueError, match=message):
            model.ipu_report(**arguments)
    with pytest.raises(TypeError, match="`spec` must be a dataset, or hold `tf.TensorSpec`"):
        model.ipu_report(4, spec=(1.0, 2))
    unknown = scoped(lambda: keras.Sequential([keras.Input([None, 6]), keras.layers.Dense(2)]))
    unknown.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"`keras.Input` has the shape \(None, None, 6\).*pass `spec`"):
        unknown.ipu_report(8)
    raw = scoped(lambda: keras.Sequential([keras.Input([6]), keras.layers.Dense(2)]))
    assert raw.ipu_report(8, "predict").flops > 0
    with pytest.raises(ValueError, match="compile"):
        raw.ipu_report(8)


def test_a_model_in_stages_reports_its_pipeline(scoped, replicas):
    replicas(2)
    staged = scoped(lambda: keras.Sequential([keras.Input([6]), keras.layers.Dense(4), keras.layers.Dense(3)]))
    staged.compile("sgd", SPARSE, steps_per_execution=16)
    staged.set_pipeline_stage_assignment([0, 1])
    staged.set_pipelining_options(gradient_accumulation_steps_per_replica=8)
    report = staged.ipu_report(8)
    assert report.ipus_per_replica == 2
    assert report.timeline is not None
    assert (report.timeline.micro_batches, report.timeline.passes, report.steps) == (8, 2, 16)
    assert {row.part for row in rows(report, "dot")} >= {"stage 0 forward", "stage 1 backward"}
    answers = {answer.change: answer for answer in report.asks(report, True)}
    doubled = answers["micro-batches of 16 in place of 8, and `gradient_accumulation_steps_per_replica` of 4"]
    staged.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    larger = staged.ipu_report(16)
    assert doubled.speed == pytest.approx(2 * report.step_seconds / larger.step_seconds)
    assert doubled.memory == larger.memory.high
    assert answers["4 stages, one an IPU, as `pipelining.balance` cuts them"].why == "the model has only 2 layers"


def test_other_micro_batches_are_tried_by_tracing_them(model):
    model.compile("rmsprop", SPARSE, steps_per_execution=2)
    report = model.ipu_report(16)
    state = sum(4 * int(np.prod(item.shape)) for item in model.optimizer.variables)
    assert report.memory.optimizer == pytest.approx(state, abs=16)
    assert not any("micro-batches" in item.change for item in report.advice())
    retraced = {item.change: item for item in report.advice(retrace=True)}
    double = retraced["micro-batches of 32 in place of 16"]
    assert double.speed == pytest.approx(2 * report.step_seconds / model.ipu_report(32).step_seconds)
    assert tuple(report.advice()) == tuple(retraced.values())
    answers = {item.change.split(":")[0]: item for item in report.asks(report, True)}
    assert answers["recomputation"].speed < 1
    assert any(change.startswith("2 stages, one an IPU") for change in answers)
    # The original is unchanged.
    assert all(item.pipeline_stage is None for item in model.get_pipeline_stage_assignment())
    assert not model.optimizer.iterations.numpy()


def batch_of(report):
    """Returns the batch that the report assumed."""
    (line,) = [assumption for assumption in report.assumptions if assumption.startswith("a batch of a replica is ")]
    return line.removeprefix("a batch of a replica is ")


@pytest.mark.filterwarnings("ignore:a step of the model .* different shapes")
def test_a_report_takes_the_batch_of_the_last_training(make_model, scoped, features, labels):
    x, y, model = features, labels, scoped(make_model)

    def check(batch):
        assert batch_of(model.ipu_report()) == f"{batch}, as in the model's last batch"

    model.fit(x[:32], y[:32], verbose=0)
    check("float32[32, 6], int32[32]")
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(12, drop_remainder=True)
    model.fit(dataset, shuffle=False, verbose=0)
    check("float32[12, 6], int32[12]")
    model.fit(x, y, batch_size=8, class_weight={0: 1.0, 1: 2.0, 2: 3.0}, verbose=0)
    check("float32[8, 6], int32[8], float32[8]")
    model.train_on_batch(x[:5], y[:5])
    check("float32[5, 6], int32[5]")
    model.fit(x.astype(np.uint8), y, batch_size=8, verbose=0)
    check("uint8[8, 6], int32[8]")
    assert batch_of(model.ipu_report(16)).startswith("uint8[16, 6], int32[16], as")
    spec = (tf.TensorSpec([4, 6]), tf.TensorSpec([4], tf.int32))
    assert batch_of(model.ipu_report(spec=spec)) == "float32[4, 6], int32[4]"
    # Changes of other options keep the last batches.
    model.set_gradient_accumulation_options(4)
    model.compile("sgd", "sparse_categorical_crossentropy", steps_per_execution=4)
    report = model.ipu_report()
    assert report.steps == 4
    assert batch_of(report).startswith("uint8[8, 6], int32[8], as")


def test_each_mode_takes_its_own_batches_or_those_of_another(make_model, scoped, features, labels):
    model = scoped(make_model)
    model.fit(features, labels, batch_size=8, validation_data=(features, labels), validation_batch_size=16, verbose=0)
    assert batch_of(model.ipu_report(mode="evaluate")).startswith("float32[16, 6], int32[16], as")
    assert batch_of(model.ipu_report(mode="predict")).startswith("float32[8, 6], as")
    model.predict(features, batch_size=24, verbose=0)
    assert batch_of(model.ipu_report(mode="predict")).startswith("float32[24, 6], as")
    assert batch_of(model.ipu_report()).startswith("float32[8, 6], int32[8], as")
    used = scoped(lambda: make_model(lambda: keras.Input([6])))
    used.predict_on_batch(features[:4])
    assert batch_of(used.ipu_report(mode="predict")).startswith("float32[4, 6], as")
    for mode in ("train", "evaluate"):  # The labels follow from the losses.
        assert batch_of(used.ipu_report(mode=mode)).startswith("float32[4, 6], int32[4], as")
    used.test_on_batch(features[:3], labels[:3])
    for mode in ("train", "evaluate"):
        assert batch_of(used.ipu_report(mode=mode)).startswith("float32[3, 6], int32[3], as")


def test_missing_parts_of_the_data_stay_missing_and_a_batch_that_failed_was_not_seen(make_model, scoped, features):
    def make():
        inputs = keras.Input([6])
        outputs = {name: keras.layers.Dense(2, name=name)(inputs) for name in "ab"}
        compiled_model = keras.Model(inputs, outputs)
        compiled_model.compile(loss={"a": "mse"})
        return compiled_model

    model = scoped(make)
    model.evaluate(features, {"a": features[:, :2], "b": None}, batch_size=8, verbose=0)
    assert batch_of(model.ipu_report(mode="evaluate")).startswith("float32[8, 6], float32[8, 2], as")
    failing = scoped(lambda: make_model(lambda: keras.Input([6])))
    with pytest.raises(ValueError, match="shape"):
        failing.fit(features, features, batch_size=8, verbose=0)
    with pytest.raises(ValueError, match="`batch_size` is missing"):
        failing.ipu_report()
