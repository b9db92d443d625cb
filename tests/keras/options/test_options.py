"""Tests the effects of a model's options on its results, and rejected options."""

import json
import re
import zipfile
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tensorflow_ipu as ipu
from tensorflow_ipu.keras import ReplicatedMetricReductionMethod
from tensorflow_ipu.optimizers import GradientAccumulationReductionMethod
from tensorflow_ipu.pipelining import PipelineStageOptions

BATCH = 4


def linear(kind=keras.Sequential, **options):
    keras.utils.set_random_seed(1)
    model = kind([keras.Input([6]), layers.Dense(4, activation="tanh"), layers.Dense(3)])
    model.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), loss="mse", **options)
    return model


def trained_by_hand(x, y, together, scale):
    """Returns the weights after an epoch of updates by the sums of `together` gradients, times `scale`."""
    model = linear()
    loss = keras.losses.MeanSquaredError()
    for begin in range(0, len(x), BATCH * together):
        with tf.GradientTape() as tape:
            starts = range(begin, begin + BATCH * together, BATCH)
            total = sum(loss(y[start : start + BATCH], model(x[start : start + BATCH])) for start in starts) * scale
        variables = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(total, variables), variables, strict=True))
    return model.get_weights()


@pytest.mark.parametrize(
    ("ipus", "steps", "method", "options", "scale"),
    [
        (1, 3, "sum", {"dtype": tf.float32}, 1),
        (1, 3, GradientAccumulationReductionMethod.RUNNING_MEAN, {"dtype": lambda variable: variable.dtype}, 1 / 3),
        (2, None, "sum", {}, 1),
        (2, 3, "mean", {"offload_weight_update_variables": True}, 1 / 3),
    ],
)
def test_gradients_of_steps_and_replicas_make_one_update(
    ipus, steps, method, options, scale, features, scoped, assert_same, configure
):
    configure(ipus)
    model = scoped(lambda: linear(steps_per_execution=6))
    model.set_gradient_accumulation_options(steps, method, **options)
    model.fit(features, features[:, :3], batch_size=BATCH, verbose=0, shuffle=False)
    expected = trained_by_hand(features, features[:, :3], ipus * (steps or 1), scale)
    assert_same(model.get_weights(), expected)
    assert int(model.optimizer.iterations) == 12 // (ipus * (steps or 1))


def test_steps_that_cannot_accumulate_are_refused(features, scoped):
    model = scoped(lambda: linear(steps_per_execution=4))
    model.set_gradient_accumulation_options(3)
    message = r"\(set to 4\) is not divisible by .* \(3\). Compile .* 3 or 6 or 12"
    with pytest.raises(RuntimeError, match=message):
        model.fit(features, features[:, :3], batch_size=BATCH, verbose=0)
    with pytest.raises(RuntimeError, match="a single batch is not the 3"):
        model.train_on_batch(features, features[:, :3])
    # Evaluation accumulates nothing.
    model.evaluate(features, features[:, :3], batch_size=BATCH, verbose=0)

    class Own(keras.Sequential):
        times = 0

        def train_step(self, data):
            for _ in range(self.times):
                self.optimizer.apply([tf.ones([6, 4]), None, None, None], self.trainable_variables)
            return {"loss": tf.reduce_sum(data[0])}

    stepping = scoped(lambda: linear(Own, steps_per_execution=2))
    stepping.set_gradient_accumulation_options(2)
    for stepping.times, message in ((0, "applies no gradients"), (2, "applies gradients twice")):
        with pytest.raises(ValueError, match=message):
            stepping.fit(features, features[:, :3], batch_size=BATCH, verbose=0)


def test_metrics_of_replicas_are_reduced_as_asked(features, scoped, configure):
    def make():
        model = keras.Sequential([keras.Input([6]), layers.Identity()])
        model.compile(loss="mse", steps_per_execution=6)
        return model

    configure(2)
    model = scoped(make)
    # Batch t * R + r is of replica r.
    x = features.reshape(12, BATCH, 6)
    by_replica = np.array([np.mean(x[replica::2] ** 2) for replica in range(2)])
    mean = ReplicatedMetricReductionMethod.MEAN
    for method, expected in (
        ("none", by_replica[1]),
        ("List", by_replica),
        ("SUM", by_replica.sum()),
        (mean, by_replica.mean()),
    ):
        model.set_replication_options(method)
        result = model.evaluate(features, np.zeros_like(features), batch_size=BATCH, verbose=0)
        np.testing.assert_allclose(result, expected, rtol=1e-5)


# Rejected options.


def call_of(*args, **options):
    return args, options


SHARDED_ALONE = "`offload_weight_update_variables`, which is None: make it True"
REFUSED = {
    "gradient_accumulation": [
        (call_of(0), ValueError, "positive integer, but got 0"),
        (call_of(2.5), ValueError, "positive integer, but got 2.5"),
        (call_of(2, "median"), ValueError, "Cannot parse 'median'"),
        (call_of(2, opt="sgd"), ValueError, "`opt` cannot be set"),
        (call_of(num_mini_batches=2), ValueError, "steps_per_replica` instead"),
        (call_of(2, experimental_normalize_gradients=True), ValueError, "gradient_accumulation_reduction_method"),
        (call_of(2, dtypes="float32"), TypeError, "no option `dtypes`"),
        (call_of(use_v2_gradient_accumulation_optimizer=True), ValueError, "may only be set to True when"),
        (call_of(2, dtype="floaty"), TypeError, "`dtype`"),
        (call_of(2, replicated_optimizer_state_sharding=True), ValueError, SHARDED_ALONE),
    ],
    "pipelining": [
        (call_of(2, replicated_optimizer_state_sharding=True), ValueError, SHARDED_ALONE),
        (call_of(-1), ValueError, "positive integer, but got -1"),
        (call_of(2**31), ValueError, "per_replica` must be at most 2147483647, but is 2147483648"),
        (call_of(2, [0, 65536]), ValueError, r"from 0 to 65535 or -1 .* but it is \[0, 65536\]"),
        (call_of(2, (0, 1)), ValueError, "`device_mapping` to be a list of integers"),
        (call_of(2, [0, "1"]), ValueError, "`device_mapping` to be a list of integers"),
        (call_of(gradient_accumulation_count=2), ValueError, "steps_per_replica` instead"),
        (call_of(inputs=[]), ValueError, "`inputs` cannot be set here"),
        (call_of(outfeed_loss=True), ValueError, "`outfeed_loss` cannot be set here"),
        (call_of(schedule=1), TypeError, "no option `schedule`"),
        (call_of(2, gradient_accumulation_dtype="floaty"), TypeError, "accumulation_dtype`"),
        (call_of(2, offload_weights=1), TypeError, "`offload_weights` must be True, False or None, but is 1"),
        (call_of(2, weight_update_poplar_options={}), TypeError, "must be a `PipelineStageOptions`, but is {}"),
    ],
    "infeed_queue": [
        (call_of(dataset=None), ValueError, "`dataset` cannot be set here"),
        (call_of(prefetch_depth=256), ValueError, "prefetch_depth"),
        (call_of(prefetch_depth=0), ValueError, "prefetch_depth must be greater than zero, but it is 0"),
        (call_of(depth=2), TypeError, "no option `depth`"),
    ],
    "outfeed_queue": [
        (call_of(outfeed_mode="all"), ValueError, "`outfeed_mode` cannot be set here"),
        (call_of(buffer_depth=0), ValueError, "buffer depth"),
    ],
    "replication": [(call_of("MEDIAN"), ValueError, "Cannot parse 'MEDIAN'.*NONE, LIST, SUM, MEAN")],
}


@pytest.mark.parametrize("group", REFUSED)
def test_options_that_make_no_sense_are_refused_and_change_nothing(group, tiny, all_printed):
    original = all_printed(tiny)
    for (args, options), kind, message in REFUSED[group]:
        with pytest.raises(kind, match=message):
            getattr(tiny, f"set_{group}_options")(*args, **options)
        assert all_printed(tiny) == original
    with pytest.raises(TypeError, match="`asynchronous`"):
        tiny.set_asynchronous_callbacks("yes")


def test_all_faults_of_a_call_are_told_together(tiny):
    with pytest.raises(ValueError, match="5 faults") as caught:
        tiny.set_pipelining_options(-1, (0,), 2, "median", inputs=[])
    for message in (
        "but got -1",
        "`device_mapping`",
        "`accumulate_outfeed`",
        "Cannot parse 'median'",
        "`inputs` cannot",
    ):
        assert message in str(caught.value)
    with pytest.raises(TypeError, match="2 faults") as caught:
        tiny.set_gradient_accumulation_options(2, dtype="floaty", verify_usage="yes")
    assert "`dtype` must be" in str(caught.value)
    assert "`verify_usage` must be True or False, but is 'yes'" in str(caught.value)
    with pytest.raises(TypeError, match=r"no option `depth`[^$]*prefetch_depth must be less than 256"):
        tiny.set_infeed_queue_options(depth=2, prefetch_depth=256)


def test_options_make_the_queues_and_are_kept_in_the_file_that_plain_keras_reads(
    features, scoped, tmp_path, assert_same, monkeypatch
):
    depths = []
    plain_init = ipu.IPUInfeedQueue.__init__

    def note(self, *args, **kwargs):
        plain_init(self, *args, **kwargs)
        depths.append(self.prefetch_depth)

    model = scoped(lambda: linear(steps_per_execution=6))
    model.set_gradient_accumulation_options(3, "mean", dtype=tf.float32)
    model.set_replication_options("LIST")
    model.set_infeed_queue_options(prefetch_depth=5)
    model.set_asynchronous_callbacks(True)
    with monkeypatch.context() as patch:
        patch.setattr(ipu.IPUInfeedQueue, "__init__", note)
        model.fit(features, features[:, :3], batch_size=BATCH, verbose=0)
    assert depths == [5]
    model.save(tmp_path / "model.keras")
    loaded = scoped(lambda: keras.models.load_model(tmp_path / "model.keras"))
    assert loaded._ipu_extension.options == model._ipu_extension.options
    plain_model: Any = keras.models.load_model(tmp_path / "model.keras")
    assert plain_model.to_json() == model.to_json()
    assert not hasattr(plain_model, "set_replication_options")
    for trained in (model, loaded, plain_model):
        trained.fit(features, features[:, :3], batch_size=BATCH, verbose=0, shuffle=False)
    assert_same(loaded.get_weights(), model.get_weights())


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
def test_hdf5_file_has_the_options_and_stages_of_the_model(scoped, set_all, tmp_path):
    model = scoped(lambda: keras.Sequential([keras.Input([6]), layers.Dense(4), layers.Dense(3)]))
    model.set_pipeline_stage_assignment([0, 1])
    set_all(model)
    path = str(tmp_path / "model.h5")
    model.save(path)
    loaded = scoped(lambda: keras.models.load_model(path))
    assert loaded._ipu_extension.options == model._ipu_extension.options
    assert [assignment.pipeline_stage for assignment in loaded.get_pipeline_stage_assignment()] == [0, 1]
    plain_model: Any = keras.models.load_model(path)
    assert plain_model.to_json() == model.to_json()
    plain_model.save(path)
    last = scoped(lambda: keras.models.load_model(path))
    assert last._ipu_extension.options == scoped(lambda: keras.Sequential([]))._ipu_extension.options


def test_file_of_a_reset_model_has_what_was_not_reset(tiny, make_tiny, set_all, scoped, tmp_path, all_printed, printed):
    set_all(tiny)
    tiny.reset_pipelining_options()
    tiny.reset_infeed_queue_options()
    tiny.save(tmp_path / "model.keras")
    loaded = scoped(lambda: keras.models.load_model(tmp_path / "model.keras"))
    assert all_printed(loaded) == all_printed(tiny)
    untouched = make_tiny()
    assert printed(loaded, "pipelining") == printed(untouched, "pipelining")
    assert printed(loaded, "replication") != printed(untouched, "replication")
    for group in ("gradient_accumulation", "outfeed_queue", "replication"):
        getattr(loaded, f"reset_{group}_options")()
    loaded.save(tmp_path / "plain.keras")
    last = scoped(lambda: keras.models.load_model(tmp_path / "plain.keras"))
    assert all_printed(last) == all_printed(untouched)


def test_options_that_no_file_can_keep_and_those_of_a_file_that_are_not_known_are_named(
    tiny, make_tiny, tmp_path, all_printed, printed
):
    tiny.set_gradient_accumulation_options(2, dtype=lambda variable: variable.dtype)
    tiny.set_pipelining_options(2, forward_propagation_stages_poplar_options=[PipelineStageOptions()] * 2)
    with pytest.warns(UserWarning, match="cannot be saved; set it again") as warned:
        tiny.save_assets(tmp_path)
    assert [str(warning.message).split("`")[1] for warning in warned] == [
        "dtype",
        "forward_propagation_stages_poplar_options",
    ]
    loaded = make_tiny()
    loaded.load_assets(tmp_path)
    tiny.set_gradient_accumulation_options(2)
    tiny.set_pipelining_options(2)
    assert all_printed(loaded) == all_printed(tiny)
    written = {"infeed": {"prefetch_depth": 9, "colour": "blue"}, "weather": {"rain": True}}
    (tmp_path / "ipu_options.json").write_text(json.dumps(written))
    with pytest.warns(UserWarning, match="options that this version does not support.*: `colour`, `weather`"):
        tiny.load_assets(tmp_path)
    assert re.search(r"prefetch_depth\s*= 9$", printed(tiny, "infeed_queue"), re.M)


BAD_FILES = {
    "{": "Expecting property name",
    "[]": r"there should be a JSON object, but there is `\[\]`",
    '{"infeed": 3}': "infeed queue options: there should be a JSON object, but there is `3`",
    '{"infeed": {"prefetch_depth": -4}}': "infeed queue options: .*prefetch_depth",
    '{"outfeed": {"buffer_depth": "many"}}': "outfeed queue options: .*buffer_depth",
    '{"accumulation": {"gradient_accumulation_steps_per_replica": 0}}': "to be a positive integer, but got 0",
    '{"accumulation": {"gradient_accumulation_reduction_method": {"enum": "X", "name": "Y"}}}': "is not an encoded option",
    '{"pipelining": {"device_mapping": "abc"}}': "Expected `device_mapping` to be a list of integers",
    '{"pipelining": {"gradient_accumulation_dtype": {"dtype": "no_such"}}}': "is not an encoded option",
    '{"replication": {"replicated_metric_reduction_method": "most"}}': "Cannot parse 'most'",
    '{"asynchronous_callbacks": 1}': "`asynchronous_callbacks` must be True or False, but is 1",
    '{"pipeline_stages": {"dense": 0}}': "should be a list of pairs",
    '{"pipeline_stages": [["dense", "first"]]}': "stage of layer `dense` should be a number from 0, but is `'first'`",
}


def test_bad_options_of_a_file_are_refused_as_the_methods_refuse_them(scoped, tmp_path, all_printed):
    model = scoped(lambda: keras.Sequential([keras.Input([2]), layers.Dense(1, name="dense")]))
    original = all_printed(model)
    together = {"infeed": {"optimise_latency": 2}, "outfeed": {"buffer_depth": 0}, "asynchronous_callbacks": None}
    faults = r"3 faults:(.|\n)*optimise_latency(.|\n)*buffer_depth(.|\n)*asynchronous"
    for text, reason in {**BAD_FILES, json.dumps(together): faults}.items():
        (tmp_path / "ipu_options.json").write_text(text)
        message = rf"cannot be read from `ipu_options.json` in its file: (.|\n)*{reason}"
        with pytest.raises(ValueError, match=message):
            model.load_assets(tmp_path)
        assert all_printed(model) == original


def test_weights_of_a_file_with_bad_options_are_read_without_them(tiny, make_tiny, scoped, tmp_path):
    good, bad = tmp_path / "good.keras", tmp_path / "bad.keras"
    tiny.set_infeed_queue_options(prefetch_depth=5)
    tiny.save(good)
    with zipfile.ZipFile(good) as source, zipfile.ZipFile(bad, "w") as copy:
        for name in source.namelist():
            copy.writestr(name, b"{" if name.endswith("ipu_options.json") else source.read(name))
    with pytest.raises(ValueError, match=r"outside of `strategy.scope\(\)` gives the model without its options"):
        scoped(lambda: keras.models.load_model(bad))
    plain_model: Any = keras.models.load_model(bad)
    reloaded = make_tiny()
    reloaded.layers[0].kernel.assign(np.zeros([6, 3]))
    reloaded.load_weights(bad)
    for loaded in (plain_model, reloaded):
        assert np.array_equal(loaded.get_weights()[0], tiny.get_weights()[0])
