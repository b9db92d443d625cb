"""The arguments that `pipeline` rejects, with the types of the errors; all errors of a call are raised together."""

import dataclasses
import inspect
from typing import Any

import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import pipelining
from tensorflow_ipu.ops.gradient_capture import GradientCaptureContext
from tensorflow_ipu.pipelining import (
    Liveness,
    OptimizerFunctionOutput,
    PhasedExecution,
    PipelineSchedule,
    PipelineStageOptions,
    RecomputationMode,
)
from tensorflow_ipu.pipelining.options import Arguments, SharedOptions


def stage(x):
    return x


def train(loss):
    return OptimizerFunctionOutput(tf.compat.v1.train.GradientDescentOptimizer(0.1), loss)


@pytest.fixture
def build():
    """Returns `build(**arguments)`, which traces a pipeline of two stages; `arguments` replace valid ones."""

    def call(**arguments):
        with tf.init_scope():
            valid = {"gradient_accumulation_count": 4, "inputs": 1.0, "outfeed_queue": ipu.IPUOutfeedQueue()}
            valid["computational_stages"] = [stage, stage]
        options = {**valid, **arguments}
        graph = tf.function(lambda: pipelining.pipeline(**options) and None, jit_compile=True, autograph=False)
        return graph.get_concrete_function()

    return call


OPTIONS = PipelineStageOptions()

SEQUENTIAL, GROUPED = PipelineSchedule.Sequential, PipelineSchedule.Grouped
LATER = RecomputationMode.RecomputeThenBackpropagate
SERIAL, PARALLEL = {"pipeline_schedule": PhasedExecution.Serial}, PhasedExecution.Parallel
SERIALIZED = {"batch_serialization_iterations": 2}
TRAINING = {"optimizer_function": train}
ONE_IPU = {"pipeline_schedule": PipelineSchedule.Interleaved, "device_mapping": [0, 0]}

FAULTS: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (ValueError, "must be specified", {"gradient_accumulation_count": None}),
    (ValueError, "gradient_accumulation_count", {"gradient_accumulation_count": -2}),
    (ValueError, "gradient_accumulation_count", {"gradient_accumulation_count": 2**31}),
    (TypeError, "gradient_accumulation_count", {"gradient_accumulation_count": 1.5}),
    (TypeError, "gradient_accumulation_count", {"gradient_accumulation_count": tf.constant(1.5)}),
    (ValueError, "repeat_count", {"repeat_count": 0}),
    (ValueError, "count` is 1073741824 and `batch.* 2147483648", {"gradient_accumulation_count": 2**30, **SERIALIZED}),
    (ValueError, "reduction_method", {**TRAINING, "reduction_method": "MEDIAN"}),
    (ValueError, "batch_serialization_iterations", {**TRAINING, **SERIALIZED, "reduction_method": "MEAN"}),
    (NotImplementedError, "continuous_weight_updates", {"continuous_weight_updates": True}),
    (TypeError, "pipeline_schedule", {"pipeline_schedule": "Grouped"}),
    (NotImplementedError, "Sequential", {**SERIALIZED, "pipeline_schedule": GROUPED}),
    (NotImplementedError, "one IPU", {**SERIALIZED, "device_mapping": [0, 1]}),
    (TypeError, "recomputation_mode", {"recomputation_mode": "Auto"}),
    (NotImplementedError, "recomputation_mode", {"recomputation_mode": LATER, "pipeline_schedule": SEQUENTIAL}),
    (TypeError, "computational_stages", {"computational_stages": stage}),
    (TypeError, "must be a function", {"computational_stages": [stage, 3]}),
    (ValueError, "at least two", {"computational_stages": [stage]}),
    (TypeError, "infeed_queue", {"infeed_queue": 3}),
    (TypeError, "outfeed_queue", {"outfeed_queue": 3}),
    (TypeError, "device_mapping", {"device_mapping": 0}),
    (ValueError, "mapped", {"device_mapping": [0]}),
    (ValueError, "concurrent", {"device_mapping": [0, [1, 2]]}),
    (NotImplementedError, "several", {**TRAINING, **ONE_IPU}),
    (TypeError, "forward_prop", {"forward_propagation_stages_poplar_options": OPTIONS}),
    (TypeError, "forward_prop", {"forward_propagation_stages_poplar_options": [OPTIONS, {}]}),
    (ValueError, "backward_prop", {"backward_propagation_stages_poplar_options": [OPTIONS]}),
    (TypeError, "weight_update", {"weight_update_poplar_options": {}}),
    (TypeError, "offload_weights", {"offload_weights": 1}),
    (ValueError, "`offload_weight_up.*, which is None: make it True", {"replicated_optimizer_state_sharding": True}),
    (ValueError, r"`device_mapping\[1\]` is -2; IPUs are numbered from 0, and -1", {"device_mapping": [-1, -2]}),
    (ValueError, "optimizer_function must be", {"outfeed_mask": [True]}),
    (ValueError, "optimizer_function must be", {"outfeed_loss": True}),
    (ValueError, "Only one", {"outfeed_loss": True, "outfeed_mask": [True], **TRAINING}),
    (ValueError, "outfeed_queue must be", {"accumulate_outfeed": True, "outfeed_queue": None}),
    (ValueError, "outfeed_queue must be", {"outfeed_loss": True, "outfeed_queue": None, **TRAINING}),
    (TypeError, "accumulate_outfeed_dtype", {"accumulate_outfeed_dtype": "nonsense"}),
    (ValueError, "no outfeed_queue", {"outfeed_queue": None}),
    (ValueError, "ALL", {"outfeed_queue": "of the last", "accumulate_outfeed": True}),
    (TypeError, "takes", {"inputs": [1.0, 2.0]}),
    (RuntimeError, "No variables", TRAINING),
    (TypeError, "optimizer_function", {"optimizer_function": lambda loss: loss}),
    (TypeError, "optimizer_function", {"optimizer_function": 3}),
    (tf.errors.FailedPreconditionError, "multiple of 2", {"gradient_accumulation_count": 3}),
    (ValueError, "need IPUs of their own", {"pipeline_schedule": PARALLEL, "device_mapping": [0, 0]}),
    (NotImplementedError, "recompute", {**SERIAL, "recomputation_mode": LATER}),
    (NotImplementedError, "serialized", {**SERIAL, **SERIALIZED}),
    (TypeError, "`recomputation_mode` must be", {**SERIAL, "recomputation_mode": "Auto"}),
    (TypeError, "or a `PhasedExecution`", {"pipeline_schedule": "Serial"}),
    (TypeError, "`phase_liveness` must be", {**SERIAL, "phase_liveness": "always"}),
    (ValueError, "never leave the chip", {"phase_liveness": Liveness.AlwaysLive}),
    (
        ValueError,
        r"(?s)serial phases share one group.*`batch_serialization_iterations` is.*`recomputation_mode` is",
        {**SERIAL, **SERIALIZED, "device_mapping": [0, 1], "recomputation_mode": LATER},
    ),
]


@pytest.mark.parametrize(("kind", "words", "arguments"), FAULTS, ids=[words for _, words, _ in FAULTS])
def test_a_fault_is_refused_by_its_kind(build, kind, words, arguments, refused):
    if arguments.get("outfeed_queue") == "of the last":
        arguments = arguments | {"outfeed_queue": ipu.IPUOutfeedQueue(ipu.IPUOutfeedMode.LAST)}
    refused(kind, words, build, **arguments)


def test_sound_arguments_are_not_refused(build):
    build(
        forward_propagation_stages_poplar_options=[OPTIONS, OPTIONS],
        weight_update_poplar_options=OPTIONS,
        offload_activations=False,
        name="sound",
    )
    pipeline = pipelining.last_pipeline()
    assert pipeline.name == "sound"
    assert pipeline.options.forward_propagation_stages_poplar_options == (OPTIONS, OPTIONS)


def test_dataclass_declares_the_arguments_as_the_signature_does():
    parameters = inspect.signature(pipelining.pipeline).parameters
    declared = {option.name: option for option in dataclasses.fields(Arguments) if option.init}
    assert {name: option.type for name, option in declared.items()} == {
        name: parameter.annotation for name, parameter in parameters.items()
    }
    for option in dataclasses.fields(SharedOptions):
        assert option.default == parameters[option.name].default, option.name


def test_all_faults_of_a_call_are_told_together_by_the_kind_of_the_first(build):
    with pytest.raises(ValueError, match="5 faults") as caught:
        build(
            gradient_accumulation_count=None, infeed_queue=3, device_mapping=[1], repeat_count=True, offload_weights=1
        )
    for name in ("gradient_accumulation_count", "infeed_queue", "device_mapping", "repeat_count", "offload_weights"):
        assert name in str(caught.value)


def test_a_count_that_cannot_be_is_refused_after_faults_of_stages_and_in_a_graph_by_the_run(build, configure, refused):
    w = tf.Variable([1.0])
    stages = [lambda x: x * w, lambda x: x * w]
    refused(ValueError, "same IPU", build, gradient_accumulation_count=3, computational_stages=stages)
    configure(2)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        outfeed = ipu.IPUOutfeedQueue()

        def program():
            v = tf.compat.v1.get_variable("v", initializer=1.0, use_resource=True)
            stages = [lambda x: x * v, stage]
            return pipelining.pipeline(stages, 6, inputs=1.0, optimizer_function=train, outfeed_queue=outfeed)

        with ipu.scopes.ipu_scope("/device:IPU:0"):
            compiled = ipu.compiler.compile(program)
        session.run(tf.compat.v1.global_variables_initializer())
        words = "a Grouped pipeline of 2 stages that trains must be a multiple of 4 .* but is 6"
        refused(tf.errors.FailedPreconditionError, words, session.run, compiled)


def test_stages_that_cannot_be_are_refused(build, refused):
    v = tf.Variable(1.0)
    w = tf.Variable([1.0])

    def ragged(x):
        return tf.boolean_mask(tf.stack([x, x]), [True, x > 0]) * w

    parts = [[stage, lambda x: {"x": x}], lambda x, y: x]
    for words, stages, options in (
        ("1 outputs", [lambda x: x * v, stage], {**TRAINING, "outfeed_mask": [True, False]}),
        ("static shape", [ragged, tf.reduce_sum], TRAINING),
        ("concatenated", parts, {"device_mapping": [[0, 1], 2]}),
        ("same IPU", [lambda x: x * v, lambda x: x * v], {}),
    ):
        refused(ValueError, words, build, computational_stages=stages, **options)
    build(computational_stages=[lambda x: x * v, lambda x: x * v], device_mapping=[1, 1])

    def program():
        small = tf.random.uniform([])
        build(computational_stages=[stage, lambda x: x * small])

    with pytest.raises(ValueError, match="Trying to capture the tensor `random_uniform.*` in stage 1"):
        tf.function(program, autograph=False).get_concrete_function()
    with pytest.raises(RuntimeError, match="program"):
        pipelining.pipeline([stage, stage], 2, inputs=1.0, outfeed_queue=ipu.IPUOutfeedQueue())


TAPED = {"tape": tf.GradientTape()}


@pytest.mark.parametrize(
    ("kind", "words", "keras", "arguments"),
    [
        (TypeError, "opt", False, {"opt": "SGD"}),
        (TypeError, "loss", False, {"loss": 1.0}),
        (TypeError, "compute_gradients_args", False, {"compute_gradients_args": [1]}),
        (TypeError, "compute_gradients_kwargs", False, {"compute_gradients_kwargs": (1,)}),
        (TypeError, "apply_gradients_args", True, {"apply_gradients_args": [1]}),
        (TypeError, "apply_gradients_kwargs", True, {"apply_gradients_kwargs": (1,)}),
        (ValueError, "compute_gradients_args", True, {"compute_gradients_args": (1,)}),
        (ValueError, "compute_gradients_kwargs", True, {"compute_gradients_kwargs": {"a": 1}}),
        (TypeError, "variables", True, {"variables": 3}),
        (ValueError, "variables", False, {"variables": [3]}),
        (TypeError, "tape", True, {"tape": 3}),
        (ValueError, "tape", False, TAPED),
        (ValueError, "tape", True, {**TAPED, "variables": [3]}),
        (TypeError, "gradient_capture_context", True, {"gradient_capture_context": 3}),
        (ValueError, "gradient_capture_context", True, {**TAPED, "gradient_capture_context": GradientCaptureContext()}),
        (TypeError, "captured_gradient_outfeed", True, {"captured_gradient_outfeed": 3}),
        (ValueError, "captured_gradient_outfeed", True, {"captured_gradient_outfeed": "a queue"}),
    ],
)
def test_the_output_of_an_optimizer_function_is_checked(kind, words, keras, arguments):
    if arguments.get("captured_gradient_outfeed") == "a queue":
        arguments = {"captured_gradient_outfeed": ipu.IPUOutfeedQueue()}
    opt = tf.keras.optimizers.SGD() if keras else tf.compat.v1.train.GradientDescentOptimizer(0.1)
    with pytest.raises(kind, match=f"OptimizerFunctionOutput.{words}"):
        OptimizerFunctionOutput(**{"opt": opt, "loss": tf.constant(1.0), **arguments})
    output = OptimizerFunctionOutput(tf.keras.optimizers.SGD(), tf.constant(1.0), **TAPED)
    with pytest.raises(ValueError, match="variables"):
        output.variables = [3]  # pyright: ignore[reportAttributeAccessIssue]  # Wrong on purpose.
    output.remark = "a subclass or a user may set others"  # pyright: ignore[reportAttributeAccessIssue]
    assert (vars(output), output.apply_gradients_kwargs) == ({"remark": output.remark}, {})  # pyright: ignore[reportAttributeAccessIssue]
