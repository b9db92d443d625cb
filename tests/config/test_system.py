"""Public functions configure, return, reset, save and load the configuration of the system."""

import copy
import logging
import pickle

import pytest
import tensorflow as tf

from tensorflow_ipu.config import (
    IPUConfig,
    SelectionOrder,
    configure_ipu_system,
    get_ipu_config,
    load,
    reset_ipu_configuration,
    save,
)
from tensorflow_ipu.errors import IpuError, NotConfiguredError


def _config(*ipus):
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


def test_record_does_not_change_and_configures_the_system_it_came_from(refused):
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
    refused(TypeError, "unhashable", hash, record)
    reset_ipu_configuration()
    configure_ipu_system(record)
    assert get_ipu_config() == [record]


def test_arguments_are_checked(refused):
    for config in (None, {}, "config", IPUConfig, IPUConfig().io_tiles):
        refused(TypeError, "`config` must be an `IPUConfig`", configure_ipu_system, config)
    for arguments, message in (
        ({"device": 3}, "`device` must be the name of a host device.*but is 3"),
        ({"device": None}, "`device` must be"),
        ({"reset_configuration": 1}, "`reset_configuration` must be True or False, but is 1"),
    ):
        refused(TypeError, message, configure_ipu_system, IPUConfig(), **arguments)
    refused(TypeError, "`device` must be", IPUConfig().configure_ipu_system, device=None)


def test_other_configuration_replaces_with_a_warning_where_it_is_right_and_may(caplog, refused):
    configure_ipu_system(_config(2))
    with caplog.at_level(logging.WARNING, logger="tensorflow_ipu"):
        _config(4).configure_ipu_system()
    assert "is reset" in caplog.text
    with pytest.raises(tf.errors.FailedPreconditionError, match="`reset_ipu_configuration\\(\\)` first"):
        configure_ipu_system(_config(2), reset_configuration=False)
    refused(ValueError, "`auto_select_ipus` has `0`", configure_ipu_system, _config(0))
    assert [record.ipu_count for record in get_ipu_config()] == [4]


def test_same_configuration_again_changes_nothing_and_reset_forgets_it(caplog):
    configure_ipu_system(_config(2))
    first_records = get_ipu_config()
    with caplog.at_level(logging.WARNING, logger="tensorflow_ipu"):
        configure_ipu_system(_config(2))
        configure_ipu_system(_config(2), reset_configuration=False)
    assert caplog.text == ""
    assert [id(record) for record in get_ipu_config()] == [id(record) for record in first_records]
    reset_ipu_configuration()
    reset_ipu_configuration()
    with pytest.raises(NotConfiguredError, match="No IPU devices configured. Call `configure_ipu_system") as info:
        get_ipu_config()
    assert isinstance(info.value, (RuntimeError, IpuError))
    configure_ipu_system(_config(4), reset_configuration=False)
    assert [record.ipu_count for record in get_ipu_config()] == [4]


def test_a_saved_configuration_comes_back(tmp_path):
    config = IPUConfig()
    config.auto_select_ipus = [2, 4]
    config.selection_order = SelectionOrder.ZIGZAG
    config.matmuls.poplar_options = {"availableMemoryProportion": "0.4"}
    file = tmp_path / "ipu.json"
    save(file, config)
    assert load(str(file)) == config
    assert len(file.read_text().splitlines()) > len(config.to_dict())  # The file is readable.
    file.write_text('{"selection_order": "ZIGZAG"}')
    assert load(file) == IPUConfig().from_dict({"selection_order": "ZIGZAG"})


def test_without_a_configuration_that_in_force_is_saved(tmp_path):
    save(tmp_path / "defaults.json")
    assert load(tmp_path / "defaults.json") == IPUConfig()
    config = IPUConfig()
    config.auto_select_ipus = 2
    config.io_tiles.num_io_tiles = 32
    config.configure_ipu_system()
    config.io_tiles.num_io_tiles = 64
    save(tmp_path / "in_force.json")
    loaded = load(tmp_path / "in_force.json")
    assert (loaded.auto_select_ipus, loaded.io_tiles.num_io_tiles) == ([2], 32)


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("{", ValueError, "is not JSON"),
        ("\udcff", ValueError, "is no UTF-8 text"),
        ("[1, 2]", TypeError, r"it contains `\[1, 2\]`, but must contain a JSON object"),
        ('{"allow_recompute": true, "allow_recompute": false}', ValueError, "`allow_recompute` is there 2 times"),
        ('{"io_tiles.num_io_tiles": true}', TypeError, r"`io_tiles\.num_io_tiles` takes exactly `int`"),
        ('{"io_tiles.num_io_tiles": -1}', ValueError, r"`io_tiles\.num_io_tiles=-1` is too low"),
        ('{"gcl_poplar_options": {"a": 1}}', TypeError, "`gcl_poplar_options` maps text to text"),
        (
            '{"select_ipus": "1", "allow_recompute": 1}',
            TypeError,
            r"[\s\S]*2 faults[\s\S]*`select_ipus`[\s\S]*`allow_recompute`[\s\S]*write `True`",
        ),
        ('{"ipu_model.version": "ipu3", "auto_select_ipus": "4"}', TypeError, r"`auto_select_ipus` takes exactly"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_and_the_attribute(tmp_path, text, kind, message, refused):
    file = tmp_path / "ipu.json"
    file.write_bytes(text.encode(errors="surrogateescape"))
    refused(kind, rf"`{file}`.*{message}", load, file)


def test_what_is_no_path_or_no_configuration_is_refused(tmp_path, refused):
    refused(TypeError, "`path` must be the path of a file, but is 3", load, 3)
    refused(TypeError, "`config` must be an `IPUConfig`", save, tmp_path / "ipu.json", {})
    assert not (tmp_path / "ipu.json").exists()
    refused(FileNotFoundError, r"ipu\.json", load, tmp_path / "ipu.json")
