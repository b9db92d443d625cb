"""Finds the MPI library of the launcher that has started this process, and reads communicators of mpi4py."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tensorflow_ipu.errors import ClusterError
from tensorflow_ipu.hosts.identity import Identity

# The libraries and the numbers of their binary interfaces, as in `kernels/core/mpi_library.h`.
_STANDARD = ("libmpi_abi.so.1", 0)  # MPICH 5, Open MPI 6, Intel MPI and others.
_MPICH = ("libmpi.so.12", 1)  # MPICH 3 and 4, Intel MPI, Cray MPICH.
_OPEN_MPI = ("libmpi.so.40", 2)  # Open MPI 4 and 5.


def identity_of(communicator: Any) -> Identity:
    """Returns the rank of this process in a communicator of mpi4py, and its size.

    Raises:
      TypeError: It is no communicator of mpi4py within one group.
    """
    mpi4py = sys.modules.get("mpi4py.MPI")
    if mpi4py is None or not isinstance(communicator, mpi4py.Intracomm):
        raise TypeError(f"`communicator` must be an `mpi4py.MPI.Intracomm`, but is {communicator!r}")
    return Identity(communicator.Get_rank(), communicator.Get_size())


def handle_of(communicator: Any) -> int:
    """Returns the handle of a communicator of mpi4py in its MPI library."""
    return sys.modules["mpi4py.MPI"]._handleof(communicator)


def find_library(own: Identity, environ: Mapping[str, str] | None = None) -> tuple[str, int]:
    """Returns the MPI library for this process, and the number of its interface: the one in use, else one that is installed.

    Raises:
      ClusterError: There is none.
    """
    for name, interface in (_STANDARD, _MPICH, _OPEN_MPI):
        if _is_initialized(name):
            return name, interface
    environ = os.environ if environ is None else environ
    started_by_open_mpi = "OMPI_COMM_WORLD_SIZE" in environ
    libraries = (_OPEN_MPI, _STANDARD) if started_by_open_mpi else (_STANDARD, _MPICH)
    for name, interface in libraries:
        for path in _paths_of(name):
            try:
                ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_GLOBAL)
            except OSError:
                continue
            return path, interface
    advice = (
        "put the folder of its library into `LD_LIBRARY_PATH`"
        if started_by_open_mpi
        else "install one by `pip install mpich`, and start the workers by its `mpiexec`"
    )
    raise ClusterError(
        f"this process was started as worker {own.worker} of {own.workers}, and no MPI library is found"
        f" ({', '.join(f'`{name}`' for name, _ in libraries)}): {advice}"
    )


def _is_initialized(name: str) -> bool:
    """Returns True if a library is loaded, and somebody has initialized MPI in it."""
    try:
        library = ctypes.CDLL(name, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        initialized = ctypes.c_int()
        library.MPI_Initialized(ctypes.byref(initialized))
    except (OSError, AttributeError):
        return False
    return initialized.value != 0


def _paths_of(name: str) -> Iterator[str]:
    """Yields where a library may be: known to the system, beside the `mpiexec` of the path, or installed with a wheel."""
    yield name
    launcher = shutil.which("mpiexec")
    folders = [Path(sys.prefix, "lib")] if launcher is None else [Path(launcher).resolve().parents[1] / "lib"]
    for folder in dict.fromkeys([*folders, Path(sys.prefix, "lib")]):
        if (folder / name).exists():
            yield str(folder / name)
