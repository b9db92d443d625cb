"""The output of several processes as whole lines, each with the number of its process in front."""

from __future__ import annotations

from collections import deque
from typing import BinaryIO

# What a process writes without a line's end is not kept for ever.
_LONGEST = 1 << 16


class Lines:
    """One output of one process. What it is given in pieces, it writes in lines.

    Of a line that its process has written over, as a bar of progress is, it writes what stands there in the end.
    """

    def __init__(self, prefix: str, target: BinaryIO, last: deque[str]) -> None:
        """Takes what stands in front of each line, where lines go, and what keeps the last ones."""
        self._prefix = prefix.encode()
        self._target = target
        self._last = last
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Takes what the process wrote, and writes the lines that are whole."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST:
            whole.append(self._rest)
            self._rest = b""
        self._write(whole)

    def close(self) -> None:
        """Writes what was left without a line's end."""
        if self._rest:
            self._write([self._rest])
            self._rest = b""

    def _write(self, lines: list[bytes]) -> None:
        shown = [line.rstrip(b"\r").rpartition(b"\r")[2] for line in lines]
        self._last.extend(line.decode(errors="replace") for line in shown)
        if shown:
            # In one piece, so that no other process's line comes in between.
            self._target.write(b"".join(self._prefix + line + b"\n" for line in shown))
            self._target.flush()
