"""Logs the messages of native threads, which cannot call Python's logging themselves."""

from __future__ import annotations

import logging
import time

from tensorflow_ipu._native.library import native

_logger = logging.getLogger(__name__)


def log() -> None:
    """Logs the messages that native threads have recorded since the last call, at level DEBUG.

    Each log record has the time at which the message was recorded.
    """
    if not _logger.isEnabledFor(logging.DEBUG):
        return
    for line in native.ipu_journal().decode(errors="replace").splitlines():
        time_ns, _, text = line.partition(" ")
        record = _logger.makeRecord(_logger.name, logging.DEBUG, __file__, 0, text, (), None, func="log")
        record.created = time.time() - (time.monotonic_ns() - int(time_ns)) / 1e9
        record.msecs = record.created % 1 * 1000
        _logger.handle(record)
