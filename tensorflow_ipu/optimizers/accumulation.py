"""The functions of optimizer wrappers that higher layers of the package use."""

from tensorflow_ipu.optimizers._accumulator import (
    Accumulator,
    accumulated,
    check_sharding,
    checked_method,
    checked_options,
    scale_of,
)
from tensorflow_ipu.optimizers._ipu_optimizer import View, as_they_are, mean
from tensorflow_ipu.optimizers._loop_check import note as must_be_in_loop
from tensorflow_ipu.optimizers._memory import accumulators_of, bytes_of, state_of

__all__ = [
    "Accumulator",
    "View",
    "accumulated",
    "accumulators_of",
    "as_they_are",
    "bytes_of",
    "check_sharding",
    "checked_method",
    "checked_options",
    "mean",
    "must_be_in_loop",
    "scale_of",
    "state_of",
]
