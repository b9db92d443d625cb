"""The names that annotations share for what TensorFlow takes in many a form; no more than names, at run time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import keras
    import numpy as np
    import tensorflow as tf

# What `tf.convert_to_tensor` makes a tensor of; and of that, what is no list or tuple.
OneTensorLike: TypeAlias = "tf.Tensor | tf.Variable | np.ndarray | np.number | float"
TensorLike: TypeAlias = "OneTensorLike | str | Sequence[TensorLike]"

# Tensors, or what they are made of, in lists, tuples, dicts, and whatever else `tf.nest` takes apart, at any depth. No type
# can say which: what comes out has the structure of what went in.
Nested: TypeAlias = Any

# What `tf.GradientTape.gradient` has for one source that the target depends on.
Gradient: TypeAlias = "tf.Tensor | tf.IndexedSlices"

# From a gradient and the value of its variable to another gradient. Most are of tensors alone, such as
# `lambda grad, _: 3 * grad`, and right where no gradient is sparse, which no type can say.
GradientMapping: TypeAlias = "Callable[[Any, tf.Tensor], Gradient]"

# A variable as TensorFlow makes it, or as Keras does, which keeps one of TensorFlow's in its own.
Variable: TypeAlias = "tf.Variable | keras.Variable"

# What `tf.as_dtype` makes a type of elements of; so do NumPy's scalar types, of which TensorFlow's annotations do not know.
DTypeLike: TypeAlias = "tf.DType | np.dtype | str"

# What `tf.TensorShape` makes a shape of; None for a size that is not known.
ShapeLike: TypeAlias = "tf.TensorShape | Sequence[int | None]"

# A learning rate: one for all steps, a schedule of Keras, or what is called for it.
LearningRate: TypeAlias = (
    "float | tf.Tensor | keras.optimizers.schedules.LearningRateSchedule | Callable[[], TensorLike]"
)

# A whole number that is known while a program is traced, or that the run alone knows: an integer scalar.
Number: TypeAlias = "int | tf.Tensor"

# The type to accumulate in: one for all, what a function says of a variable or tensor, or None for that of each.
DTypeOf: TypeAlias = "DTypeLike | Callable[[tf.Tensor | tf.Variable], DTypeLike | None] | None"

# An optimizer of TensorFlow 1, or of Keras.
Optimizer: TypeAlias = "tf.compat.v1.train.Optimizer | keras.optimizers.Optimizer"

# What `get_config` of Keras returns: what a layer or an optimizer is made of again, to be written as JSON.
Config: TypeAlias = dict[str, Any]

# What `keras.initializers.get` and the like make an object of: its name, its config, or itself.
Initializer: TypeAlias = "str | Config | keras.initializers.Initializer | Callable[..., tf.Tensor] | None"
Regularizer: TypeAlias = "str | Config | keras.regularizers.Regularizer | Callable[[tf.Tensor], tf.Tensor] | None"
Constraint: TypeAlias = "str | Config | keras.constraints.Constraint | Callable[[tf.Tensor], tf.Tensor] | None"
Activation: TypeAlias = "str | Config | Callable[[tf.Tensor], tf.Tensor] | None"

# The shape of one input of a Keras layer.
Shape: TypeAlias = "Sequence[int | None]"

# What Keras tells callbacks: losses and metrics by name.
Logs: TypeAlias = "dict[str, TensorLike]"
