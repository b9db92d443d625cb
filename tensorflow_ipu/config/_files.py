"""Configurations as JSON files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tensorflow_ipu.config import _state
from tensorflow_ipu.config._checks import check_values
from tensorflow_ipu.config._ipu_config import IPUConfig

__all__ = ["load", "save"]

FilePath = str | os.PathLike[str]


def load(path: FilePath) -> IPUConfig:
    """Reads a configuration from a JSON file.

        config = load("ipu.json")
        config.configure_ipu_system()

    The file is one JSON object: values by the full names of attributes, as `save` and `IPUConfig.to_json` write them.
    Attributes that it does not name have their defaults. Nothing is configured.

    Args:
      path: The file.

    Raises:
      OSError: The file cannot be read.
      TypeError: A value has the wrong type, or the file holds JSON but no object. As all errors of what a file says, it
        names the file and the attribute.
      ValueError: The file is not JSON, names an attribute twice or one that does not exist, or has a value that no
        attribute of that name takes. Rules *between* attributes are checked when the system is configured.
    """
    _check_path(path)
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"), object_pairs_hook=_object)
        if not isinstance(values, dict):
            raise TypeError(f"it holds `{values!r:.60}`, and must hold a JSON object: attributes by name")
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
    """Writes a configuration to a JSON file, an attribute a line, from which `load` brings it back.

    Args:
      path: The file; one that is there is replaced.
      config: The configuration; without one, that in force, or that of all defaults where nothing was configured.

    Raises:
      OSError: The file cannot be written.
      TypeError: An argument has the wrong type, or an option of a library is neither text nor a number.
    """
    _check_path(path)
    if config is None:
        records = _state.records()
        config = IPUConfig().from_dict(records[0].to_dict()) if records else IPUConfig()
    elif not isinstance(config, IPUConfig):
        raise TypeError(f"`config` must be an `IPUConfig`, or `None` for the one in force, and `{config!r}` is neither")
    text = json.dumps(config.to_dict(), indent=2)  # First, so that what cannot be written leaves the file as it is.
    Path(path).write_text(text + "\n", encoding="utf-8")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, which may have each key once: Python would take the last one and say nothing."""
    names = [name for name, _ in pairs]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            raise ValueError(f"`{name}` is there {names.count(name)} times; keep one of them")
    return dict(pairs)


def _check_path(path: object) -> None:
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"`path` must be the path of a file, and `{path!r}` is none")
