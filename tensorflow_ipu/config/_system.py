"""Configuring the IPU system, undoing it, asking for it."""

from __future__ import annotations

from tensorflow_ipu.config import _state
from tensorflow_ipu.config._checks import check_host_device, resolve
from tensorflow_ipu.config._ipu_config import IPUConfig
from tensorflow_ipu.config._options import IpuOptions
from tensorflow_ipu.errors import NotConfiguredError


def configure_ipu_system(config: IPUConfig | IpuOptions, device: str = "cpu", reset_configuration: bool = True) -> None:
    """Applies a configuration.

    The same configuration again changes nothing. A different one first resets the system, with a warning in the log:
    this waits until no program runs.

    Args:
      config: The configuration, or one of the records of `get_ipu_config`, which brings that configuration back.
      device: The host device next to the IPUs. The emulator has a single host, so it makes no difference.
      reset_configuration: Whether a different configuration may replace the one in force.

    Raises:
      TypeError: An argument has the wrong type, or a list or dictionary holds values of the wrong type.
      ValueError: Attributes contradict each other or hold values that make no sense.
      DeviceLimitError: More IPUs or devices are asked for than there are.
      tf.errors.FailedPreconditionError: `reset_configuration` is false, and another configuration is in force.
    """
    if isinstance(config, IpuOptions):
        config = IPUConfig().from_dict(config.to_dict())
    if not isinstance(config, IPUConfig):
        raise TypeError(f"`config` must be an `IPUConfig` or one of `get_ipu_config()`, and `{config!r}` is neither")
    check_host_device(device)
    if type(reset_configuration) is not bool:
        raise TypeError(f"`reset_configuration` must be `True` or `False`, and `{reset_configuration!r}` is neither")
    _state.configure(resolve(config), reset_configuration)


def reset_ipu_configuration() -> None:
    """Forgets the configuration, so that there is one device of one IPU again.

    Waits until no program runs. Programs that other threads start meanwhile are not waited for. Seeds of devices are
    forgotten too. Without a configuration there is nothing to wait for.
    """
    _state.reset()


def get_ipu_config(session: object = None) -> list[IpuOptions]:
    """The configuration in force.

    Args:
      session: Taken for the sake of programs that pass one; the configuration does not depend on it.

    Returns:
      One record a device, in the order of the devices.

    Raises:
      NotConfiguredError: Nothing was configured; it is a `RuntimeError`.
    """
    del session
    records = _state.records()
    if not records:
        raise NotConfiguredError(
            "No IPU devices configured. Call `configure_ipu_system()` of an `IPUConfig` before asking for it"
        )
    return list(records)
