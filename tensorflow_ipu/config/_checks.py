"""Checks of a configuration before the system takes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tensorflow_ipu._base import environment, poplar_options
from tensorflow_ipu._base.checks import Faults
from tensorflow_ipu.config._enums import DeviceConnectionType, StochasticRoundingBehaviour
from tensorflow_ipu.config._state import IpuOptions
from tensorflow_ipu.config._tree import listing, options_of, show
from tensorflow_ipu.errors import DeviceLimitError

if TYPE_CHECKING:
    from tensorflow_ipu.config._ipu_config import IPUConfig


def as_tuple(selection: Any) -> tuple[int, ...]:
    """The selection as a tuple; a number means a single device."""
    return (selection,) if type(selection) is int else tuple(selection)


def multi_ipu(index: int, machine: int) -> range | None:
    """The IPUs of a MultiIPU id, or None."""
    # In a machine of N IPUs the ids 0 to N-1 are the single IPUs; then come N/2 pairs of neighbours, N/4 fours, and so on,
    # each row with as many groups as are complete. Of four IPUs, 4 is (0, 1), 5 is (2, 3), and 6 all.
    size = 1
    while index >= 0 and size <= machine:
        groups = machine // size
        if index < groups:
            return range(index * size, (index + 1) * size)
        index -= groups
        size *= 2
    return None


def machine_for(index: int) -> int:
    """The IPUs, a power of two, of the smallest machine that knows the MultiIPU id `index`."""
    return 1 << ((index + 1).bit_length() - 1)  # The last id of a machine of N IPUs is 2N-2.


def overlaps(ids: Sequence[int], machine: int) -> list[tuple[int, int]]:
    """Pairs of known MultiIPU ids that share an IPU, in the order of `ids`."""
    groups = {index: group for index in dict.fromkeys(ids) if (group := multi_ipu(index, machine)) is not None}
    known = list(groups)
    return [
        (first, second)
        for at, first in enumerate(known)
        for second in known[at + 1 :]
        if groups[first].start < groups[second].stop and groups[second].start < groups[first].stop
    ]


def check_host_device(device: object) -> None:
    """Checks the name of the host device."""
    if not isinstance(device, str):
        raise TypeError(f'`device` must be the name of a host device such as `"cpu"`, and `{device!r}` is no string')


def resolve(config: IPUConfig) -> tuple[IpuOptions, ...]:
    """Checks a configuration and returns what each device gets; a selection by a number becomes a list in place."""
    _check_types(config)
    if isinstance(config.auto_select_ipus, int):
        config.auto_select_ipus = [config.auto_select_ipus]
    if isinstance(config.select_ipus, int):
        config.select_ipus = [config.select_ipus]
    on_model = environment.poplar_flags().use_ipu_model
    faults = Faults()
    counts = _check_selection(config, on_model, faults)
    _check_values(config, faults)
    _check_rules(config, on_model, faults)
    faults.raise_any()
    values = {name: getattr(at, option.name) for name, option, at in options_of(config)}
    if config.floating_point_behaviour.set_all:
        values.update({f"floating_point_behaviour.{name}": True for name in ("inv", "div0", "oflo", "nanoo")})
        values["floating_point_behaviour.esr"] = StochasticRoundingBehaviour.ON
    return tuple(IpuOptions.of(ordinal, count, values) for ordinal, count in enumerate(counts))


def check_values(config: IPUConfig) -> None:
    """Checks each attribute alone."""
    _check_types(config)
    faults = Faults()
    _check_values(config, faults)
    faults.raise_any()


def _check_selection(config: IPUConfig, on_model: bool, faults: Faults) -> list[int]:
    """The IPUs of each device; wrong entries are recorded as faults and left out."""
    auto = as_tuple(config.auto_select_ipus)
    chosen = as_tuple(config.select_ipus)
    if auto and chosen:
        faults.add(
            ValueError,
            f"`auto_select_ipus={list(auto)}` and `select_ipus={list(chosen)}` are both set;"
            " set one of them back to `[]`",
        )
    if chosen and on_model:
        faults.add(
            ValueError,
            f"`select_ipus={list(chosen)}` does not go with the IPU Model, which has no ids; use `auto_select_ipus`,"
            f" or take `--use_ipu_model` out of `{environment.FLAGS_VARIABLE}`",
        )
    machine = environment.ipu_count()
    counts = _check_ids(chosen, machine, faults) if chosen else _check_counts(auto, machine, faults)
    devices = environment.registered_devices()
    if len(counts) > devices:
        faults.add(
            DeviceLimitError,
            f"{len(counts)} devices are asked for and {devices} were registered; "
            + environment.way_out(environment.DEVICES_VARIABLE, len(counts)),
        )
    if counts:
        _check_replicas(config, counts[0], faults)
    _check_batch_norm_groups(config, counts, faults)
    return counts or [environment.default_ipus()]


def _check_replicas(config: IPUConfig, ipus: int, faults: Faults) -> None:
    replicas, each = environment.local_replicas(), environment.ipus_per_replica()
    if replicas is None:
        return
    wanted = replicas * (each or 1)
    if ipus == wanted or (each is None and ipus % replicas == 0):
        return
    name = "auto_select_ipus" if config.auto_select_ipus else "select_ipus"
    faults.add(
        ValueError,
        f"`{name}={list(as_tuple(getattr(config, name)))}` gives `/device:IPU:0` {ipus} IPUs, and"
        f" `{environment.REPLICAS_VARIABLE}`, which `run --replicas` sets, says {replicas} replicas a worker, which"
        f" need {wanted}: leave out `{name}`, or run with other `--replicas`",
    )


def _check_batch_norm_groups(config: IPUConfig, counts: list[int], faults: Faults) -> None:
    group = config.norms.experimental.distributed_batch_norm_replica_group_size
    if group < 1:
        return  # A fault already.
    for ordinal, count in enumerate(counts):
        if count > 1 and count % group:
            faults.add(
                ValueError,
                f"`norms.experimental.distributed_batch_norm_replica_group_size={group}` does not divide the {count} IPUs of"
                f" `/device:IPU:{ordinal}`, and so not its replicas; set it to a divisor of {count}, or to 1",
            )


def _check_counts(counts: tuple[int, ...], machine: int, faults: Faults) -> list[int]:
    wrong = [count for count in counts if count < 1]
    if wrong:
        faults.add(ValueError, f"`auto_select_ipus` has {listing(map(str, wrong))}; each device needs at least 1 IPU")
    right = [count for count in counts if count >= 1]
    if sum(right) > machine:
        faults.add(
            DeviceLimitError,
            f"`auto_select_ipus={list(counts)}` asks for {sum(right)} IPUs and the machine has {machine}; "
            + environment.way_out(environment.COUNT_VARIABLE, sum(right)),
        )
    return right


def _check_ids(ids: tuple[int, ...], machine: int, faults: Faults) -> list[int]:
    repeated = [index for index in dict.fromkeys(ids) if ids.count(index) > 1]
    if repeated:
        faults.add(ValueError, f"`select_ipus` has {listing(map(str, repeated))} more than once; name each id once")
    for first, second in overlaps(ids, machine):
        faults.add(
            ValueError,
            f"the ids `{first}` and `{second}` in `select_ipus` share IPUs; choose ids that have none in common",
        )
    for index in dict.fromkeys(ids):
        if index < 0:
            faults.add(ValueError, f"`{index}` in `select_ipus` is no id; ids start at 0")
        elif multi_ipu(index, machine) is None:
            faults.add(
                DeviceLimitError,
                f"the machine of {machine} IPUs has no id `{index}` for `select_ipus`; "
                + environment.way_out(environment.COUNT_VARIABLE, machine_for(index))
                + "; the ids of groups depend on how many IPUs there are",
            )
    groups = (multi_ipu(index, machine) for index in ids)
    return [len(group) for group in groups if group is not None]


def _check_types(config: IPUConfig) -> None:
    """Checks the types again, since lists and dictionaries may have changed in place."""
    faults = Faults()
    for name, option, at in options_of(config):
        value = getattr(at, option.name)
        try:
            option.metadata(at).check_type(value)
        except TypeError as exc:
            faults.add(TypeError, str(exc))
        for key, setting in value.items() if option.hint is dict else ():
            if type(key) is not str or type(setting) is not str:
                faults.add(
                    TypeError,
                    f"`{name}` maps text to text, and `{{{key!r}: {setting!r}}}` does not;"
                    f" write `{{{str(key)!r}: {str(setting)!r}}}`",
                )
    faults.raise_any()


def _check_values(config: IPUConfig, faults: Faults) -> None:
    for name, option, at in options_of(config):
        value = getattr(at, option.name)
        for fault in poplar_options.faults(name, value) if option.hint is dict else ():
            faults.add(ValueError, fault)
        if option.choices is not None and option.canonical(value) not in option.choices:
            allowed = listing(show(choice) for choice in option.choices)
            faults.add(ValueError, f"`{name}={show(value)}` is not known; choose from {allowed}")
        # Written so that a NaN fails both.
        if option.at_least is not None and not value >= option.at_least:
            faults.add(ValueError, f"`{name}={value}` is too low; it must be at least {option.at_least}")
        elif option.at_most is not None and not value <= option.at_most:
            faults.add(ValueError, f"`{name}={value}` is too high; it must be at most {option.at_most}")


def _check_rules(config: IPUConfig, on_model: bool, faults: Faults) -> None:
    tiles = config.io_tiles
    if tiles.place_ops_on_io_tiles and tiles.num_io_tiles == 0:
        faults.add(
            ValueError,
            "`io_tiles.place_ops_on_io_tiles=True` has no tiles to place operations on, since `io_tiles.num_io_tiles`"
            " is 0; set that to 1 or more",
        )
    group = config.norms.experimental.distributed_batch_norm_replica_group_size
    if tiles.num_io_tiles > 0 and group > 1:
        faults.add(
            ValueError,
            f"`norms.experimental.distributed_batch_norm_replica_group_size={group}` does not go with"
            f" `io_tiles.num_io_tiles={tiles.num_io_tiles}`; set the first to 1 or the second to 0",
        )
    connection = config.device_connection
    detached = (DeviceConnectionType.NEVER, DeviceConnectionType.PRE_COMPILE)
    if connection.type in detached and connection.version == "":
        faults.add(
            ValueError,
            f"`device_connection.version` is empty, and `{connection.type}` attaches to no device that could tell it;"
            ' set it, for instance to `"ipu2"`',
        )
    processes = config.experimental.multi_replica_distribution
    prefix = "experimental.multi_replica_distribution"
    if processes.process_count > 0 and on_model:
        faults.add(
            ValueError,
            f"`{prefix}.process_count={processes.process_count}` does not go with the IPU Model; set it to 0, or take"
            f" `--use_ipu_model` out of `{environment.FLAGS_VARIABLE}`",
        )
    if processes.process_count > 0 and not 0 <= processes.process_index < processes.process_count:
        faults.add(
            ValueError,
            f"`{prefix}.process_index={processes.process_index}` names none of the {processes.process_count} processes;"
            f" it must be from 0 to {processes.process_count - 1}",
        )
    if on_model and config.ipu_model.version == "":
        faults.add(
            ValueError, '`ipu_model.version` is empty, and the IPU Model is in use; set it, for instance to `"ipu2"`'
        )
