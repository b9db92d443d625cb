"""The errors and warnings of the emulated system itself."""

from __future__ import annotations

__all__ = [
    "ApplicationError",
    "ClusterError",
    "DeviceLimitError",
    "ForkedProcessError",
    "IpuError",
    "LibraryError",
    "NotConfiguredError",
    "RecompilationWarning",
    "RecoverableError",
    "UnrecoverableError",
]


class IpuError(RuntimeError):
    """The base class of all errors of the emulated system. Wrong arguments raise `ValueError` or `TypeError` instead.

    Each error is an `ApplicationError`, a `RecoverableError` or an `UnrecoverableError`.
    """


class ApplicationError(IpuError):
    """The program or one of its requests to the system is wrong: another attempt fails again."""


class RecoverableError(IpuError):
    """The program is right, and runs after the action that the error names.

    Attributes:
      recovery_action: The required action, a word in capitals that code can compare.
    """

    recovery_action: str = ""


class UnrecoverableError(IpuError):
    """The system itself is broken, and a program cannot fix it."""


class LibraryError(UnrecoverableError):
    """The compiled kernel library is missing, does not load, or was built for another version of TensorFlow."""


class NotConfiguredError(ApplicationError):
    """A request needs an IPU device that the current configuration does not have."""


class DeviceLimitError(ApplicationError):
    """More IPUs or devices were requested than the emulator is set to offer."""


class ClusterError(RecoverableError):
    """The workers of a cluster did not connect: a worker is missing, exists twice, or expects other workers.

    Attributes:
      recovery_action: `"RESTART_WORKERS"`: fix the cause that the error names, then restart all workers.
    """

    recovery_action = "RESTART_WORKERS"


class ForkedProcessError(RecoverableError):
    """This process was forked from a process that had loaded TensorFlow, and cannot run the operation.

    Attributes:
      recovery_action: `"NEW_PROCESS"`: start the process by `multiprocessing.get_context("spawn")` instead.
    """

    recovery_action = "NEW_PROCESS"


class RecompilationWarning(UserWarning):
    """A function is compiled repeatedly, because the shapes or the Python values of its arguments differ."""
