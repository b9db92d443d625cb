"""Graphcore's IPU programming model for stock TensorFlow: emulated devices, feeds, loops and the strategy."""

import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from tensorflow_ipu import compiler, config, errors, feeds, keras, loops, ops, scopes
from tensorflow_ipu.config import IPUConfig
from tensorflow_ipu.feeds import IPUInfeedQueue, IPUOutfeedMode, IPUOutfeedQueue
from tensorflow_ipu.strategy import IPUStrategy, IPUStrategyV1, report

if _TYPE_CHECKING:
    from tensorflow_ipu import compat, machine, optimizers, pipelining

__all__ = [
    "IPUConfig",
    "IPUInfeedQueue",
    "IPUOutfeedMode",
    "IPUOutfeedQueue",
    "IPUStrategy",
    "IPUStrategyV1",
    "compat",
    "compiler",
    "config",
    "errors",
    "feeds",
    "keras",
    "loops",
    "machine",
    "ops",
    "optimizers",
    "pipelining",
    "report",
    "scopes",
]


def __getattr__(name: str) -> _Any:
    # Half of the time that the import would take, for what many programs do not use.
    if name in ("compat", "machine", "optimizers", "pipelining"):
        return _importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
