"""The table of old names: each name exists and accepts the arguments of the SDK's API."""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest

from tensorflow_ipu.compat import _names
from tensorflow_ipu.compat._names import Absent, Module, resolve
from tensorflow_ipu.keras.optimizers import ALSDefaults

pytestmark = pytest.mark.usefixtures("installed")

IPU = "tensorflow.python.ipu"

# Modules that scripts import, by their names in `ipu`.
ON_IPU = """
all_to_all_op application_compile_op control_flow_ops custom_ops cross_replica_ops embedded_runtime embedding_ops f8_ops
functional_ops grad_util_ops image_ops internal_ops math_ops nn_ops normalization_ops pipelining_ops rand_ops
reduce_scatter_op replication_ops slicing_ops statistics_ops within_replica_ops popfloat_cast_to_gfloat data config
dataset_benchmark eager ipu_compiler ipu_infeed_queue ipu_multi_worker_strategy ipu_outfeed_queue ipu_strategy loops
scopes serving sharding utils vertex_edsl ipu_run_config ipu_session_run_hooks ipu_estimator ipu_pipeline_estimator
cross_replica_optimizer ipu_optimizer map_gradient_optimizer sharded_optimizer gradient_accumulation_optimizer
optimizers gradient_accumulation distributed dataset_extractor ops
""".split()  # noqa: SIM905

ROWS = [(module, name, target) for module, old in _names.MODULES.items() for name, target in old.names.items()]
HERE = [(module, name, target) for module, name, target in ROWS if isinstance(target, str)]
ABSENT = [(module, name, target) for module, name, target in ROWS if isinstance(target, Absent)]


def test_modules_are_on_ipu_and_importable_by_their_paths():
    from tensorflow.python import ipu

    for name in ON_IPU:
        assert getattr(ipu, name) is importlib.import_module(f"{IPU}.{name}"), name
    for alias, module in _names.ALIASES.items():
        assert importlib.import_module(alias) is importlib.import_module(module)
    method = ipu.gradient_accumulation.GradientAccumulationReductionMethod
    assert ipu.optimizers.GradientAccumulationReductionMethod is method
    from keras.ipu.extensions import extensions_base, functional_extensions, model_extensions, sequential_extensions

    of_files = (functional_extensions, sequential_extensions, model_extensions)
    for module, name in zip(of_files, ("Functional", "Sequential", "Model"), strict=True):
        assert issubclass(getattr(module, f"{name}Extension"), extensions_base.KerasExtensionBase)


def test_class_of_the_addons_goes_by_its_short_name():
    from ipu_tensorflow_addons.keras import layers
    from ipu_tensorflow_addons.keras.layers.normalization import GroupNorm
    from ipu_tensorflow_addons.keras.layers.rnn import LSTM

    assert (layers.PopnnLSTM, layers.PopnnGRU) == (layers.LSTM, layers.GRU)
    assert (layers.LayerNorm, layers.GroupNorm) == (layers.LayerNormalization, layers.GroupNormalization)
    assert layers.InstanceNorm is layers.InstanceNormalization
    assert (LSTM, GroupNorm) == (layers.LSTM, layers.GroupNorm)


def test_rows_lead_to_what_they_say():
    for module, name, target in HERE:
        assert getattr(importlib.import_module(module), name) is resolve(target), (module, name)


def test_members_of_enums_are_printed_as_by_the_python_of_the_sdk():
    of_ours = [resolve(target) for _, _, target in HERE if target.startswith("tensorflow_ipu")]
    kinds: set[Any] = {kind for kind in of_ours if isinstance(kind, enum.EnumMeta)}
    assert {"IPUOutfeedMode", "PipelineSchedule", "Format", "DeviceConnectionType"} < {kind.__name__ for kind in kinds}
    members: list[Any] = [member for kind in kinds for member in kind]
    for member in members:
        assert str(member) == f"{type(member).__name__}.{member.name}"
        assert f"{member}" == (str(int(member)) if isinstance(member, int) else str(member))


def test_absent_names_say_why_on_access_and_on_import():
    for module, name, target in ABSENT:
        old = importlib.import_module(module)
        with pytest.raises(AttributeError) as accessed:
            getattr(old, name)
        with pytest.raises(ImportError) as imported:
            exec(f"from {module} import {name}")
        for message in (str(accessed.value), str(imported.value)):
            assert message == f"`{module}.{name}` cannot be used: {target.reason}"
        assert not hasattr(old, name), (module, name)


def test_dir_lists_what_exists_and_nothing_else():
    for module in _names.MODULES:
        old = importlib.import_module(module)
        assert {name for where, name, _ in HERE if where == module} <= set(dir(old)), module
        for name in dir(old):
            assert getattr(old, name) is not None, (module, name)
        assert not {name for where, name, _ in ABSENT if where == module} & set(dir(old)), module


def test_error_of_an_unknown_name_suggests_the_nearest_one():
    from tensorflow.python.ipu import loops

    with pytest.raises(AttributeError, match=r"`tensorflow.python.ipu.loops` has no name `repeats`.*`repeat`"):
        loops.repeats  # noqa: B018
    with pytest.raises(ImportError, match=r"has no name `repeats`.*`repeat`"):
        from tensorflow.python.ipu.loops import repeats  # noqa: F401
    with pytest.raises(ModuleNotFoundError, match=r"no module `tensorflow.python.ipu.loop`.*`loops`"):
        importlib.import_module(f"{IPU}.loop")
    for package in ("keras.ipu.extensions", "tensorflow.keras.ipu.extensions"):
        with pytest.raises(ModuleNotFoundError, match="polling_thread`: it implemented `fit`"):
            importlib.import_module(f"{package}.polling_thread")
    ops = importlib.import_module("tensorflow.compiler.plugin.poplar.ops")
    with pytest.raises(AttributeError, match="generated wrappers"):
        ops.gen_popops_ops  # noqa: B018


def test_module_that_is_gone_says_what_became_of_it_and_a_star_import_brings_what_exists():
    for module in (f"{IPU}.ops.rnn_ops", "keras.testing_utils"):
        with pytest.raises(ModuleNotFoundError, match=f"no module `{module}`: ") as caught:
            importlib.import_module(module)
        assert caught.value.name == module
    namespace = {}
    exec("from tensorflow.python.ipu.loops import *", namespace)
    assert {"repeat", "while_loop"} <= set(namespace)


def test_first_place_of_names_of_keras_has_those_of_keras_ipu_and_of_the_addons():
    first, current = importlib.import_module(f"{IPU}.keras"), importlib.import_module("keras.ipu")
    assert first.PipelineStage is first.pipeline.PipelineStage is current.PipelineStage
    assert first.layers.rnn.LSTM is importlib.import_module("ipu_tensorflow_addons.keras.layers").PopnnLSTM
    assert first.extensions.functional_extensions is current.extensions.functional_extensions
    assert first.optimizers.MapGradientOptimizer
    with pytest.raises(AttributeError, match="use `tf.keras.Model`"):
        first.PipelineModel  # noqa: B018


def test_table_takes_a_name_by_a_row(monkeypatch):
    rows = {"still_missing": Absent("of a reason"), "shard": "tensorflow_ipu.scopes:ipu_shard"}
    monkeypatch.setitem(_names.MODULES, f"{IPU}.new", Module(rows))
    new = importlib.import_module(f"{IPU}.new")
    assert new.shard is importlib.import_module(f"{IPU}.scopes").ipu_shard
    assert dir(new) == ["shard"]


def test_code_for_ipus_finds_the_optimizers_where_it_looks_for_them():
    import keras.ipu.optimizers
    from ipu_tensorflow_addons.keras.optimizers import AdamIpuOptimizer, LAMBIpuOptimizer, SGDIpuOptimizer
    from keras.ipu.optimizers.als_optimizer import ALSDefaults, ALSOptimizer
    from tensorflow.python import ipu
    from tensorflow.python.ipu import gradient_accumulation as ga
    from tensorflow.python.ipu.optimizers import CrossReplicaOptimizer, gradient_accumulation_optimizer

    assert ipu.optimizers.CrossReplicaOptimizer is CrossReplicaOptimizer
    assert ipu.cross_replica_optimizer.CrossReplicaOptimizer is CrossReplicaOptimizer
    assert ipu.optimizers.GradientAccumulationOptimizerV2 is (
        gradient_accumulation_optimizer.GradientAccumulationOptimizerV2
    )
    assert ga.GradientAccumulationReductionMethod.parse("mean").name == "MEAN"
    assert issubclass(keras.ipu.optimizers.ALSOptimizerAdam, ALSOptimizer)
    assert issubclass(keras.ipu.optimizers.GradientAccumulationOptimizer, keras.optimizers.Optimizer)
    assert ALSDefaults.update_frequency == 8
    names = [optimizer().name for optimizer in (AdamIpuOptimizer, LAMBIpuOptimizer, SGDIpuOptimizer)]
    assert names == ["Adam", "LAMB", "SGD"]


# Attributes that instances have, but their class lacks.
OF_INSTANCES = {f"{kind}LayerPipelineStageAssignment.pipeline_stage" for kind in ("Model", "Sequential")}
# The SDK's method accepts `*args`, and this one the arguments of the wrapped optimizer's method.
OTHERWISE = {"MapGradientOptimizer.compute_gradients"}


def _contract():
    """Yields module, name, and signature such as `(x, name=None)`, or a kind, for each name of the contract."""
    for line in Path(__file__).with_name("contract.txt").read_text().splitlines()[2:]:
        module, names, signature = line.split(" ", 2)
        owner, dot, members = names.rpartition(".")
        for name in members.split(","):
            yield module, f"{owner}{dot}{name}", signature


def _expected(source):
    """Returns the value of a default, or the name if the default is a constant."""
    text = ast.unparse(source)
    if text.startswith("ALSDefaults."):
        return getattr(ALSDefaults, text.partition(".")[2])
    try:
        return ast.literal_eval(source)
    except ValueError:
        return text.rpartition(".")[2]


def _is_default(default, expected):
    if isinstance(expected, str) and not isinstance(default, str):  # A constant of TensorFlow or of an enumeration.
        return (default.name if isinstance(default, enum.Enum) or hasattr(default, "name") else str(default)) in (
            expected,
            {"half": "float16"}.get(expected),
        )
    return (tuple(expected) if isinstance(expected, list) else expected) == default or default == expected


def _problems(module, name, signature):
    value: Any = importlib.import_module(module)
    for part in name.split("."):
        if not hasattr(value, part):
            return [] if name in OF_INSTANCES else [f"{name}: there is no `{part}`"]
        value = getattr(value, part)
    if not signature.startswith("(") or name in OTHERWISE:
        return []
    function: Any = ast.parse(f"def f{signature}: pass").body[0]
    expected = [parameter.arg for parameter in function.args.args if parameter.arg != "self"]
    parameters = [parameter for parameter in inspect.signature(value).parameters.values() if parameter.name != "self"]
    positional = [
        parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]
    if positional[: len(expected)] != expected:
        return [f"{name}: takes {positional}, and not {expected}"]
    needed = [
        parameter.name
        for parameter in parameters
        if parameter.name in positional[len(expected) :] and parameter.default is parameter.empty
    ]
    problems = [f"{name}: also needs {needed}"] if needed else []
    defaults = zip(reversed(expected), reversed(function.args.defaults), strict=False)
    actual_defaults = {parameter.name: parameter.default for parameter in parameters}
    return problems + [
        f"{name}: `{argument}` is {actual_defaults[argument]!r}, and not {ast.unparse(default)}"
        for argument, default in defaults
        if repr(actual_defaults[argument]) != ast.unparse(default)
        and not _is_default(actual_defaults[argument], _expected(default))
    ]


def test_every_name_of_the_contract_has_its_row_and_arguments_and_members_are_those_of_the_contract():
    rows = [
        (_names.target(module, name.partition(".")[0]), module, name, signature)
        for module, name, signature in _contract()
    ]
    assert [(module, name) for target, module, name, _ in rows if target is None] == []
    existing = [row for target, *row in rows if not isinstance(target, Absent)]
    assert len(existing) > 300
    assert [problem for row in existing for problem in _problems(*row)] == []
