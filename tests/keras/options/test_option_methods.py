"""Tests how a model's options are printed and reset, group by group."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import keras as keras_extensions
from tensorflow_ipu import pipelining
from tensorflow_ipu.keras import ReplicatedMetricReductionMethod
from tensorflow_ipu.pipelining import PipelineStageOptions

BATCH, STEPS = 4, 12
GROUPS = ("gradient_accumulation", "pipelining", "infeed_queue", "outfeed_queue", "replication")


def lines_of(text):
    """Returns the values of a printed group, with their remarks, by name."""
    rows = [line.split("=", 1) for line in text.splitlines()[1:]]
    return {name.strip(): value.strip() for name, value in rows}


# Printing.

DEFAULTS: dict[str, str] = {
    "gradient_accumulation": """\
Model "tiny": gradient accumulation options
  gradient_accumulation_steps_per_replica = None  # each step updates the weights
  gradient_accumulation_reduction_method  = "sum"
  use_v2_gradient_accumulation_optimizer  = False
  dtype                                   = None  # that of each variable
  name                                    = None
  offload_weight_update_variables         = None
  replicated_optimizer_state_sharding     = False
  verify_usage                            = True""",
    "pipelining": """\
Model "tiny": pipelining options
  gradient_accumulation_steps_per_replica    = None  # to be set before `fit`
  device_mapping                             = None  # as the schedule has it
  accumulate_outfeed                         = None  # results are those of each step
  gradient_accumulation_reduction_method     = "sum"
  accumulate_outfeed_dtype                   = None  # that of each result
  backward_propagation_stages_poplar_options = None
  continuous_weight_updates                  = False
  forward_propagation_stages_poplar_options  = None
  gradient_accumulation_dtype                = None  # that of each variable
  gradient_accumulation_for_captured_grads   = True
  name                                       = None
  offload_activations                        = None
  offload_gradient_accumulation_buffers      = None
  offload_weight_update_variables            = None
  offload_weights                            = None
  phase_liveness                             = None  # phases leave the chip after each
  pipeline_schedule                          = None  # PipelineSchedule.Grouped
  recomputation_mode                         = None  # nothing is recomputed
  replicated_optimizer_state_sharding        = False
  replicated_weight_sharding                 = None
  weight_update_poplar_options               = None""",
    "infeed_queue": """\
Model "tiny": infeed queue options
  prefetch_depth   = 3
  optimise_latency = False""",
    "outfeed_queue": """\
Model "tiny": outfeed queue options
  buffer_depth     = 3
  optimise_latency = False""",
    "replication": """\
Model "tiny": replication options
  replicated_metric_reduction_method = "NONE\"""",
}


def test_options_that_nobody_set_are_printed_with_their_defaults(tiny, capsys, all_printed):
    assert all_printed(tiny) == DEFAULTS
    for group in GROUPS:
        getattr(tiny, f"print_{group}_options")()
        assert capsys.readouterr().out == f"{DEFAULTS[group]}\n"
    for name in (*(f"print_{group}_options" for group in GROUPS), "print_pipeline_stage_assignment_summary"):
        with pytest.raises(TypeError, match="`print_fn` must be a function of a text.* is 'stdout'"):
            getattr(tiny, name)(print_fn="stdout")


def test_options_that_were_set_are_printed_as_one_would_type_them(tiny, all_printed):
    def wide(variable):
        return variable.dtype

    parts = [PipelineStageOptions({"a": "b"}), PipelineStageOptions()]
    pipeline = {
        "gradient_accumulation_steps_per_replica": (6, "6"),
        "device_mapping": ([1, 0], "[1, 0]"),
        "accumulate_outfeed": (True, "True"),
        "gradient_accumulation_reduction_method": ("running_mean", '"running_mean"'),
        "accumulate_outfeed_dtype": (tf.float32, "tf.float32"),
        "gradient_accumulation_dtype": (wide, "wide"),
        "forward_propagation_stages_poplar_options": (
            parts,
            "[PipelineStageOptions(convolution_options={'a': 'b'}), PipelineStageOptions()]",
        ),
        "offload_weights": (False, "False"),
        "phase_liveness": (pipelining.Liveness.OffChipAfterFwd, "Liveness.OffChipAfterFwd"),
        "pipeline_schedule": (pipelining.PhasedExecution.Serial, "PhasedExecution.Serial"),
        "recomputation_mode": (pipelining.RecomputationMode.Auto, "RecomputationMode.Auto"),
    }
    tiny.set_pipelining_options(**{name: value for name, (value, _) in pipeline.items()})
    texts = {name: text for name, (_, text) in pipeline.items()}
    assert lines_of(all_printed(tiny)["pipelining"]) == lines_of(DEFAULTS["pipelining"]) | texts
    tiny.set_gradient_accumulation_options(np.int64(4), "Mean", True, dtype=np.float16, name='my "sums"')
    tiny.set_infeed_queue_options(prefetch_depth=7)
    tiny.set_outfeed_queue_options(buffer_depth=2, optimise_latency=True)
    tiny.set_replication_options(ReplicatedMetricReductionMethod.MEAN)
    texts = all_printed(tiny)
    assert lines_of(texts["gradient_accumulation"]) == {
        **lines_of(DEFAULTS["gradient_accumulation"]),
        "gradient_accumulation_steps_per_replica": "4",
        "gradient_accumulation_reduction_method": '"mean"',
        "use_v2_gradient_accumulation_optimizer": "True",
        "dtype": "tf.float16",
        "name": '"my \\"sums\\""',
    }
    assert texts["infeed_queue"].endswith("  prefetch_depth   = 7\n  optimise_latency = False")
    assert texts["outfeed_queue"].endswith("  buffer_depth     = 2\n  optimise_latency = True")
    assert texts["replication"].endswith('  replicated_metric_reduction_method = "MEAN"')


def test_defaults_are_those_of_what_takes_the_options(tiny):
    """Passing the defaults of options to queues and pipelines must change nothing."""
    renamed = {
        "gradient_accumulation_count": "gradient_accumulation_steps_per_replica",
        "reduction_method": "gradient_accumulation_reduction_method",
    }
    options = tiny._ipu_extension.options
    for group, taker in ((options.pipelining, pipelining.pipeline), (options.outfeed, ipu.IPUOutfeedQueue)):
        parameters = {
            renamed.get(name, name): parameter for name, parameter in inspect.signature(taker).parameters.items()
        }
        assert set(group.names()) <= set(parameters)
        for name in group.names():
            if name != "accumulate_outfeed":  # None is False here.
                assert getattr(group, name) == parameters[name].default, name
    infeed = options.infeed
    tiny.set_infeed_queue_options(prefetch_depth=None)
    assert options.infeed == infeed


# Resetting.


@pytest.mark.parametrize("order", [GROUPS, GROUPS[::-1]])
def test_reset_puts_one_group_after_the_other_back_to_its_defaults(order, tiny, set_all, all_printed):
    set_all(tiny)
    expected = all_printed(tiny)
    for group in order:
        assert expected[group] != DEFAULTS[group]
        assert getattr(tiny, f"reset_{group}_options")() is None
        expected[group] = DEFAULTS[group]
        assert all_printed(tiny) == expected


def test_the_latest_call_says_the_reduction_method_of_both_groups_and_reset_takes_its_own_back(tiny, printed):
    def methods():
        texts = [printed(tiny, group) for group in ("gradient_accumulation", "pipelining")]
        return [lines_of(text)["gradient_accumulation_reduction_method"] for text in texts]

    tiny.set_gradient_accumulation_options(4, "mean")
    assert methods() == ['"mean"', '"mean"']
    tiny.reset_pipelining_options()
    assert methods() == ['"mean"', '"sum"']
    tiny.set_pipelining_options(4, gradient_accumulation_reduction_method="running_mean")
    assert methods() == ['"running_mean"', '"running_mean"']
    tiny.set_gradient_accumulation_options(4)
    assert methods() == ['"sum"', '"sum"']
    tiny.set_gradient_accumulation_options(4, "mean")
    tiny.reset_gradient_accumulation_options()
    assert methods() == ['"sum"', '"mean"']
    # A group without steps loses the method that another group set for both, if that group is reset.
    tiny.reset_pipelining_options()
    tiny.set_gradient_accumulation_options(4, "mean")
    tiny.reset_gradient_accumulation_options()
    assert methods() == ['"sum"', '"sum"']


def test_reset_model_trains_as_plain_keras_does_and_compiles_anew_only_for_options_of_the_program(
    features, scoped, assert_same
):
    data = {"x": features, "y": features[:, :3], "batch_size": BATCH, "verbose": 0, "shuffle": False}

    def compiled():
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input([6]), keras.layers.Dense(3)])
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", steps_per_execution=STEPS)
        return model

    model, plain_model = scoped(compiled), compiled()
    model.set_infeed_queue_options(prefetch_depth=5)
    model.set_replication_options("MEAN")
    model.set_gradient_accumulation_options(3, "mean")
    model.fit(**data)
    assert int(model.optimizer.iterations) == STEPS // 3
    plain_model.optimizer.build(plain_model.trainable_variables)
    plain_model.set_weights(model.get_weights())
    for plain_variable, variable in zip(plain_model.optimizer.variables, model.optimizer.variables, strict=True):
        plain_variable.assign(variable.numpy())
    model.reset_gradient_accumulation_options()
    assert_same(model.fit(**data).history["loss"], plain_model.fit(**data).history["loss"])
    assert_same(model.get_weights(), plain_model.get_weights())
    assert int(model.optimizer.iterations) == STEPS // 3 + STEPS
    # Resetting defaults, or options that are not part of the program, compiles nothing.
    program, traces = model.train_function, model._ipu_extension.traces()
    for group in GROUPS:
        getattr(model, f"reset_{group}_options")()
    assert model.train_function is program
    for group, change in {
        "gradient_accumulation": lambda: model.set_gradient_accumulation_options(3),
        "pipelining": lambda: model.set_pipelining_options(3),
        "outfeed_queue": lambda: model.set_outfeed_queue_options(buffer_depth=2),
    }.items():
        change()
        model.make_train_function()
        getattr(model, f"reset_{group}_options")()
        assert model.train_function is None, group
    model.fit(**data)
    assert model._ipu_extension.traces() == traces


# Models with these methods.


@pytest.mark.parametrize("kind", ["Sequential", "Functional", "Model"])
def test_each_kind_of_model_has_them_in_the_scope_alone(kind, scoped, printed):
    def make():
        inputs = keras.Input([6])
        if kind == "Functional":
            return keras.Model(inputs, keras.layers.Dense(3)(inputs))
        return keras.Sequential([keras.layers.Dense(3)]) if kind == "Sequential" else type("Own", (keras.Model,), {})()

    model, plain_model = scoped(make), make()
    for group in GROUPS:
        assert printed(model, group) == DEFAULTS[group].replace('"tiny"', f'"{model.name}"')
        for name in (f"print_{group}_options", f"reset_{group}_options"):
            getattr(model, name)(**({"print_fn": len} if "print" in name else {}))
            assert hasattr(getattr(keras_extensions, f"{kind}Extension"), name)
            assert not hasattr(plain_model, name)
