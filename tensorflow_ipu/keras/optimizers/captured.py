"""Hands the gradients that a step captures to the optimizer, where it takes them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tensorflow_ipu.ops.gradient_capture import GradientCaptureContext

if TYPE_CHECKING:
    from collections.abc import Iterable

    import keras
    import tensorflow as tf

    from tensorflow_ipu._types import Gradient, Nested, Variable


@contextlib.contextmanager
def handing_on(
    optimizer: keras.optimizers.Optimizer, take: Callable[[dict[str, list[tf.Tensor]]], None] | None = None
) -> Iterator[None]:
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

        def apply(
            grads_and_vars: Iterable[tuple[Gradient | None, Variable]], captured_grads: Nested = None, **kwargs: Any
        ) -> Any:
            captured = context.captured_gradients or None
            if captured_grads is None and captured is not None and take is not None:
                take(captured)
                captured = None
            chosen = captured if captured_grads is None else captured_grads
            return apply_gradients(grads_and_vars, **({} if chosen is None else {"captured_grads": chosen}), **kwargs)

        optimizer.__dict__["apply_gradients"] = apply
        try:
            yield
        finally:
            del optimizer.__dict__["apply_gradients"]


def capturing(model: keras.Model, step: Callable[[Nested], Nested]) -> Callable[[Nested], Nested]:
    """The training step of a model, in which its optimizer gets what was captured."""

    def run(batch: Nested) -> Nested:
        with handing_on(model.optimizer):
            return step(batch)

    return run
