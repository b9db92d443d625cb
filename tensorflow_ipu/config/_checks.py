"""Checks a configuration, and resolves it to the options of each device, before it is applied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tensorflow_ipu._base import environment, poplar_options
from tensorflow_ipu._base.checks import Faults, check_instance
from tensorflow_ipu.config._enums import DeviceConnectionType, StochasticRoundingBehaviour
from tensorflow_ipu.config._state import IpuOptions
from tensorflow_ipu.config._tree import listing, options_of, show
from tensorflow_ipu.errors import DeviceLimitError

if TYPE_CHECKING:
    from tensorflow_ipu.config._ipu_config import IPUConfig


def as_tuple(selection: Any) -> tuple[int, ...]:
    """Returns a selection as a tuple: `4 -> (4,)`, since a number selects a single device."""
    return (selection,) if type(selection) is int else tuple(selection)


def multi_ipu(index: int, machine: int) -> range | None:
    """Returns the IPUs that the MultiIPU id `index` selects on a machine of `machine` IPUs, or None.

    The ids 0 to N-1 of N IPUs are the single IPUs. The next ids are the N/2 pairs of neighbours, then the N/4 groups of
    four, and so on. Incomplete groups have no id. For four IPUs, id 4 selects (0, 1), id 5 (2, 3), and id 6 all.
    """
    size = 1
    while index >= 0 and size <= machine:
        groups = machine // size
        if index < groups:
            return range(index * size, (index + 1) * size)
        index -= groups
        size *= 2
    return None


def overlaps(ids: Sequence[int], machine: int) -> list[tuple[int, int]]:
    """Returns the pairs of valid MultiIPU ids that share an IPU, in the order of `ids`."""
    groups = {index: group for index in dict.fromkeys(ids) if (group := multi_ipu(index, machine)) is not None}
    valid = list(groups)
    return [
        (first, second)
        for position, first in enumerate(valid)
        for second in valid[position + 1 :]
        if groups[first].start < groups[second].stop and groups[second].start < groups[first].stop
    ]


def check_host_device(device: object) -> None:
    check_instance("device", device, str, 'the name of a host device such as `"cpu"`')


def resolve(config: IPUConfig) -> tuple[IpuOptions, ...]:
    """Checks a configuration and returns the options of each device.

    Also changes `config`: a selection by one number becomes a list, `auto_select_ipus = 2` becomes `[2]`.
    """
    _raise_all(_faults_of_types(config))
    if isinstance(config.auto_select_ipus, int):
        config.auto_select_ipus = [config.auto_select_ipus]
    if isinstance(config.select_ipus, int):
        config.select_ipus = [config.select_ipus]
    on_model = environment.poplar_flags().use_ipu_model
    counts = _ipus_of_devices(config)
    _raise_all(
        [
            *_faults_of_selection(config, counts, on_model),
            *_faults_of_values(config),
            *_faults_of_rules(config, on_model),
        ]
    )
    values = {name: getattr(category, option.name) for name, option, category in options_of(config)}
    if config.floating_point_behaviour.set_all:
        values.update({f"floating_point_behaviour.{name}": True for name in ("inv", "div0", "oflo", "nanoo")})
        values["floating_point_behaviour.esr"] = StochasticRoundingBehaviour.ON
    counts = counts or [environment.default_ipus()]
    return tuple(IpuOptions.of(ordinal, count, values) for ordinal, count in enumerate(counts))


def check_values(config: IPUConfig) -> None:
    """Checks the type and the value of each attribute, without rules between attributes."""
    _raise_all(_faults_of_types(config))
    _raise_all(_faults_of_values(config))


def _raise_all(exceptions: Iterable[Exception]) -> None:
    faults = Faults()
    for fault in exceptions:
        faults.add(type(fault), str(fault))
    faults.raise_any()


def _ipus_of_devices(config: IPUConfig) -> list[int]:
    """Returns the number of IPUs of each selected device. Ignores invalid entries."""
    chosen = as_tuple(config.select_ipus)
    if not chosen:
        return [count for count in as_tuple(config.auto_select_ipus) if count >= 1]
    groups = (multi_ipu(index, environment.ipu_count()) for index in chosen)
    return [len(group) for group in groups if group is not None]


def _faults_of_selection(config: IPUConfig, counts: list[int], on_model: bool) -> Iterator[Exception]:
    auto = as_tuple(config.auto_select_ipus)
    chosen = as_tuple(config.select_ipus)
    if auto and chosen:
        yield ValueError(
            f"`auto_select_ipus={list(auto)}` and `select_ipus={list(chosen)}` are both set;"
            " set one of them back to `[]`"
        )
    if chosen and on_model:
        yield ValueError(
            f"`select_ipus={list(chosen)}` does not go with the IPU Model, which has no ids; use `auto_select_ipus`,"
            f" or take `--use_ipu_model` out of `{environment.FLAGS_VARIABLE}`"
        )
    yield from _faults_of_ids(chosen) if chosen else _faults_of_counts(auto, sum(counts))
    devices = environment.registered_devices()
    if len(counts) > devices:
        yield DeviceLimitError(
            f"{len(counts)} devices are requested, but {devices} were registered; "
            + environment.way_out(environment.DEVICES_VARIABLE, len(counts))
        )
    replicas, ipus_per_replica = environment.local_replicas(), environment.ipus_per_replica()
    if counts and replicas is not None:
        needed = replicas * (ipus_per_replica or 1)
        if counts[0] != needed and (ipus_per_replica is not None or counts[0] % replicas):
            name, selection = ("auto_select_ipus", auto) if auto else ("select_ipus", chosen)
            yield ValueError(
                f"`{name}={list(selection)}` gives `/device:IPU:0` {counts[0]} IPUs, and"
                f" `{environment.REPLICAS_VARIABLE}`, which `run --replicas` sets, requests {replicas} replicas a worker,"
                f" which need {needed}: leave out `{name}`, or run with other `--replicas`"
            )
    group = config.norms.experimental.distributed_batch_norm_replica_group_size
    for ordinal, count in enumerate(counts):
        if count > 1 and group >= 1 and count % group:
            yield ValueError(
                f"`norms.experimental.distributed_batch_norm_replica_group_size={group}` does not divide the {count} IPUs of"
                f" `/device:IPU:{ordinal}`, and so not its replicas; set it to a divisor of {count}, or to 1"
            )


def _faults_of_counts(counts: tuple[int, ...], total: int) -> Iterator[Exception]:
    wrong = [count for count in counts if count < 1]
    if wrong:
        yield ValueError(f"`auto_select_ipus` has {listing(map(str, wrong))}; each device needs at least 1 IPU")
    machine = environment.ipu_count()
    if total > machine:
        yield DeviceLimitError(
            f"`auto_select_ipus={list(counts)}` requests {total} IPUs, but the machine has {machine}; "
            + environment.way_out(environment.COUNT_VARIABLE, total)
        )


def _faults_of_ids(ids: tuple[int, ...]) -> Iterator[Exception]:
    machine = environment.ipu_count()
    repeated = [index for index in dict.fromkeys(ids) if ids.count(index) > 1]
    if repeated:
        yield ValueError(f"`select_ipus` has {listing(map(str, repeated))} more than once; name each id once")
    for first, second in overlaps(ids, machine):
        yield ValueError(
            f"the ids `{first}` and `{second}` in `select_ipus` share IPUs; choose ids that have none in common"
        )
    for index in dict.fromkeys(ids):
        if index < 0:
            yield ValueError(f"`{index}` in `select_ipus` is no id; ids start at 0")
        elif multi_ipu(index, machine) is None:
            # The last id of a machine of N IPUs, a power of two, is 2N-2.
            needed = 1 << ((index + 1).bit_length() - 1)
            yield DeviceLimitError(
                f"the machine of {machine} IPUs has no id `{index}` for `select_ipus`; "
                + environment.way_out(environment.COUNT_VARIABLE, needed)
                + "; the ids of groups depend on how many IPUs there are"
            )


def _faults_of_types(config: IPUConfig) -> Iterator[Exception]:
    # Assignments have been checked, but lists and dictionaries may have been changed in place.
    for name, option, category in options_of(config):
        value = getattr(category, option.name)
        try:
            option.metadata(category).check_type(value)
        except TypeError as exc:
            yield exc
        for key, setting in value.items() if option.hint is dict else ():
            if type(key) is not str or type(setting) is not str:
                yield TypeError(
                    f"`{name}` maps text to text, and `{{{key!r}: {setting!r}}}` does not;"
                    f" write `{{{str(key)!r}: {str(setting)!r}}}`"
                )


def _faults_of_values(config: IPUConfig) -> Iterator[Exception]:
    for name, option, category in options_of(config):
        value = getattr(category, option.name)
        if option.hint is dict:
            yield from map(ValueError, poplar_options.faults(name, value))
        if option.choices is not None and option.canonical(value) not in option.choices:
            allowed = listing(show(choice) for choice in option.choices)
            yield ValueError(f"`{name}={show(value)}` is not known; choose from {allowed}")
        # These comparisons are negated so that a NaN fails.
        if option.at_least is not None and not value >= option.at_least:
            yield ValueError(f"`{name}={value}` is too low; it must be at least {option.at_least}")
        elif option.at_most is not None and not value <= option.at_most:
            yield ValueError(f"`{name}={value}` is too high; it must be at most {option.at_most}")


def _faults_of_rules(config: IPUConfig, on_model: bool) -> Iterator[Exception]:
    tiles = config.io_tiles
    if tiles.place_ops_on_io_tiles and tiles.num_io_tiles == 0:
        yield ValueError(
            "`io_tiles.place_ops_on_io_tiles=True` has no tiles to place operations on, since `io_tiles.num_io_tiles`"
            " is 0; set that to 1 or more"
        )
    group = config.norms.experimental.distributed_batch_norm_replica_group_size
    if tiles.num_io_tiles > 0 and group > 1:
        yield ValueError(
            f"`norms.experimental.distributed_batch_norm_replica_group_size={group}` does not go with"
            f" `io_tiles.num_io_tiles={tiles.num_io_tiles}`; set the first to 1 or the second to 0"
        )
    connection = config.device_connection
    detached = (DeviceConnectionType.NEVER, DeviceConnectionType.PRE_COMPILE)
    if connection.type in detached and connection.version == "":
        yield ValueError(
            f"`device_connection.version` is empty, but `{connection.type}` attaches to no device that could be queried;"
            ' set it, for instance to `"ipu2"`'
        )
    prefix = "experimental.multi_replica_distribution"
    processes = config.experimental.multi_replica_distribution
    count, index = processes.process_count, processes.process_index
    if count > 0 and on_model:
        yield ValueError(
            f"`{prefix}.process_count={count}` does not go with the IPU Model; set it to 0, or take"
            f" `--use_ipu_model` out of `{environment.FLAGS_VARIABLE}`"
        )
    if count > 0 and not 0 <= index < count:
        yield ValueError(
            f"`{prefix}.process_index={index}` names none of the {count} processes; it must be from 0 to {count - 1}"
        )
    if on_model and config.ipu_model.version == "":
        yield ValueError('`ipu_model.version` is empty, and the IPU Model is in use; set it, for instance to `"ipu2"`')
