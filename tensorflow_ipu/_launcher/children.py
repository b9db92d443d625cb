"""Runs the processes of a cluster on this machine until all have ended: their output in lines, and their ends."""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import IO, Any, BinaryIO

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


# Seconds that others have to say what they saw when one failed, to end when they are asked to, and after Ctrl-C.
_TO_SAY = 2.0
_TO_END = 5.0
_TO_INTERRUPT = 10.0
# How many lines of a process that failed are shown once more.
_SHOWN = 20
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_OF_SIGNAL = 128  # What a shell adds to the number of a signal that ended a process.


class Child:
    """One process, with what it writes."""

    def __init__(self, worker: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Starts it, as the leader of a group of its own: Ctrl-C reaches it through the launcher alone."""
        self.worker = worker
        self.last: deque[str] = deque(maxlen=_SHOWN)
        self.since = time.monotonic()
        self.seconds = 0.0
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            preexec_fn=_end_with_parent,  # noqa: PLW1509  (The launcher has no other threads.)
        )
        prefix = f"[{worker}] "
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.outputs: dict[IO[bytes], Lines] = {
            self.process.stdout: Lines(prefix, sys.stdout.buffer, self.last),
            self.process.stderr: Lines(prefix, sys.stderr.buffer, self.last),
        }

    @property
    def code(self) -> int | None:
        """Its exit status, as a shell has it; None while it runs."""
        code = self.process.returncode
        return _OF_SIGNAL - code if code is not None and code < 0 else code

    def send(self, number: int) -> None:
        """Sends a signal to it and to all processes that it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def has_ended(self) -> bool:
        """Whether it has; then it ends what it had started, too."""
        if os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return False
        self.end()
        return True

    def end(self) -> None:
        """Ends it, and what it started, at once; none of them runs when this returns."""
        if self.process.returncode is None:
            self.send(signal.SIGKILL)  # Before it is waited for: its number is its own until then.
            self.process.wait()
            self.seconds = time.monotonic() - self.since
            self._await_group()

    def _await_group(self) -> None:
        """Waits for what it had started, which are the launcher's own children since it ended.

        A signal is only sent when `killpg` returns: its receiver may still run. What changed its user cannot be ended
        by this one, so there is a limit.
        """
        limit = time.monotonic() + _TO_END
        with suppress(ChildProcessError):  # No more of them.
            while time.monotonic() < limit:
                if os.waitpid(-self.process.pid, os.WNOHANG)[0] == 0:
                    time.sleep(0.001)

    def fate(self) -> str:
        """How it ended, as the end of a sentence."""
        code = self.process.returncode
        if code < 0:
            return f"was ended by {_name(-code)} after {self.seconds:.1f} s"
        return f"ended with status {code} after {self.seconds:.1f} s"


class Children:
    """All of them."""

    def __init__(self) -> None:
        """Takes over the signals that end the launcher, and what its children leave behind, for good."""
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._children: list[Child] = []
        self._selector = selectors.DefaultSelector()
        self._failed: Child | None = None
        self._caught: list[int] = []
        self._ended_by: int | None = None
        # What is sent to all that still run, and when.
        self._sentences: deque[tuple[float, int]] = deque()
        self._reader, writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(writer, False)
        self._writer = writer
        self._selector.register(self._reader, selectors.EVENT_READ)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._catch)

    def run(self, commands: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]]) -> int:
        """Starts all, and waits until all have ended."""
        try:
            for worker, (command, environment) in enumerate(zip(commands, environments, strict=True)):
                self._start(worker, command, environment)
            while self._running():
                self._step()
        finally:
            for child in self._children:
                child.end()
                for source in list(child.outputs):
                    self._read(child, source, at_end=True)
        return self._status()

    def _start(self, worker: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        child = Child(worker, command, environment)
        self._children.append(child)
        for source in child.outputs:
            os.set_blocking(source.fileno(), False)
            self._selector.register(source, selectors.EVENT_READ, child)

    def _running(self) -> list[Child]:
        return [child for child in self._children if child.process.returncode is None]

    def _step(self) -> None:
        """Waits for something to happen, and deals with it."""
        wait = None
        if self._sentences:
            wait = max(0.0, self._sentences[0][0] - time.monotonic())
        for key, _ in self._selector.select(wait):
            if key.data is None:
                with suppress(BlockingIOError):
                    os.read(self._reader, 4096)
            else:
                self._read(key.data, key.fileobj)
        while self._caught:
            self._interrupt(self._caught.pop(0))
        for child in self._running():
            if child.has_ended() and child.code and self._failed is None:
                self._fail(child)
        while self._sentences and self._sentences[0][0] <= time.monotonic():
            self._send(self._sentences.popleft()[1])

    def _read(self, child: Child, source: Any, at_end: bool = False) -> None:
        lines = child.outputs.get(source)
        if lines is None:
            return
        data: bytes | None = None
        # Until there is no more: at the end of a process that is all that it wrote.
        while True:
            data = source.read(1 << 16)  # None where there is nothing now, empty at the end.
            if not data:
                break
            lines.feed(data)
            if not at_end:
                return
        if data is None and not at_end:
            return
        lines.close()
        with suppress(KeyError):
            self._selector.unregister(source)
        source.close()
        del child.outputs[source]

    def _fail(self, child: Child) -> None:
        """One has failed: the others may say what they saw of that, and end."""
        self._failed = child
        if self._ended_by is None:
            now = time.monotonic()
            self._sentences.append((now + _TO_SAY, signal.SIGTERM))
            self._sentences.append((now + _TO_SAY + _TO_END, signal.SIGKILL))

    def _interrupt(self, number: int) -> None:
        """Hands a signal on, and ends what does not end by it; at once when it comes a second time."""
        now = time.monotonic()
        again = self._ended_by is not None
        self._ended_by = number
        self._sentences.clear()
        if again:
            self._send(signal.SIGKILL)
            return
        self._send(number)
        self._sentences.append((now + _TO_INTERRUPT, signal.SIGTERM))
        self._sentences.append((now + _TO_INTERRUPT + _TO_END, signal.SIGKILL))

    def _send(self, number: int) -> None:
        for child in self._running():
            child.send(number)
            child.send(signal.SIGCONT)  # A process that is stopped takes no signal but `SIGKILL`.

    def _status(self) -> int:
        if self._ended_by is not None:
            return _OF_SIGNAL + self._ended_by
        if self._failed is None:
            return 0
        said = [f"worker {self._failed.worker} {self._failed.fate()}; its last lines:"]
        said += [f"  {line}" for line in self._failed.last] or ["  (none)"]
        others = [child for child in self._children if child is not self._failed]
        said += [f"worker {child.worker} {child.fate()}" for child in others]
        print("\n".join(said), file=sys.stderr, flush=True)  # noqa: T201  (The launcher's own output.)
        return self._failed.code or 1

    def _catch(self, number: int, frame: FrameType | None) -> None:
        del frame
        if number != signal.SIGCHLD:
            self._caught.append(number)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _end_with_parent() -> None:
    """In the new process: it ends where the launcher is killed, which then can end nobody."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
