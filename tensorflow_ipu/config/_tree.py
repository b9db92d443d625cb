"""Makes classes that declare options a tree of strictly typed attributes."""

from __future__ import annotations

import copy
import difflib
import json
import logging
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, get_args, get_origin, overload

from tensorflow_ipu._base.checks import Faults, check_instance
from tensorflow_ipu._base.notebook import Facts, NotebookView, Table

if TYPE_CHECKING:
    from typing_extensions import Self

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
    """Returns True if `value` has exactly the type `hint`; subclasses do not count, so `True` is no `int`."""
    if isinstance(hint, types.UnionType):
        return any(conforms(value, option) for option in get_args(hint))
    container = get_origin(hint)
    if container is None:
        return type(value) is hint
    element = get_args(hint)[0]
    return type(value) is container and all(conforms(item, element) for item in value)  # type: ignore[attr-defined]


class AttributeMetadata:
    """Describes one attribute or category of a configuration; `doc` is also its `__doc__`.

    Attributes:
      name: The full name from the root of the configuration.
      doc: What the attribute means, with its unit and with what the emulator does with it.
      depth: How many names deep the attribute is, 1 at the root.
      deprecated_msg: What takes the place of a deprecated attribute; None if it is current.
      effect: What the emulator does with the attribute; None for a category.
    """

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
        self.name = name
        self.doc = self.__doc__ = doc
        self.depth = depth
        self.deprecated_msg = deprecated_msg
        self.effect = effect
        self._default = default
        self._hint = attr_type

    @property
    def type(self) -> str | None:
        """Returns the type that values must have exactly, as text; None for a category."""
        if self._hint is None:
            return None
        return self._hint.__name__ if isinstance(self._hint, type) else str(self._hint)

    @property
    def default(self) -> Any:
        """Returns a copy of the default value; None for a category."""
        return copy.deepcopy(self._default)

    @property
    def deprecated(self) -> bool:
        """Returns True if the attribute should no longer be used."""
        return self.deprecated_msg is not None

    def check_type(self, value: object) -> None:
        """Raises `TypeError` unless `value` has exactly the type of this attribute; always for a category."""
        if self._hint is None:
            raise TypeError(f"`{self.name}` is a category and takes no value; assign one of its attributes")
        if not conforms(value, self._hint):
            raise TypeError(
                f"`{self.name}` takes exactly `{self.type}`, and `{value!r}` is of type"
                f" `{value.__class__.__name__}`{self._advice(value)}"
            )

    def warn_if_deprecated(self) -> None:
        """Logs a warning if this attribute is deprecated."""
        if self.deprecated:
            _logger.warning("`%s` is deprecated: %s", self.name, self.deprecated_msg)

    def __repr__(self) -> str:
        return f"AttributeMetadata(name={self.name!r}, type={self.type!r}, default={self._default!r})"

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


def encode(value: object) -> Any:
    """Converts a value to plain data: an enumerator to its name, a tuple to a list, all else to a copy."""
    if isinstance(value, Enum):
        return str(value)
    return list(value) if isinstance(value, tuple) else copy.deepcopy(value)


def decode(name: str, value: object, hint: object) -> Any:
    """Restores the value of attribute `name` that `encode` converted to `value`."""
    if not (isinstance(hint, type) and issubclass(hint, Enum) and type(value) is str):
        return copy.deepcopy(value)
    spelled = value.removeprefix(f"{hint.__name__}.")
    if spelled not in hint.__members__:
        known = {member.name: str(member) for member in hint}
        raise ValueError(f"`{name}` has no enumerator `{value}`{did_you_mean(spelled, known)}")
    return hint[spelled]


def did_you_mean(name: str, known: dict[str, str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1)
    if nearest:
        return f"; did you mean `{known[nearest[0]]}`?"
    return f"; known are {listing(known.values())}"


def listing(names: Iterable[str], most: int = 12) -> str:
    """Lists up to `most` names in backticks, and the number of the others."""
    unique = list(dict.fromkeys(names))
    text = ", ".join(f"`{name}`" for name in unique[:most])
    return text if len(unique) <= most else f"{text} and {len(unique) - most} more"


def show(value: object) -> str:
    """Formats `value` as a user would write it."""
    return str(value) if isinstance(value, Enum) else repr(value)


T = TypeVar("T")
C = TypeVar("C", bound="Category")


class UnknownAttributeError(ValueError, AttributeError):
    """A name that no attribute has; an `AttributeError` too, for `hasattr` and tools that probe objects."""


class Attribute(Generic[T]):
    """An attribute of a category: a descriptor, whose values are in the dictionary of the category's instance."""

    name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: Category, owner: type) -> T: ...
    def __get__(self, instance: Category | None, owner: type) -> Self | T:
        return self if instance is None else vars(instance)[self.name]


class Option(Attribute[T]):
    """One typed attribute, which checks each assignment."""

    def __init__(
        self,
        default: T,
        doc: str,
        *,
        effect: Effect = Effect.RECORDED,
        hint: object = None,
        canonical: Callable[[Any], Any] = lambda value: value,
        at_least: float | None = None,
        at_most: float | None = None,
        choices: tuple[T, ...] | None = None,
        deprecated: str | None = None,
    ) -> None:
        self.default = default
        self.hint = type(default) if hint is None else hint
        self.effect = effect
        self.canonical = canonical
        self.at_least = at_least
        self.at_most = at_most
        self.choices = choices
        self.deprecated = deprecated
        self.__doc__ = f"{doc} {effect.value}"

    def __set__(self, instance: Category, value: T) -> None:
        metadata = self.metadata(instance)
        metadata.check_type(value)
        metadata.warn_if_deprecated()
        vars(instance)[self.name] = value

    def metadata(self, category: Category) -> AttributeMetadata:
        prefix = prefix_of(category)
        return AttributeMetadata(
            prefix + self.name, self.__doc__ or "", prefix.count(".") + 1, default=self.default,
            deprecated_msg=self.deprecated, attr_type=self.hint, effect=self.effect,
        )  # fmt: skip


class Subcategory(Attribute[C]):
    """A category below another, which can be read and not assigned."""

    def __init__(self, category: type[C]) -> None:
        self.category = category
        self.__doc__ = category.__doc__

    def __set__(self, instance: Category, value: object) -> NoReturn:
        name = prefix_of(instance) + self.name
        first = next(iter(members_of(self.category)))
        raise AttributeError(
            f"`{name}` is a category, so `{value!r}` cannot be assigned to it; assign its attributes, such as"
            f" `{name}.{first}`"
        )

    def metadata(self, category: Category) -> AttributeMetadata:
        prefix = prefix_of(category)
        return AttributeMetadata(prefix + self.name, self.__doc__ or "", prefix.count(".") + 1)


class Category(NotebookView):
    """A node of the tree: its `Option`s and `Subcategory`s are its attributes, and it takes no others."""

    __hash__ = None  # type: ignore[assignment]  # Mutable, so what is equal now need not be equal later.

    def __init__(self, prefix: str = "") -> None:
        # The values lie in the dictionary of the instance under their own names; since options and sections are data
        # descriptors, Python asks these first.
        state = vars(self)
        state["_prefix"] = prefix
        for name, member in members_of(type(self)).items():
            below = isinstance(member, Subcategory)
            state[name] = member.category(f"{prefix}{name}.") if below else copy.deepcopy(member.default)

    def get_attribute_metadata(self, attr: str) -> AttributeMetadata:
        """Describes an attribute or category by its name from here, such as `"io_tiles.num_io_tiles"`.

        Raises:
          TypeError: `attr` is no string.
          ValueError: There is no such attribute; the message has the nearest name that exists.
        """
        check_instance("attr", attr, str, "the name of an attribute")
        category: Category = self
        *parents, last = attr.split(".")
        for parent in parents:
            if not isinstance(members_of(type(category)).get(parent), Subcategory):
                self._refuse(attr)
            category = getattr(category, parent)
        if last not in members_of(type(category)):
            self._refuse(attr)
        return members_of(type(category))[last].metadata(category)

    def to_dict(self) -> dict[str, Any]:
        """Returns the attributes from here on as a flat dict of plain data: enumerators as text, tuples as lists."""
        return {name: encode(getattr(at, option.name)) for name, option, at in options_of(self)}

    def from_dict(self, dct: Mapping[str, Any]) -> Self:
        """Sets the attributes that `dct` names, either all or none, leaves the others as they are, and returns this object.

        `dct` has values by full name, as `to_dict` writes them; enumerators may also be passed as they are.

        Raises:
          TypeError: `dct` is no mapping with names for keys, or a value has the wrong type.
          ValueError: A name is unknown, or a string names no enumerator.
        """
        check_instance("dct", dct, Mapping, "a mapping of attribute names to values")
        known = {name: (option, at) for name, option, at in options_of(self)}
        faults = Faults()
        accepted: list[tuple[Option[Any], Category, Any]] = []

        def accept(name: Any, plain: object) -> None:
            if name not in known:
                kind = ValueError if isinstance(name, str) else TypeError
                raise kind(f"`{name}` is not an attribute of {_title(self)}{did_you_mean(str(name), _names(self))}")
            option, at = known[name]
            value = decode(name, plain, option.hint)
            option.metadata(at).check_type(value)
            accepted.append((option, at, value))

        for name, plain in dct.items():
            faults.check(accept, name, plain)
        faults.raise_any()
        for option, at, value in accepted:
            # An unchanged value is not assigned, so that a deprecated default read back warns nobody.
            if option.canonical(getattr(at, option.name)) != option.canonical(value):
                option.__set__(at, value)
        return self

    def to_json(self) -> str:
        """Returns the attributes of `to_dict` as JSON text."""
        return json.dumps(self.to_dict())

    def from_json(self, json_cfg: str) -> Self:
        """Sets the attributes that a JSON object of `to_json` names, with the errors of `from_dict`, and returns this object.

        Text that is no JSON raises `ValueError` too, and JSON that is no object `TypeError`.
        """
        try:
            dct = json.loads(json_cfg)
        except json.JSONDecodeError as exc:
            raise ValueError(f"`json_cfg` is not JSON ({exc}); give the text that `to_json` wrote") from exc
        return self.from_dict(dct)

    if not TYPE_CHECKING:  # A misspelled name is an error for type checkers.

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("__"):
                # `copy` and `pickle` probe objects that are not filled yet, so there may be nothing to search.
                raise UnknownAttributeError(f"`{name}` is not an attribute of the configuration")
            self._refuse(name)

        def __setattr__(self, name: str, value: object) -> None:
            if name not in members_of(type(self)):
                self._refuse(name)
            object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Category) or type(other) is not type(self):
            return NotImplemented
        return _comparable(self) == _comparable(other)

    def __copy__(self) -> Self:
        # A shallow copy would share its categories, so that a change to one configuration would show in the other.
        return copy.deepcopy(self)

    def __str__(self) -> str:
        return "\n".join(f"{name} = {show(getattr(at, option.name))}" for name, option, at in options_of(self))

    def __repr__(self) -> str:
        changed = (f"{name.removeprefix(prefix_of(self))}={value}" for name, value, *_ in self._told(changed=True))
        return f"{type(self).__name__}({', '.join(changed)})"

    def _told(self, changed: bool) -> Iterator[tuple[str, str, str, str]]:
        """Yields name, value, default and meaning of the attributes that differ from their defaults, or of the others."""
        for name, option, at in options_of(self):
            value = getattr(at, option.name)
            if (option.canonical(value) != option.canonical(option.default)) == changed:
                yield name, show(value), show(option.default), option.__doc__ or ""

    def _facts(self) -> Facts:
        rows = [
            (f"`{name}`", f"`{value}`", f"`{default}`", doc) for name, value, default, doc in self._told(changed=True)
        ]
        others = [(f"`{name}`", f"`{value}`", doc) for name, value, _, doc in self._told(changed=False)]
        changed = [Table(rows, ("differs from the default", "value", "default", ""))] if rows else []
        rest = Table(others, ("", "value", ""), summary=f"{len(others)} as by default")
        return Facts(type(self).__name__, "" if rows else "All is as by default.", [*changed, rest])

    def _refuse(self, name: str) -> NoReturn:
        raise UnknownAttributeError(f"`{name}` is not an attribute of {_title(self)}{did_you_mean(name, _names(self))}")


def prefix_of(category: Category) -> str:
    """Returns the prefix of the names of a category's attributes: `""` at the root, otherwise `"a."` or `"a.b."`."""
    return vars(category)["_prefix"]


def members_of(category: type[Category]) -> dict[str, Option[Any] | Subcategory[Any]]:
    """Returns the options and subcategories of a category and its base classes, in the order of declaration."""
    return {
        name: member
        for cls in reversed(category.__mro__)
        for name, member in vars(cls).items()
        if isinstance(member, (Option, Subcategory))
    }


def options_of(category: Category) -> Iterator[tuple[str, Option[Any], Category]]:
    """Yields the full name of each option of a category and of those below, the option, and its category."""
    for name, member in members_of(type(category)).items():
        if isinstance(member, Subcategory):
            yield from options_of(getattr(category, name))
        else:
            yield prefix_of(category) + name, member, category


def _comparable(category: Category) -> dict[str, object]:
    return {name: option.canonical(getattr(at, option.name)) for name, option, at in options_of(category)}


def _title(category: Category) -> str:
    return f"the category `{prefix_of(category)[:-1]}`" if prefix_of(category) else "the configuration"


def _names(category: Category) -> dict[str, str]:
    """Returns full names by what a user may have meant: the name from the category on, or its last part."""
    prefix = prefix_of(category)
    names = {name: prefix + name for name in members_of(type(category))}
    for full, _, _ in options_of(category):
        names.setdefault(full.removeprefix(prefix), full)
        names.setdefault(full, full)
        names.setdefault(full.rpartition(".")[2], full)
    return names
