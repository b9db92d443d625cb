"""`IPUIterator`: reads an infeed queue in programs with `next`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import tensorflow as tf

from tensorflow_ipu._base.types import Nested
from tensorflow_ipu._tensorflow import patches
from tensorflow_ipu._tensorflow.variables import OwnedIterator
from tensorflow_ipu.feeds.infeed import IPUInfeedQueue, IPUInfeedQueueSpec


class IPUIteratorSpec(tf.TypeSpec):
    """The static type of an iterator: its elements and device."""

    __slots__ = ("_infeed_spec",)

    def __init__(self, infeed_spec: IPUInfeedQueueSpec) -> None:
        self._infeed_spec = infeed_spec

    @property
    def value_type(self) -> type:
        return IPUIterator

    def _serialize(self) -> tuple[IPUInfeedQueueSpec, ...]:
        return (self._infeed_spec,)

    @property
    def _component_specs(self) -> list[IPUInfeedQueueSpec]:
        return [self._infeed_spec]

    def _to_components(self, value: IPUIterator) -> list[IPUInfeedQueue]:
        return [value._infeed_queue]

    def _from_components(self, components: Sequence[IPUInfeedQueue]) -> IPUIterator:
        iterator = IPUIterator.__new__(IPUIterator)
        iterator._infeed_queue = components[0]
        return iterator


class IPUIterator(OwnedIterator):
    """Reads a dataset in a program: `next(iterator)` in a traced function takes the next element.

        iterator = iter(dataset)  # inside `strategy.scope()`

        @tf.function(jit_compile=True)
        def program(iterator, n):
            for _ in tf.range(n):
                features, labels = next(iterator)

    Each traced `next` is one dequeue. In a loop over `tf.range` it takes one element per iteration.
    """

    _owns_queue = False

    def __init__(
        self,
        dataset: tf.data.Dataset | None = None,
        infeed_spec: IPUInfeedQueueSpec | None = None,
        element_spec: Nested = None,
        **kwargs: Any,
    ) -> None:
        """Creates and starts the queue of the iterator.

        Args:
          dataset: The dataset to read.
          infeed_spec: The spec of a queue, instead of `dataset`. It requires `element_spec`.
          element_spec: The structure of an element of `infeed_spec`.
          **kwargs: Options of `IPUInfeedQueue` for a dataset. For specs: `components`, a list with the queue
            of `infeed_spec`.

        Raises:
          ValueError: Both `dataset` and specs are passed, or a needed argument is missing.
        """
        if dataset is None:
            if infeed_spec is None or element_spec is None:
                raise ValueError("`infeed_spec` and `element_spec` must both be given where `dataset` is not")
            components = kwargs.get("components")
            if not components:
                raise ValueError("`components` must hold the queue of `infeed_spec` where `dataset` is not given")
            self._infeed_queue: IPUInfeedQueue = components[0]
        else:
            if infeed_spec is not None or element_spec is not None:
                raise ValueError("`infeed_spec` and `element_spec` must not be given along with `dataset`")
            self._infeed_queue = IPUInfeedQueue(dataset, **kwargs)
            self._initializer = self._infeed_queue.initializer
        if self._owns_queue and self._infeed_queue._feed is not None:
            self._infeed_queue._feed.drop_with(self)

    @property
    def _type_spec(self) -> IPUIteratorSpec:  # pyright: ignore[reportIncompatibleMethodOverride]
        return IPUIteratorSpec(self._infeed_queue._type_spec)

    @property
    def element_spec(self) -> Nested:
        """The structure of an element, with a `tf.TensorSpec` for each tensor."""
        return self._infeed_queue.element_spec

    @property
    def infeed_spec(self) -> IPUInfeedQueueSpec:
        """The spec of the iterator's queue."""
        return self._infeed_queue._type_spec

    def __iter__(self) -> IPUIterator:
        return self

    def get_next(self) -> Nested:
        """Takes the next element, as `next(iterator)` does."""
        if tf.executing_eagerly():
            raise RuntimeError(
                "Accessing dataset elements can not be accessed in eager mode when inside `IPUStrategy`: the program gets"
                " the elements. Call `next(iterator)` inside the `tf.function` that `strategy.run` runs, or create the"
                " iterator outside of the scope to read it on the host"
            )
        return self._infeed_queue._dequeue()

    next = __next__ = get_next

    def get_next_as_optional(self) -> NoReturn:
        """Raises `NotImplementedError`: a program cannot test whether an element exists."""
        raise NotImplementedError(
            "an IPU dataset iterator does not support `get_next_as_optional()`, and so no `for x in iterator` in a program."
            " Loop over `tf.range(n)` and call `next(iterator)`"
        )

    def _refuse_checkpoint(self, *_: object) -> NoReturn:
        raise NotImplementedError("an IPU dataset iterator is not saveable: leave it out of the checkpoint")

    _gather_saveables_for_checkpoint = _serialize_to_tensors = _refuse_checkpoint
    _restore_from_tensors = _refuse_checkpoint  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} over {self._infeed_queue!r}>"


class IPUOwnedIterator(IPUIterator):
    """An iterator that deletes its queue when the iterator is deleted."""

    _owns_queue = True


def queue_of(iterator: IPUIterator) -> IPUInfeedQueue:
    return iterator._infeed_queue


# These packages need the elements of datasets on the host: Keras for its own steps, and TensorFlow for functions such
# as `as_numpy_iterator`.
_HOST_PACKAGES = ("keras", "tensorflow", "tf_keras")


def on_device() -> contextlib.AbstractContextManager[None]:
    """Returns a context in which `iter(dataset)` makes an `IPUOwnedIterator` in the scope of an IPU strategy."""
    return patches.DATASET_ITERATORS.applied(_iterating_by_strategy)


def _iterating_by_strategy(original: Callable[[Nested], Nested]) -> Callable[[Nested], Nested]:
    def iterate(dataset: tf.data.Dataset) -> Nested:
        strategy = tf.distribute.get_strategy()
        on_ipu = getattr(strategy, "_enable_dataset_iterators", False) and tf.executing_eagerly()
        if not on_ipu or sys._getframe(1).f_globals.get("__name__", "").partition(".")[0] in _HOST_PACKAGES:
            return original(dataset)
        return IPUOwnedIterator(dataset)

    return iterate
