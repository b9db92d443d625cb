"""What is known of one configuration attribute: its type, default, documentation and fate."""

from __future__ import annotations

import copy
import logging
import types
from enum import Enum
from typing import Any, get_args, get_origin

_logger = logging.getLogger(__name__)


class Effect(Enum):
    """What the emulator does with an attribute; the value is the sentence that ends the attribute's documentation."""

    ACTS = "The emulator acts on it."
    MODEL = (
        "The emulator checks it and records it for its picture of the machine (memory, time and plans);"
        " the results of a program do not depend on it."
    )
    RECORDED = "The emulator checks it and records it, and nothing changes by it."


def conforms(value: object, hint: object) -> bool:
    """Whether `value` has exactly the type `hint`: subclasses do not count, so `True` is no `int`."""
    if isinstance(hint, types.UnionType):
        return any(conforms(value, option) for option in get_args(hint))
    container = get_origin(hint)
    if container is None:
        return type(value) is hint
    element = get_args(hint)[0]
    return type(value) is container and all(conforms(item, element) for item in value)  # type: ignore[attr-defined]


class AttributeMetadata:
    """What is known of one attribute or category of a configuration; its documentation is also its `__doc__`."""

    def __init__(
        self,
        name: str,
        doc: str = "",
        depth: int = 0,
        *,
        default: object = None,
        deprecated_msg: str | None = None,
        attr_type: object = None,
        effect: Effect | None = None,
    ) -> None:
        """Describes an attribute.

        Args:
          name: Full name from the root of the configuration, such as `io_tiles.num_io_tiles`.
          doc: What the attribute means.
          depth: How many names deep the attribute is, 1 at the root.
          default: Its default value; `None` for a category.
          deprecated_msg: Why it should no longer be used and what takes its place; `None` if it is current.
          attr_type: The type hint that values must have exactly; `None` for a category, which takes no value.
          effect: What the emulator does with it; `None` for a category.
        """
        self._name = name
        self._depth = depth
        self._default = default
        self._deprecated_msg = deprecated_msg
        self._hint = attr_type
        self._effect = effect
        self.__doc__ = doc

    @property
    def name(self) -> str:
        """The full name from the root of the configuration."""
        return self._name

    @property
    def doc(self) -> str:
        """What the attribute means, with its unit and with what the emulator does with it."""
        return self.__doc__ or ""

    @property
    def depth(self) -> int:
        """How many names deep the attribute is, 1 at the root."""
        return self._depth

    @property
    def type(self) -> str | None:
        """The type that values must have exactly, as text; `None` for a category."""
        if self._hint is None:
            return None
        return self._hint.__name__ if isinstance(self._hint, type) else str(self._hint)

    @property
    def default(self) -> Any:
        """A fresh copy of the default value; `None` for a category."""
        return copy.deepcopy(self._default)

    @property
    def effect(self) -> Effect | None:
        """What the emulator does with the attribute; `None` for a category."""
        return self._effect

    @property
    def deprecated(self) -> bool:
        """Whether the attribute should no longer be used."""
        return self._deprecated_msg is not None

    @property
    def deprecated_msg(self) -> str | None:
        """What takes the place of a deprecated attribute; `None` if it is current."""
        return self._deprecated_msg

    def check_type(self, value: object) -> None:
        """Checks that `value` has exactly the type of this attribute.

        Raises:
          TypeError: It has not, or this is a category, which takes no value.
        """
        if self._hint is None:
            raise TypeError(f"`{self._name}` is a category and takes no value; assign one of its attributes")
        if not conforms(value, self._hint):
            raise TypeError(
                f"`{self._name}` takes exactly `{self.type}`, and `{value!r}` is of type"
                f" `{value.__class__.__name__}`{self._advice(value)}"
            )

    def warn_if_deprecated(self) -> None:
        """Logs a warning if this attribute is deprecated."""
        if self.deprecated:
            _logger.warning("`%s` is deprecated: %s", self._name, self._deprecated_msg)

    def __repr__(self) -> str:
        return f"AttributeMetadata(name={self._name!r}, type={self.type!r}, default={self._default!r})"

    def _advice(self, value: object) -> str:
        if self._hint is float and type(value) is int:
            return f"; write `{float(value)}`"
        if self._hint is bool and type(value) is int and value in (0, 1):
            return f"; write `{bool(value)}`"
        if self._hint is int and type(value) is bool:
            return f"; write `{int(value)}`"
        if isinstance(self._hint, type) and issubclass(self._hint, Enum):
            return f"; assign one of {', '.join(f'`{member}`' for member in self._hint)}"
        return ""
