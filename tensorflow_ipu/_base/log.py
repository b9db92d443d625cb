"""The package's tree of loggers, and the environment variable that says how much of it reaches stderr."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from tensorflow_ipu._base import environment

ROOT = "tensorflow_ipu"
# Below `logging.DEBUG`: what happens at each run.
TRACE = 5

_LEVELS = {
    "TRACE": TRACE,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERR": logging.ERROR,
    "OFF": logging.CRITICAL + 1,
}
_FORMAT = "[%(asctime)s] [%(name)s] [%(levelname)s] %(message)s"


def install(environ: Mapping[str, str] | None = None) -> None:
    """Has the loggers of the package write to stderr what the environment asks for, if it asks.

    Else they are as Python has them: what the program's own `logging` says goes, and warnings reach stderr. (A
    `NullHandler` would take these away from a program that says nothing.)
    """
    logging.addLevelName(TRACE, "TRACE")
    level = environment.log_level(environ)
    if level is None:
        return
    logger = logging.getLogger(ROOT)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(_FORMAT))
    logger.addHandler(handler)
    logger.setLevel(_LEVELS[level])
    logger.propagate = False  # The program's own handlers would write it once more.
