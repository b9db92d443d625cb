"""An `IPUConfig` accepts values of the declared types for declared attributes, and nothing else."""

from __future__ import annotations

import copy
import json
import logging
import pickle
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorflow_ipu.config import (
    DeviceConnectionType,
    IPUConfig,
    SchedulingAlgorithm,
    SelectionOrder,
    StochasticRoundingBehaviour,
)

# A small alphabet, since hypothesis takes a second to build its tables for all of Unicode.
_WORDS = st.text('aZ0 "\\\n.äß€', max_size=5)
_TEXT = st.dictionaries(_WORDS, _WORDS, max_size=3)
_IPUS = st.one_of(
    st.integers(1, 64), st.lists(st.integers(1, 8), max_size=4), st.lists(st.integers(1, 8), max_size=4).map(tuple)
)
_BY_TYPE = {
    bool: st.booleans(),
    int: st.integers(0, 2**31),
    float: st.floats(allow_nan=False),
    str: _WORDS,
    dict: _TEXT,
    list: _IPUS,
}


def _assign(config, name, value):
    *parents, last = name.split(".")
    category: Any = config
    for parent in parents:
        category = getattr(category, parent)
    setattr(category, last, value)


@st.composite
def _configs(draw):
    config = IPUConfig()
    names = [name for name in config.to_dict() if name != "optimizations.enable_fast_math"]
    for name in draw(st.lists(st.sampled_from(names), unique=True, max_size=12)):
        default = config.get_attribute_metadata(name).default
        values = st.sampled_from(type(default)) if isinstance(default, Enum) else _BY_TYPE[type(default)]
        _assign(config, name, draw(values))
    return config


@given(_configs())
def test_json_dict_and_copies_bring_back_an_equal_config(config):
    assert json.loads(config.to_json()) == config.to_dict()
    assert IPUConfig().from_json(config.to_json()) == config
    assert IPUConfig().from_dict(config.to_dict()) == config
    assert copy.deepcopy(config) == config
    assert copy.copy(config) == config
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("io_tiles.num_io_tiles", True, "`io_tiles.num_io_tiles` takes exactly `int`.*`True`.*`bool`; write `1`"),
        ("io_tiles.num_io_tiles", 1.0, "`io_tiles.num_io_tiles` takes exactly `int`.*`1.0`.*`float`"),
        ("io_tiles.available_memory_proportion", 1, "takes exactly `float`.*`1`.*`int`; write `1.0`"),
        ("allow_recompute", 1, "`allow_recompute` takes exactly `bool`.*`1`.*`int`; write `True`"),
        ("allow_recompute", None, "`allow_recompute` takes exactly `bool`.*`None`"),
        ("serialization_output_folder", b"x", "takes exactly `str`.*`bytes`"),
        ("compilation_poplar_options", [("a", "b")], "takes exactly `dict`.*`list`"),
        ("selection_order", "ZIGZAG", "takes exactly `SelectionOrder`.*assign one of.*`SelectionOrder.ZIGZAG`"),
        ("selection_order", 1, "takes exactly `SelectionOrder`"),
        ("selection_order", SchedulingAlgorithm.CLUSTERING, "takes exactly `SelectionOrder`"),
        ("floating_point_behaviour.esr", True, "takes exactly `StochasticRoundingBehaviour`"),
        ("auto_select_ipus", True, r"takes exactly `int \| list\[int\] \| tuple\[int, ...\]`.*`True`"),
        ("auto_select_ipus", [1, True], r"`auto_select_ipus`.*`\[1, True\]`"),
        ("auto_select_ipus", (1, 2.0), r"`auto_select_ipus`.*`\(1, 2.0\)`"),
        ("select_ipus", {1}, r"`select_ipus`.*`\{1\}`"),
    ],
)
def test_wrong_type_is_refused_and_the_value_stays(name, value, message, refused):
    config = IPUConfig()
    refused(TypeError, message, _assign, config, name, value)
    assert config == IPUConfig()


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("auto_select_ipu", "auto_select_ipus"),
        ("io_tile", "io_tiles"),
        ("num_io_tiles", "io_tiles.num_io_tiles"),
        ("process_cout", "experimental.multi_replica_distribution.process_count"),
    ],
)
def test_unknown_attribute_is_refused_with_the_nearest_name(name, suggestion, refused):
    for call in (lambda: getattr(IPUConfig(), name), lambda: setattr(IPUConfig(), name, 1)):
        refused(ValueError, f"`{name}` is not an attribute.*did you mean `{suggestion}`", call)


def test_names_that_are_no_attributes_are_refused(refused):
    config: Any = IPUConfig()
    assert not hasattr(config, "number_of_ipus")
    for owner, name, words in (
        (config.optimizations.math, "fats", r"attribute of the category `optimizations.math`.*`optimizations.math.f"),
        (config.io_tiles, "zzz", r"`zzz` is not an attribute.*known are .*`io_tiles.num_io_tiles`"),
        (config, "_private", "`_private` is not an attribute"),
        (config, "_prefix", "`_prefix` is not an attribute"),
    ):
        refused(ValueError, words, setattr, owner, name, 1)
    with pytest.raises(ValueError, match="`__length_hint__` is not an attribute"):
        getattr(config, "__length_hint__")  # noqa: B009
    for name in ("optimizations.maths.fast", "optimizations.math.fats", "optimizations.math.fast.x"):
        with pytest.raises(ValueError, match=f"`{name}` is not an attribute.*`optimizations.math.fast`"):
            config.get_attribute_metadata(name)


def test_category_cannot_be_assigned():
    config: Any = IPUConfig()
    for owner, name, full in (
        (config, "io_tiles", "io_tiles"),
        (config, "optimizations", "optimizations"),
        (config.optimizations, "math", "optimizations.math"),
    ):
        with pytest.raises(AttributeError, match=f"`{full}` is a category, so `1` cannot be assigned.*`{full}\\."):
            setattr(owner, name, 1)


def test_subclass_has_the_same_attributes():
    class Small(IPUConfig):
        """A subclass without further attributes."""

    config = Small()
    config.auto_select_ipus = 2
    assert config.to_dict() == {**IPUConfig().to_dict(), "auto_select_ipus": 2}
    assert {"auto_select_ipus", "io_tiles", "configure_ipu_system"} <= set(dir(config))
    assert {"fast", "dot_strength"} <= set(dir(config.optimizations.math))
    with pytest.raises(ValueError, match="did you mean `select_ipus`"):
        config.select_ipu = 1  # type: ignore[attr-defined]


def test_configs_share_nothing_and_equality_asks_for_meaning_not_for_form(refused):
    first, second = IPUConfig(), IPUConfig()
    first.matmuls.poplar_options["a"] = "b"
    first.io_tiles.num_io_tiles = 4
    assert second == IPUConfig()
    shallow = copy.copy(first)
    shallow.io_tiles.num_io_tiles = 5
    shallow.matmuls.poplar_options["a"] = "c"
    assert (first.io_tiles.num_io_tiles, first.matmuls.poplar_options) == (4, {"a": "b"})
    first = IPUConfig()
    first.auto_select_ipus, second.auto_select_ipus = 2, (2,)
    assert first == second
    second.auto_select_ipus = [2, 2]
    assert first != second
    assert first != "first"
    assert first.io_tiles == second.io_tiles
    assert first.io_tiles != first.matmuls
    refused(TypeError, "unhashable", hash, first)


def test_repr_shows_what_differs_and_str_shows_all():
    config = IPUConfig()
    assert repr(config) == "IPUConfig()"
    config.auto_select_ipus = [2]
    config.scheduling.algorithm = SchedulingAlgorithm.CLUSTERING
    config.device_connection.version = "ipu2"
    assert repr(config) == (
        "IPUConfig(auto_select_ipus=[2], device_connection.version='ipu2',"
        " scheduling.algorithm=SchedulingAlgorithm.CLUSTERING)"
    )
    assert repr(config.scheduling) == "Scheduling(algorithm=SchedulingAlgorithm.CLUSTERING)"
    assert len(str(config).splitlines()) == 57
    assert "device_connection.version = 'ipu2'" in str(config).splitlines()


def test_deprecated_attribute_warns_in_the_log_when_set(caplog):
    config = IPUConfig()
    with caplog.at_level(logging.WARNING, logger="tensorflow_ipu"):
        config.optimizations.enable_fast_math = True
    assert "`optimizations.enable_fast_math` is deprecated" in caplog.text
    assert "`optimizations.math.fast`" in caplog.text
    assert config.optimizations.enable_fast_math is True
    assert config.optimizations.math.fast is False
    deprecated = [name for name in config.to_dict() if config.get_attribute_metadata(name).deprecated]
    assert deprecated == ["optimizations.enable_fast_math"]
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="tensorflow_ipu"):
        config.optimizations.math.fast = True
        IPUConfig().from_dict(IPUConfig().to_dict())
    assert caplog.text == ""


def test_metadata_checks_types_and_warns_and_has_neither_type_nor_default_for_a_category(caplog, refused):
    config = IPUConfig()
    metadata = config.get_attribute_metadata("optimizations.enable_fast_math")
    assert metadata.deprecated
    assert metadata.deprecated_msg is not None
    metadata.check_type(True)
    refused(TypeError, r"`optimizations.enable_fast_math` takes exactly `bool`", metadata.check_type, "yes")
    with caplog.at_level(logging.WARNING, logger="tensorflow_ipu"):
        metadata.warn_if_deprecated()
        config.get_attribute_metadata("allow_recompute").warn_if_deprecated()
    assert len(caplog.records) == 1
    metadata = config.get_attribute_metadata("optimizations.math")
    assert (metadata.type, metadata.default, metadata.deprecated) == (None, None, False)
    assert "arithmetic" in metadata.doc
    refused(TypeError, r"`optimizations.math` is a category", metadata.check_type, 1)
    metadata = config.optimizations.get_attribute_metadata("math.fast")
    assert (metadata.name, metadata.depth) == ("optimizations.math.fast", 3)
    metadata = config.get_attribute_metadata("auto_select_ipus")
    metadata.default.append(1)
    assert metadata.default == []
    with pytest.raises(TypeError, match="`attr` must be the name of an attribute, but is 3"):
        config.get_attribute_metadata(3)  # type: ignore[arg-type]


def test_to_dict_is_flat_and_plain_and_from_dict_sets_what_it_names():
    config = IPUConfig()
    config.auto_select_ipus = (1, 2)
    config.floating_point_behaviour.esr = StochasticRoundingBehaviour.ON
    dct = config.to_dict()
    assert dct["floating_point_behaviour.esr"] == "StochasticRoundingBehaviour.ON"
    assert dct["auto_select_ipus"] == [1, 2]
    assert dct["optimizations.math.dot_strength"] is True
    dct["matmuls.poplar_options"]["a"] = "b"
    assert config.matmuls.poplar_options == {}
    math = config.optimizations.math.to_dict()
    assert math == {"optimizations.math.fast": False, "optimizations.math.dot_strength": True}
    assert config.from_dict({"selection_order": SelectionOrder.HOOF, "device_connection.type": "NEVER"}) is config
    assert config.selection_order is SelectionOrder.HOOF
    assert config.device_connection.type is DeviceConnectionType.NEVER
    before = copy.deepcopy(config)
    with pytest.raises(TypeError, match=r"(?s)2 faults.*`allow_recompute`.*`scheduling.algorithm`"):
        config.from_dict({"allow_recompute": 1, "io_tiles.num_io_tiles": 3, "scheduling.algorithm": "x"})
    assert config == before


@pytest.mark.parametrize(
    ("dct", "kind", "message"),
    [
        ({"selection_ordr": 1}, ValueError, "`selection_ordr` is not an attribute.*did you mean `selection_order`"),
        ({"io_tiles": 1}, ValueError, "`io_tiles` is not an attribute"),
        ({"selection_order": "ZIGZAP"}, ValueError, "no enumerator `ZIGZAP`.*did you mean `SelectionOrder.ZIGZAG`"),
        ({1: 1}, TypeError, "`1` is not an attribute"),
        ([1], TypeError, r"`dct` must be a mapping.*\[1\]"),
        ("{", ValueError, "`json_cfg` is not JSON"),
        ("[1]", TypeError, "must be a mapping"),
        ('{"allow": true}', ValueError, "`allow` is not an attribute"),
    ],
)
def test_from_dict_and_from_json_refuse_wrong_names_and_types(dct, kind, message):
    with pytest.raises(kind, match=message):
        IPUConfig().from_json(dct) if isinstance(dct, str) else IPUConfig().from_dict(dct)
