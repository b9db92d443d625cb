"""A group of options: what one method of a model sets, as a value that can be shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from tensorflow_ipu.keras import _printing


@dataclasses.dataclass(frozen=True)
class OptionGroup:
    """Options whose fields are the arguments of the method that sets them, with its defaults.

    Attributes:
      title: What they are options of.
      unset: For options that may be None what it stands for, in few words.
    """

    title: ClassVar[str]
    unset: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of the options, in the order in which they are shown."""
        return tuple(field.name for field in dataclasses.fields(cls))

    def changed(self) -> dict[str, Any]:
        """The options that differ from the defaults, by name."""
        default = type(self)()
        return {name: getattr(self, name) for name in self.names() if getattr(self, name) != getattr(default, name)}

    def in_effect(self) -> dict[str, Any]:
        """All options by name, with the values that count."""
        return {name: getattr(self, name) for name in self.names()}

    def text(self, model_name: str) -> str:
        """The options as lines, each as one would type it.

        Args:
          model_name: Whose options they are.
        """
        rows = [
            (name, value, self.unset.get(name, "") if value is None else "") for name, value in self.in_effect().items()
        ]
        return _printing.assignments(f'Model "{model_name}": {self.title}', rows)
