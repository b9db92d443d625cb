"""Kept traces as files, in the folder of executables."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tensorflow_ipu.kept_traces._built import Built
from tensorflow_ipu.kept_traces._captured import Place

_SUFFIX = ".ipu_trace"  # As `core/file_cache.cc` has it, which removes what was used least recently.
_DIGEST_SIZE = 20


class KeptTrace(NamedTuple):
    """What is kept of a trace.

    Attributes:
      functions: The program's functions, serialized, itself first.
      attributes: The attributes of the program.
      captured: Where what it captured is found, in order.
      variables: Which of those reached are its variables.
      results: What its function returned, with a `Result` for each tensor.
      layouts: The structures of what it enqueues.
      built: The optimizers that were built for it.
      after: The digest of all that is reached when they are.
      shards: How many IPUs a replica uses.
    """

    functions: bytes
    attributes: dict[str, bytes]
    captured: list[Place]
    variables: list[int]
    results: Any
    layouts: list[Any]
    built: list[Built]
    after: str
    shards: int


@dataclass(frozen=True)
class Result:
    """Stands for a flat result of a program.

    Attributes:
      number: Which.
    """

    number: int


def read(folder: str, name: str) -> KeptTrace | None:
    """The entry of a name; None where there is none, or one that was damaged."""
    path = Path(folder, name + _SUFFIX)
    try:
        contents = path.read_bytes()
        digest, body = contents[:_DIGEST_SIZE], contents[_DIGEST_SIZE:]
        if hashlib.blake2b(body, digest_size=_DIGEST_SIZE).digest() != digest:
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return KeptTrace(*pickle.loads(body))
    except OSError:
        return None


def write(folder: str, name: str, entry: KeptTrace) -> bool:
    """Writes an entry, whole or not at all; returns whether it did: a full disk is no error."""
    body = pickle.dumps(tuple(entry))
    unfinished = Path(folder, f"{name}{_SUFFIX}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        unfinished.write_bytes(hashlib.blake2b(body, digest_size=_DIGEST_SIZE).digest() + body)
        unfinished.replace(Path(folder, name + _SUFFIX))
    except OSError:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        return False
    return True
