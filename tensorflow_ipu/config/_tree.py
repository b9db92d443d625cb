"""How classes that declare options become a tree of strictly typed attributes."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, overload

from tensorflow_ipu._base.checks import Faults
from tensorflow_ipu.config._metadata import AttributeMetadata, Effect
from tensorflow_ipu.config._values import decode, did_you_mean, encode, show

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")
C = TypeVar("C", bound="Category")


class UnknownAttributeError(ValueError, AttributeError):
    """A name that no attribute of the configuration has.

    IPU users know it as a `ValueError`; as an `AttributeError` too it keeps `hasattr` and the tools that probe objects
    (debuggers, notebooks, `copy`) working.
    """


class Option(Generic[T]):
    """One typed attribute: a descriptor that checks each assignment."""

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
        self.name = ""
        self.__doc__ = f"{doc} {effect.value}"

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Option[T]: ...
    @overload
    def __get__(self, instance: Category, owner: type) -> T: ...
    def __get__(self, instance: Category | None, owner: type) -> Option[T] | T:
        return self if instance is None else vars(instance)[self.name]

    def __set__(self, instance: Category, value: T) -> None:
        metadata = self.metadata(instance)
        metadata.check_type(value)
        metadata.warn_if_deprecated()
        vars(instance)[self.name] = value

    def metadata(self, category: Category) -> AttributeMetadata:
        """Describes this attribute as one of `category`."""
        prefix = prefix_of(category)
        return AttributeMetadata(
            name=prefix + self.name,
            doc=self.__doc__ or "",
            depth=prefix.count(".") + 1,
            default=self.default,
            deprecated_msg=self.deprecated,
            attr_type=self.hint,
            effect=self.effect,
        )


class Subcategory(Generic[C]):
    """A category below another: a descriptor that can be read and not assigned."""

    def __init__(self, category: type[C]) -> None:
        self.category = category
        self.name = ""
        self.__doc__ = category.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Subcategory[C]: ...
    @overload
    def __get__(self, instance: Category, owner: type) -> C: ...
    def __get__(self, instance: Category | None, owner: type) -> Subcategory[C] | C:
        return self if instance is None else vars(instance)[self.name]

    def __set__(self, instance: Category, value: object) -> NoReturn:
        name = prefix_of(instance) + self.name
        first = next(iter(members_of(self.category)))
        raise AttributeError(
            f"`{name}` is a category, so `{value!r}` cannot be assigned to it; assign its attributes, such as"
            f" `{name}.{first}`"
        )

    def metadata(self, category: Category) -> AttributeMetadata:
        """Describes this category as one below `category`."""
        prefix = prefix_of(category)
        return AttributeMetadata(name=prefix + self.name, doc=self.__doc__ or "", depth=prefix.count(".") + 1)


class Category:
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
        """What is known of one attribute or category.

        Args:
          attr: Its name relative to this category, such as `"io_tiles.num_io_tiles"`.

        Raises:
          TypeError: `attr` is no string.
          ValueError: There is no such attribute; the message has the nearest name that exists.
        """
        if not isinstance(attr, str):
            raise TypeError(f"`attr` must be the name of an attribute, and `{attr!r}` is no string")
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
        """The attributes of this category and of those below as a flat dict of plain data.

        Returns:
          Values by full name; enumerators as text (`"SelectionOrder.AUTO"`), tuples as lists.
        """
        return {name: encode(getattr(at, option.name)) for name, option, at in options_of(self)}

    def from_dict(self, dct: Mapping[str, Any]) -> Self:
        """Sets the attributes that `dct` names and leaves the others as they are.

        Either all of them are set or none.

        Args:
          dct: Values by full name, as `to_dict` writes them; enumerators may also be given as they are.

        Returns:
          This object.

        Raises:
          TypeError: `dct` is no mapping with names for keys, or a value has the wrong type.
          ValueError: A name is unknown, or a string names no enumerator.
        """
        if not isinstance(dct, Mapping):
            raise TypeError(f"`dct` must be a mapping of attribute names to values, and `{dct!r}` is not")
        known = {name: (option, at) for name, option, at in options_of(self)}
        faults = Faults()
        accepted: list[tuple[Option[Any], Category, Any]] = []
        for name, plain in dct.items():
            if name not in known:
                kind = ValueError if isinstance(name, str) else TypeError
                faults.add(
                    kind, f"`{name}` is not an attribute of {_title(self)}{did_you_mean(str(name), _names(self))}"
                )
                continue
            option, at = known[name]
            try:
                value = decode(name, plain, option.hint)
                option.metadata(at).check_type(value)
            except (TypeError, ValueError) as exc:
                faults.add(type(exc), str(exc))
            else:
                accepted.append((option, at, value))
        faults.raise_any()
        for option, at, value in accepted:
            # An unchanged value is not assigned, so that a deprecated default read back warns nobody.
            if option.canonical(getattr(at, option.name)) != option.canonical(value):
                option.__set__(at, value)
        return self

    def to_json(self) -> str:
        """The attributes as `to_dict` gives them, as JSON text."""
        return json.dumps(self.to_dict())

    def from_json(self, json_cfg: str) -> Self:
        """Sets the attributes that the JSON text names; see `from_dict`.

        Args:
          json_cfg: A JSON object, as `to_json` writes it.

        Returns:
          This object.

        Raises:
          TypeError: The text is not that of a JSON object, or a value has the wrong type.
          ValueError: The text is not JSON, a name is unknown, or a string names no enumerator.
        """
        try:
            dct = json.loads(json_cfg)
        except json.JSONDecodeError as exc:
            raise ValueError(f"`json_cfg` is not JSON ({exc}); give the text that `to_json` wrote") from exc
        return self.from_dict(dct)

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
        changed = (
            f"{name.removeprefix(prefix_of(self))}={show(getattr(at, option.name))}"
            for name, option, at in options_of(self)
            if option.canonical(getattr(at, option.name)) != option.canonical(option.default)
        )
        return f"{type(self).__name__}({', '.join(changed)})"

    def _refuse(self, name: str) -> NoReturn:
        raise UnknownAttributeError(f"`{name}` is not an attribute of {_title(self)}{did_you_mean(name, _names(self))}")


def prefix_of(category: Category) -> str:
    """What stands before the names of a category's attributes: `""` at the root, otherwise `"a."` or `"a.b."`."""
    return vars(category)["_prefix"]


def members_of(category: type[Category]) -> dict[str, Option[Any] | Subcategory[Any]]:
    """The options and sections of a category and its base classes by name, in the order of their declaration."""
    return {
        name: member
        for cls in reversed(category.__mro__)
        for name, member in vars(cls).items()
        if isinstance(member, (Option, Subcategory))
    }


def options_of(category: Category) -> Iterator[tuple[str, Option[Any], Category]]:
    """Each option of a category and of those below: its full name, the option, and the category that holds it."""
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
    """Full names by what a user may have meant them by: the name from the category on, or the last part alone."""
    prefix = prefix_of(category)
    names = {name: prefix + name for name in members_of(type(category))}
    for full, _, _ in options_of(category):
        names.setdefault(full.removeprefix(prefix), full)
        names.setdefault(full, full)
        names.setdefault(full.rpartition(".")[2], full)
    return names
