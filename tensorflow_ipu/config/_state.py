"""The configuration in force: the IPU devices, their connections and their seeds."""

from __future__ import annotations

import copy
import logging
import re
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from tensorflow_ipu._base import active_runs, environment
from tensorflow_ipu._base.checks import check_instance
from tensorflow_ipu.config._enums import DeviceConnectionType
from tensorflow_ipu.config._tree import encode
from tensorflow_ipu.errors import NotConfiguredError

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, repr=False)
class IpuOptions:
    """The configuration in force of one device; immutable.

    Attributes:
      device_ordinal: The number n of `/device:IPU:n`.
      ipu_count: The number of IPUs of the device.
      options: The values of attributes by full names, with tuples for lists. The attributes that
        `floating_point_behaviour.set_all` sets have their resulting values.
    """

    __hash__ = None  # type: ignore[assignment]  # The mapping has no hash.

    device_ordinal: int
    ipu_count: int
    options: Mapping[str, Any]

    @classmethod
    def of(cls, device_ordinal: int, ipu_count: int, values: Mapping[str, object]) -> IpuOptions:
        """Returns a record with an immutable copy of `values`."""
        return cls(
            device_ordinal, ipu_count, MappingProxyType({name: _frozen(value) for name, value in values.items()})
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns a copy of the options as data for JSON, in the form of `IPUConfig.to_dict`."""
        return {name: encode(_thawed(value)) for name, value in self.options.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        # A mapping proxy can be neither copied nor pickled.
        values = {name: _thawed(value) for name, value in self.options.items()}
        return IpuOptions.of, (self.device_ordinal, self.ipu_count, values)

    def __repr__(self) -> str:
        return f"IpuOptions(device_ordinal={self.device_ordinal}, ipu_count={self.ipu_count})"


def _frozen(value: object) -> object:
    if isinstance(value, dict):
        return MappingProxyType(copy.deepcopy(value))
    return tuple(value) if isinstance(value, list) else value


def _thawed(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else value


_NAME = re.compile(r"(?:.*/)?(?:device:)?IPU(?::(?P<ordinal>\d+))?", re.IGNORECASE)


def device_name(ordinal: int) -> str:
    return f"/device:IPU:{ordinal}"


def device_ordinal(name: str, argument: str = "device") -> int:
    check_instance(argument, name, str, "a string such as `/device:IPU:0`")
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"`{argument}={name}` names no IPU device; write it as in `/device:IPU:0`")
    return int(match["ordinal"] or 0)


_T = TypeVar("_T")

_DEFAULT_CONNECTIONS = (DeviceConnectionType.ALWAYS,)


@dataclass(frozen=True)
class DeviceSeed:
    """The seed of a device's random streams. If `identical_replicas`, all replicas have the same stream."""

    seed: int
    identical_replicas: bool


class ConfiguredSystem:
    """The configured system; thread-safe."""

    def __init__(self) -> None:
        # A thread that changes the configuration holds `_changing` for the whole change, which waits for running
        # programs. `_lock` guards the fields for a moment only, so that these programs can read them meanwhile.
        self._changing = threading.RLock()
        self._lock = threading.Lock()
        self._records: tuple[IpuOptions, ...] = ()
        self._ipus = _ipus(())
        self._connections = _DEFAULT_CONNECTIONS
        self._seeds: dict[int, DeviceSeed] = {}
        self._pack_bytes = 0
        self._unapplied: weakref.ref[object] | None = None

    @property
    def _kernels(self):
        from tensorflow_ipu.config import _kernels

        return _kernels

    def tell_kernels(self) -> None:
        """Passes the initial configuration to the kernels. Each later change passes the new one."""
        with self._changing:
            self._kernels.set_devices(self.ipus(), _connections(self.records()))
            self._kernels.set_options(self.records(), self._pack_bytes)

    def note_made(self, config: object) -> None:
        """Records a new configuration object, for the warning of `warn_of_unapplied`."""
        self._unapplied = weakref.ref(config)

    def warn_of_unapplied(self) -> None:
        """Logs a warning if nothing is configured, but the last configuration object was changed and not applied."""
        config = None if self._unapplied is None or self._records else self._unapplied()
        if config is not None and config != type(config)():
            _logger.warning(
                "an `IPUConfig` was created but not applied, so programs run on one device of %d IPU(s): call its"
                " `configure_ipu_system()` before",
                *_ipus(()),
            )
        self._unapplied = None

    def configure(self, records: tuple[IpuOptions, ...], reset_configuration: bool = True) -> None:
        """Makes `records`, one for each device, the configuration in force."""
        with self._changing:
            self._unapplied = None
            current = self.records()
            if current == records:
                return
            if current and not reset_configuration:
                from tensorflow import errors

                raise errors.FailedPreconditionError(
                    None,
                    None,
                    "the IPU system is configured already, with other values, and `reset_configuration=False` forbids"
                    " to replace them; call `reset_ipu_configuration()` first",
                )
            if current:
                _logger.warning("The IPU system is configured already; it is reset to take the new configuration.")
                self.reset()
            else:
                active_runs.wait_until_idle()
            self._install(records)

    def reset(self) -> None:
        """Waits until no program runs, then forgets the configuration and the seeds."""
        with self._changing:
            if not self.records():
                self._forget_seeds()
                return
            active_runs.wait_until_idle()
            self._install(())

    def records(self) -> tuple[IpuOptions, ...]:
        """Returns the configuration in force, one record for each device; `()` if nothing is configured."""
        with self._lock:
            return self._records

    def ipus(self) -> tuple[int, ...]:
        """Returns the number of IPUs of each device; one device of `default_ipus()` if nothing is configured."""
        return self._ipus  # Without the lock, since each run calls this.

    def ipus_or_one(self, ordinal: int) -> int:
        """Returns the number of IPUs of a device; 1 for a missing device, for which a later run raises an error."""
        ipus = self._ipus
        return ipus[ordinal] if ordinal < len(ipus) else 1

    def ipus_of_device(self, ordinal: int) -> int:
        return _of_device(self._ipus, ordinal)

    def options_of_device(self, ordinal: int) -> Mapping[str, Any] | None:
        """Returns the options of a device by full names; None if nothing is configured."""
        records = self.records()
        return records[ordinal].options if ordinal < len(records) else None

    def connection_type(self, ordinal: int) -> DeviceConnectionType:
        return _of_device(self._connections, ordinal)  # Without the lock, since each run calls this.

    def set_device_seed(self, ordinal: int, seed: DeviceSeed) -> None:
        """Records the seed of a device, until the configuration is reset."""
        with self._lock:
            _of_device(_ipus(self._records), ordinal)
            self._seeds[ordinal] = seed
        self._kernels.set_seed(ordinal, seed)

    def device_seed(self, ordinal: int) -> DeviceSeed | None:
        """Returns the seed of a device; None if none was set since the system was configured."""
        with self._lock:
            _of_device(_ipus(self._records), ordinal)
            return self._seeds.get(ordinal)

    def follow_global_seed(self, seed: int | None) -> None:
        """Restarts random streams from the seed of `tf.random.set_seed`, on devices that have no seed of their own."""
        for ordinal in range(len(self._ipus) if seed is not None else 0):
            if self.device_seed(ordinal) is None:
                self._kernels.set_seed(ordinal, DeviceSeed(int(seed or 0), identical_replicas=False))

    def set_pack_bytes(self, size: int) -> None:
        """Sets the size in bytes of messages to other workers; 0 for the size that is configured."""
        with self._changing:
            self._pack_bytes = size
            self._kernels.set_options(self.records(), size)

    def _install(self, records: tuple[IpuOptions, ...]) -> None:
        if records:
            _logger.info("configured %d device(s) with these numbers of IPUs: %s", len(records), list(_ipus(records)))
        else:
            _logger.info("the configuration is reset: one device of %d IPU(s)", *_ipus(()))
        # The kernels are configured first: if that fails, the configuration does not change.
        self._kernels.set_devices(_ipus(records), _connections(records))
        with self._lock:
            self._records = records
            self._ipus = _ipus(records)
            self._connections = _connections(records)
        try:
            self._kernels.set_options(records, self._pack_bytes)
        except ValueError:
            if records:
                self._install(())
            raise
        self._forget_seeds()

    def _forget_seeds(self) -> None:
        with self._lock:
            self._seeds.clear()
        self._kernels.forget_seeds()
        # Layers of Keras 2 use TensorFlow's random operations, so they follow `tf.random.set_seed`.
        if environment.uses_keras_2():
            self.follow_global_seed(self._kernels.global_seed())


def _ipus(records: tuple[IpuOptions, ...]) -> tuple[int, ...]:
    return tuple(record.ipu_count for record in records) or (environment.default_ipus(),)


def _connections(records: tuple[IpuOptions, ...]) -> tuple[DeviceConnectionType, ...]:
    return tuple(record.options["device_connection.type"] for record in records) or _DEFAULT_CONNECTIONS


def _of_device(values: tuple[_T, ...], ordinal: int) -> _T:
    if not 0 <= ordinal < len(values):
        last = f"`{device_name(len(values) - 1)}`"
        there_is = f"there is only {last}" if len(values) == 1 else f"the last of the {len(values)} devices is {last}"
        raise NotConfiguredError(
            f"`{device_name(ordinal)}` does not exist in the present configuration: {there_is}; set"
            f" `IPUConfig.auto_select_ipus` to at least {ordinal + 1} entries and configure the system with it"
        )
    return values[ordinal]


_system = ConfiguredSystem()

configure = _system.configure
note_made = _system.note_made
warn_of_unapplied = _system.warn_of_unapplied
reset = _system.reset
records = _system.records
ipus = _system.ipus
ipus_of_device = _system.ipus_of_device
ipus_or_one = _system.ipus_or_one
options_of_device = _system.options_of_device
connection_type = _system.connection_type
set_device_seed = _system.set_device_seed
device_seed = _system.device_seed
follow_global_seed = _system.follow_global_seed
set_pack_bytes = _system.set_pack_bytes
tell_kernels = _system.tell_kernels
