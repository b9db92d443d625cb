"""Marks the layers of programs that kernels of the host may compute."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.framework import ops as framework_ops

from tensorflow_ipu._library import native
from tensorflow_ipu.replicas import _loops, _tracing

# By this attribute the lowering to XLA tells the nodes of a program from others; TensorFlow ignores it.
ATTRIBUTE = "_ipu_host_kernel"
_IN_LOOP = "_ipu_in_loop"

_WHERE_FASTER = attr_value_pb2.AttrValue(s=b"where faster")  # pyright: ignore[reportAttributeAccessIssue]
_WHEREVER_KNOWN = attr_value_pb2.AttrValue(s=b"wherever known")  # pyright: ignore[reportAttributeAccessIssue]
_LAYERS = frozenset(native.ipu_host_layers().decode().split())

_YES = attr_value_pb2.AttrValue(b=True)  # pyright: ignore[reportAttributeAccessIssue]
_mark = _WHERE_FASTER

_graph: Any = framework_ops.Graph
_plain = _graph._create_op_helper


def _create(self: Any, op: Any, compute_device: bool = True) -> None:
    """What TensorFlow calls with each operation that it has put into a graph.

    Gradients, loops and branches put theirs in on ways of their own, which all end here.
    """
    _plain(self, op, compute_device)
    if op.type in _LAYERS and _tracing.wants_host_kernels():
        op._set_attr(ATTRIBUTE, _mark)
        if _loops.in_loop(self):
            op._set_attr(_IN_LOOP, _YES)


@contextlib.contextmanager
def wherever_known() -> Iterator[None]:
    """A block in which programs are traced that use a kernel of the host wherever there is one, faster or not.

    It is for measurements and tests, and not for several threads.
    """
    global _mark  # noqa: PLW0603
    _mark = _WHEREVER_KNOWN
    try:
        yield
    finally:
        _mark = _WHERE_FASTER


_graph._create_op_helper = _create
