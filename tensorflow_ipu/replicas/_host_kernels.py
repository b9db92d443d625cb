"""Marks the operations of programs that kernels of the host compute: layers where they may, and all checks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tensorflow_ipu._library import native
from tensorflow_ipu._tensorflow import graphs, patches
from tensorflow_ipu.replicas import _captures, _instruction_attributes, _tracing

# By this attribute the lowering to XLA tells the nodes of a program from others; TensorFlow ignores it.
ATTRIBUTE = "_ipu_host_kernel"
_IN_LOOP = "_ipu_in_loop"

_AttrValue: Any = tf.compat.v1.AttrValue
_WHERE_FASTER = _AttrValue(s=b"where faster")
_WHEREVER_KNOWN = _AttrValue(s=b"wherever known")
# Those that end a run, which XLA leaves out.
_CHECKS = frozenset({"Assert", "CheckNumerics", "CheckNumericsV2"})
_LAYERS = frozenset(native.ipu_host_layers().decode().split()) - _CHECKS

# An `Assert` has the texts of its message by this one, since no program can hold them.
_TEXTS = "_ipu_texts"

# XLA, which has no lowering of it, does not know which input it has to know when it compiles.
_NEAREST_GRADIENT = "ResizeNearestNeighborGrad"
_CONSTANTS = "_XlaCompileTimeConstantInputs"
_SIZE = _AttrValue(list=_AttrValue.ListValue(s=[b"size"]))

_YES = _AttrValue(b=True)
_mark = _WHERE_FASTER


def _marking(plain: Callable[..., None]) -> Callable[..., None]:
    """What TensorFlow calls with each operation that it has put into a graph."""

    def create(self: tf.Graph, op: tf.Operation, compute_device: bool = True) -> None:
        plain(self, op, compute_device)
        _mark_if_wanted(self, op)

    return create


def _mark_if_wanted(graph: tf.Graph, op: tf.Operation) -> None:
    if op.type in _LAYERS:
        type_ = op.outputs[0].dtype if op.outputs else None
        # One that says how it is computed is not computed by TensorFlow's kernel.
        own = type_ == tf.float16 and _instruction_attributes.is_told_how(graph, op)
        if _tracing.wants_host_kernels(type_) and not own:
            graphs.set_attribute(op, ATTRIBUTE, _mark)
            if graphs.in_loop(graph):
                graphs.set_attribute(op, _IN_LOOP, _YES)
            if op.type == _NEAREST_GRADIENT:
                graphs.set_attribute(op, _CONSTANTS, _SIZE)
    elif op.type in _CHECKS and _tracing.is_tracing():
        graphs.set_attribute(op, ATTRIBUTE, _WHERE_FASTER)
        if op.type == "Assert":
            texts = [_text(tensor) for tensor in op.inputs[1:]]
            graphs.set_attribute(op, _TEXTS, _AttrValue(list=_AttrValue.ListValue(s=texts)))


def _text(tensor: tf.Tensor) -> bytes:
    """The text that a tensor is, where it is one that is known."""
    if tensor.dtype.name != "string":
        return b""
    value = tf.get_static_value(_captures.source_of(tensor))
    return b"..." if value is None else b" ".join(np.ravel(value).tolist())


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


def are_wherever_known() -> bool:
    """Whether this is such a block."""
    return _mark is _WHEREVER_KNOWN


patches.OPERATIONS.by(_marking)
