"""Links the kernel library so that it also runs with older standard C++ libraries.

Every machine with TensorFlow has the symbol versions that TensorFlow's own libraries need. So the kernel library is linked
against a stub of `libstdc++.so.6`, which has only symbols of these versions. The linker takes newer symbols, such as
`std::filesystem`, from `libstdc++.a` and does not export them. Red Hat's developer toolsets use the same method.
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
    """Returns the newest symbol version that libraries need, by family: `GLIBC`, `GLIBCXX`, `CXXABI`."""
    newest: Versions = {}
    for library in libraries:
        with library.open("rb") as file:
            for _, needed in _section(file, ".gnu.version_r").iter_versions():
                for family, numbers in (_parsed(version.name) for version in needed):
                    newest[family] = max(numbers, newest.get(family, ()))
    return newest


def link_flags(compiler: tuple[str, ...], tensorflow_libraries: list[Path], folder: Path) -> list[str]:
    """Creates the stub in a folder, and returns the flags that link against it first, and then against the archive."""
    process = subprocess.run([*compiler, f"-print-file-name={_NAME}"], check=True, capture_output=True, text=True)
    code: list[str] = []
    nodes: dict[str, list[str]] = {}
    for name, (kind, version) in _symbols(Path(process.stdout.strip()), needed_versions(tensorflow_libraries)).items():
        code.append(f".section {_SECTIONS[kind]}\n.globl {name}\n.type {name}, {kind}\n{name}: .byte 0\n")
        nodes.setdefault(version, []).append(name)
    folder.mkdir(parents=True, exist_ok=True)
    source, script, stub = (folder / name for name in ("outline.s", "outline.map", _NAME))
    source.write_text("".join(code))
    script.write_text("".join(f"{version} {{ {'; '.join(names)}; }};\n" for version, names in nodes.items()))
    link = f"-Wl,-soname,{_NAME},--version-script,{script}"
    subprocess.run([*compiler, "-shared", "-nostdlib", link, str(source), "-o", str(stub)], check=True)
    return [str(stub), "-static-libstdc++", "-Wl,--exclude-libs,libstdc++.a"]


def _section(file: BinaryIO, name: str) -> Any:
    return ELFFile(file).get_section_by_name(name)


def _parsed(version: str) -> tuple[str, tuple[int, ...]]:
    family, _, numbers = version.rpartition("_")
    return family, tuple(map(int, re.findall(r"\d+", numbers)))


def _symbols(library: Path, newest: Versions) -> dict[str, tuple[str, str]]:
    """Returns the kind of each symbol, and its newest version that is not newer than `newest`."""
    symbols: dict[str, tuple[str, str]] = {}
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
            if symbol.name not in symbols or numbers > _parsed(symbols[symbol.name][1])[1]:
                symbols[symbol.name] = (kind, version)
    return symbols
