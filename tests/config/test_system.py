"""The system is configured, asked for and reset by the functions that users call."""

from __future__ import annotations

import copy
import logging
import pickle
from typing import Any

import pytest
import tensorflow as tf

from tensorflow_ipu.config import (
    IPUConfig,
    SelectionOrder,
    configure_ipu_system,
    get_ipu_config,
    reset_ipu_configuration,
)
from tensorflow_ipu.errors import IpuError, NotConfiguredError


def _config(*ipus: int) -> IPUConfig:
    config = IPUConfig()
    config.auto_select_ipus = ipus
    return config


def test_there_is_one_record_a_device():
    config = _config(2, 4)
    config.selection_order = SelectionOrder.SNAKE
    configure_ipu_system(config)
    records = get_ipu_config(session=object())
    assert [(record.device_ordinal, record.ipu_count) for record in records] == [(0, 2), (1, 4)]
    assert all(record.options["selection_order"] is SelectionOrder.SNAKE for record in records)
    assert records[0].to_dict() == {**config.to_dict(), "auto_select_ipus": [2, 4]}


def test_record_does_not_change_and_configures_the_system_it_came_from():
    config = _config(1)
    config.matmuls.poplar_options["a"] = "b"
    config.configure_ipu_system()
    record = get_ipu_config()[0]
    config.matmuls.poplar_options["a"] = "c"
    assert record.options["matmuls.poplar_options"] == {"a": "b"}
    with pytest.raises(TypeError, match="does not support item assignment"):
        record.options["allow_recompute"] = True  # type: ignore[index]
    with pytest.raises(TypeError, match="does not support item assignment"):
        record.options["matmuls.poplar_options"]["a"] = "d"
    with pytest.raises(AttributeError, match="ipu_count"):
        record.ipu_count = 3  # type: ignore[misc]
    assert copy.deepcopy(record) == record == copy.copy(record)
    assert pickle.loads(pickle.dumps(record)) == record
    assert repr(record) == "IpuOptions(device_ordinal=0, ipu_count=1)"
    with pytest.raises(TypeError, match="unhashable"):
        hash(record)
    reset_ipu_configuration()
    configure_ipu_system(record)
    assert get_ipu_config() == [record]


@pytest.mark.parametrize("config", [None, {}, "config", IPUConfig, IPUConfig().io_tiles])
def test_config_must_be_a_config(config: Any):
    with pytest.raises(TypeError, match="`config` must be an `IPUConfig`"):
        configure_ipu_system(config)


def test_other_arguments_are_checked():
    with pytest.raises(TypeError, match=r"`device` must be the name of a host device.*`3`"):
        configure_ipu_system(IPUConfig(), device=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`device` must be"):
        IPUConfig().configure_ipu_system(device=None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`reset_configuration` must be `True` or `False`, and `1`"):
        configure_ipu_system(IPUConfig(), reset_configuration=1)  # type: ignore[arg-type]


def test_other_configuration_replaces_with_a_warning_where_it_is_right_and_may(caplog: pytest.LogCaptureFixture):
    configure_ipu_system(_config(2))
    with caplog.at_level(logging.WARNING, logger="tensorflow_ipu"):
        _config(4).configure_ipu_system()
    assert "is reset" in caplog.text
    with pytest.raises(tf.errors.FailedPreconditionError, match="`reset_ipu_configuration\\(\\)` first"):
        configure_ipu_system(_config(2), reset_configuration=False)
    with pytest.raises(ValueError, match="`auto_select_ipus` has `0`"):
        configure_ipu_system(_config(0))
    assert [record.ipu_count for record in get_ipu_config()] == [4]


def test_same_configuration_again_changes_nothing(caplog: pytest.LogCaptureFixture):
    configure_ipu_system(_config(2))
    before = get_ipu_config()
    with caplog.at_level(logging.WARNING, logger="tensorflow_ipu"):
        configure_ipu_system(_config(2))
        configure_ipu_system(_config(2), reset_configuration=False)
    assert caplog.text == ""
    assert [id(record) for record in get_ipu_config()] == [id(record) for record in before]


def test_reset_forgets_the_configuration():
    configure_ipu_system(_config(2))
    reset_ipu_configuration()
    reset_ipu_configuration()
    with pytest.raises(RuntimeError, match="No IPU devices configured. Call `configure_ipu_system") as info:
        get_ipu_config()
    assert isinstance(info.value, NotConfiguredError)
    assert isinstance(info.value, IpuError)
    configure_ipu_system(_config(4), reset_configuration=False)
    assert [record.ipu_count for record in get_ipu_config()] == [4]
