"""The iterator that strategies of TensorFlow 1 make of a dataset or an input function."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tensorflow_ipu._base.types import Nested


class InputIterator:
    """Gives elements of a dataset, or what a function returns, on the host.

    In a graph, a session runs `initializer` first. In eager execution the iterator is ready, and `initialize()` has it begin
    anew.
    """

    def __init__(self, source: tf.data.Dataset | Callable[[], Nested], device: str) -> None:
        """Creates the iterator of what an input function returned, on a CPU device."""
        if not isinstance(source, tf.data.Dataset) and not callable(source):
            raise ValueError(f"`input_fn` must return a `tf.data.Dataset` or a function, but returned {source!r}")
        self._source = source
        self._device = device
        self._iterator = self._make()

    def _make(self) -> Nested:
        if not isinstance(self._source, tf.data.Dataset):
            return None
        make = tf.compat.v1.data.make_one_shot_iterator
        if not tf.compat.v1.executing_eagerly_outside_functions():
            make = tf.compat.v1.data.make_initializable_iterator
        with tf.device(self._device):
            return make(self._source)

    def get_next(self) -> Nested:
        """Returns the next element."""
        with tf.device(self._device):
            return self._iterator.get_next() if isinstance(self._source, tf.data.Dataset) else self._source()

    def initialize(self) -> tf.Operation | None:
        """Returns the operation that initializes the iterator; in eager execution, begins anew and returns None."""
        if tf.compat.v1.executing_eagerly_outside_functions():
            self._iterator = self._make()
            return None
        return tf.no_op() if self._iterator is None else self._iterator.initializer

    @property
    def initializer(self) -> tf.Operation | None:
        """The same as `initialize()`."""
        return self.initialize()

    @property
    def element_spec(self) -> Nested:
        """The types of an element; of a function it says nothing, and is None."""
        return self._source.element_spec if isinstance(self._source, tf.data.Dataset) else None
