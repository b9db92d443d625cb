"""Networks of their own for processes of this machine, joined by a switch, as hosts are."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

_NET = "10.213.47"  # Seen in these namespaces alone.


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=60)


@contextmanager
def namespaces(count: int) -> Iterator[list[tuple[str, str]]]:
    """So many namespaces, each as (the file by which a process enters it, its address).

    Raises:
      OSError: There is no `ip`.
      subprocess.CalledProcessError: This process may not make any.
    """
    base = f"ipu{os.getpid()}"
    names = [f"{base}x{index}" for index in range(count)]
    made = []
    try:
        for name in [f"{base}s", *names]:
            _ip("netns", "add", name)
            made.append(name)
            _ip("-n", name, "link", "set", "lo", "up")
        switch = made[0]
        _ip("-n", switch, "link", "add", "bridge0", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge0", "up")
        for index, name in enumerate(names):
            _ip("-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"port{index}", "netns", switch)
            _ip("-n", switch, "link", "set", f"port{index}", "master", "bridge0", "up")
            _ip("-n", name, "address", "add", f"{_NET}.{index + 1}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
        yield [(f"/var/run/netns/{name}", f"{_NET}.{index + 1}") for index, name in enumerate(names)]
    finally:
        for name in made:
            _ip("netns", "delete", name)
