"""Finds the MPI library of the launcher that has started this process, and reads communicators of mpi4py."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from tensorflow_ipu.hosts.identity import Identity

# The names of MPI libraries, and the numbers of their binary interfaces in `kernels/collectives/mpi_library.h`.
_STANDARD = ("libmpi_abi.so.1", 0)  # MPICH 5, Open MPI 6, Intel MPI and others.
_MPICH = ("libmpi.so.12", 1)  # MPICH 3 and 4, Intel MPI, Cray MPICH.
_OPEN_MPI = ("libmpi.so.40", 2)  # Open MPI 4 and 5.


class Communicator(Protocol):
    """A communicator of mpi4py, `mpi4py.MPI.Intracomm`."""

    @property
    def handle(self) -> int:
        """The handle in the MPI library."""
        ...

    def Get_rank(self) -> int:  # noqa: N802
        """Returns the rank of this process."""
        ...

    def Get_size(self) -> int:  # noqa: N802
        """Returns the number of processes."""
        ...


def identity_of(communicator: Communicator) -> Identity:
    """Returns the rank of this process in a communicator of mpi4py, and the communicator's size.

    Raises:
      TypeError: `communicator` is not an intracommunicator of mpi4py.
    """
    mpi4py = sys.modules.get("mpi4py.MPI")
    if mpi4py is None or not isinstance(communicator, mpi4py.Intracomm):
        raise TypeError(f"`communicator` must be an `mpi4py.MPI.Intracomm`, but is {communicator!r}")
    return Identity(communicator.Get_rank(), communicator.Get_size())


def libraries(environ: Mapping[str, str] | None = None) -> list[tuple[int, str]]:
    """Returns the numbers of the interfaces and the paths of the MPI libraries to try, in this order.

    The libraries of the launcher that started the process are first. For each launcher, the order is: libraries of the
    system, libraries next to the `mpiexec` in `PATH`, libraries of a Python wheel.
    """
    # A process can load only one of MPICH's two libraries. mpi4py, which may be imported later, needs `libmpi.so.12`.
    launchers = ((_MPICH, _STANDARD), (_OPEN_MPI,))
    if "OMPI_COMM_WORLD_SIZE" in (os.environ if environ is None else environ):
        launchers = ((_OPEN_MPI,), (_STANDARD,), (_MPICH,))
    mpiexec = shutil.which("mpiexec")
    prefixes = [sys.prefix] if mpiexec is None else [Path(mpiexec).resolve().parents[1], sys.prefix]
    candidates = list[tuple[int, str]]()
    for interfaces in launchers:
        candidates += [(interface, name) for name, interface in interfaces]
        paths = [(interface, Path(prefix, "lib", name)) for prefix in prefixes for name, interface in interfaces]
        candidates += [(interface, str(path)) for interface, path in paths if path.exists()]
    return list(dict.fromkeys(candidates))


def describe_missing_library(this_worker: Identity) -> str:
    """Returns the error message for a process that was started by MPI and finds no MPI library."""
    return (
        f"this process was started as worker {this_worker.worker} of {this_worker.workers}, and no MPI library is"
        " found: install one by `pip install mpich` and start the workers by its `mpiexec`, or add the folder of the"
        " launcher's library to `LD_LIBRARY_PATH`"
    )
