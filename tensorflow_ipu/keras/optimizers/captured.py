"""Hands the gradients that a step captures to the optimizer, where it takes them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from tensorflow_ipu.ops.gradient_capture import GradientCaptureContext


@contextlib.contextmanager
def handing_on(optimizer: Any, take: Callable[[dict[str, list[Any]]], None] | None = None) -> Iterator[None]:
    """A block in which `apply_gradients` gets what was captured since its beginning, unless it is given something.

    Args:
      optimizer: A Keras optimizer; nothing is captured for one whose `supports_captured_grads` is not there or not true.
      take: What gets the captured gradients instead, just before. None for `apply_gradients`, as `captured_grads`.
    """
    if not getattr(optimizer, "supports_captured_grads", False):
        yield
        return
    with GradientCaptureContext() as context:
        apply_gradients = optimizer.apply_gradients

        def apply(grads_and_vars: Any, captured_grads: Any = None, **kwargs: Any) -> Any:
            captured = context.captured_gradients or None
            if captured_grads is None and captured is not None and take is not None:
                take(captured)
                captured = None
            chosen = captured if captured_grads is None else captured_grads
            return apply_gradients(grads_and_vars, **({} if chosen is None else {"captured_grads": chosen}), **kwargs)

        vars(optimizer)["apply_gradients"] = apply
        try:
            yield
        finally:
            del vars(optimizer)["apply_gradients"]


def capturing(model: Any, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The training step of a model, in which its optimizer gets what was captured."""

    def run(batch: Any) -> Any:
        with handing_on(model.optimizer):
            return step(batch)

    return run
