"""`IPUConfig`, and the functions that apply, reset, return, save and load a configuration."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tensorflow_ipu._base import files
from tensorflow_ipu._base.checks import check_bool, check_instance
from tensorflow_ipu.config import _categories, _state
from tensorflow_ipu.config._checks import as_tuple, check_host_device, check_values, resolve
from tensorflow_ipu.config._enums import SelectionOrder
from tensorflow_ipu.config._state import IpuOptions
from tensorflow_ipu.config._tree import Category, Effect, Option, Subcategory
from tensorflow_ipu.errors import NotConfiguredError

__all__ = ["load", "save"]

_NO_OPTIONS: dict[str, Any] = {}


def _selection(doc: str) -> Option[int | list[int] | tuple[int, ...]]:
    """Returns an option that selects the IPUs of devices."""
    return Option([], doc, effect=Effect.ACTS, hint=int | list[int] | tuple[int, ...], canonical=as_tuple)


class IPUConfig(Category):
    """The configuration of the IPU system: a tree of attributes. In a new object, all have their defaults.

        config = IPUConfig()
        config.auto_select_ipus = 2
        config.io_tiles.num_io_tiles = 32
        config.configure_ipu_system()

    An assigned value must have exactly the type of the attribute (`True` is no `int`, `1` no `float`). An assignment to
    an unsupported name raises an error. `get_attribute_metadata` returns the type, the default and the meaning of an
    attribute. Objects are equal if they describe the same system. Both `copy` and `deepcopy` return an independent object.
    """

    allow_recompute = Option(
        False, "Computes activations again in the backward pass: less memory, more time.", effect=Effect.MODEL
    )
    selection_order = Option(SelectionOrder.AUTO, "Order in which the shards of a program get the IPUs of a device.")
    serialization_output_folder = Option(
        "", 'Folder of compiled programs; `""` for that of `TF_POPLAR_FLAGS`, if any.', effect=Effect.ACTS
    )
    compilation_poplar_options = Option(_NO_OPTIONS, "Options of the Poplar compiler, as text.")
    gcl_poplar_options = Option(_NO_OPTIONS, "Options of collective operations, as text.")
    auto_select_ipus = _selection(
        "Number of IPUs of each device: `[2, 4]` makes `/device:IPU:0` of two IPUs and `/device:IPU:1` of four. A"
        " number makes one device. A program runs as many replicas as fit into the device, each with one IPU for each"
        " shard. Without this and `select_ipus`, there is one device of one IPU. Under `python -m tensorflow_ipu run"
        " --replicas`, it has the IPUs that a worker's replicas need."
    )
    select_ipus = _selection(
        "MultiIPU id of each device. The ids 0 to N-1 are the N IPUs of the machine. The next ids are pairs of"
        " neighbours, groups of four and so on, up to 2N-2 for the whole machine. A number makes one device."
    )
    convolutions = Subcategory(_categories.Convolutions)
    device_connection = Subcategory(_categories.DeviceConnection)
    slices = Subcategory(_categories.Slices)
    experimental = Subcategory(_categories.Experimental)
    floating_point_behaviour = Subcategory(_categories.FloatingPointBehaviour)
    io_tiles = Subcategory(_categories.IOTiles)
    ipu_model = Subcategory(_categories.IPUModel)
    matmuls = Subcategory(_categories.Matmuls)
    norms = Subcategory(_categories.Norms)
    optimizations = Subcategory(_categories.Optimizations)
    pooling = Subcategory(_categories.Pooling)
    scheduling = Subcategory(_categories.Scheduling)

    def __init__(self) -> None:
        super().__init__()
        _state.note_made(self)

    def configure_ipu_system(self, device: str = "cpu") -> None:
        """Applies this configuration as `tensorflow_ipu.config.configure_ipu_system` does, with its errors."""
        check_host_device(device)
        _state.configure(resolve(self))


def configure_ipu_system(config: IPUConfig | IpuOptions, device: str = "cpu", reset_configuration: bool = True) -> None:
    """Applies a configuration, as soon as no program runs.

    If a different configuration is in force, it is reset first, with a warning in the log.

    Args:
      config: The configuration, or a record that `get_ipu_config` returned, to restore that configuration.
      device: The host device, which is ignored.
      reset_configuration: True if a different configuration may replace the one in force.

    Raises:
      TypeError: An argument has the wrong type, or a list or dictionary contains values of the wrong type.
      ValueError: Values of attributes are invalid or contradict each other.
      DeviceLimitError: The configuration requests more IPUs or devices than there are.
      tf.errors.FailedPreconditionError: `reset_configuration` is false, and another configuration is in force.
    """
    if isinstance(config, IpuOptions):
        config = IPUConfig().from_dict(config.to_dict())
    check_instance("config", config, IPUConfig, "an `IPUConfig` or one of `get_ipu_config()`")
    check_host_device(device)
    check_bool("reset_configuration", reset_configuration)
    _state.configure(resolve(config), reset_configuration)


def reset_ipu_configuration() -> None:
    """Removes the configuration and the seeds, as soon as no program runs.

    Then there is one device of one IPU again.
    """
    _state.reset()


def get_ipu_config(session: object = None) -> list[IpuOptions]:
    """Returns the configuration in force, one record for each device.

    Args:
      session: Ignored.

    Raises:
      NotConfiguredError: Nothing is configured. The error is a `RuntimeError`.
    """
    del session
    records = _state.records()
    if not records:
        raise NotConfiguredError(
            "No IPU devices configured. Call `configure_ipu_system()` of an `IPUConfig` before `get_ipu_config()`"
        )
    return list(records)


FilePath = str | os.PathLike[str]


def load(path: FilePath) -> IPUConfig:
    """Returns the configuration in a JSON file that `save` has written, without applying it.

    The file contains one JSON object: values by the full names of attributes. Other attributes get their defaults.

    Raises:
      OSError: The file cannot be read.
      TypeError: A value has the wrong type, or the file contains no JSON object. The message names file and attribute.
      ValueError: The file is not JSON, or has an unsupported or repeated attribute or an invalid value. Rules *between*
        attributes are checked when the system is configured.
    """
    _check_path(path)
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"), object_pairs_hook=_object)
        if not isinstance(values, dict):
            raise TypeError(f"it contains `{values!r:.60}`, but must contain a JSON object: attributes by name")
        config = IPUConfig().from_dict(values)
        check_values(config)
    except json.JSONDecodeError as exc:
        raise ValueError(f"`{path}` is not JSON ({exc}); write one object, as `save` does") from exc
    except UnicodeDecodeError as exc:
        raise ValueError(f"`{path}` is not JSON, since it is no UTF-8 text ({exc}); write it as `save` does") from exc
    except (TypeError, ValueError) as exc:
        kind = TypeError if isinstance(exc, TypeError) else ValueError
        raise kind(f"in the file `{path}`: {exc}") from exc
    return config


def save(path: FilePath, config: IPUConfig | None = None) -> None:
    """Writes a configuration to a JSON file with one attribute on each line.

    Args:
      path: The path of the file.
      config: The configuration. By default the one in force or, if nothing is configured, an `IPUConfig()`.

    Raises:
      OSError: The file cannot be written.
      TypeError: An argument has the wrong type, or an option of a library is neither text nor a number.
    """
    _check_path(path)
    if config is None:
        records = _state.records()
        config = IPUConfig().from_dict(records[0].to_dict()) if records else IPUConfig()
    check_instance("config", config, IPUConfig, "an `IPUConfig`, or None for the one in force")
    files.write(path, json.dumps(config.to_dict(), indent=2) + "\n")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the dict of a JSON object; raises `ValueError` if a key is repeated."""
    names = [name for name, _ in pairs]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            raise ValueError(f"`{name}` is there {names.count(name)} times; keep one of them")
    return dict(pairs)


def _check_path(path: object) -> None:
    check_instance("path", path, (str, os.PathLike), "the path of a file")
