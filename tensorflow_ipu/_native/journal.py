"""Logs what native threads have to say: they cannot call Python."""

from __future__ import annotations

import logging
import time

from tensorflow_ipu._native.library import native

_logger = logging.getLogger(__name__)


def log() -> None:
    """Logs, at level DEBUG, what native threads have noted since, each with the time when it was."""
    if not _logger.isEnabledFor(logging.DEBUG):
        return
    for line in native.ipu_journal().decode(errors="replace").splitlines():
        when, _, text = line.partition(" ")
        record = _logger.makeRecord(_logger.name, logging.DEBUG, __file__, 0, text, (), None, func="log")
        record.created = time.time() - (time.monotonic_ns() - int(when)) / 1e9
        record.msecs = record.created % 1 * 1000
        _logger.handle(record)
