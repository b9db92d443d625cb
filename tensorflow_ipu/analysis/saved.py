"""Base classes of reports that are saved as JSON, and as pages for browsers."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import types
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from tensorflow_ipu._base import files
from tensorflow_ipu._base.notebook import NotebookView

if TYPE_CHECKING:
    from typing_extensions import Self


_T = TypeVar("_T")


def read(kind: type[_T], values: Mapping[str, object]) -> _T:
    """Returns a dataclass from its fields as decoded from JSON. Lists become tuples, and objects become dataclasses."""
    return _read(kind, values)


def _read(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(hint, types.UnionType):
        (hint,) = (option for option in get_args(hint) if option is not types.NoneType)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = _hints(hint)
        return hint(**{name: _read(hints[name], field) for name, field in value.items()})
    if get_origin(hint) is tuple:
        options = get_args(hint)
        if options[-1] is Ellipsis:
            return tuple(_read(options[0], item) for item in value)
        return tuple(_read(option, item) for option, item in zip(options, value, strict=True))
    return hint(value) if hint in (int, str) else value


_hints = functools.cache(get_type_hints)


class SavedValue:
    """A dataclass that can be read from JSON."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Returns the object from its fields as decoded from JSON."""
        return read(cls, values)


class SavedReport(NotebookView):
    """A report that is saved as JSON and loaded again, or saved as a page for a browser."""

    _SCHEMA: ClassVar[int]

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as a dictionary that JSON can encode."""
        raise NotImplementedError

    @classmethod
    def _of(cls, values: Mapping[str, Any]) -> Self:
        raise NotImplementedError

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Returns the report from the dictionary of `to_dict`.

        Raises:
          ValueError: The dictionary has another schema, or is not a report.
        """
        if values.get("schema") != cls._SCHEMA:
            raise ValueError(
                f"the report has schema {values.get('schema')!r}, but this version of the package reads schema"
                f" {cls._SCHEMA}: create the report again"
            )
        try:
            return cls._of(values)
        except KeyError as exc:
            raise ValueError(f"this is no report: it has no {exc}") from exc
        except (TypeError, ValueError, AttributeError) as exc:
            raise ValueError(f"this is no report: {exc}") from exc

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the report to a `.json` file, which `load` reads, or as a page for a browser to an `.html` file.

        Raises:
          ValueError: `path` has another suffix.
          OSError: The file cannot be written.
          ImportError: A page needs matplotlib, which is missing.
        """
        target = Path(path)
        if target.suffix not in (".json", ".html"):
            raise ValueError(f"`path` must end in `.json` or `.html`, but is `{target}`")
        if target.suffix == ".html":
            from tensorflow_ipu.analysis import pages

            text = pages.page_of(self)
        else:
            text = json.dumps(self.to_dict(), indent=1) + "\n"
        files.write(target, text)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a report that `save` wrote as JSON.

        Raises:
          OSError: The file cannot be read.
          ValueError: The file is not a report, or has another schema.
        """
        try:
            values = json.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as exc:
            raise ValueError(f"`{path}` is no report: it is no JSON ({exc})") from exc
        if not isinstance(values, dict):
            raise ValueError(f"`{path}` is no report: it holds no object")
        try:
            return cls.from_dict(values)
        except ValueError as exc:
            raise ValueError(f"`{path}`: {exc}") from exc
