"""Lists all names of the API with their states, as text or in Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from tensorflow_ipu.compat import _names
from tensorflow_ipu.compat._names import Absent, Target
from tensorflow_ipu.config import IPUConfig

_IPU = _names.IPU
_OF_EFFECTS = {"MODEL": "used only by the machine's report", "RECORDED": "checked and recorded, without effect"}

# An item refers to another module only if the reference replaces at least this many names.
_MANY = 4


class State(Enum):
    """The state of a name, as the list prints it."""

    WORKS = "works"
    RECORDED = "recorded"
    CANNOT = "cannot be"


@dataclass(frozen=True)
class ListedName:
    """A name of the API. `note` is the place of a working name, else the reason why the name does not work."""

    module: str
    name: str
    state: State
    note: str

    @property
    def full(self) -> str:
        """The name with its module."""
        return f"{self.module}.{self.name}" if self.name else self.module


def entries() -> list[ListedName]:
    """Returns all names of `ipu`, `keras.ipu` and the other packages, and the options of `IPUConfig`, sorted."""
    names = [
        _entry(module, name, target)
        for module, old in _names.MODULES.items()
        if _is_listed(module)
        for name, target in old.names.items()
    ]
    names += [
        ListedName(_short(module), "", State.CANNOT, reason)
        for module, reason in _names.GONE.items()
        if _is_listed(module)
    ]
    old = (ListedName("ipu.utils", name, State.CANNOT, _names.became(name)) for name in _names.OLD_OPTIONS)
    return sorted([*names, *_options(), *old], key=lambda entry: (entry.module, entry.name.lower()))


def chosen(texts: Iterable[str]) -> list[ListedName]:
    """Returns the names that contain one of the texts, or all names if there are no texts."""
    parts = [text.lower() for text in texts]
    return [entry for entry in entries() if not parts or any(part in entry.full.lower() for part in parts)]


def lines(names: Sequence[ListedName]) -> list[str]:
    """Returns a line for each name, and a last one with the number of names in each state."""
    width = max((len(entry.full) for entry in names), default=0)
    counts = Counter(entry.state for entry in names)
    return [
        *(f"{entry.full:{width}}  {entry.state.value:9}  {entry.note}" for entry in names),
        f"{len(names)} names: " + ", ".join(f"{counts[state]} {state.value}" for state in State),
    ]


def markdown() -> str:
    """Returns the names in Markdown: the working names by module, all other names by reason."""
    # Another page documents the options.
    listed = [entry for entry in entries() if not entry.name.startswith("IPUConfig.")]
    paragraphs = [f"**{State.WORKS.value.capitalize()}**", "\n".join(_working(listed))]
    for state in (State.RECORDED, State.CANNOT):
        reasons: dict[str, list[str]] = {}
        for entry in listed:
            if entry.state is state:
                reasons.setdefault(entry.note, []).append(f"`{entry.full}`")
        if reasons:
            items = "\n".join(f"* {', '.join(names)}: {reason}" for reason, names in reasons.items())
            paragraphs += [f"**{state.value.capitalize()}**", items]
    return "\n\n".join(paragraphs)


def _working(listed: list[ListedName]) -> Iterator[str]:
    """Yields an item for each module with several names, and then one item for all other modules.

    Many modules of the SDK contain all names of another module. Their items refer to the largest such modules:

        `keras.ipu.extensions.model_extensions`: `ModelExtension`,
            those of `keras.ipu.extensions.pipeline_stage_assignment`
    """
    modules: dict[str, dict[str, str]] = {}
    for entry in listed:
        if entry.state is State.WORKS:
            modules.setdefault(entry.module, {})[entry.name] = entry.note
    order = list(modules)
    single = [f"`{module}.{name}`" for module, names in modules.items() if len(names) == 1 for name in names]
    for module, names in modules.items():
        if len(names) == 1:
            continue
        submodules = [child for child in order if child.startswith(f"{module}.")]
        if submodules and names.items() == set().union(*(modules[child].items() for child in submodules)):
            yield f"* `{module}`: the names of its modules"
            continue
        remaining, references = dict(names), []
        for source in sorted(order, key=lambda source: -len(modules[source])):
            part = modules[source].items()
            # Of two modules with the same names, only the first refers to the second.
            is_smaller = len(part) < len(names) or order.index(source) > order.index(module)
            if is_smaller and len(part) >= _MANY and part <= remaining.items():
                references.append(f"those of `{source}`")
                remaining = {name: place for name, place in remaining.items() if name not in modules[source]}
        yield f"* `{module}`: " + ", ".join([*(f"`{name}`" for name in remaining), *references])
    yield f"* Modules of one name: {', '.join(single)}"


def _entry(module: str, name: str, target: Target) -> ListedName:
    if isinstance(target, Absent):
        return ListedName(_short(module), name, State.CANNOT, target.reason)
    reason = _names.recorded(target)
    if reason is not None:
        return ListedName(_short(module), name, State.RECORDED, reason)
    home, _, attribute = target.partition(":")
    return ListedName(_short(module), name, State.WORKS, f"{home}.{attribute}")


def _options() -> Iterator[ListedName]:
    config = IPUConfig()
    for option in config.to_dict():
        effect = config.get_attribute_metadata(option).effect
        reason = _OF_EFFECTS.get(effect.name if effect is not None else "")
        name = f"IPUConfig.{option}"
        state = State.WORKS if reason is None else State.RECORDED
        yield ListedName(_short(f"{_IPU}.config"), name, state, reason or f"tensorflow_ipu.config.{name}")


def _is_listed(module: str) -> bool:
    roots = (_IPU, "keras.ipu", _names.ADDONS, "libpvti", *_names.PACKAGES)
    is_below = any(module == root or module.startswith(f"{root}.") for root in roots)
    return is_below and not module.startswith(_names.FIRST_KERAS)  # `keras.ipu` and the add-ons have the same names.


def _short(module: str) -> str:
    return module.replace(_IPU, "ipu", 1) if module.startswith(_IPU) else module
