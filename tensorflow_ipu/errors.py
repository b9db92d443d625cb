"""The kinds of error that the emulated system itself raises."""

from __future__ import annotations

__all__ = ["DeviceLimitError", "IpuError", "LibraryError", "NotConfiguredError"]


class IpuError(RuntimeError):
    """Base of every error of the emulated system; bad arguments raise `ValueError` or `TypeError` instead."""


class LibraryError(IpuError):
    """The compiled kernel library is missing, does not load, or was built for another TensorFlow."""


class NotConfiguredError(IpuError):
    """What was asked for needs an IPU device that the configuration in force does not have."""


class DeviceLimitError(IpuError):
    """More IPUs or more devices were requested than the emulator was set to offer."""
