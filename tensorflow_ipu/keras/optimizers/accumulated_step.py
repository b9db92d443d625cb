"""Gradients of several steps, gathered to one update of the weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu._base.tensors import dtype_for, name_of
from tensorflow_ipu.keras._keras import internals
from tensorflow_ipu.ops.gradient_capture import GradientCaptureContext
from tensorflow_ipu.optimizers import GradientAccumulationReductionMethod
from tensorflow_ipu.optimizers.accumulation import accumulated

if TYPE_CHECKING:
    from collections.abc import Iterable

    import keras

    from tensorflow_ipu._base.types import DTypeOf, Gradient, Nested, Variable


@contextlib.contextmanager
def handing_on(optimizer: keras.optimizers.Optimizer, take: Callable[[Nested], None] | None = None) -> Iterator[None]:
    """A block in which `apply_gradients` gets what was captured since its beginning, unless it is given something."""
    if not getattr(optimizer, "supports_captured_grads", False):
        yield
        return
    with GradientCaptureContext() as context:
        apply_gradients = optimizer.apply_gradients

        def apply(
            grads_and_vars: Iterable[tuple[Gradient | None, Variable]],
            captured_grads: Nested = None,
            name: str | None = None,
            **kwargs: object,
        ) -> object:
            if name is not None:  # `minimize` of Keras 2 passes None; such optimizers need have no `name`.
                kwargs["name"] = name
            if captured_grads is None:
                captured_grads = context.captured_gradients or None
            if captured_grads is not None and take is not None:
                take(captured_grads)
            elif captured_grads is not None:
                kwargs["captured_grads"] = captured_grads
            return apply_gradients(grads_and_vars, **kwargs)

        with _replaced(optimizer, "apply_gradients", apply):
            yield


def capturing(model: keras.Model, step: Callable[[Nested], Nested]) -> Callable[[Nested], Nested]:
    """The training step of a model, in which its optimizer gets what was captured."""

    def run(batch: Nested) -> Nested:
        with handing_on(model.optimizer), internals.transforming_dense(model.optimizer):
            return step(batch)

    return run


@dataclass(frozen=True)
class StepAccumulation:
    """How gradients are accumulated."""

    steps: int
    method: GradientAccumulationReductionMethod
    dtype: DTypeOf = None


def accumulated_step(
    model: keras.Model, step: Callable[[], None], accumulation: StepAccumulation
) -> Callable[[], None]:
    """Makes a function, to be traced, that runs `step` several times and then updates the weights once."""

    def update() -> None:
        weights = list(model.trainable_variables)
        if model.optimizer is None or not weights:
            raise ValueError(
                f"model `{model.name}` is set to accumulate gradients, but has no optimizer or no trainable weights"
            )
        types = [dtype_for(accumulation.dtype, weight) for weight in weights]
        zeros = [tf.zeros(weight.shape, dtype) for weight, dtype in zip(weights, types, strict=True)]
        has_gradient = [False] * len(weights)
        counted: list[bool] = []
        options: dict[str, bool] = {}

        def run_step(n: tf.Tensor, *sums: tf.Tensor) -> tuple[tf.Tensor, ...]:
            new = list(sums)
            applied = []

            def accumulate(
                gradients: Sequence[Gradient | None], variables: Sequence[Variable] | None = None, **given: bool
            ) -> None:
                options.update(given)
                if applied:
                    raise ValueError(
                        f"a step of model `{model.name}` applies gradients twice, which cannot be accumulated: apply them"
                        " once a step, or set no gradient accumulation"
                    )
                applied.append(True)
                places = {id(weight): at for at, weight in enumerate(weights)}
                for gradient, variable in zip(gradients, variables or weights, strict=True):
                    if gradient is None:
                        continue
                    if id(variable) not in places:
                        raise ValueError(f"`{name_of(variable)}` is no trainable weight of model `{model.name}`")
                    at = places[id(variable)]
                    has_gradient[at] = True
                    dense = tf.convert_to_tensor(gradient)
                    new[at] = accumulated(sums[at], dense, n, accumulation.steps, accumulation.method)

            def count(captured: Nested) -> None:
                if not hasattr(model.optimizer, "apply_accumulated"):
                    raise ValueError(
                        f"the optimizer of model `{model.name}` takes captured gradients, of which each step has its own, and"
                        " the model accumulates those of several steps for one update: use an `ALSOptimizer`, which counts"
                        " them with each step, or set no gradient accumulation"
                    )
                model.optimizer.count((), captured)
                counted.append(True)

            with (
                _replaced(model.optimizer, *internals.updating(accumulate)),
                internals.scaling_losses(model.optimizer),
                handing_on(model.optimizer, count),
            ):
                step()
            if not applied:
                raise ValueError(
                    f"a step of model `{model.name}` applies no gradients with its optimizer, so that there are none to"
                    " accumulate: call `self.optimizer.apply_gradients` in `train_step`, or set no gradient accumulation"
                )
            return (n + 1, *new)

        _, *sums = tf.while_loop(
            lambda n, *_: n < accumulation.steps, run_step, (tf.constant(0), *zeros), parallel_iterations=1
        )
        gradients = [total if there else None for total, there in zip(sums, has_gradient, strict=True)]
        if counted:
            model.optimizer.apply_accumulated(gradients, weights)
        else:
            with internals.casting_gradients(model.optimizer):
                model.optimizer.apply_gradients(zip(gradients, weights, strict=True), **options)

    return update


@contextlib.contextmanager
def _replaced(optimizer: keras.optimizers.Optimizer, method: str, function: Callable[..., object]) -> Iterator[None]:
    """A block in which a method of an object is another function."""
    attributes = optimizer.__dict__
    before = {method: attributes[method]} if method in attributes else {}
    attributes[method] = function
    try:
        yield
    finally:
        del attributes[method]
        attributes.update(before)
