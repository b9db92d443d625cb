"""`IPUIterator`: an infeed queue that programs read with `next`."""

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

    Each `next` that is traced is one dequeue; in a loop over `tf.range` it takes an element an iteration.
    """

    _owns_queue = False

    def __init__(
        self,
        dataset: tf.data.Dataset | None = None,
        infeed_spec: IPUInfeedQueueSpec | None = None,
        element_spec: Nested = None,
        **kwargs: Any,
    ) -> None:
        """Creates and starts the iterator's own queue.

        Args:
          dataset: The dataset to read.
          infeed_spec: In place of `dataset`, with `element_spec`: the spec of a queue.
          element_spec: The structure of an element, as `infeed_spec` has it.
          **kwargs: With a dataset, options of `IPUInfeedQueue`; with specs, `components`, the queue of that spec.

        Raises:
          ValueError: Neither or both of `dataset` and the specs are passed.
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
        """Returns the structure of `tf.TensorSpec` of an element."""
        return self._infeed_queue.element_spec

    @property
    def infeed_spec(self) -> IPUInfeedQueueSpec:
        """Returns the spec of the iterator's queue."""
        return self._infeed_queue._type_spec

    def __iter__(self) -> IPUIterator:
        return self

    def get_next(self) -> Nested:
        """Takes the next element, as `next(iterator)` does."""
        if tf.executing_eagerly():
            raise RuntimeError(
                "Accessing dataset elements can not be accessed in eager mode when inside `IPUStrategy`: the elements go"
                " to the program. Call `next(iterator)` inside the `tf.function` that `strategy.run` runs, or create the"
                " iterator outside of the scope to read it on the host"
            )
        return self._infeed_queue._dequeue()

    next = __next__ = get_next

    def get_next_as_optional(self) -> NoReturn:
        """Always raises `NotImplementedError`: a program cannot ask whether there is an element."""
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
    """An iterator whose queue is deleted with it."""

    _owns_queue = True


def queue_of(iterator: IPUIterator) -> IPUInfeedQueue:
    return iterator._infeed_queue


# Code of these packages that iterates over a dataset wants its elements on the host: Keras to drive its own steps,
# TensorFlow for `as_numpy_iterator` and the like.
_HOST_PACKAGES = ("keras", "tensorflow", "tf_keras")


def on_device() -> contextlib.AbstractContextManager[None]:
    """Makes `iter(dataset)` follow the strategy of each thread for as long as any block of this lasts."""
    return patches.DATASET_ITERATORS.applied(_following)


def _following(plain: Callable[[Nested], Nested]) -> Callable[[Nested], Nested]:
    def follow(dataset: tf.data.Dataset) -> Nested:
        strategy = tf.distribute.get_strategy()
        on_ipu = getattr(strategy, "_enable_dataset_iterators", False) and tf.executing_eagerly()
        if not on_ipu or sys._getframe(1).f_globals.get("__name__", "").partition(".")[0] in _HOST_PACKAGES:
            return plain(dataset)
        return IPUOwnedIterator(dataset)

    return follow
