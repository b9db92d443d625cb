"""Type aliases for annotations. At run time, most of them are strings, so that this imports no TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import keras
    import numpy as np
    import tensorflow as tf

# `TensorLike` is accepted by `tf.convert_to_tensor`; `OneTensorLike` excludes lists and tuples.
OneTensorLike: TypeAlias = "tf.Tensor | tf.Variable | np.ndarray | np.number | float"
TensorLike: TypeAlias = "OneTensorLike | str | Sequence[TensorLike]"

# A structure of `tf.nest`: tensors or values like tensors in lists, tuples, dicts and so on, at any depth. Functions
# that map a structure return the same structure, which no type can express.
Nested: TypeAlias = Any

# A gradient that `tf.GradientTape.gradient` returns.
Gradient: TypeAlias = "tf.Tensor | tf.IndexedSlices"

# A function from a gradient and the value of its variable to another gradient. The gradient is `Any`, because
# most functions support dense tensors only, such as `lambda grad, _: 3 * grad`.
GradientMapping: TypeAlias = "Callable[[Any, tf.Tensor], Gradient]"

# A variable of TensorFlow, or one of Keras, which contains one of TensorFlow.
Variable: TypeAlias = "tf.Variable | keras.Variable"

# A value that `tf.as_dtype` accepts. It also accepts NumPy's scalar types, which TensorFlow's annotations lack.
DTypeLike: TypeAlias = "tf.DType | np.dtype | str"

# A value that `tf.TensorShape` accepts. None is an unknown size.
ShapeLike: TypeAlias = "tf.TensorShape | Sequence[int | None]"

# A learning rate: a constant, a schedule of Keras, or a function that returns it.
LearningRate: TypeAlias = (
    "float | tf.Tensor | keras.optimizers.schedules.LearningRateSchedule | Callable[[], TensorLike]"
)

# A whole number: an int if it is known at trace time, an integer scalar if it is only known at run time.
Number: TypeAlias = "int | tf.Tensor"

# The dtype in which the values of a tensor or variable accumulate: the same dtype for all, a function that returns the
# dtype for a tensor or variable, or None for its own dtype.
DTypeOf: TypeAlias = "DTypeLike | Callable[[tf.Tensor | tf.Variable], DTypeLike | None] | None"

# An optimizer of TensorFlow 1 or of Keras.
Optimizer: TypeAlias = "tf.compat.v1.train.Optimizer | keras.optimizers.Optimizer"

# The result of Keras's `get_config`, which can be written as JSON and from which `from_config` creates an equal object.
Config: TypeAlias = dict[str, Any]

# Arguments of `keras.initializers.get` and similar functions: the name of an object, its config, or the object.
Initializer: TypeAlias = "str | Config | keras.initializers.Initializer | Callable[..., tf.Tensor] | None"
Regularizer: TypeAlias = "str | Config | keras.regularizers.Regularizer | Callable[[tf.Tensor], tf.Tensor] | None"
Constraint: TypeAlias = "str | Config | keras.constraints.Constraint | Callable[[tf.Tensor], tf.Tensor] | None"
Activation: TypeAlias = "str | Config | Callable[[tf.Tensor], tf.Tensor] | None"

# The shape of one input of a Keras layer.
Shape: TypeAlias = "Sequence[int | None]"

# Losses and metrics by name, as Keras passes them to callbacks.
Logs: TypeAlias = "dict[str, TensorLike]"
