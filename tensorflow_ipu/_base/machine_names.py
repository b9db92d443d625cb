"""What machines are called: generations of IPUs, IPUs and systems."""

from __future__ import annotations

# Of IPUs, other names of each.
IPUS = {"GC2": ("MK1", "ipu1"), "GC200": ("MK2", "ipu2"), "Bow": ("ipu21",)}
SYSTEMS = (
    "C2", "IPU-M2000", *(f"IPU-POD{ipus}" for ipus in (4, 16, 64, 128, 256)),
    "Bow-2000", *(f"Bow Pod{ipus}" for ipus in (16, 64, 256, 1024)),
)  # fmt: skip
NAMES = (*IPUS, *(other for others in IPUS.values() for other in others), *SYSTEMS)


def _key(name: str) -> str:
    return name.casefold().replace("-", "").replace(" ", "").removeprefix("ipu")


_BY_KEY = {_key(name): name for name in NAMES}


def known_name(name: str) -> str | None:
    """The name of `NAMES` that is meant, whatever its case, hyphens, spaces and a leading `IPU`; None where there is none."""
    return _BY_KEY.get(_key(name))
