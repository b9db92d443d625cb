"""The tables of all old modules and names, and the error messages for names that do not exist."""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Absent:
    """The target of an old name that has no replacement."""

    reason: str


# The place of a name, as `package.module:attribute`, or the reason why it has none.
Target = str | Absent


@dataclass(frozen=True)
class Module:
    """The names of an old module, and a note that ends error messages about the module."""

    names: Mapping[str, Target] = field(default_factory=dict)
    note: str = ""


_TEXT = re.sub(r"^#.*\n", "", Path(__file__).with_name("names.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)
_, *_PARTS = re.split(r"^== (.*) ==\n", _TEXT, flags=re.MULTILINE)
_TABLES = dict(zip(_PARTS[::2], _PARTS[1::2], strict=True))


def _entries(table: str) -> Iterator[tuple[list[str], str, str, str]]:
    """Yields the entries of a table: the prefixes and the note that apply, and the texts on both sides of the `=`."""
    prefixes, note = [""], ""
    for entry in re.split(r"\n(?=\S)", _TABLES[table].strip()):
        line = " ".join(entry.split())
        if line.startswith("["):
            names, _, note = line[1:].partition("]")
            prefixes, note = names.split() or [""], note.strip()
        else:
            head, _, text = f" {line}".partition(" =")
            yield prefixes, note, head.strip(), text.strip()


def pairs(table: str) -> dict[str, str]:
    """Returns a table as a dictionary from name to text."""
    return {f"{prefix}{name}": text for [prefix], _, names, text in _entries(table) for name in names.split()}


def _modules(table: str) -> tuple[dict[str, Module], dict[str, str]]:
    """Returns the modules of a table, and the module names by alias. names.txt describes the format."""
    modules: dict[str, Module] = {}
    aliases = dict[str, str]()
    for prefixes, note, head, text in _entries(table):
        full, *module_aliases = [f"{prefix}{head}" for prefix in prefixes]
        aliases.update(dict.fromkeys(module_aliases, full))
        names: dict[str, Target] = {}
        existing, *absent = f" {text}".split(" absent ")
        place = ""
        for token in existing.split():
            if token.endswith(":"):
                place = f"tensorflow_ipu{token}" if token.startswith(".") else token
            elif token.startswith("+"):
                prefix = token[1:-1] if token.endswith("*") else ""
                for name, module in modules.items():
                    if name == token[1:] or (prefix and name.startswith(prefix)):
                        names.update(module.names)
            else:
                old, _, new = token.partition("=")
                names[old] = f"{place}{new or old}"
        for group in absent:
            absent_names, _, reason = group.partition(" -- ")
            names.update(dict.fromkeys(absent_names.split(), Absent(reason)))
        modules[full] = Module(names, note)
    return modules, aliases


IPU, POPLAR, ADDONS = "tensorflow.python.ipu", "tensorflow.compiler.plugin.poplar", "ipu_tensorflow_addons"
CONTRIB, TENSORFLOW_ADDONS = "tensorflow.contrib", "tensorflow_addons"
# Until early 2021, this module of the SDK had the names of `keras.ipu`, and layers that later moved to `ADDONS`.
FIRST_KERAS = f"{IPU}.keras"
# The module that `tf.keras` returns. It has the classes of `keras`, but its submodules are separate. `SPELLINGS` are
# other names of this module.
TF_KERAS = "keras._tf_keras.keras"
LEFT_OF_KERAS_2 = _TABLES["left of Keras 2"].strip()
SPELLINGS = ("tensorflow.keras", "tensorflow.compat.v1.keras", "tensorflow.compat.v2.keras")

MODULES, ALIASES = _modules("modules")
ALIASES.update(
    (f"{keras}{module.removeprefix('keras')}", module)
    for keras in (TF_KERAS, *SPELLINGS)
    for module in MODULES
    if module.startswith("keras.")
)
# Old modules that become attributes of existing modules of Keras.
KERAS_ROOTS = [name for name in MODULES if name.startswith("keras.") and name.rpartition(".")[0] not in MODULES]
GONE = pairs("gone")
RECORDED, OLD_OPTIONS = pairs("recorded"), pairs("old options")
# Names that existing modules have lost: module, name, target.
ATTRIBUTES = [
    (module, name, target)
    for module, lost in _modules("lost")[0].items()
    for name, target in lost.names.items()
    if isinstance(target, str)
]

# Other packages of the SDK: those that this package replaces, and those that it does not.
PACKAGES = ("horovod", "popdist")
COMPANIONS = ("popart", "popef", "poptorch", "pva")
# If such a package is installed, it is imported instead of the modules of the tables.
YIELDING = ("horovod", TENSORFLOW_ADDONS)


def resolve(target: str) -> Any:
    """Imports a target: the attribute after the colon, or the module itself if there is no colon."""
    module, _, name = target.partition(":")
    imported = importlib.import_module(module)
    return getattr(imported, name) if name else imported


def recorded(target: Target | None) -> str | None:
    """Returns the reason why using the target has no effect, or None if it has an effect."""
    return RECORDED.get(target) if isinstance(target, str) else None


def module_exists(name: str) -> bool:
    """Returns True if there is an old module with this full name."""
    return name in MODULES or name in ALIASES


def original(name: str) -> str | None:
    """Returns the module that has `name` as an alias, or None."""
    # Python's `import tensorflow.keras` would execute Keras's public modules again and create a second `tf.keras`.
    if name in ALIASES:
        return ALIASES[name]
    for spelling in SPELLINGS:
        if name == spelling or name.startswith(f"{spelling}."):
            return f"{TF_KERAS}{name[len(spelling) :]}"
    return None


def is_ours(name: str) -> bool:
    """Returns True if the tables decide whether a module with this full name exists."""
    return module_exists(name) or name in GONE or module_exists(name.rpartition(".")[0])


def is_of_keras(module: str) -> bool:
    """Returns True if an old module, given by any of its names, was part of Keras itself."""
    full = f"{_without_alias(module)}."
    return full.startswith("keras.") and not full.startswith("keras.ipu.")


def target(module: str, name: str) -> Target | None:
    """Returns the target of a name of an old module, or None if the tables do not have the name."""
    return MODULES[_without_alias(module)].names.get(name)


def homes(module: str) -> list[str]:
    """Returns the modules that provide the names of an old module now, sorted."""
    targets = MODULES[_without_alias(module)].names.values()
    return sorted({target.partition(":")[0] for target in targets if not isinstance(target, Absent)})


def existing(module: str) -> list[str]:
    """Returns the usable names of an old module and its submodules with usable names, sorted."""
    full = _without_alias(module)
    names = {name for name, target in MODULES[full].names.items() if not isinstance(target, Absent)}
    below = {name.removeprefix(f"{full}.") for name in (*MODULES, *ALIASES) if name.startswith(f"{full}.")}
    return sorted(names | {child for child in below if "." not in child and existing(f"{full}.{child}")})


def missing_module(name: str) -> str | None:
    """Returns the message for a missing module that the tables cover, or None for all other modules."""
    if module_exists(name) or not is_ours(name):
        return None
    parent, _, child = name.rpartition(".")
    end = f" in this version of tensorflow_ipu{_hints(parent, child)}" if module_exists(parent) else ""
    return f"there is no module `{name}`{_reason(parent, child) or end}"


def missing_name(module: str, name: str) -> str | None:
    """Returns the message for a name that an old module does not have, or None if it has the name."""
    entry = target(module, name)
    if isinstance(entry, Absent):
        return f"`{module}.{name}` cannot be used: {entry.reason}"
    if entry is not None or module_exists(f"{module}.{name}"):
        return None
    if reason := _reason(module, name):
        return f"`{module}.{name}` does not exist{reason}"
    return f"`{module}` has no name `{name}` in this version of tensorflow_ipu{_hints(module, name)}"


def _without_alias(module: str) -> str:
    """Returns the name of a module that is given by its name or an alias."""
    return ALIASES.get(module, module)


def _reason(module: str, name: str) -> str:
    reason = GONE.get(f"{_without_alias(module)}.{name}")
    return f": {reason}" if reason else ""


def became(name: str) -> str:
    """Returns a description of the part of `IPUConfig` that replaced one of the `OLD_OPTIONS`."""
    replacement = f"`IPUConfig().{OLD_OPTIONS[name]}`" if OLD_OPTIONS[name] else "`IPUConfig` and its attributes"
    return f"became {replacement}, which `configure_ipu_system()` applies"


def _hints(module: str, name: str) -> str:
    full = _without_alias(module)
    if name in OLD_OPTIONS and full.startswith(IPU):
        return f"; it {became(name)}: docs/configuration.md"
    near = difflib.get_close_matches(name, existing(full), n=1)
    hint = f"; did you mean `{near[0]}`?" if near else ""
    note = MODULES[full].note
    return f"{hint}. {note}" if note and not near else hint
