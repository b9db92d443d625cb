"""`IPUOutfeedQueue`: streams results out of programs, while they run or after."""

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
    """Yields one element after the other, and stops where the queue is empty at the moment.

    It does not wait for a running program. After a `break` or an exception, the rest stays for other readers.
    """

    def __init__(self, outfeed_queue: IPUOutfeedQueue) -> None:
        """Iterates over `outfeed_queue`; raises `RuntimeError` where the call is not eager, or the mode is not `ALL`."""
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
    """The rest of a chunk of elements, for the next reader; not thread-safe."""

    def __init__(self) -> None:
        """Starts empty."""
        self._elements: deque[list[tf.Tensor]] = deque()

    def __len__(self) -> int:
        return len(self._elements)

    def fill(self, elements: Sequence[list[tf.Tensor]]) -> None:
        """Takes a chunk in place of what there is."""
        self._elements = deque(elements)

    def pop(self) -> list[tf.Tensor]:
        """Takes the first element: a tensor for each leaf."""
        return self._elements.popleft()

    def pop_before(self, take: Callable[[int | None], list[tf.Tensor]], most: int | None) -> list[tf.Tensor]:
        """Takes elements from here first, then a chunk, and returns all stacked."""
        here = len(self)
        if here == 0:
            return take(most)
        first = list(self._elements)[:most]
        stacked = [tf.stack(leaves) for leaves in zip(*first, strict=True)]
        if most is not None and most <= here:
            for _ in first:
                self._elements.popleft()
            return stacked
        chunk = take(None if most is None else most - here)
        try:
            joined = [tf.concat(parts, 0) for parts in zip(stacked, chunk, strict=True)]
        except tf.errors.ResourceExhaustedError:
            self._elements.extend(rows_of(chunk))
            raise
        self.clear()
        return joined

    def clear(self) -> None:
        """Drops everything."""
        self._elements.clear()


def rows_of(chunk: list[tf.Tensor]) -> list[list[tf.Tensor]]:
    """The elements of a chunk, as views of its memory where TensorFlow can."""
    return [[leaf[i] for leaf in chunk] for i in range(len(chunk[0]))]


_HOST = "/device:CPU:0"
_OF_EARLIER_RELEASES = frozenset({"feed_name", "io_batch_size", "outfeed_all", "replication_factor"})

# How much an iteration takes from the queue at once, so that reading it does not need as much memory again.
_CHUNK_BYTES = 16 << 20

# How long a dequeue from another thread waits where the queue is empty and a program runs: polling would take a core from
# the program. Longer than a timer tick of most systems, since to cancel a timer takes a virtual processor 10 us.
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
    """Streams results out of programs, in the order in which the program enqueues them.

        queue = ipu.IPUOutfeedQueue()

        @tf.function(jit_compile=True)
        def program():
            for i in tf.range(10):
                queue.enqueue({"loss": ...})

        strategy.run(program)
        queue.dequeue()  # {"loss": a tensor of shape [10, ...]}

    Another thread may dequeue, or iterate, while the program runs, which never waits for a reader. A `tf.function` may
    capture the queue or take it as an argument; then any other queue runs the same compiled program. All elements of a
    queue have one structure, with the same types and shapes.
    """

    _buffer_depth: int | None = None
    _layout: ElementLayout | None = None  # Of the latest trace that captured the queue.
    _held: ElementLayout | None = None  # Of what programs have enqueued: the same for all of it.
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
          outfeed_mode: What the queue keeps; `IPUOutfeedMode.ALL` if omitted.
          device_ordinal: The number of the IPU device; that of the current strategy if omitted, else 0.
          buffer_depth: On the machine, how many elements are buffered on the host, 1 or more. Checked and recorded; the
            emulator's buffer grows as needed, so that no program waits for a reader.
          optimise_latency: On the machine, trades throughput for latency. Checked; changes nothing in the emulator.
          **kwargs: Arguments of earlier releases of the SDK: `outfeed_all`, which is False for `IPUOutfeedMode.LAST`, and
            without effect `feed_name`, `replication_factor` and `io_batch_size`.

        Raises:
          ValueError: An argument is of a wrong kind or out of range.
          TypeError: `optimise_latency` is no bool, or there are other arguments.
        """
        others = "`outfeed_mode`, `device_ordinal`, `buffer_depth` and `optimise_latency`"
        _queue.check_old_arguments("IPUOutfeedQueue", kwargs, _OF_EARLIER_RELEASES, others)
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
        self._reading = threading.Lock()
        self._read_buffer = ReadBuffer()  # Guarded by the lock, as the next is.
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
        """Returns the IPU device whose programs enqueue."""
        return self._device

    @property
    def outfeed_mode(self) -> IPUOutfeedMode:
        """Returns what the queue keeps."""
        return self._mode

    @property
    def buffer_depth(self) -> int | None:
        """Returns the argument of the same name; None for a traced argument, which stands for any queue."""
        return self._buffer_depth

    @property
    def enqueued(self) -> bool:
        """Returns True if a traced program enqueues to the queue; in a graph of TensorFlow 1, one of this graph."""
        if tf.compat.v1.executing_eagerly_outside_functions():
            return self._current_layout() is not None
        *_, outermost = graphs.around(tf.compat.v1.get_default_graph())
        return outermost in self._outermost

    @property
    def element_spec(self) -> Nested:
        """Returns the structure of an element, with a `tf.TensorSpec` a tensor; None before a program that enqueues."""
        layout = self._current_layout()
        return None if layout is None else layout.nested

    def _current_layout(self) -> ElementLayout | None:
        """Returns the layout of the elements that have come, else that of the latest trace."""
        if self._held is None and self._feed is not None:
            number = native.ipu_outfeed_layout(self._feed.number)
            if number:
                self._held = _layout.numbered(number)
        return self._held or self._layout

    def enqueue(self, tensors: Nested) -> tf.Operation:
        """Sends an element to the host, each time that the program runs this.

        Args:
          tensors: A tensor, or a list, tuple or dict of tensors, nested at will; other values are converted to tensors.

        Returns:
          The operation. In a `tf.function` it runs by itself; in a graph it must be run, or depended on. In a graph outside of
          any program, the enqueue is a program of its own.

        Raises:
          ValueError: The queue is enqueued to in this graph, or in one around it, already; or a shape is unknown.
          TypeError: `tensors` holds something other than tensors that an IPU can send to the host.
          RuntimeError: The call is eager.
        """
        if tf.executing_eagerly():
            raise RuntimeError(
                "`enqueue` can only be called in the `tf.function` of a program, which `strategy.run` runs"
            )
        elements.check_same_device(self, self._device)
        self._check_first_in(tf.compat.v1.get_default_graph())
        layout, flat = _layout.of(tensors)
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
        around = list(graphs.around(graph))
        for earlier in self._graphs:
            if earlier in around or graph in graphs.around(earlier):
                raise ValueError(
                    "An outfeed can only be enqueued once: this program enqueues to it already. Enqueue a tuple or a dict,"
                    " or make a queue for each value"
                )
        self._graphs.add(graph)
        self._outermost.add(around[-1])

    def dequeue(self, wait_for_completion: bool = False, max_elements: int | None = None) -> Nested:
        """Takes what has been enqueued and not dequeued, as a copy.

        Where memory is too small for two copies, take a part at a time:

            while len(part := queue.dequeue(max_elements=100)):
                ...

        Args:
          wait_for_completion: Whether to wait first until no program runs.
          max_elements: How many elements to take at most, the first ones; all if omitted. For mode `ALL`. Graphcore's
            method has no such argument.

        Returns:
          The structure that was enqueued. In mode `ALL` each tensor has shape [n] + ([R] for R > 1 replicas) + the
          enqueued shape, n being the number of elements, which may be 0. In mode `LAST`: ([R] for R > 1) + that shape.
          `[]` if no program that enqueues was traced so far, and another thread may be about to: this is not the thread
          that made the queue, or a program runs.

        Raises:
          ValueError: No program that enqueues was traced so far; or `max_elements` is below 1, or set in mode `LAST`.
          TypeError: `max_elements` is no integer.
          tf.errors.FailedPreconditionError: In mode `LAST`, nothing was enqueued since the last dequeue.
          tf.errors.NotFoundError: The queue was deleted.
          tf.errors.ResourceExhaustedError: There is no memory for the result. The elements stay in the queue.
        """
        elements.check_max_elements(max_elements)
        if max_elements is not None and self._mode is IPUOutfeedMode.LAST:
            raise ValueError(
                f"`max_elements` is {max_elements}, but a queue of mode `IPUOutfeedMode.LAST` has one element: leave it"
                " out"
            )
        if wait_for_completion:
            active_runs.wait_until_idle()
        layout = self._current_layout()
        if layout is None and tf.executing_eagerly() and self._may_be_about_to_come():
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
            return layout.pack(self._read_buffer.pop_before(lambda most: self._take_now(layout, most), max_elements))

    def _next_element(self) -> Nested:
        """Takes the first element that is there; raises `StopIteration` where there is none."""
        with self._reading:
            layout = self._current_layout()
            if layout is None and self._may_be_about_to_come():
                time.sleep(_WAIT_US / 1e6)
            if layout is None:
                raise StopIteration
            if self._read_buffer:
                return layout.pack(self._read_buffer.pop())
            first, others = self._taken(layout)
            if others:
                self._read_buffer.fill(others)
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

    def _may_be_about_to_come(self) -> bool:
        """Returns True if another thread may be in a program that enqueues, or about to trace one."""
        return active_runs.active() or threading.get_ident() != (self._enqueuing_thread or self._creating_thread)

    def _chunk(self, layout: ElementLayout) -> int:
        assert self._feed is not None
        bytes_of_row = layout.bytes * max(1, native.ipu_outfeed_replicas(self._feed.number))
        return max(1, _CHUNK_BYTES // max(1, bytes_of_row))

    def _wait_us(self) -> int:
        return _WAIT_US if active_runs.active() and threading.get_ident() != self._enqueuing_thread else 0

    def _take_now(self, layout: ElementLayout, most: int | None) -> list[tf.Tensor]:
        """Takes elements eagerly, without an operation where it can: after a long run that takes a quarter of the time."""
        if self._feed is not None and self._mode is IPUOutfeedMode.ALL and layout.row_reader is not None:
            at_most = elements.ALL_ELEMENTS if most is None else most
            taken = layout.row_reader.take_stacked(self._feed.number, self._wait_us(), at_most)
            if taken is not None:
                return taken
        return self._take(layout, most)

    def _take(self, layout: ElementLayout, most: int | None = None) -> list[tf.Tensor]:
        if self._feed is None:
            raise RuntimeError(
                "an `IPUOutfeedQueue` that is an argument of a program cannot be dequeued in the program"
            )
        with tf.device(_HOST):
            return ops.ipu_outfeed_dequeue(
                self._feed.number,
                self._wait_us(),
                elements.ALL_ELEMENTS if most is None else most,
                types=layout.types,
                shapes=layout.shapes,
                layout=layout.number,
                last=self._mode is IPUOutfeedMode.LAST,
            )

    @property
    def deleter(self) -> tf.Operation | _queue.NoOperation:
        """Ends the queue and drops what is unread: eagerly with each access, in a graph with the returned op.

        The operation is in the graph that the queue was made in, wherever this is read.

        Raises:
          RuntimeError: The queue is a traced argument.
          tf.errors.NotFoundError: The queue was deleted before.
        """
        if self._feed is None:
            raise RuntimeError("an `IPUOutfeedQueue` that is an argument of a program cannot be deleted in the program")
        self._current_layout()  # Nobody can ask a queue that is gone, and a dequeue is to say that it is gone.
        with self._in_its_graph(), tf.device(_HOST):
            if tf.executing_eagerly():
                with self._reading:
                    self._read_buffer.clear()
            return ops.ipu_outfeed_delete(self._feed.number) or _queue.NoOperation("deleter")

    def __iter__(self) -> IPUOutfeedQueueIterator:
        """Iterates over the elements that are there."""
        return IPUOutfeedQueueIterator(self)

    def _described(self) -> dict[str, object]:
        layout = self._current_layout()
        return {"elements": "not known yet" if layout is None else f"`{layout.nested}`", "keeps": self._mode.name}

    def __repr__(self) -> str:
        return f"<IPUOutfeedQueue {self._name} on {self._device}, mode {self._mode.name}>"


class ScopedIPUOutfeedQueue(IPUOutfeedQueue):
    """An outfeed queue that is deleted when its object goes."""

    def __init__(self, outfeed_mode: IPUOutfeedMode | None = None, device_ordinal: int | None = None) -> None:
        """Creates the queue as `IPUOutfeedQueue` does; raises `RuntimeError` unless the call is eager."""
        if not tf.executing_eagerly():
            raise RuntimeError("ScopedIPUOutfeedQueue can only be created in eager mode; in a graph, run the `deleter`")
        super().__init__(outfeed_mode, device_ordinal)
        assert self._feed is not None
        self._feed.drop_with(self)


tf.no_gradient("IpuOutfeedEnqueue")
