"""Objects of ours that TensorFlow takes for tensors."""

from __future__ import annotations

from tensorflow.python.data.util import structure
from tensorflow.python.framework import composite_tensor

# The base class of what is a tensor of several parts to TensorFlow: an argument of traced functions, with a `_type_spec`.
# `tf.experimental.ExtensionType` is public, and makes values without identity: a queue is one object. When it is gone:
# `tf.__internal__.CompositeTensor`, which Keras has, or `tf.types.experimental.TraceType` by `__tf_tracing_type__`.
CompositeTensor = composite_tensor.CompositeTensor

# The spec of None in the elements of a dataset, as Keras makes them. It has no public name. When it is gone:
# `type(tf.data.Dataset.from_tensors(None).element_spec)`.
NoneSpec = structure.NoneTensorSpec
