"""A group of options: what one method of a model sets, as a value that can be shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from tensorflow_ipu.keras.options import printing

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclasses.dataclass(frozen=True)
class OptionGroup:
    """Options whose fields are the arguments of the method that sets them, with its defaults.

    Attributes:
      title: What they are options of.
      explicit: The arguments that `checked` takes by position, before a dictionary of all others.
      unset: For options that may be None what it stands for, in few words.
    """

    title: ClassVar[str]
    explicit: ClassVar[tuple[str, ...]] = ()
    unset: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of the options, in the order in which they are shown."""
        return tuple(field.name for field in dataclasses.fields(cls))

    @classmethod
    def checked(cls, *args: Any, **kwargs: Any) -> Self:
        """The options that the arguments of the method that sets them say; each group has a method of its own.

        Raises:
          ValueError: One of them is out of range, or set elsewhere.
          TypeError: One of them is unknown, or of a wrong kind.
        """
        raise NotImplementedError

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """The group in which these options are set, checked as the method that sets them does.

        Args:
          given: Options by name. Those that are not there have their defaults.

        Raises:
          ValueError: One of them is out of range.
          TypeError: One of them is of a wrong kind.
        """
        default = cls()
        explicit = [given.get(name, getattr(default, name)) for name in cls.explicit]
        rest = {name: value for name, value in given.items() if name not in cls.explicit}
        return cls.checked(*explicit, rest)

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
        return printing.assignments(f'Model "{model_name}": {self.title}', rows)
