"""The queues of a stored program: their descriptions in its file, and the queues that take their places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tensorflow_ipu._native.library import ops
from tensorflow_ipu.feeds import _layout, elements, program_order
from tensorflow_ipu.feeds._native_object import NativeObject
from tensorflow_ipu.feeds.infeed import IPUInfeedQueue
from tensorflow_ipu.feeds.outfeed import IPUOutfeedQueue

_HOST = "/device:CPU:0"


def described(state: tf.Tensor) -> dict[str, Any] | None:
    """Describes a state by its kind (`infeed`, `outfeed`, `order`, `other`) and elements; None for no state."""
    named: NativeObject | None = getattr(state, "_ipu_native", None)
    if named is None:
        return None
    if named.number < 0:
        return {"kind": "order"}
    queue: Any = None if named.queue is None else named.queue()
    if isinstance(queue, IPUInfeedQueue):
        element = queue._element
        return {"kind": "infeed", "elements": _specs(_names(element.nested), element.types, element.shapes)}
    if isinstance(queue, IPUOutfeedQueue):
        layout = queue._current_layout()
        if layout is not None:
            specs = _specs(_names(layout.nested), layout.types, layout.shapes)
            return {"kind": "outfeed", "elements": specs, "layout": layout.number, "mode": queue.outfeed_mode.name}
    return {"kind": "other"}


def infeed_of(dataset: tf.data.Dataset, device: str) -> tuple[IPUInfeedQueue, tf.Tensor]:
    """Starts a queue in the place of a stored program's, and returns it and its state; elements are flat."""
    ordinal = tf.DeviceSpec.from_string(device).device_index
    queue = IPUInfeedQueue(dataset, device_ordinal=ordinal)
    assert queue._feed is not None
    queue.initializer  # noqa: B018  (The access starts it.)
    return queue, queue._feed.state(device)


class StoredResults:
    """An outfeed in the place of a stored program's."""

    def __init__(self, description: Mapping[str, Any], device: str) -> None:
        self._queue = IPUOutfeedQueue(device_ordinal=tf.DeviceSpec.from_string(device).device_index)
        assert self._queue._feed is not None
        self._number = self._queue._feed.number
        self._specs = specs_of(description["elements"])
        self._layout = int(description["layout"])
        self.state = self._queue._feed.state(device)

    def take(self, timeout_us: int) -> list[tf.Tensor]:
        """Takes what has come, after at most so long a wait for the first: flat, one row per element."""
        with tf.device(_HOST):
            return ops.ipu_outfeed_dequeue(
                self._number,
                timeout_us,
                elements.ALL_ELEMENTS,
                types=[spec.dtype for spec in self._specs],
                shapes=[spec.shape for spec in self._specs],
                layout=self._layout,
                last=False,
            )


def order(device: str) -> tf.Tensor:
    """Creates the state of an order of its own, for one thread's runs."""
    return program_order.new().state(device)


def specs_of(described: Sequence[Mapping[str, Any]]) -> list[tf.TensorSpec]:
    return [tf.TensorSpec(spec["shape"], spec["dtype"], spec["name"]) for spec in described]


def _specs(names: Sequence[str], types: Sequence[tf.DType], shapes: Sequence[tf.TensorShape]) -> list[dict[str, Any]]:
    return [
        {"name": name, "dtype": dtype.name, "shape": shape.as_list()}
        for name, dtype, shape in zip(names, types, shapes, strict=True)
    ]


def _names(nested: Any) -> list[str]:
    """Names each tensor of an element by the keys and positions that lead to it, or `element`."""
    paths = [".".join(map(str, path)) for path, _ in _layout.paths(nested)]
    return [f"element_{path}" if path[:1].isdigit() else path or "element" for path in paths]
