"""The seam to what TensorFlow keeps private, in modules by subject.

Nothing else of the package imports `tensorflow.python`, `tensorflow.core` or `tensorflow.compiler`, or uses a private
attribute of TensorFlow's objects: `tests/seam` holds that, and lists what it cannot. Each function says on which
private name it stands, why no public one serves, and what to do when the name is gone. `patches` lists what of TensorFlow
and Keras is replaced, when, and for how long.

A new release of TensorFlow is tried here first: `make test-next`.
"""
