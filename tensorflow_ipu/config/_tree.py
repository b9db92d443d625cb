"""Base classes for configurations: trees of categories whose attributes are strictly typed options.

A class declares its attributes by descriptors. Values are in the dictionaries of the instances:

    class Tiles(Category):
        count = Option(0, "Tiles for input and output.", at_least=0)

    class Config(Category):
        tiles = Subcategory(Tiles)

    config = Config()
    config.tiles.count = 32         # `1.0` or `True` raises TypeError.
    config.to_dict()                # {"tiles.count": 32}
"""

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
    """The effect of an attribute in the emulator. The value is the last sentence of the attribute's documentation."""

    ACTS = "The emulator acts on it."
    MODEL = (
        "The emulator checks it and uses it in predictions (memory, time and plans); the results of a program do not"
        " depend on it."
    )
    RECORDED = "The emulator checks it and records it, without any other effect."


def conforms(value: object, hint: object) -> bool:
    """Returns True if `value` has exactly the type `hint`. Subclasses do not count, so `True` is no `int`."""
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
      doc: The meaning of the attribute, its unit and its effect in the emulator.
      depth: The number of names in `name`: 1 at the root.
      deprecated_msg: The replacement of a deprecated attribute; None if the attribute is current.
      effect: The effect of the attribute in the emulator; None for a category.
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
        """The exact type of values, as text; None for a category."""
        if self._hint is None:
            return None
        return self._hint.__name__ if isinstance(self._hint, type) else str(self._hint)

    @property
    def default(self) -> Any:
        """A copy of the default value; None for a category."""
        return copy.deepcopy(self._default)

    @property
    def deprecated(self) -> bool:
        """True if the attribute should no longer be used."""
        return self.deprecated_msg is not None

    def check_type(self, value: object) -> None:
        """Raises `TypeError` unless `value` has exactly the type of this attribute. Always raises for a category."""
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
    """Returns a value as data for JSON: an enumerator as its name, a tuple as a list, any other value as a copy."""
    if isinstance(value, Enum):
        return str(value)
    return list(value) if isinstance(value, tuple) else copy.deepcopy(value)


def decode(name: str, value: object, hint: object) -> Any:
    """Returns the value of attribute `name` that `encode` has converted to `value`."""
    if not (isinstance(hint, type) and issubclass(hint, Enum) and type(value) is str):
        return copy.deepcopy(value)
    spelled = value.removeprefix(f"{hint.__name__}.")
    if spelled not in hint.__members__:
        enumerators = {member.name: str(member) for member in hint}
        raise ValueError(f"`{name}` has no enumerator `{value}`{did_you_mean(spelled, enumerators)}")
    return hint[spelled]


def did_you_mean(name: str, supported: dict[str, str]) -> str:
    """Returns the end of an error message: the supported name that is nearest to `name`, or all supported names.

    `supported` has full names by the short names that users may write.
    """
    nearest = difflib.get_close_matches(name, supported, n=1)
    if nearest:
        return f"; did you mean `{supported[nearest[0]]}`?"
    return f"; known are {listing(supported.values())}"


def listing(names: Iterable[str], limit: int = 12) -> str:
    """Returns up to `limit` names in backticks, and the number of further names."""
    unique = list(dict.fromkeys(names))
    text = ", ".join(f"`{name}`" for name in unique[:limit])
    return text if len(unique) <= limit else f"{text} and {len(unique) - limit} more"


def show(value: object) -> str:
    """Returns `value` as it is written in Python."""
    return str(value) if isinstance(value, Enum) else repr(value)


T = TypeVar("T")
C = TypeVar("C", bound="Category")


class UnknownAttributeError(ValueError, AttributeError):
    """The error of an unsupported attribute name. It is also an `AttributeError`, on which `hasattr` and tools rely."""


class Attribute(Generic[T]):
    """An attribute of a category: a descriptor that stores its value in the dictionary of the category's instance."""

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
    """A typed attribute that checks each assignment.

    `canonical` maps equivalent values to one value, for comparisons. `at_least`, `at_most` and `choices` are checked when
    the system is configured.
    """

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
    """A category inside another one, which can be read but not assigned."""

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
    """A node of the tree. Its attributes are its `Option`s and `Subcategory`s; setting any other name raises."""

    __hash__ = None  # type: ignore[assignment]  # Categories are mutable, so equal ones may differ later.

    def __init__(self, prefix: str = "") -> None:
        # The dictionary of the instance has the values by the names of their descriptors. Python still uses the
        # descriptors, since data descriptors have priority over the dictionary.
        values = vars(self)
        values["_prefix"] = prefix
        for name, member in members_of(type(self)).items():
            is_category = isinstance(member, Subcategory)
            values[name] = member.category(f"{prefix}{name}.") if is_category else copy.deepcopy(member.default)

    def get_attribute_metadata(self, attr: str) -> AttributeMetadata:
        """Returns the description of an attribute or category by its name, relative to this category.

        Args:
          attr: The name, such as `"io_tiles.num_io_tiles"`.

        Raises:
          TypeError: `attr` is no string.
          ValueError: There is no such attribute; the message has the nearest name.
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
        """Returns the values of this category by full names, as data for JSON: enumerators as text, tuples as lists."""
        return {name: encode(getattr(category, option.name)) for name, option, category in options_of(self)}

    def from_dict(self, dct: Mapping[str, Any]) -> Self:
        """Sets the attributes that `dct` names, either all or none, and returns this object.

        Args:
          dct: Values by full names, as `to_dict` returns them. Enumerators may also be passed themselves.

        Raises:
          TypeError: `dct` is no mapping whose keys are strings, or a value has the wrong type.
          ValueError: The name of an attribute or an enumerator is unknown.
        """
        check_instance("dct", dct, Mapping, "a mapping of attribute names to values")
        options = {name: (option, category) for name, option, category in options_of(self)}
        faults = Faults()
        accepted: list[tuple[Option[Any], Category, Any]] = []

        def accept(name: Any, encoded: object) -> None:
            if name not in options:
                kind = ValueError if isinstance(name, str) else TypeError
                raise kind(f"`{name}` is not an attribute of {_title(self)}{did_you_mean(str(name), _names(self))}")
            option, category = options[name]
            value = decode(name, encoded, option.hint)
            option.metadata(category).check_type(value)
            accepted.append((option, category, value))

        for name, encoded in dct.items():
            faults.check(accept, name, encoded)
        faults.raise_any()
        for option, category, value in accepted:
            # An unchanged value is not assigned, so that reading the default of a deprecated attribute logs no warning.
            if option.canonical(getattr(category, option.name)) != option.canonical(value):
                option.__set__(category, value)
        return self

    def to_json(self) -> str:
        """Returns the result of `to_dict` as JSON text."""
        return json.dumps(self.to_dict())

    def from_json(self, json_cfg: str) -> Self:
        """Sets the attributes that a JSON object names, either all or none, and returns this object.

        Args:
          json_cfg: The text of a JSON object, as `to_json` returns it.

        Raises:
          TypeError: The JSON is no object, or a value has the wrong type.
          ValueError: The text is not JSON, or the name of an attribute or an enumerator is unknown.
        """
        try:
            dct = json.loads(json_cfg)
        except json.JSONDecodeError as exc:
            raise ValueError(f"`json_cfg` is not JSON ({exc}); pass the text that `to_json` returned") from exc
        return self.from_dict(dct)

    if not TYPE_CHECKING:  # Otherwise type checkers would accept misspelled names.

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("__"):
                # `copy` and `pickle` look up special names before the object has values, so `_refuse` would fail.
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
        # A shallow copy would share the categories, so that a change to one configuration would change the other.
        return copy.deepcopy(self)

    def __str__(self) -> str:
        return "\n".join(
            f"{name} = {show(getattr(category, option.name))}" for name, option, category in options_of(self)
        )

    def __repr__(self) -> str:
        changed = (f"{name.removeprefix(prefix_of(self))}={value}" for name, value, *_ in self._described(changed=True))
        return f"{type(self).__name__}({', '.join(changed)})"

    def _described(self, changed: bool) -> Iterator[tuple[str, str, str, str]]:
        """Yields (name, value, default, documentation) of attributes, either with changed or with default values."""
        for name, option, category in options_of(self):
            value = getattr(category, option.name)
            if (option.canonical(value) != option.canonical(option.default)) == changed:
                yield name, show(value), show(option.default), option.__doc__ or ""

    def _facts(self) -> Facts:
        rows = [
            (f"`{name}`", f"`{value}`", f"`{default}`", doc)
            for name, value, default, doc in self._described(changed=True)
        ]
        defaults = [(f"`{name}`", f"`{value}`", doc) for name, value, _, doc in self._described(changed=False)]
        changed = [Table(rows, ("differs from the default", "value", "default", ""))] if rows else []
        unchanged = Table(defaults, ("", "value", ""), summary=f"{len(defaults)} as by default")
        return Facts(type(self).__name__, "" if rows else "All is as by default.", [*changed, unchanged])

    def _refuse(self, name: str) -> NoReturn:
        raise UnknownAttributeError(f"`{name}` is not an attribute of {_title(self)}{did_you_mean(name, _names(self))}")


def prefix_of(category: Category) -> str:
    """Returns the prefix of full names in a category: `""` at the root, otherwise such as `"optimizations.math."`."""
    return vars(category)["_prefix"]


def members_of(category: type[Category]) -> dict[str, Option[Any] | Subcategory[Any]]:
    """Returns the options and subcategories of a class and its base classes by name, in the order of declaration."""
    return {
        name: member
        for cls in reversed(category.__mro__)
        for name, member in vars(cls).items()
        if isinstance(member, (Option, Subcategory))
    }


def options_of(category: Category) -> Iterator[tuple[str, Option[Any], Category]]:
    """Yields (full name, option, its category) for all options of a category and its subcategories."""
    for name, member in members_of(type(category)).items():
        if isinstance(member, Subcategory):
            yield from options_of(getattr(category, name))
        else:
            yield prefix_of(category) + name, member, category


def _comparable(category: Category) -> dict[str, object]:
    return {name: option.canonical(getattr(owner, option.name)) for name, option, owner in options_of(category)}


def _title(category: Category) -> str:
    return f"the category `{prefix_of(category)[:-1]}`" if prefix_of(category) else "the configuration"


def _names(category: Category) -> dict[str, str]:
    """Returns full names by all names that users may write: the full name, the name in the category, or the last part."""
    prefix = prefix_of(category)
    names = {name: prefix + name for name in members_of(type(category))}
    for full, _, _ in options_of(category):
        names.setdefault(full.removeprefix(prefix), full)
        names.setdefault(full, full)
        names.setdefault(full.rpartition(".")[2], full)
    return names
