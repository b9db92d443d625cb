"""A program that a strategy has prepared: with its inputs, ready for any number of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu import replicas
from tensorflow_ipu._extended import IPUExtended

if TYPE_CHECKING:
    from tensorflow_ipu._types import Nested


class PreparedProgram:
    """A program with its inputs, found once and run any number of times: what a strategy's `prepare` returns.

    It is for the system that was configured when it was prepared. It holds tensors, and keeps no queue of data alive.
    """

    def __init__(self, extended: IPUExtended, prepared: replicas.Prepared, target: replicas.Target) -> None:
        """Takes a program and its flat inputs, as they were found for `target`."""
        self._extended = extended
        self._prepared = prepared
        self._target = target

    @property
    def is_current(self) -> bool:
        """Whether the system is configured as it was: otherwise another program has to be prepared."""
        return self._extended.target == self._target

    def run(self) -> Nested:
        """Runs it, and returns what its function returns."""
        extended = self._extended
        with tf.device(extended.ipu_device):
            return replicas.run(self._prepared, extended.ipu_device, extended.ordinal)
