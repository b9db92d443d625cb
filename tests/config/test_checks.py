"""`configure_ipu_system` rejects invalid configurations, and makes devices of selections."""

import pytest

from tensorflow_ipu._base import environment
from tensorflow_ipu.config import (
    IPUConfig,
    StochasticRoundingBehaviour,
    configure_ipu_system,
    get_ipu_config,
    reset_ipu_configuration,
)
from tensorflow_ipu.errors import DeviceLimitError, IpuError


def _set(config, **values):
    return config.from_dict({name.replace("__", "."): value for name, value in values.items()})


def _configured(**values):
    configure_ipu_system(_set(IPUConfig(), **values))
    return [record.ipu_count for record in get_ipu_config()]


@pytest.mark.parametrize(
    ("name", "selection", "counts"),
    [
        ("auto_select_ipus", (2, 4), [2, 4]),
        ("auto_select_ipus", 4, [4]),
        ("auto_select_ipus", [], [1]),
        ("select_ipus", 0, [1]),
        ("select_ipus", [0, 1, 97], [1, 1, 4]),
        ("select_ipus", (126,), [64]),
        ("select_ipus", [64, 67], [2, 2]),
        ("select_ipus", [63, 64, 97, 113], [1, 2, 4, 8]),
    ],
)
def test_selection_makes_devices_and_a_number_is_rewritten_to_a_list(name, selection, counts):
    config = _set(IPUConfig(), **{name: selection})
    config.configure_ipu_system()
    assert getattr(config, name) == ([selection] if isinstance(selection, int) else selection)
    assert [record.ipu_count for record in get_ipu_config()] == counts


GROUP = "norms__experimental__distributed_batch_norm_replica_group_size"
PROCESSES = "experimental__multi_replica_distribution__process_"


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        ({"auto_select_ipus": 1, "select_ipus": [3]}, Exception, r"_ipus=\[1\]` and `select_ipus=\[3\]` are both set"),
        ({"auto_select_ipus": [1, 0, -2]}, ValueError, "`auto_select_ipus` has `0`, `-2`; each device needs at least"),
        ({"select_ipus": [1, 2, 1]}, ValueError, "`select_ipus` has `1` more than once"),
        ({"select_ipus": [-1]}, ValueError, "`-1` in `select_ipus` is no id"),
        ({"select_ipus": [97, 66, 0]}, ValueError, "ids `97` and `66` in `select_ipus` share IPUs"),
        ({"io_tiles__place_ops_on_io_tiles": True}, ValueError, "`io_tiles.num_io_tiles` is 0"),
        ({"io_tiles__num_io_tiles": 32, GROUP: 2}, ValueError, "_size=2` does not go with `io_tiles.num_io_tiles=32`"),
        ({"device_connection__type": "NEVER"}, ValueError, "`device_connection.version` is empty.*NEVER"),
        ({"device_connection__type": "PRE_COMPILE"}, ValueError, "`device_connection.version` is empty.*PRE_COMPILE"),
        ({"device_connection__version": "ipu9"}, ValueError, "`device_connection.version='ipu9'` is not known.*'ipu2'"),
        ({"ipu_model__version": "gpu"}, ValueError, "`ipu_model.version='gpu'` is not known"),
        (
            {f"{PROCESSES}count": 2, f"{PROCESSES}index": 2},
            ValueError,
            "process_index=2` names none of the 2 processes; it must be from 0 to 1",
        ),
        (
            {"auto_select_ipus": [1, 4], GROUP: 3},
            ValueError,
            "group_size=3` does not divide the 4 IPUs of `/device:IPU:1`.*set it to a divisor of 4, or to 1",
        ),
        ({GROUP: 0}, ValueError, "group_size=0` is too low; it must be at least 1"),
        (
            {"convolutions__poplar_options": {"availableMemoryProportion": "abc"}},
            ValueError,
            "`convolutions.poplar_options` has `'availableMemoryProportion': 'abc'`.*a number from 0 to 1 as text",
        ),
        (
            {"matmuls__poplar_options": {"partialsType": "half", "availableMemoryProportion": "1.5"}},
            ValueError,
            "`matmuls.poplar_options` has `'availableMemoryProportion': '1.5'`",
        ),
        ({"io_tiles__num_io_tiles": -1}, ValueError, "`io_tiles.num_io_tiles=-1` is too low"),
        ({"io_tiles__available_memory_proportion": 1.5}, ValueError, "proportion=1.5` is too high"),
        ({"io_tiles__available_memory_proportion": float("nan")}, ValueError, "proportion=nan` is too low"),
    ],
)
def test_configuration_is_refused(values, kind, message, refused):
    refused(kind, message, _configured, **values)
    refused(RuntimeError, "No IPU devices configured", get_ipu_config)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"select_ipus": [0]}, r"`select_ipus=\[0\]` does not go with the IPU Model.*`auto_select_ipus`"),
        ({"ipu_model__version": ""}, "`ipu_model.version` is empty, and the IPU Model is in use"),
        ({f"{PROCESSES}count": 1}, "process_count=1` does not go with the IPU Model"),
    ],
)
def test_configuration_is_refused_on_the_ipu_model_alone(values, message, monkeypatch, refused):
    assert _configured(**values) == [1]
    monkeypatch.setenv(environment.FLAGS_VARIABLE, "--use_ipu_model")
    refused(ValueError, message, _configured, **values)


def test_configuration_is_accepted():
    for values in (
        {"device_connection__type": "ON_DEMAND"},
        {"device_connection__type": "NEVER", "device_connection__version": "ipu2"},
        {"io_tiles__place_ops_on_io_tiles": True, "io_tiles__num_io_tiles": 1},
        {"io_tiles__available_memory_proportion": 1.0},
        {GROUP: 2},
    ):
        reset_ipu_configuration()
        assert _configured(**values) == [1]


def test_options_must_map_text_to_text(refused):
    config = IPUConfig()
    for category in (config.convolutions, config.matmuls, config.pooling, config.slices):
        for options in (config.compilation_poplar_options, config.gcl_poplar_options, category.poplar_options):
            options["availableMemoryProportion"] = 0.1  # pyright: ignore[reportArgumentType]
            with pytest.raises(TypeError, match=r"`\{'availableMemoryProportion': 0.1\}` does not; write `.*'0.1'\}`"):
                config.configure_ipu_system()
            options["availableMemoryProportion"] = "0.1"
            config.configure_ipu_system()
            options[1] = "x"  # pyright: ignore[reportArgumentType]
            refused(TypeError, r"_options` maps text to text, and `\{1: 'x'\}` does not", config.configure_ipu_system)
            options.clear()


def test_all_faults_are_reported_together():
    config = _set(IPUConfig(), auto_select_ipus=[0], io_tiles__place_ops_on_io_tiles=True, ipu_model__version="x")
    with pytest.raises(ValueError, match="3 faults") as info:
        config.configure_ipu_system()
    for part in ("`auto_select_ipus` has `0`", "`ipu_model.version='x'`", "place_ops_on_io_tiles=True"):
        assert part in str(info.value)


def test_set_all_forces_floating_point_behaviour_in_the_record_alone():
    config = _set(IPUConfig(), floating_point_behaviour__set_all=True)
    config.configure_ipu_system()
    options = get_ipu_config()[0].options
    for name in ("inv", "div0", "oflo", "nanoo"):
        assert options[f"floating_point_behaviour.{name}"] is True
    assert options["floating_point_behaviour.esr"] is StochasticRoundingBehaviour.ON
    assert config.floating_point_behaviour.inv is False
    assert config.floating_point_behaviour.esr is StochasticRoundingBehaviour.OFF


@pytest.mark.parametrize(
    ("values", "message", "count"),
    [
        ({"auto_select_ipus": [64, 1]}, r"requests 65 IPUs, but the machine has 64.*`TENSORFLOW_IPU_COUNT=65`", 65),
        ({"select_ipus": [127]}, r"64 IPUs has no id `127`.*`TENSORFLOW_IPU_COUNT=128`", 128),
    ],
)
def test_more_ipus_than_the_machine_has_are_refused(values, message, count, monkeypatch, refused):
    refused(DeviceLimitError, message, _configured, **values)
    monkeypatch.setenv(environment.COUNT_VARIABLE, str(count))
    assert _configured(**values)


def test_ids_of_a_machine_that_is_no_power_of_two(monkeypatch, refused):
    monkeypatch.setenv(environment.COUNT_VARIABLE, "6")
    assert _configured(select_ipus=[8, 9]) == [2, 4]
    refused(ValueError, "ids `5` and `8` in `select_ipus` share IPUs", _configured, select_ipus=[5, 8])
    refused(DeviceLimitError, "has no id `10`", _configured, select_ipus=[10])


# The message suggested a value that the variable does not accept.
@pytest.mark.parametrize("number", [65537, 2**32 + 2, 10**20])
def test_more_ipus_than_any_machine_has_are_refused_with_the_limit(number, refused):
    for option in ("auto_select_ipus", "select_ipus"):
        config = IPUConfig()
        setattr(config, option, number if option == "auto_select_ipus" else 3 * number)
        refused(DeviceLimitError, "choose less: `TENSORFLOW_IPU_COUNT` goes up to 65536", config.configure_ipu_system)


def test_more_devices_than_registered_are_refused(monkeypatch, refused):
    with pytest.raises(DeviceLimitError, match=r"9 devices are requested, but 8 were.*`TENSORFLOW_IPU_DEVICES=9`"):
        _configured(auto_select_ipus=[1] * 9)
    refused(IpuError, "TENSORFLOW_IPU_DEVICES=9", _configured, select_ipus=list(range(9)))
    monkeypatch.setenv(environment.DEVICES_VARIABLE, "9")
    refused(DeviceLimitError, "8 were registered", _configured, auto_select_ipus=[1] * 9)
