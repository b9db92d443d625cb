"""All old modules and names together, and what to say of those that do not exist."""

from __future__ import annotations

import difflib

from tensorflow_ipu.compat import _companion_names, _ipu_names, _keras_names, _tensorflow_names
from tensorflow_ipu.compat._table import Absent, Module, Target

IPU, POPLAR, ADDONS = _ipu_names.IPU, _ipu_names.POPLAR, _companion_names.ADDONS

MODULES: dict[str, Module] = {
    **_ipu_names.MODULES,
    **_tensorflow_names.MODULES,
    **_keras_names.MODULES,
    **_companion_names.MODULES,
}
ALIASES: dict[str, str] = {**_ipu_names.ALIASES, **_keras_names.ALIASES}
ATTRIBUTES = _tensorflow_names.ATTRIBUTES
CONTRIB = _tensorflow_names.CONTRIB
GONE: dict[str, str] = {**_ipu_names.GONE, **_tensorflow_names.GONE, **_keras_names.GONE}

# Packages of the SDK that come on their own.
COMPANIONS = ("popart", "popef", "poptorch", "pva")

# Packages whose own, where it is installed, goes before what the tables have.
YIELDING = ("horovod", _companion_names.TENSORFLOW_ADDONS)


# What functions of 2020 set, which were in `utils` before there was `IPUConfig`.
OLD_OPTIONS = {
    "auto_select_ipus": "auto_select_ipus",
    "create_ipu_config": "",
    "select_ipus": "select_ipus",
    "set_compilation_options": "compilation_poplar_options",
    "set_convolution_options": "convolutions",
    "set_experimental_multi_replica_distribution_options": "experimental.multi_replica_distribution",
    "set_floating_point_behaviour_options": "floating_point_behaviour",
    "set_gcl_options": "gcl_poplar_options",
    "set_io_tile_options": "io_tiles",
    "set_ipu_connection_type": "device_connection",
    "set_ipu_model_options": "ipu_model",
    "set_ipu_options": "",
    "set_matmul_options": "matmuls",
    "set_norm_options": "norms",
    "set_optimization_options": "optimizations",
    "set_pooling_options": "pooling",
    "set_recomputation_options": "allow_recompute",
    "set_serialization_options": "serialization_output_folder",
}


def module_exists(name: str) -> bool:
    """Whether there is an old module of this full name."""
    return name in MODULES or name in ALIASES


def original(name: str) -> str | None:
    """The module that a full name is a second name of, or None."""
    # `import tensorflow.keras` runs Keras's public modules once more, and would make two modules for `tf.keras`.
    if name in ALIASES:
        return ALIASES[name]
    for spelling in _keras_names.SPELLINGS:
        if name == spelling or name.startswith(f"{spelling}."):
            return f"{_keras_names.TF_KERAS}{name[len(spelling) :]}"
    return None


def is_ours(name: str) -> bool:
    """Whether the tables say if there is a module of this full name."""
    return module_exists(name) or name in GONE or module_exists(name.rpartition(".")[0])


def is_of_keras(module: str) -> bool:
    """Whether an old module, by any of its names, is one that Keras itself had."""
    full = ALIASES.get(module, module)
    return full.startswith("keras.") and full != "keras.ipu" and not full.startswith("keras.ipu.")


def target(module: str, name: str) -> Target | None:
    """The place of a name of an old module, or why it has none; None for an unknown name."""
    return MODULES[ALIASES.get(module, module)].names.get(name)


def homes(module: str) -> list[str]:
    """The modules of this package that have the names of an old module, sorted."""
    targets = MODULES[ALIASES.get(module, module)].names.values()
    return sorted({target.partition(":")[0] for target in targets if not isinstance(target, Absent)})


def existing(module: str) -> list[str]:
    """The usable names of an old module, and its modules with such names, sorted."""
    full = ALIASES.get(module, module)
    names = {name for name, target in MODULES[full].names.items() if not isinstance(target, Absent)}
    return sorted(names | {child for child in _children(full) if existing(f"{full}.{child}")})


def missing_module(name: str) -> str | None:
    """The message for a module of the tables that does not exist; None for every other."""
    if module_exists(name) or not is_ours(name):
        return None
    parent, _, child = name.rpartition(".")
    reason = GONE.get(name) or GONE.get(f"{ALIASES.get(parent, parent)}.{child}")
    if reason is not None:
        return f"there is no module `{name}`: {reason}"
    return f"there is no module `{name}` in this version of tensorflow_ipu{_hints(parent, child)}"


def missing_name(module: str, name: str) -> str | None:
    """The message for a name that an old module does not have; None for one that it has."""
    found = target(module, name)
    if isinstance(found, Absent):
        return f"`{module}.{name}` cannot be used: {found.reason}"
    if found is not None or module_exists(f"{module}.{name}"):
        return None
    reason = GONE.get(f"{ALIASES.get(module, module)}.{name}")
    if reason is not None:
        return f"`{module}.{name}` does not exist: {reason}"
    return f"`{module}` has no name `{name}` in this version of tensorflow_ipu{_hints(module, name)}"


def became(name: str) -> str:
    """What one of the `OLD_OPTIONS` is since there is `IPUConfig`."""
    what = f"`IPUConfig().{OLD_OPTIONS[name]}`" if OLD_OPTIONS[name] else "`IPUConfig` and its attributes"
    return f"became {what}, which `configure_ipu_system()` applies"


def _hints(module: str, name: str) -> str:
    full = ALIASES.get(module, module)
    if name in OLD_OPTIONS and full.startswith(_ipu_names.IPU):
        return f"; it {became(name)}: docs/configuration.md"
    near = difflib.get_close_matches(name, existing(full), n=1)
    hint = f"; did you mean `{near[0]}`?" if near else ""
    note = MODULES[full].note
    return f"{hint}. {note}" if note and not near else hint


def _children(package: str) -> list[str]:
    depth = len(package) + 1
    below = (name[depth:] for name in (*MODULES, *ALIASES) if name.startswith(f"{package}."))
    return [name for name in below if "." not in name]
