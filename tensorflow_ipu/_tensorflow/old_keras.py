"""The Keras 2 that is left in TensorFlow, which scripts of IPU TensorFlow still import.

Stands on `tensorflow.python.keras`, which has no public name. When it is gone, so is all that is here.
"""

from __future__ import annotations

from tensorflow.python.keras.optimizer_v2.optimizer_v2 import OptimizerV2

# The base class of its optimizers, which no model of Keras 3 takes.
Optimizer = OptimizerV2
