"""Exported models: plain TensorFlow serves them with the results of the program; names, steps, frozen weights, errors."""

import ast
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu.ops.cross_replica_ops import cross_replica_sum
from tensorflow_ipu.pipelining import PipelineSchedule, PipelineStageOptions
from tensorflow_ipu.serving import export_keras, export_pipeline, export_single_step

X = np.arange(6, dtype=np.float32).reshape(2, 3)
SPEC = tf.TensorSpec([2, 3], tf.float32)

# Loads each model in a process without this package, and prints its signature and answer.
SERVER = """
    import sys
    import numpy as np, tensorflow as tf

    for folder in sys.argv[1:]:
        served = tf.saved_model.load(folder).signatures["serving_default"]
        (name, spec), *_ = served.structured_input_signature[1].items()
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        request = tf.strings.as_string(x) if spec.dtype == tf.string else tf.constant(x)
        answer = {name: value.numpy().tolist() for name, value in served(**{name: request}).items()}
        print([name, spec.dtype.name, spec.shape.as_list(), answer])
    assert "tensorflow_ipu" not in sys.modules
    """


def test_exports_answer_as_the_programs_do_where_this_package_is_not(replicas, run_script, tmp_path):
    strategy = replicas(2)
    folders = [str(tmp_path / name) for name in ("step", "pipeline", "keras")]
    with strategy.scope():
        weights = tf.Variable(tf.random.stateless_normal([3, 4], [1, 2]))
        table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer([f"{i}.000000" for i in range(6)], np.arange(6, dtype=np.float32)), -1.0
        )

        @tf.function(input_signature=[SPEC])
        def step(x):
            return x @ weights, tf.reduce_max(x)

        served = export_single_step(
            step,
            folders[0],
            16,
            output_names=["product", "most"],
            preprocessing_step=table.lookup,
            preprocessing_step_signature=[tf.TensorSpec([2, 3], tf.string, "words")],
            postprocessing_step=lambda product, largest: (tf.nn.relu(product), largest),
        )
        stages: list[Any] = [
            lambda scale, x: {"x": x * scale, "y": tf.cast(x, tf.float16)},
            [lambda x, y: x @ weights, lambda x, y: tf.cast(y, tf.float32) + 1],
            lambda product, y: tf.reduce_sum(product, 1) + y[:, 0],
        ]
        dataset = tf.data.Dataset.from_tensors(X).repeat()
        export_pipeline(
            stages,
            folders[1],
            6,
            inputs=[tf.constant(3.0)],
            device_mapping=[0, [1, 2], 3],
            pipeline_schedule=PipelineSchedule.Sequential,
            poplar_options=[PipelineStageOptions()] * 3,
            input_dataset=dataset,
            output_names="sums",
        )
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
        export_keras(model, folders[2], batch_size=2)
        outfeed = ipu.IPUOutfeedQueue()
        results = strategy.run(tf.function(lambda x: step(x), jit_compile=True), (tf.constant(X),))
        weights_then = weights.numpy()
        weights.assign(tf.zeros([3, 4]))
    del outfeed
    product, largest = (value.numpy() for value in results)
    lines = [ast.literal_eval(line) for line in run_script(SERVER, *folders).stdout.splitlines()]
    (of_step, of_pipeline, of_keras) = lines
    assert of_step[1:3] == ["string", [2, 3]]
    np.testing.assert_allclose(of_step[3]["product"], np.maximum(product, 0), rtol=1e-5)
    assert of_step[3]["most"] == largest == 5
    assert of_pipeline[:3] == ["x", "float32", [2, 3]]
    np.testing.assert_allclose(of_pipeline[3]["sums"], np.sum(3 * X @ weights_then, 1) + X[:, 0] + 1, rtol=1e-4)
    np.testing.assert_allclose(of_keras[3]["output_0"], model(X), rtol=1e-5)
    np.testing.assert_array_equal(served(tf.strings.as_string(X))["product"], of_step[3]["product"])


def identity(x):
    return x


def signed(*specs):
    return {"predict_step_signature": [*specs]}


SIGNED, DATA = signed(SPEC), {"input_dataset": tf.data.Dataset.from_tensors(X)}
STEPPED = {"preprocessing_step": identity, "preprocessing_step_signature": [SPEC]}
OF_DICTS = tf.data.Dataset.from_tensors({"x": X})
UNKNOWN = "the signature of `predict_step` cannot be inferred"


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (ValueError, f"{UNKNOWN}.*, or pass an `input_dataset`", {}),
        (ValueError, UNKNOWN, STEPPED),
        (TypeError, "`iterations` must be a whole number, but is 1.5", {"iterations": 1.5}),
        (ValueError, "`iterations` must be 1 or more, but is 0", {"iterations": 0}),
        (TypeError, "`input_dataset` must be a `tf.data.Dataset`, but is 3", {"input_dataset": 3}),
        (ValueError, "both `predict_step_signature` and `input_dataset` are given", SIGNED | DATA),
        (ValueError, "both `preprocessing_step_signature` and `input_dataset` are given", STEPPED | DATA),
        (TypeError, "elements of `input_dataset` must be tensors or tuples", {"input_dataset": OF_DICTS}),
        (TypeError, "`predict_step_signature` must be a list or tuple", {"predict_step_signature": SPEC}),
        (ValueError, "`predict_step_signature` must not be empty", signed()),
        (TypeError, r"`predict_step_signature\[0\]` must be a `tf.TensorSpec`", signed(3)),
        (ValueError, r"signature` has 2 entries, but `predict_step` takes 1 arguments \(x\)", signed(SPEC, SPEC)),
        (ValueError, r"`x` of `predict_step` has shape \(None, 3\)", signed(tf.TensorSpec([None, 3]))),
        (
            ValueError,
            r"`preprocessing_step` returns a tensor of shape \(3, 2\)",
            SIGNED | STEPPED | {"preprocessing_step": lambda x: tf.transpose(x)},
        ),
        (
            ValueError,
            "`predict_step` returns 1 values, but the next step takes 2",
            {**SIGNED, "postprocessing_step": identity, "postprocessing_step_signature": [SPEC] * 2},
        ),
        (TypeError, "`output_names` must be a string or a list", {**SIGNED, "output_names": {1}}),
        (ValueError, "`output_names` has 2 names", {**SIGNED, "output_names": ["a", "b"]}),
    ],
)
def test_exports_that_cannot_be_served_are_refused(error, message, arguments, tmp_path):
    call: Any = export_single_step
    with pytest.raises(error, match=message):
        call(identity, tmp_path / "served", **{"iterations": 4, **arguments})
    assert not (tmp_path / "served").exists()


def test_pipelines_and_models_that_cannot_be_served_are_refused(tmp_path):
    folder = tmp_path / "served"
    call: Any = export_pipeline
    for error, message, stages, arguments in [
        (TypeError, "`computational_stages` must be a list", identity, {}),
        (TypeError, r"`computational_stages\[1\]` must be a function, but is 3", [identity, 3], {}),
        (ValueError, "at least two", [identity], {}),
        (tf.errors.FailedPreconditionError, "multiple of 2", [identity] * 2, {"iterations": 3}),
        (ValueError, "device_mapping", [identity] * 2, {"device_mapping": [0]}),
        (TypeError, "schedule", [identity] * 2, {"pipeline_schedule": "Grouped"}),
        (TypeError, "`poplar_options` must be a list", [identity] * 2, {"poplar_options": 3}),
        (ValueError, "`poplar_options` has 1 entries", [identity] * 2, {"poplar_options": [PipelineStageOptions()]}),
    ]:
        with pytest.raises(error, match=message):
            call(stages, folder, **{"iterations": 4, **SIGNED, **arguments})
    with pytest.raises(ValueError, match="made outside of an IPU strategy"):
        export_keras(keras.Sequential([keras.Input([3]), keras.layers.Dense(2)]), folder, 2)


def test_folder_is_emptied_on_request_alone_and_operations_of_ipus_are_refused(strategy, tmp_path):
    (tmp_path / "there").write_text("already")
    with pytest.raises(ValueError, match="not empty"):
        export_single_step(identity, tmp_path, 1, [SPEC])
    with strategy.scope(), pytest.raises(ValueError, match="uses `IpuAllReduce`"):
        export_single_step(lambda x: cross_replica_sum(x), tmp_path, 1, [SPEC], purge_export_dir=True)
    assert (tmp_path / "there").exists()
    served = export_single_step(identity, tmp_path, 1, [SPEC], purge_export_dir=True)
    assert not (tmp_path / "there").exists()
    np.testing.assert_array_equal(served(tf.constant(X))["output_0"], X)
