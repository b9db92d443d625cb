"""All names of the API and their states, as lines or in Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from tensorflow_ipu.compat import _names
from tensorflow_ipu.compat._names import Absent, Target
from tensorflow_ipu.config import IPUConfig

_IPU = _names.IPU
_OF_EFFECTS = {"MODEL": "for the machine's report", "RECORDED": "checked, and nothing changes by it"}

# From so many names on, the name of a module stands for them.
_MANY = 4


class State(Enum):
    """The state of a name, as the list calls it."""

    WORKS = "works"
    RECORDED = "recorded"
    CANNOT = "cannot be"


@dataclass(frozen=True)
class ListedName:
    """A name of the API."""

    module: str
    name: str
    state: State
    words: str

    @property
    def full(self) -> str:
        """The name with its module."""
        return f"{self.module}.{self.name}" if self.name else self.module


def entries() -> list[ListedName]:
    """All names of `ipu`, `keras.ipu`, the other packages and options of `IPUConfig`, by module and name."""
    found = [
        _entry(module, name, target)
        for module, old in _names.MODULES.items()
        if _is_listed(module)
        for name, target in old.names.items()
    ]
    found += [
        ListedName(_short(module), "", State.CANNOT, reason)
        for module, reason in _names.GONE.items()
        if _is_listed(module)
    ]
    old = (ListedName("ipu.utils", name, State.CANNOT, _names.became(name)) for name in _names.OLD_OPTIONS)
    return sorted([*found, *_options(), *old], key=lambda entry: (entry.module, entry.name.lower()))


def chosen(words: Iterable[str]) -> list[ListedName]:
    """The names that contain one of the words; all names if there is no word."""
    parts = [word.lower() for word in words]
    return [entry for entry in entries() if not parts or any(part in entry.full.lower() for part in parts)]


def lines(found: Sequence[ListedName]) -> list[str]:
    """A line for each name, and one for the number in each state."""
    width = max((len(entry.full) for entry in found), default=0)
    counts = Counter(entry.state for entry in found)
    return [
        *(f"{entry.full:{width}}  {entry.state.value:9}  {entry.words}" for entry in found),
        f"{len(found)} names: " + ", ".join(f"{counts[state]} {state.value}" for state in State),
    ]


def markdown() -> str:
    """The names in Markdown: those that work by module, the others by effect or reason."""
    listed = [
        entry for entry in entries() if not entry.name.startswith("IPUConfig.")
    ]  # Options have a page of their own.
    paragraphs = [f"**{State.WORKS.value.capitalize()}**", "\n".join(_working(listed))]
    for state in (State.RECORDED, State.CANNOT):
        reasons: dict[str, list[str]] = {}
        for entry in listed:
            if entry.state is state:
                reasons.setdefault(entry.words, []).append(f"`{entry.full}`")
        if reasons:
            items = "\n".join(f"* {', '.join(names)}: {reason}" for reason, names in reasons.items())
            paragraphs += [f"**{state.value.capitalize()}**", items]
    return "\n\n".join(paragraphs)


def _working(listed: list[ListedName]) -> Iterator[str]:
    """An item for each module, which may refer to others, and one for all modules of a single name."""
    modules: dict[str, dict[str, str]] = {}
    for entry in listed:
        if entry.state is State.WORKS:
            modules.setdefault(entry.module, {})[entry.name] = entry.words
    order = list(modules)
    single = [f"`{module}.{name}`" for module, names in modules.items() if len(names) == 1 for name in names]
    for module, names in modules.items():
        if len(names) == 1:
            continue
        own = [other for other in order if other.startswith(f"{module}.")]
        if own and names.items() == set().union(*(modules[other].items() for other in own)):
            yield f"* `{module}`: the names of its modules"
            continue
        left, others = dict(names), []
        for other in sorted(order, key=lambda other: -len(modules[other])):
            part = modules[other].items()
            smaller = len(part) < len(names) or order.index(other) > order.index(module)
            if smaller and len(part) >= _MANY and part <= left.items():
                others.append(f"those of `{other}`")
                left = {name: where for name, where in left.items() if name not in modules[other]}
        yield f"* `{module}`: " + ", ".join([*(f"`{name}`" for name in left), *others])
    yield f"* Modules of one name: {', '.join(single)}"


def _entry(module: str, name: str, target: Target) -> ListedName:
    if isinstance(target, Absent):
        return ListedName(_short(module), name, State.CANNOT, target.reason)
    what = _names.recorded(target)
    if what is not None:
        return ListedName(_short(module), name, State.RECORDED, what)
    home, _, attribute = target.partition(":")
    return ListedName(_short(module), name, State.WORKS, f"{home}.{attribute}")


def _options() -> Iterator[ListedName]:
    config = IPUConfig()
    for option in config.to_dict():
        effect = config.get_attribute_metadata(option).effect
        what = _OF_EFFECTS.get(effect.name if effect is not None else "")
        name = f"IPUConfig.{option}"
        state = State.WORKS if what is None else State.RECORDED
        yield ListedName(_short(f"{_IPU}.config"), name, state, what or f"tensorflow_ipu.config.{name}")


def _is_listed(module: str) -> bool:
    roots = (_IPU, "keras.ipu", _names.ADDONS, "libpvti", *_names.PACKAGES)
    of_ours = any(module == root or module.startswith(f"{root}.") for root in roots)
    return of_ours and not module.startswith(_names.FIRST_KERAS)  # The same as in `keras.ipu` and the add-ons.


def _short(module: str) -> str:
    return module.replace(_IPU, "ipu", 1) if module.startswith(_IPU) else module
