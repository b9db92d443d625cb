"""Graphcore's IPU programming model for stock TensorFlow: emulated devices, feeds, loops and the strategy."""

import importlib as _importlib
import sys as _sys
from typing import TYPE_CHECKING, Any

from tensorflow_ipu._base import requirements as _requirements

_requirements.check_python()

from tensorflow_ipu._base import environment as _environment  # noqa: E402

_environment.install_logging()

# Modules import only lower layers. `_upcalls.py` has all calls from lower layers to higher ones.

# The modules of the public names that are not modules themselves.
_MODULES = {
    "IPUConfig": "config",
    "IPUInfeedQueue": "feeds",
    "IPUMultiWorkerStrategy": "multi_worker_strategy",
    "IPUMultiWorkerStrategyV1": "multi_worker_strategy",
    "IPUOutfeedMode": "feeds",
    "IPUOutfeedQueue": "feeds",
    "IPUStrategy": "strategy",
    "IPUStrategyV1": "strategy",
    "clear_metrics": "metrics",
    "compile": "executables",
    "counter_names": "metrics",
    "counter_value": "metrics",
    "metric_data": "metrics",
    "metric_names": "metrics",
    "metrics_report": "metrics",
    "precision_report": "precision",
    "report": "strategy",
    "trace": "tracing",
}

# The command line imports this package first, and some of its commands do not need TensorFlow. It is started as
# `python -m tensorflow_ipu`, or by a script with the name `tensorflow-ipu`.
_is_for_command = _sys.argv[:1] == ["-m"] and "tensorflow_ipu" in _sys.orig_argv
_is_for_command = _is_for_command or "".join(_sys.argv[:1]).rpartition("/")[2] == "tensorflow-ipu"

if not _is_for_command:
    _requirements.check_tensorflow()

if TYPE_CHECKING or not _is_for_command:
    from tensorflow_ipu import compiler, config, errors, feeds, keras, loops, ops, scopes
    from tensorflow_ipu.config import IPUConfig
    from tensorflow_ipu.feeds import IPUInfeedQueue, IPUOutfeedMode, IPUOutfeedQueue
    from tensorflow_ipu.strategy import IPUStrategy, IPUStrategyV1, report

if TYPE_CHECKING:
    from tensorflow_ipu import (
        compat,
        distributed,
        executables,
        machine,
        metrics,
        optimizers,
        pipelining,
        precision,
        serving,
        sharding,
        tracing,
    )
    from tensorflow_ipu.executables import compile  # noqa: A004  (Users write `ipu.compile`, which shadows nothing.)
    from tensorflow_ipu.metrics import (
        clear_metrics,
        counter_names,
        counter_value,
        metric_data,
        metric_names,
        metrics_report,
    )
    from tensorflow_ipu.precision import precision_report
    from tensorflow_ipu.strategy.workers import IPUMultiWorkerStrategy, IPUMultiWorkerStrategyV1
    from tensorflow_ipu.tracing import trace

    __version__: str

__all__ = [
    "IPUConfig",
    "IPUInfeedQueue",
    "IPUMultiWorkerStrategy",
    "IPUMultiWorkerStrategyV1",
    "IPUOutfeedMode",
    "IPUOutfeedQueue",
    "IPUStrategy",
    "IPUStrategyV1",
    "clear_metrics",
    "compat",
    "compile",
    "compiler",
    "config",
    "counter_names",
    "counter_value",
    "distributed",
    "errors",
    "executables",
    "feeds",
    "keras",
    "loops",
    "machine",
    "metric_data",
    "metric_names",
    "metrics",
    "metrics_report",
    "ops",
    "optimizers",
    "pipelining",
    "precision",
    "precision_report",
    "report",
    "scopes",
    "serving",
    "sharding",
    "trace",
    "tracing",
]


if not TYPE_CHECKING:  # Type checkers must reject misspelled names.

    def __getattr__(name: str) -> Any:
        # These modules would take half of the time of the import, and many programs do not use them.
        if name in _MODULES:
            return getattr(_importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
        if name in __all__:
            return _importlib.import_module(f"{__name__}.{name}")
        if name == "__version__":
            return _importlib.import_module("importlib.metadata").version("tensorflow-ipu")
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`{_sdk_module_hint(name)}")


def __dir__() -> list[str]:
    return list(__all__)


def _sdk_module_hint(name: str) -> str:
    """Returns a hint for an error: if the SDK's `ipu` has the module `name`, the modules here that have its names."""
    if name.startswith("_"):
        return ""
    names = _importlib.import_module(f"{__name__}.compat._names")
    old = f"tensorflow.python.ipu.{name}"
    homes = names.homes(old) if names.module_exists(old) else []
    if not homes:
        return ""
    return (
        f": the names of the SDK's `ipu.{name}` are in {', '.join(f'`{home}`' for home in homes)}, and `from"
        f" tensorflow.python.ipu import {name}` works after `tensorflow_ipu.compat.install()` and in a script that"
        " `python -m tensorflow_ipu` runs"
    )
