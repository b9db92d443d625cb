"""All old modules and names together, and what to say of those that do not exist."""

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
    """Stands for an old name that exists nowhere."""

    reason: str


# Where a name is, as `package.module:attribute`; or why it is nowhere.
Target = str | Absent


@dataclass(frozen=True)
class Module:
    """An old module."""

    names: Mapping[str, Target] = field(default_factory=dict)
    note: str = ""


_TEXT = re.sub(r"^#.*\n", "", Path(__file__).with_name("names.txt").read_text(encoding="utf-8"), flags=re.MULTILINE)
_, *_PARTS = re.split(r"^== (.*) ==\n", _TEXT, flags=re.MULTILINE)
_TABLES = dict(zip(_PARTS[::2], _PARTS[1::2], strict=True))


def _entries(table: str) -> Iterator[tuple[list[str], str, str, str]]:
    """Yields the entries of a table: the prefixes and the note that apply, and what is on both sides of the `=`."""
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
    """Returns a table as a dictionary."""
    return {f"{prefix}{name}": text for [prefix], _, names, text in _entries(table) for name in names.split()}


def _modules(table: str) -> tuple[dict[str, Module], dict[str, str]]:
    """Returns the modules of a table, and the modules of second names."""
    modules: dict[str, Module] = {}
    aliases = dict[str, str]()
    for prefixes, note, head, text in _entries(table):
        full, *others = [f"{prefix}{head}" for prefix in prefixes]
        aliases.update(dict.fromkeys(others, full))
        names: dict[str, Target] = {}
        words, *lacking = f" {text}".split(" absent ")
        place = ""
        for word in words.split():
            if word.endswith(":"):
                place = f"tensorflow_ipu{word}" if word.startswith(".") else word
            elif word.startswith("+"):
                below = word[1:-1] if word.endswith("*") else ""
                for name, module in modules.items():
                    if name == word[1:] or (below and name.startswith(below)):
                        names.update(module.names)
            else:
                old, _, new = word.partition("=")
                names[old] = f"{place}{new or old}"
        for absent in lacking:
            words, _, reason = absent.partition(" -- ")
            names.update(dict.fromkeys(words.split(), Absent(reason)))
        modules[full] = Module(names, note)
    return modules, aliases


IPU, POPLAR, ADDONS = "tensorflow.python.ipu", "tensorflow.compiler.plugin.poplar", "ipu_tensorflow_addons"
CONTRIB, TENSORFLOW_ADDONS = "tensorflow.contrib", "tensorflow_addons"
# Where releases up to early 2021 had Keras's IPU names, and with them the layers that are add-ons since.
FIRST_KERAS = f"{IPU}.keras"
# Where `tf.keras` really is, and by what else it is imported. Its classes are those of `keras`, and its modules are others.
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
# The old modules that are attributes of modules of Keras.
KERAS_ROOTS = [name for name in MODULES if name.startswith("keras.") and name.rpartition(".")[0] not in MODULES]
GONE = pairs("gone")
RECORDED, OLD_OPTIONS = pairs("recorded"), pairs("old options")
# Names that modules have lost: module, name, where it is now.
ATTRIBUTES = [
    (module, name, target)
    for module, lost in _modules("lost")[0].items()
    for name, target in lost.names.items()
    if isinstance(target, str)
]

# Packages of the SDK beside its TensorFlow: those that are here too, and those that come on their own.
PACKAGES = ("horovod", "popdist")
COMPANIONS = ("popart", "popef", "poptorch", "pva")
# Packages whose own, where it is installed, goes before what the tables have.
YIELDING = ("horovod", TENSORFLOW_ADDONS)


def resolve(target: str) -> Any:
    """Imports what a target names: a name of a module, or a module where it has no colon."""
    module, _, name = target.partition(":")
    found = importlib.import_module(module)
    return getattr(found, name) if name else found


def recorded(target: Target | None) -> str | None:
    """Returns what becomes of the use of a name at this place; None if it has its effect."""
    return RECORDED.get(target) if isinstance(target, str) else None


def module_exists(name: str) -> bool:
    """Returns True if there is an old module of this full name."""
    return name in MODULES or name in ALIASES


def original(name: str) -> str | None:
    """Returns the module that a full name is a second name of, or None."""
    # `import tensorflow.keras` runs Keras's public modules once more, and would make two modules for `tf.keras`.
    if name in ALIASES:
        return ALIASES[name]
    for spelling in SPELLINGS:
        if name == spelling or name.startswith(f"{spelling}."):
            return f"{TF_KERAS}{name[len(spelling) :]}"
    return None


def is_ours(name: str) -> bool:
    """Returns True if the tables decide whether there is a module of this full name."""
    return module_exists(name) or name in GONE or module_exists(name.rpartition(".")[0])


def is_of_keras(module: str) -> bool:
    """Returns True if an old module, by any of its names, is one that Keras itself had."""
    full = f"{_first(module)}."
    return full.startswith("keras.") and not full.startswith("keras.ipu.")


def target(module: str, name: str) -> Target | None:
    """Returns the place of a name of an old module, or why it has none; None for an unknown name."""
    return MODULES[_first(module)].names.get(name)


def homes(module: str) -> list[str]:
    """Returns the modules of this package that have the names of an old module, sorted."""
    targets = MODULES[_first(module)].names.values()
    return sorted({target.partition(":")[0] for target in targets if not isinstance(target, Absent)})


def existing(module: str) -> list[str]:
    """Returns the usable names of an old module, and its modules with such names, sorted."""
    full = _first(module)
    names = {name for name, target in MODULES[full].names.items() if not isinstance(target, Absent)}
    below = {name.removeprefix(f"{full}.") for name in (*MODULES, *ALIASES) if name.startswith(f"{full}.")}
    return sorted(names | {child for child in below if "." not in child and existing(f"{full}.{child}")})


def missing_module(name: str) -> str | None:
    """Returns the message for a module of the tables that does not exist; None for every other."""
    if module_exists(name) or not is_ours(name):
        return None
    parent, _, child = name.rpartition(".")
    end = f" in this version of tensorflow_ipu{_hints(parent, child)}" if module_exists(parent) else ""
    return f"there is no module `{name}`{_reason(parent, child) or end}"


def missing_name(module: str, name: str) -> str | None:
    """Returns the message for a name that an old module does not have; None for one that it has."""
    found = target(module, name)
    if isinstance(found, Absent):
        return f"`{module}.{name}` cannot be used: {found.reason}"
    if found is not None or module_exists(f"{module}.{name}"):
        return None
    if reason := _reason(module, name):
        return f"`{module}.{name}` does not exist{reason}"
    return f"`{module}` has no name `{name}` in this version of tensorflow_ipu{_hints(module, name)}"


def _first(module: str) -> str:
    """Returns the first name of a module, given that or a second one."""
    return ALIASES.get(module, module)


def _reason(module: str, name: str) -> str:
    reason = GONE.get(f"{_first(module)}.{name}")
    return f": {reason}" if reason else ""


def became(name: str) -> str:
    """Returns what one of the `OLD_OPTIONS` is since there is `IPUConfig`."""
    what = f"`IPUConfig().{OLD_OPTIONS[name]}`" if OLD_OPTIONS[name] else "`IPUConfig` and its attributes"
    return f"became {what}, which `configure_ipu_system()` applies"


def _hints(module: str, name: str) -> str:
    full = _first(module)
    if name in OLD_OPTIONS and full.startswith(IPU):
        return f"; it {became(name)}: docs/configuration.md"
    near = difflib.get_close_matches(name, existing(full), n=1)
    hint = f"; did you mean `{near[0]}`?" if near else ""
    note = MODULES[full].note
    return f"{hint}. {note}" if note and not near else hint
