"""Reports that are saved as JSON, and as pages for browsers."""

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
    """Returns the dataclass whose fields JSON has held: with tuples for lists, and dataclasses for objects."""
    return _read(kind, values)


def _read(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(hint, types.UnionType):
        (hint,) = (option for option in get_args(hint) if option is not types.NoneType)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = _hints(hint)
        return hint(**{name: _read(hints[name], one) for name, one in value.items()})
    if get_origin(hint) is tuple:
        options = get_args(hint)
        if options[-1] is Ellipsis:
            return tuple(_read(options[0], one) for one in value)
        return tuple(_read(option, one) for option, one in zip(options, value, strict=True))
    return hint(value) if hint in (int, str) else value


_hints = functools.cache(get_type_hints)


class SavedValue:
    """A dataclass that JSON can hold."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Returns the object whose fields JSON has held."""
        return read(cls, values)


class SavedReport(NotebookView):
    """A report that is saved as JSON, and read again, or saved as a page for a browser."""

    _SCHEMA: ClassVar[int]

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as what JSON can hold."""
        raise NotImplementedError

    @classmethod
    def _of(cls, values: Mapping[str, Any]) -> Self:
        raise NotImplementedError

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Returns the report that `to_dict` gave.

        Raises:
          ValueError: It is of another schema, or is no report.
        """
        if values.get("schema") != cls._SCHEMA:
            raise ValueError(
                f"the report has schema {values.get('schema')!r}, and this version of the package reads schema"
                f" {cls._SCHEMA}: make the report again"
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
          ValueError: `path` ends otherwise.
          OSError: It cannot be written.
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
          OSError: There is no such file.
          ValueError: It is no report, or one of another schema.
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
