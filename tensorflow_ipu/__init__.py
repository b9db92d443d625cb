"""Graphcore's IPU programming model for stock TensorFlow: emulated devices, feeds, loops and the strategy."""

import ctypes as _ctypes

from tensorflow_ipu import compat, compiler, config, errors, feeds, keras, loops, ops, optimizers, pipelining, scopes
from tensorflow_ipu._library import native as _native
from tensorflow_ipu.config import IPUConfig, _state
from tensorflow_ipu.feeds import IPUInfeedQueue, IPUOutfeedMode, IPUOutfeedQueue
from tensorflow_ipu.strategy import IPUStrategy, IPUStrategyV1

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
    "ops",
    "optimizers",
    "pipelining",
    "scopes",
]

_state.set_device_listener(lambda ipus: _native.ipu_configure_devices((_ctypes.c_int32 * len(ipus))(*ipus), len(ipus)))
