"""What a trace depends on besides what its function reaches: versions, settings of libraries, the environment."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tensorflow_ipu
from tensorflow_ipu import _executable_cache
from tensorflow_ipu._tensorflow import graphs
from tensorflow_ipu.config import _state

_PREFIXES = ("KERAS_", "POPLAR_", "TENSORFLOW_IPU_", "TF_", "XLA_")
_FORMAT = 2


def settings() -> tuple[object, ...]:
    """All of it, as plain data."""
    return (
        _FORMAT,
        _executable_cache.key(),
        _libraries(),
        sorted(item for item in os.environ.items() if item[0].startswith(_PREFIXES)),
        [sorted((name, repr(value)) for name, value in record.options.items()) for record in _state.records()],
        _state.ipus(),
        (keras.config.backend(), keras.config.floatx(), keras.config.epsilon(), keras.config.image_data_format()),
        repr(keras.config.dtype_policy().get_config()),
        tf.config.functions_run_eagerly(),
        tf.config.optimizer.get_jit(),
        graphs.global_seed(),
    )


@functools.lru_cache(maxsize=1)
def _libraries() -> tuple[object, ...]:
    """The versions of the libraries; of this package its files, as Python tells whether it has compiled them."""
    root = Path(tensorflow_ipu.__file__).parent
    files = [(str(path.relative_to(root)), path.stat()) for path in sorted(root.rglob("*.py"))]
    ours = [(name, found.st_size, found.st_mtime_ns) for name, found in files]
    return (sys.version, tf.__version__, keras.__version__, np.__version__, ours)
