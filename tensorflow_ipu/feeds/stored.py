"""Describes the queues of a program in its file, and creates queues for a program that was loaded from a file."""

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
    """Describes a state variable: its kind (`infeed`, `outfeed`, `order` or `other`) and the elements of a queue.

    Returns None if `state` is not a state variable.
    """
    native_object: NativeObject | None = getattr(state, "_ipu_native", None)
    if native_object is None:
        return None
    if native_object.number < 0:
        return {"kind": "order"}
    queue: Any = None if native_object.queue is None else native_object.queue()
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
    """Starts an infeed for a stored program; returns it and its state variable. The dataset's elements are flat."""
    ordinal = tf.DeviceSpec.from_string(device).device_index
    queue = IPUInfeedQueue(dataset, device_ordinal=ordinal)
    assert queue._feed is not None
    queue.initializer  # noqa: B018  (The access starts it.)
    return queue, queue._feed.state(device)


class StoredResults:
    """An outfeed for a stored program."""

    def __init__(self, description: Mapping[str, Any], device: str) -> None:
        self._queue = IPUOutfeedQueue(device_ordinal=tf.DeviceSpec.from_string(device).device_index)
        assert self._queue._feed is not None
        self._number = self._queue._feed.number
        self._specs = specs_of(description["elements"])
        self._layout = int(description["layout"])
        self.state = self._queue._feed.state(device)

    def take(self, timeout_us: int) -> list[tf.Tensor]:
        """Takes all elements, waiting up to `timeout_us` for the first. Returns flat tensors with a row per element."""
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
    """Returns the state variable of a new order, for the runs of one thread."""
    return program_order.new().state(device)


def specs_of(described: Sequence[Mapping[str, Any]]) -> list[tf.TensorSpec]:
    return [tf.TensorSpec(spec["shape"], spec["dtype"], spec["name"]) for spec in described]


def _specs(names: Sequence[str], types: Sequence[tf.DType], shapes: Sequence[tf.TensorShape]) -> list[dict[str, Any]]:
    return [
        {"name": name, "dtype": dtype.name, "shape": shape.as_list()}
        for name, dtype, shape in zip(names, types, shapes, strict=True)
    ]


def _names(nested: Any) -> list[str]:
    """Returns a name for each tensor of an element: `{"a": [x]}` gives `["a.0"]`, and a single tensor `["element"]`."""
    paths = [".".join(map(str, path)) for path, _ in _layout.paths(nested)]
    return [f"element_{path}" if path[:1].isdigit() else path or "element" for path in paths]
