"""The Keras optimizer that takes the mean of gradients over the replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

from tensorflow_ipu.keras.optimizers._wrapper import OptimizerWrapper
from tensorflow_ipu.optimizers import parts

if TYPE_CHECKING:
    from tensorflow_ipu._types import Gradient, Variable


@keras.saving.register_keras_serializable("tensorflow_ipu")
class CrossReplicaOptimizer(OptimizerWrapper):
    """Has the wrapped optimizer update with the mean of the gradients over the replicas.

    So R replicas train as a single one would with R times the batch. Under a strategy, other Keras optimizers take the
    sum.
    """

    def __init__(self, opt: keras.optimizers.Optimizer, name: str = "CrossReplicaOptimizer") -> None:
        """Wraps `opt`.

        Args:
          opt: A Keras optimizer.
          name: The wrapper's name.

        Raises:
          ValueError: `opt` is none.
        """
        super().__init__(opt, name)

    def _apply(self, gradients: list[Gradient | None], variables: list[Variable]) -> None:
        means = parts.mean(gradients)
        with parts.as_they_are():
            self.inner_optimizer.apply(means, variables)
