"""The kinds of error that the emulated system itself raises, and of warning that it gives."""

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
    """Base of every error of the emulated system; bad arguments raise `ValueError` or `TypeError` instead.

    Each is of one of three kinds: `ApplicationError`, `RecoverableError` or `UnrecoverableError`.
    """


class ApplicationError(IpuError):
    """The program, or what it asks of the system, is wrong: the same once more fails once more."""


class RecoverableError(IpuError):
    """The program is right, and runs once what the error names was done.

    Attributes:
      recovery_action: What has to be done, for programs to compare: a word in capitals.
    """

    recovery_action: str = ""


class UnrecoverableError(IpuError):
    """The system itself is broken, and nothing that a program does mends it."""


class LibraryError(UnrecoverableError):
    """The compiled kernel library is missing, does not load, or was built for another TensorFlow."""


class NotConfiguredError(ApplicationError):
    """What was asked for needs an IPU device that the configuration in force does not have."""


class DeviceLimitError(ApplicationError):
    """More IPUs or more devices were requested than the emulator was set to offer."""


class ClusterError(RecoverableError):
    """The workers of several hosts did not come together: one is missing, there twice, or expects others.

    Attributes:
      recovery_action: `"RESTART_WORKERS"`: start all workers anew, once what the error names is put right.
    """

    recovery_action = "RESTART_WORKERS"


class ForkedProcessError(RecoverableError):
    """This process was forked from one that had loaded TensorFlow: what it wants to run, a process that was not can run.

    Attributes:
      recovery_action: `"NEW_PROCESS"`: start the process anew, by `multiprocessing.get_context("spawn")`.
    """

    recovery_action = "NEW_PROCESS"


class RecompilationWarning(UserWarning):
    """A function is compiled again and again, since the shapes of its arguments differ, or numbers of Python among them."""
