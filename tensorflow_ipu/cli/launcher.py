"""Runs an `mpiexec` line, shows what its workers write, and returns the status of the worker that failed."""

from __future__ import annotations

import ctypes
import os
import re
import selectors
import signal
import subprocess
import sys
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import BinaryIO

_LONGEST = 1 << 16  # A line that is longer is shown in parts.
_TO_END = 10  # Seconds that workers have after a signal.
_OF_SIGNAL = 128  # What a shell adds to the number of a signal that ended a process.
FAILED = "the script ended with status "  # What a worker that fails writes.


class Output:
    """The output of `mpiexec`: shown in whole lines of its workers, each as it was last overwritten."""

    def __init__(self, mark: str, only: int | None = None) -> None:
        """Takes a regular expression of the marks; shows the worker `only`, or all if None."""
        self._mark, self._only = re.compile(mark.encode()), only
        self._rests = defaultdict[BinaryIO, bytes](bytes)
        self._begun = defaultdict[BinaryIO, defaultdict[int, bytes]](lambda: defaultdict(bytes))
        self._last = defaultdict[int, deque[str]](lambda: deque(maxlen=20))
        self._codes = list[int]()  # What `wait` returned of each worker, as hydra prints it at the end.
        self._failed = dict[int, int]()  # The status of workers, the first to fail first; 0 if it is not known.

    def feed(self, target: BinaryIO, data: bytes) -> None:
        """Takes a piece of what `mpiexec` wrote, and writes the lines that are complete; no data is the end."""
        *lines, rest = (self._rests[target] + data).split(b"\n")
        if rest and (len(rest) > _LONGEST or not data):
            cut = rest.rfind(b"[", -64) if data else len(rest)  # A mark may begin there.
            lines, rest = [*lines, rest[:cut]], rest[cut:]
        self._rests[target] = rest
        for line in lines:
            # A mark is in front of each piece that a worker wrote, which hydra puts within lines of others too.
            own, *marked = self._mark.split(line)
            if (own or not marked) and not self._is_known(own.decode(errors="replace")):
                print(own.decode(errors="replace"), file=sys.stderr, flush=True)  # noqa: T201
            for worker, text in zip(marked[::2], marked[1::2], strict=True):
                self._begun[target][int(worker)] += text
            if marked:
                self._write(target, int(marked[-2]))
        for worker in [] if data else list(self._begun[target]):
            self._write(target, worker)

    def status(self, code: int) -> int:
        """Returns the exit status, given that of `mpiexec`, and prints the last lines of the worker that failed."""
        # Hydra ends the others by SIGKILL. Its own status is the bitwise or of all.
        for worker, wait in sorted(enumerate(self._codes), key=lambda each: each[1] == signal.SIGKILL):
            if wait:
                self._failed.setdefault(worker, wait >> 8 or _OF_SIGNAL + wait % 128)
        workers = list(self._failed) if code else []
        status = (workers and self._failed[workers[0]]) or (_OF_SIGNAL - code if code < 0 else code)
        signals = {_OF_SIGNAL + each: f"was ended by {each.name}" for each in signal.Signals}
        # Which one of several was ended first by SIGKILL is not known.
        for worker in workers[: None if status == _OF_SIGNAL + signal.SIGKILL else 1]:
            fate = signals.get(status, f"ended with status {status}")
            lines = [f"worker {worker} {fate}; its last lines:", *(self._last[worker] or ["(none)"])]
            print(*lines, sep="\n  ", file=sys.stderr, flush=True)  # noqa: T201
        return status

    def _is_known(self, line: str) -> bool:
        """Reads how workers ended from a line of `mpiexec`; True if the line says nothing to users."""
        if codes := re.fullmatch(r"(?:\[mpiexec@\S+ Exit codes: )?\[\S+\] ([\d,]+)", line):
            self._codes += map(int, codes[1].split(","))
        elif failed := re.search(r"process rank (\d+) with PID|Process name: \S*,(\d+)\]", line):
            self._failed.setdefault(int(failed[1] or failed[2]), 0)
        return bool(codes)

    def _write(self, target: BinaryIO, worker: int) -> None:
        line = self._begun[target].pop(worker).rstrip(b"\r").rpartition(b"\r")[2]
        self._last[worker].append(line.decode(errors="replace"))
        if failed := re.fullmatch(rf"{FAILED}(\d+)", self._last[worker][-1]):
            self._failed.setdefault(worker, int(failed[1]))
        if self._only in (None, worker):
            target.write(b"[%d] %s\n" % (worker, line))
            target.flush()


def run(line: Sequence[str], output: Output) -> int:
    """Runs a line and returns its status. Ctrl-C, SIGTERM and SIGHUP go to `mpiexec`; the second one kills it."""
    process = subprocess.Popen(
        line,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C reaches it through this process alone.
        # It is ended with this process (`PR_SET_PDEATHSIG`), and ends its workers.
        preexec_fn=lambda: ctypes.CDLL(None).prctl(1, signal.SIGTERM),  # noqa: PLW1509  (There are no other threads.)
    )
    caught = list[int]()

    def hand_on(number: int, _: object) -> None:
        process.send_signal(signal.SIGKILL if caught else number)
        caught.append(number)
        signal.alarm(_TO_END)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, hand_on)
    with selectors.DefaultSelector() as selector:
        for source, target in ((process.stdout, sys.stdout.buffer), (process.stderr, sys.stderr.buffer)):
            selector.register(source or 0, selectors.EVENT_READ, target)
        while selector.get_map():
            for key, _ in selector.select():
                data = os.read(key.fd, _LONGEST)
                output.feed(key.data, data)
                if not data:
                    selector.unregister(key.fileobj)
    code = process.wait()
    return _OF_SIGNAL + caught[0] if caught else output.status(code)
