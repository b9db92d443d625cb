"""Lets the kernel library run beside older standard C++ libraries than the one of the machine that builds it.

Who has TensorFlow has what its own libraries need. So the library is linked against an outline of the machine's
`libstdc++.so.6`, which has symbols of no newer versions. What is newer, such as `std::filesystem`, is taken from
`libstdc++.a`, as in Red Hat's developer toolsets, and nobody else sees it.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from elftools.elf.elffile import ELFFile

Versions = dict[str, tuple[int, ...]]

_NAME = "libstdc++.so.6"
_FAMILIES = ("GLIBCXX", "CXXABI")
_SECTIONS = {"STT_FUNC": ".text", "STT_OBJECT": ".data", "STT_TLS": '.tdata,"awT",@progbits'}


def needed_versions(libraries: Iterable[Path]) -> Versions:
    """The newest version of symbols that libraries need, by family: `GLIBC`, `GLIBCXX`, `CXXABI`."""
    newest: Versions = {}
    for library in libraries:
        with library.open("rb") as file:
            for _, needed in _section(file, ".gnu.version_r").iter_versions():
                for family, numbers in (_parsed(each.name) for each in needed):
                    newest[family] = max(numbers, newest.get(family, ()))
    return newest


def link_flags(compiler: tuple[str, ...], tensorflow_libraries: list[Path], folder: Path) -> list[str]:
    """Makes the outline in a folder, and has the linker take it before the archive."""
    asked = subprocess.run([*compiler, f"-print-file-name={_NAME}"], check=True, capture_output=True, text=True)
    code: list[str] = []
    nodes: dict[str, list[str]] = {}
    for name, (kind, version) in _symbols(Path(asked.stdout.strip()), needed_versions(tensorflow_libraries)).items():
        code.append(f".section {_SECTIONS[kind]}\n.globl {name}\n.type {name}, {kind}\n{name}: .byte 0\n")
        nodes.setdefault(version, []).append(name)
    folder.mkdir(parents=True, exist_ok=True)
    source, script, outline = (folder / name for name in ("outline.s", "outline.map", _NAME))
    source.write_text("".join(code))
    script.write_text("".join(f"{version} {{ {'; '.join(names)}; }};\n" for version, names in nodes.items()))
    link = f"-Wl,-soname,{_NAME},--version-script,{script}"
    subprocess.run([*compiler, "-shared", "-nostdlib", link, str(source), "-o", str(outline)], check=True)
    return [str(outline), "-static-libstdc++", "-Wl,--exclude-libs,libstdc++.a"]


def _section(file: BinaryIO, name: str) -> Any:
    return ELFFile(file).get_section_by_name(name)


def _parsed(version: str) -> tuple[str, tuple[int, ...]]:
    family, _, numbers = version.rpartition("_")
    return family, tuple(map(int, re.findall(r"\d+", numbers)))


def _symbols(library: Path, newest: Versions) -> dict[str, tuple[str, str]]:
    """The kind and the version of each symbol, of its newest version that is not too new."""
    found: dict[str, tuple[str, str]] = {}
    with library.open("rb") as file:
        indices, definitions = _section(file, ".gnu.version"), _section(file, ".gnu.version_d")
        for number, symbol in enumerate(_section(file, ".dynsym").iter_symbols()):
            index = indices.get_symbol(number)["ndx"]
            if symbol["st_shndx"] in ("SHN_UNDEF", "SHN_ABS") or not isinstance(index, int):
                continue
            version = next(definitions.get_version(index & 0x7FFF)[1]).name
            family, numbers = _parsed(version)
            kind = {"STT_LOOS": "STT_OBJECT"}.get(symbol["st_info"]["type"], symbol["st_info"]["type"])
            if kind not in _SECTIONS or family not in _FAMILIES or numbers > newest[family]:
                continue
            if symbol.name not in found or numbers > _parsed(found[symbol.name][1])[1]:
                found[symbol.name] = (kind, version)
    return found
