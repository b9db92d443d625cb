"""`IPUInfeedQueue`: streams the elements of a dataset into programs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NoReturn

import tensorflow as tf

from tensorflow_ipu._base import environment
from tensorflow_ipu._base.checks import check_bool, check_instance, is_int
from tensorflow_ipu._base.types import Nested
from tensorflow_ipu._native import journal
from tensorflow_ipu._native.library import native, ops
from tensorflow_ipu._tensorflow import variables
from tensorflow_ipu._tensorflow.variables import CompositeTensor
from tensorflow_ipu.feeds import _layout, _queue, elements, program_order
from tensorflow_ipu.feeds._native_object import NativeObject
from tensorflow_ipu.programs import ReplicaGroups

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    class _OldArguments(TypedDict, total=False):
        data_to_prefetch: object
        feed_name: object
        replication_factor: object
        _internal_id: object


_logger = logging.getLogger(__name__)

_DEFAULT_PREFETCH_DEPTH = 3
_MAX_PREFETCH_DEPTH = 255
_HOST = "/device:CPU:0"
# Scripts for earlier releases pass these arguments. They have no effect, because the queue chooses its name and
# programs count their replicas.
_OLD_ARGUMENTS = frozenset({"_internal_id", "data_to_prefetch", "feed_name", "replication_factor"})


class IPUInfeedQueueSpec(_queue.QueueSpec):
    """The static type of an infeed queue: its elements and device."""

    __slots__ = ("_element_spec", "_structure")

    def __init__(self, element_spec: Nested, device: str) -> None:
        self._element_spec = element_spec
        self._device = device
        self._structure = _layout.describe(element_spec)

    @property
    def value_type(self) -> type:
        return IPUInfeedQueue

    @property
    def element_spec(self) -> Nested:
        """The structure of an element, with a `tf.TensorSpec` for each tensor."""
        return self._element_spec

    def _serialize(self) -> tuple[Nested, ...]:
        # TensorFlow compares these values to find a trace. It treats a named tuple as a tuple, but their texts differ.
        return (self._element_spec, self._device, self._structure)

    @classmethod
    def _deserialize(cls, serialization: tuple[Nested, ...]) -> IPUInfeedQueueSpec:
        return cls(*serialization[:2])


class IPUInfeedQueue(_queue.Queue, CompositeTensor):
    """Streams the elements of a dataset into programs, in the dataset's order. A dequeue takes one element.

        queue = ipu.IPUInfeedQueue(dataset)
        with strategy.scope():
            queue.initializer
            strategy.run(program)  # `loops.repeat(n, body, inputs, queue)` in the program takes n elements

    A native thread reads the dataset ahead of the programs, and the next run continues where the last one stopped. With
    R replicas, replica r gets the elements r, R + r, 2 R + r and so on. A `tf.function` may capture the queue or take
    it as an argument. Then one compiled program works with any queue of the same element spec.

    An element is a tensor, a tuple, a dict, or a dict within a tuple. Its tensors have static shapes and the type
    int32, float32, float16, bool, int8 or uint8. When the dataset ends, the run raises `tf.errors.OutOfRangeError`. If
    the dataset fails, the run raises the dataset's error.
    """

    _prefetch_depth: int | None = None
    _dataset: tf.data.Dataset | None = None
    _dequeued = False
    _initialized = False
    _spec: IPUInfeedQueueSpec | None = None

    def __init__(
        self,
        dataset: tf.data.Dataset,
        device_ordinal: int | None = None,
        prefetch_depth: int | None = None,
        optimise_latency: bool = False,
        *,
        replica_groups: ReplicaGroups | None = None,
        **kwargs: Unpack[_OldArguments],
    ) -> None:
        """Creates the queue. No element is read before `initializer`.

        Args:
          dataset: The dataset. Its elements need fully defined shapes.
          device_ordinal: The number of the IPU device. None: the device of the current strategy, or 0 without a
            strategy.
          prefetch_depth: The number of elements per replica that are read ahead, 1 to 255. None: 3.
          optimise_latency: On the machine, trades throughput for latency. It is checked, and has no effect in the
            emulator.
          replica_groups: The replicas that get the same elements. With `ReplicaGroups(k)` and R replicas, there are R /
            k groups, and element t * (R / k) + g goes to all k replicas of group g. None: replicas get different
            elements.
          **kwargs: Arguments of earlier releases of the SDK, without effect: `feed_name`, `replication_factor`,
            `data_to_prefetch`, and internal ones.

        Raises:
          ValueError: An argument is out of range, or an infeed does not support the dataset's elements.
          TypeError: An argument has a wrong type, or is not an argument of this class.
        """
        current = "`device_ordinal`, `prefetch_depth`, `optimise_latency` and `replica_groups`"
        _queue.check_old_arguments("IPUInfeedQueue", kwargs, _OLD_ARGUMENTS, current)
        check_instance("dataset", dataset, tf.data.Dataset, "a `tf.data.Dataset`")
        self._device = elements.device_of(device_ordinal)
        self._prefetch_depth = depth = _checked_depth(prefetch_depth)
        check_bool("optimise_latency", optimise_latency)
        groups = ReplicaGroups(1) if replica_groups is None else replica_groups
        check_instance("replica_groups", groups, ReplicaGroups, "a `ReplicaGroups`")
        self._element = elements.ElementSpec(dataset.element_spec)
        self._dataset = _without_injected_prefetch(dataset)
        self._name = _queue.unique_name("infeed")
        ordinal = tf.DeviceSpec.from_string(self._device).device_index
        number = native.ipu_infeed_new(self._name.encode(), depth, groups.size or 0, groups.orthogonal, ordinal)
        # The dataset object keeps the dataset's Python functions alive.
        self._own(NativeObject(number, native.ipu_infeed_drop, keep=self._dataset))

    def _become_argument(self, spec: IPUInfeedQueueSpec) -> None:
        self._spec = spec
        self._element = elements.ElementSpec(spec.element_spec)

    @property
    def _type_spec(self) -> IPUInfeedQueueSpec:
        if self._feed is not None and not self._initialized:
            raise RuntimeError(
                f"{self!r} is not initialized, so it cannot be an argument of a program. Access its `initializer` first"
            )
        if self._spec is None:
            self._spec = IPUInfeedQueueSpec(self._element.nested, self._device)
        return self._spec

    @property
    def element_spec(self) -> Nested:
        """The structure of an element, with a `tf.TensorSpec` for each tensor."""
        return self._element.nested

    @property
    def device(self) -> str:
        """The IPU device whose programs the queue feeds."""
        return self._device

    @property
    def prefetch_depth(self) -> int | None:
        """The number of elements per replica that are read ahead; None for an argument of a program being traced."""
        return self._prefetch_depth

    @property
    def dequeued(self) -> bool:
        """True if a traced program takes elements from the queue."""
        return self._dequeued

    @property
    def number_of_tuple_elements(self) -> int:
        """The number of arguments that a loop body gets for an element."""
        positional, named = elements.arguments(self._element.nested)
        return len(positional) + len(named)

    @property
    def initializer(self) -> tf.Operation | _queue.NoOperation:
        """The operation that starts to read the dataset from its first element.

        In eager execution, each access starts the queue at once. In a graph, the operation is added to the graph in
        which the queue was made.

        Raises:
          RuntimeError: The queue is an argument of a program being traced.
          ValueError: In a graph, this is the second access.
          tf.errors.FailedPreconditionError: The dataset has a dtype that an IPU does not support.
          tf.errors.InvalidArgumentError: The dataset's tensors have a dimension of size 0; in a graph, when the op
            runs.
        """
        if self._feed is None:
            raise RuntimeError(
                "an `IPUInfeedQueue` created from a spec is initialized already: initialize the queue itself"
            )
        self._element.check_types()
        with self._in_its_graph():
            if self._initialized and not tf.executing_eagerly():
                raise ValueError(
                    "The IPUInfeedQueue `initializer` function can only be accessed once in a graph: keep the returned op"
                )
            self._initialized = True
            return self._start() or _queue.NoOperation("initializer")

    def _start(self) -> tf.Operation:
        assert self._feed is not None
        assert self._dataset is not None
        _logger.debug("`%s` starts to read %s", self._name, self._dataset.element_spec)
        with tf.device(_HOST):
            return ops.ipu_infeed_start(
                self._feed.number,
                tf.data.experimental.to_variant(variables.as_run(self._dataset)),
                types=self._element.types,
                shapes=self._element.shapes,
            )

    @property
    def deleter(self) -> tf.Operation | _queue.NoOperation:
        """The operation that stops reading, and ends runs that wait for an element.

        In eager execution, each access stops the queue at once. It waits up to a second for an element that is being
        read. `initializer` starts again from the first element.

        Raises:
          RuntimeError: The queue is an argument of a program being traced.
          tf.errors.NotFoundError: The queue is not initialized.
        """
        if self._feed is None:
            raise RuntimeError("an `IPUInfeedQueue` created from a spec cannot be deleted: delete the queue itself")
        _logger.debug("`%s` stops", self._name)
        with self._in_its_graph(), tf.device(_HOST):
            stopped = ops.ipu_infeed_stop(self._feed.number)
        journal.log()
        return stopped or _queue.NoOperation("deleter")

    def get_next(self) -> NoReturn:
        """Raises `ValueError`: a loop takes the elements of the queue that is passed to it."""
        raise ValueError(
            "`get_next()` is obsolete: pass the queue to `loops.repeat` or `loops.while_loop`, or use `next(iterator)` of"
            " an `IPUIterator`"
        )

    def _dequeue(self) -> Nested:
        """Dequeues the next element in the program being traced, with the structure of the dataset's elements."""
        elements.check_same_device(self, self._device)
        self._dequeued = True
        if environment.poplar_flags().synthetic("infeed"):
            tensors = [
                tf.zeros(shape, dtype) for shape, dtype in zip(self._element.shapes, self._element.types, strict=True)
            ]
        else:
            tensors = ops.ipu_infeed_dequeue(
                self._state(), program_order.of(self._device), types=self._element.types, shapes=self._element.shapes
            )
        return self._element.pack(tensors)

    def _described(self) -> dict[str, object]:
        is_initialized = "yes" if self._feed is None or self._initialized else "no: access its `initializer`"
        return {
            "elements": f"`{self._element.nested}`",
            "is initialized": is_initialized,
            "`prefetch_depth`": self._prefetch_depth,
        }

    def __repr__(self) -> str:
        return f"<IPUInfeedQueue {self._name} on {self._device}, elements {self._element.nested}>"


def take(queue: IPUInfeedQueue) -> tuple[list[Nested], dict[str, Nested]]:
    """Dequeues the next element in the program being traced, as positional and named arguments."""
    return elements.arguments(queue._dequeue())


def expected(queue: IPUInfeedQueue) -> tuple[int, tuple[str, ...]]:
    """Returns the number of an element's positional arguments, and the names of its named arguments."""
    positional, named = elements.arguments(queue.element_spec)
    return len(positional), tuple(named)


def specs(queue: IPUInfeedQueue) -> tuple[list[Nested], dict[str, Nested]]:
    """Returns the specs of an element's arguments: positional and named."""
    return elements.arguments(queue.element_spec)


def _without_injected_prefetch(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Disables the prefetch buffer that TensorFlow appends to a dataset, because the queue is such a buffer."""
    if variables.options_of(dataset).experimental_optimization.inject_prefetch is not None:
        return dataset
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)


def _checked_depth(prefetch_depth: int | None) -> int:
    depth = _DEFAULT_PREFETCH_DEPTH if prefetch_depth is None else prefetch_depth
    if not is_int(depth):
        raise ValueError(f"`prefetch_depth` must be an integer, but it is {depth!r}")
    if depth < 1:
        raise ValueError(f"prefetch_depth must be greater than zero, but it is {depth}")
    if depth > _MAX_PREFETCH_DEPTH:
        raise ValueError(f"prefetch_depth must be less than {_MAX_PREFETCH_DEPTH + 1}, but it is {depth}")
    return depth


tf.no_gradient("IpuInfeedDequeue")
