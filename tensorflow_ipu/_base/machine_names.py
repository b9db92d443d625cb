"""The names of IPU generations and systems, and the recognition of their spellings."""

from __future__ import annotations

# The other names of each IPU, by its name.
IPUS = {"GC2": ("MK1", "ipu1"), "GC200": ("MK2", "ipu2"), "Bow": ("ipu21",)}
SYSTEMS = (
    "C2", "IPU-M2000", *(f"IPU-POD{ipus}" for ipus in (4, 16, 64, 128, 256)),
    "Bow-2000", *(f"Bow Pod{ipus}" for ipus in (16, 64, 256, 1024)),
)  # fmt: skip
NAMES = (*IPUS, *(alias for aliases in IPUS.values() for alias in aliases), *SYSTEMS)


def _key(name: str) -> str:
    return name.casefold().replace("-", "").replace(" ", "").removeprefix("ipu")


_BY_KEY = {_key(name): name for name in NAMES}


def known_name(name: str) -> str | None:
    """Returns the entry of `NAMES` that `name` spells, or None: `"pod16" -> "IPU-POD16"`.

    Case, hyphens, spaces and a leading `IPU` are ignored.
    """
    return _BY_KEY.get(_key(name))
