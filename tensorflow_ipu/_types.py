"""The names that annotations share for what TensorFlow takes in many a form; no more than names, at run time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import keras
    import numpy as np
    import tensorflow as tf

# What `tf.convert_to_tensor` makes a tensor of.
TensorLike: TypeAlias = "tf.Tensor | tf.Variable | np.ndarray | np.number | float | str | Sequence[TensorLike]"

# Tensors, or what they are made of, in lists, tuples, dicts, and whatever else `tf.nest` takes apart, at any depth. No type
# can say which: what comes out has the structure of what went in.
Nested: TypeAlias = Any

# What `tf.GradientTape.gradient` has for one source that the target depends on.
Gradient: TypeAlias = "tf.Tensor | tf.IndexedSlices"

# A variable as TensorFlow makes it, or as Keras does, which keeps one of TensorFlow's in its own.
Variable: TypeAlias = "tf.Variable | keras.Variable"

# What `tf.as_dtype` makes a type of elements of; so do NumPy's scalar types, of which TensorFlow's annotations do not know.
DTypeLike: TypeAlias = "tf.DType | np.dtype | str"

# What `tf.TensorShape` makes a shape of; None for a size that is not known.
ShapeLike: TypeAlias = "tf.TensorShape | Sequence[int | None]"

# A learning rate: for all steps, as a tensor of the program or a variable, or called for it.
LearningRate: TypeAlias = "TensorLike | Callable[[], TensorLike]"

# A `tf.function`.
TFFunction: TypeAlias = "tf.types.experimental.PolymorphicFunction"
