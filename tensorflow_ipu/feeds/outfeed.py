"""`IPUOutfeedQueue`: streams results out of programs, during or after a run."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu._base import active_runs, environment, lifetimes
from tensorflow_ipu._base.checks import check_bool, is_int
from tensorflow_ipu._base.types import Nested
from tensorflow_ipu._native.library import native, ops
from tensorflow_ipu._tensorflow import graphs
from tensorflow_ipu._tensorflow.variables import CompositeTensor
from tensorflow_ipu.feeds import _layout, _queue, elements, program_order
from tensorflow_ipu.feeds._layout import MOST, ElementLayout, PreallocatedOutput, Taken
from tensorflow_ipu.feeds._native_object import NativeObject
from tensorflow_ipu.feeds.elements import IPUOutfeedMode
from tensorflow_ipu.programs import in_plain_graph, insert

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    class _OldArguments(TypedDict, total=False):
        feed_name: object
        io_batch_size: object
        outfeed_all: bool | None
        replication_factor: object


_logger = logging.getLogger(__name__)


class IPUOutfeedQueueIterator(Iterator):
    """Yields the elements of an outfeed one by one, until the queue is empty.

    It does not wait for a running program. After a `break` or an exception, the remaining elements are left for other
    readers.
    """

    def __init__(self, outfeed_queue: IPUOutfeedQueue) -> None:
        """Creates an iterator of `outfeed_queue`.

        Raises:
          RuntimeError: The call is not eager, or the queue's mode is not `ALL`.
        """
        if not tf.executing_eagerly():
            raise RuntimeError("IPUOutfeedQueue can only be iterated over in eager mode; in a graph, use `dequeue`")
        if outfeed_queue._mode is not IPUOutfeedMode.ALL:
            raise RuntimeError(
                "IPUOutfeedQueue can only be iterated over if the `outfeed_mode` is set to `IPUOutfeedMode.ALL`; for"
                " `LAST`, use `dequeue`"
            )
        self._queue = outfeed_queue

    def __iter__(self) -> IPUOutfeedQueueIterator:
        return self

    def __next__(self) -> Nested:
        return self._queue._next_element()


class ReadBuffer:
    """Elements that were dequeued in a chunk and not yet returned to a reader. Not thread-safe."""

    def __init__(self) -> None:
        self._elements: deque[list[tf.Tensor]] = deque()

    def __len__(self) -> int:
        return len(self._elements)

    def fill(self, elements: Sequence[list[tf.Tensor]]) -> None:
        """Replaces the elements by a new chunk."""
        self._elements = deque(elements)

    def pop(self) -> list[tf.Tensor]:
        """Removes and returns the first element, with a tensor for each leaf."""
        return self._elements.popleft()

    def pop_before(self, take: Callable[[int | None], list[tf.Tensor]], limit: int | None) -> list[tf.Tensor]:
        """Returns up to `limit` elements, stacked. Elements of this buffer precede the elements that `take` dequeues.

        If memory runs out, no element is lost: all stay in this buffer.
        """
        buffered = len(self)
        if buffered == 0:
            return take(limit)
        first = list(self._elements)[:limit]
        stacked = [tf.stack(leaves) for leaves in zip(*first, strict=True)]
        if limit is not None and limit <= buffered:
            for _ in first:
                self._elements.popleft()
            return stacked
        chunk = take(None if limit is None else limit - buffered)
        try:
            joined = [tf.concat(parts, 0) for parts in zip(stacked, chunk, strict=True)]
        except tf.errors.ResourceExhaustedError:
            self._elements.extend(rows_of(chunk))
            raise
        self.clear()
        return joined

    def clear(self) -> None:
        self._elements.clear()


def rows_of(chunk: list[tf.Tensor]) -> list[list[tf.Tensor]]:
    """Returns the elements of a chunk; TensorFlow shares the chunk's memory if it can."""
    return [[leaf[row] for leaf in chunk] for row in range(len(chunk[0]))]


_HOST = "/device:CPU:0"
_OLD_ARGUMENTS = frozenset({"feed_name", "io_batch_size", "outfeed_all", "replication_factor"})

# An iteration dequeues chunks of up to this size, so that it does not hold a second copy of the whole queue.
_CHUNK_BYTES = 16 << 20

# The time for which a dequeue waits if the queue is empty and another thread runs a program. Polling would take a core
# from the program. The time exceeds the timer tick of most systems, because canceling a shorter timer takes 10 us on a
# virtual processor.
_WAIT_US = 5000


class IPUOutfeedQueueSpec(_queue.QueueSpec):
    """The static type of an outfeed queue: its mode and device."""

    __slots__ = ("_mode",)

    def __init__(self, mode: str, device: str) -> None:
        self._mode = mode
        self._device = device

    @property
    def value_type(self) -> type:
        return IPUOutfeedQueue

    def _serialize(self) -> tuple[str, ...]:
        return (self._mode, self._device)


class IPUOutfeedQueue(_queue.Queue, CompositeTensor, Iterable):
    """Streams results out of programs, in the order in which a program enqueues them.

        queue = ipu.IPUOutfeedQueue()

        @tf.function(jit_compile=True)
        def program():
            for i in tf.range(10):
                queue.enqueue({"loss": ...})

        strategy.run(program)
        queue.dequeue()  # {"loss": a tensor of shape [10, ...]}

    Another thread may dequeue or iterate while the program runs. A program never waits for a reader. A `tf.function`
    may capture the queue or take it as an argument. Then one compiled program works with any outfeed. All elements of a
    queue have the same structure, types and shapes.
    """

    _buffer_depth: int | None = None
    _layout: ElementLayout | None = None  # The layout of the latest trace that captured the queue.
    _enqueued_layout: ElementLayout | None = None  # The layout of all elements that programs have enqueued.
    _enqueuing_thread: int | None = None

    def __init__(
        self,
        outfeed_mode: IPUOutfeedMode | None = None,
        device_ordinal: int | None = None,
        buffer_depth: int = 3,
        optimise_latency: bool = False,
        **kwargs: Unpack[_OldArguments],
    ) -> None:
        """Creates the queue.

        Args:
          outfeed_mode: Whether the queue keeps all elements or the last one. None: `IPUOutfeedMode.ALL`.
          device_ordinal: The number of the IPU device. None: the device of the current strategy, or 0 without a
            strategy.
          buffer_depth: On the machine, the number of elements that the host buffers, 1 or more. It is checked and
            recorded. The emulator's buffer grows as needed, so that no program waits for a reader.
          optimise_latency: On the machine, trades throughput for latency. It is checked, and has no effect in the
            emulator.
          **kwargs: Arguments of earlier releases of the SDK. `outfeed_all=False` means `IPUOutfeedMode.LAST`.
            `feed_name`, `replication_factor` and `io_batch_size` have no effect.

        Raises:
          ValueError: An argument has a wrong type or is out of range.
          TypeError: `optimise_latency` is not a bool, or there is an unknown argument.
        """
        current = "`outfeed_mode`, `device_ordinal`, `buffer_depth` and `optimise_latency`"
        _queue.check_old_arguments("IPUOutfeedQueue", kwargs, _OLD_ARGUMENTS, current)
        if outfeed_mode is None and kwargs.get("outfeed_all") is False:
            outfeed_mode = IPUOutfeedMode.LAST
        mode = IPUOutfeedMode.ALL if outfeed_mode is None else outfeed_mode
        if not isinstance(mode, IPUOutfeedMode):
            raise ValueError(f"`outfeed_mode` must be an `IPUOutfeedMode`, `ALL` or `LAST`, but is {outfeed_mode!r}")
        self._device = elements.device_of(device_ordinal)
        if not is_int(buffer_depth):
            raise ValueError(f"`buffer_depth` must be an integer, but is {buffer_depth!r}")
        if buffer_depth < 1:
            raise ValueError(f"Outfeed buffer depth cannot be less than 1: `buffer_depth` is {buffer_depth}")
        check_bool("optimise_latency", optimise_latency)
        self._buffer_depth = buffer_depth
        self._name = _queue.unique_name("outfeed")
        number = native.ipu_outfeed_new(self._name.encode(), int(mode is IPUOutfeedMode.LAST))
        self._own(NativeObject(number, native.ipu_outfeed_drop))
        self._reading = threading.Lock()  # Guards the two buffers below.
        self._read_buffer = ReadBuffer()
        self._preallocated = PreallocatedOutput()
        self._become(mode)

    def _become_argument(self, spec: IPUOutfeedQueueSpec) -> None:
        self._become(IPUOutfeedMode(spec._mode))

    def _become(self, mode: IPUOutfeedMode) -> None:
        self._mode = mode
        self._graphs, self._outermost = lifetimes.WeakObjects(), lifetimes.WeakObjects()
        self._creating_thread = threading.get_ident()

    @property
    def _type_spec(self) -> IPUOutfeedQueueSpec:
        return IPUOutfeedQueueSpec(self._mode.value, self._device)

    @property
    def device(self) -> str:
        """The IPU device whose programs enqueue."""
        return self._device

    @property
    def outfeed_mode(self) -> IPUOutfeedMode:
        """The mode of the queue: it keeps all elements or the last one."""
        return self._mode

    @property
    def buffer_depth(self) -> int | None:
        """The argument of the same name; None for an argument of a program being traced."""
        return self._buffer_depth

    @property
    def enqueued(self) -> bool:
        """True if a traced program enqueues to the queue; in a graph of TensorFlow 1, a program of this graph."""
        if tf.compat.v1.executing_eagerly_outside_functions():
            return self._current_layout() is not None
        *_, outermost = graphs.around(tf.compat.v1.get_default_graph())
        return outermost in self._outermost

    @property
    def element_spec(self) -> Nested:
        """The structure of an element, with a `tf.TensorSpec` for each tensor; None before a trace that enqueues."""
        layout = self._current_layout()
        return None if layout is None else layout.nested

    def _current_layout(self) -> ElementLayout | None:
        """Returns the layout of the enqueued elements, or of the latest trace if there are no elements yet."""
        if self._enqueued_layout is None and self._feed is not None:
            number = native.ipu_outfeed_layout(self._feed.number)
            if number:
                self._enqueued_layout = _layout.layout_with_number(number)
        return self._enqueued_layout or self._layout

    def enqueue(self, tensors: Nested) -> tf.Operation:
        """Sends an element to the host each time that the program executes this call.

        Args:
          tensors: A tensor, or nested lists, tuples and dicts of tensors. Other values are converted to tensors.

        Returns:
          The operation. In a `tf.function` it runs automatically. In a graph, the session has to run it, or another
          operation has to depend on it. In a graph outside any program, the enqueue becomes a separate program.

        Raises:
          ValueError: This graph, or an outer one, already enqueues to the queue; or a shape is unknown.
          TypeError: `tensors` holds a value that an IPU cannot send to the host.
          RuntimeError: The call is eager.
        """
        if tf.executing_eagerly():
            raise RuntimeError(
                "`enqueue` can only be called in the `tf.function` of a program, which `strategy.run` runs"
            )
        elements.check_same_device(self, self._device)
        self._check_first_in(tf.compat.v1.get_default_graph())
        layout, flat = _layout.layout_of(tensors)
        self._layout = layout
        self._enqueuing_thread = threading.get_ident()
        synthetic = environment.poplar_flags().synthetic("outfeed")

        def put(*leaves: tf.Tensor) -> tf.Operation:
            order = program_order.of(self._device)
            return ops.ipu_outfeed_enqueue(self._state(), leaves, order, layout=layout.number, synthetic=synthetic)

        if not in_plain_graph():
            return put(*flat)
        with tf.device(self._device):
            return insert(put, flat, {}, self._device)

    def _check_first_in(self, graph: tf.Graph) -> None:
        outer_graphs = list(graphs.around(graph))
        for earlier in self._graphs:
            if earlier in outer_graphs or graph in graphs.around(earlier):
                raise ValueError(
                    "An outfeed can only be enqueued once: this program enqueues to it already. Enqueue a tuple or a dict,"
                    " or make a queue for each value"
                )
        self._graphs.add(graph)
        self._outermost.add(outer_graphs[-1])

    def dequeue(self, wait_for_completion: bool = False, max_elements: int | None = None) -> Nested:
        """Removes the enqueued elements from the queue, and returns a copy of them.

        If memory is too small for two copies, dequeue in parts:

            while len(part := queue.dequeue(max_elements=100)):
                ...

        Args:
          wait_for_completion: Whether to wait until no program runs before dequeuing.
          max_elements: The most elements to dequeue, 1 or more, for mode `ALL`. None: all. Graphcore's method has no
            such argument.

        Returns:
          The enqueued structure, with stacked tensors. With R replicas and n elements, which may be 0:

          - In mode `ALL`, each tensor has shape [n] + ([R] if R > 1) + the enqueued shape.
          - In mode `LAST`, each tensor has shape ([R] if R > 1) + the enqueued shape.

          `[]` if no program that enqueues has been traced, but another thread may trace one: a program is running, or
          the calling thread is not the one that made the queue.

        Raises:
          ValueError: No program that enqueues has been traced; or `max_elements` is below 1, or is set in mode `LAST`.
          TypeError: `max_elements` is not an integer.
          tf.errors.FailedPreconditionError: In mode `LAST`, nothing was enqueued since the last dequeue.
          tf.errors.NotFoundError: The queue was deleted.
          tf.errors.ResourceExhaustedError: There is not enough memory for the result. The elements stay in the queue.
        """
        elements.check_max_elements(max_elements)
        if max_elements is not None and self._mode is IPUOutfeedMode.LAST:
            raise ValueError(
                f"`max_elements` must not be set for a queue of mode `IPUOutfeedMode.LAST`, which has one element, but"
                f" is {max_elements}"
            )
        if wait_for_completion:
            active_runs.wait_until_idle()
        layout = self._current_layout()
        if layout is None and tf.executing_eagerly() and self._may_soon_enqueue():
            time.sleep(_WAIT_US / 1e6)
            return []
        if layout is None:
            raise ValueError(
                "Trying to dequeue an outfeed which has not been enqueued: run (or in a graph, build) a program that"
                " calls `enqueue` on it first"
            )
        if not tf.executing_eagerly():
            return layout.pack(self._take(layout, max_elements))
        with self._reading:
            return layout.pack(self._read_buffer.pop_before(lambda limit: self._take_now(layout, limit), max_elements))

    def _next_element(self) -> Nested:
        """Removes and returns the first element; raises `StopIteration` if the queue is empty."""
        with self._reading:
            layout = self._current_layout()
            if layout is None and self._may_soon_enqueue():
                time.sleep(_WAIT_US / 1e6)
            if layout is None:
                raise StopIteration
            if self._read_buffer:
                return layout.pack(self._read_buffer.pop())
            first, rows = self._taken(layout)
            if rows:
                self._read_buffer.fill(rows)
            if first is None:
                raise StopIteration
            return first

    def _taken(self, layout: ElementLayout) -> Taken:
        if self._feed is not None and layout.row_reader is not None:
            taken = layout.row_reader.take(self._feed.number, self._wait_us(), self._chunk(layout), self._preallocated)
            if taken is not None:
                return taken
        rows = rows_of(self._take(layout, min(self._chunk(layout), MOST)))
        return (layout.pack(rows[0]), rows[1:]) if rows else (None, ())

    def _may_soon_enqueue(self) -> bool:
        """Returns True if another thread may be running, or about to trace, a program that enqueues."""
        return active_runs.active() or threading.get_ident() != (self._enqueuing_thread or self._creating_thread)

    def _chunk(self, layout: ElementLayout) -> int:
        assert self._feed is not None
        bytes_of_row = layout.bytes * max(1, native.ipu_outfeed_replicas(self._feed.number))
        return max(1, _CHUNK_BYTES // max(1, bytes_of_row))

    def _wait_us(self) -> int:
        return _WAIT_US if active_runs.active() and threading.get_ident() != self._enqueuing_thread else 0

    def _take_now(self, layout: ElementLayout, limit: int | None) -> list[tf.Tensor]:
        """Dequeues eagerly. Avoids an operation if possible: after a long run, this takes a quarter of the time."""
        if self._feed is not None and self._mode is IPUOutfeedMode.ALL and layout.row_reader is not None:
            count = elements.ALL_ELEMENTS if limit is None else limit
            taken = layout.row_reader.take_stacked(self._feed.number, self._wait_us(), count)
            if taken is not None:
                return taken
        return self._take(layout, limit)

    def _take(self, layout: ElementLayout, limit: int | None = None) -> list[tf.Tensor]:
        if self._feed is None:
            raise RuntimeError(
                "an `IPUOutfeedQueue` that is an argument of a program cannot be dequeued in the program"
            )
        with tf.device(_HOST):
            return ops.ipu_outfeed_dequeue(
                self._feed.number,
                self._wait_us(),
                elements.ALL_ELEMENTS if limit is None else limit,
                types=layout.types,
                shapes=layout.shapes,
                layout=layout.number,
                last=self._mode is IPUOutfeedMode.LAST,
            )

    @property
    def deleter(self) -> tf.Operation | _queue.NoOperation:
        """The operation that deletes the queue and its unread elements.

        In eager execution, an access deletes the queue at once. In a graph, the operation is added to the graph in
        which the queue was made.

        Raises:
          RuntimeError: The queue is an argument of a program being traced.
          tf.errors.NotFoundError: The queue was deleted before.
        """
        if self._feed is None:
            raise RuntimeError("an `IPUOutfeedQueue` that is an argument of a program cannot be deleted in the program")
        # The layout is stored now, because a deleted queue has none. With it, a later dequeue raises `NotFoundError`.
        self._current_layout()
        with self._in_its_graph(), tf.device(_HOST):
            if tf.executing_eagerly():
                with self._reading:
                    self._read_buffer.clear()
            return ops.ipu_outfeed_delete(self._feed.number) or _queue.NoOperation("deleter")

    def __iter__(self) -> IPUOutfeedQueueIterator:
        """Returns an iterator of the elements in the queue."""
        return IPUOutfeedQueueIterator(self)

    def _described(self) -> dict[str, object]:
        layout = self._current_layout()
        return {"elements": "not known yet" if layout is None else f"`{layout.nested}`", "keeps": self._mode.name}

    def __repr__(self) -> str:
        return f"<IPUOutfeedQueue {self._name} on {self._device}, mode {self._mode.name}>"


class ScopedIPUOutfeedQueue(IPUOutfeedQueue):
    """An outfeed queue that is deleted together with its Python object."""

    def __init__(self, outfeed_mode: IPUOutfeedMode | None = None, device_ordinal: int | None = None) -> None:
        """Creates the queue as `IPUOutfeedQueue` does.

        Raises:
          RuntimeError: The call is not eager.
        """
        if not tf.executing_eagerly():
            raise RuntimeError("ScopedIPUOutfeedQueue can only be created in eager mode; in a graph, run the `deleter`")
        super().__init__(outfeed_mode, device_ordinal)
        assert self._feed is not None
        self._feed.drop_with(self)


tf.no_gradient("IpuOutfeedEnqueue")
