"""The training step of a model that accumulates gradients: several steps, then one update of the weights."""

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
def passing_captured_gradients(
    optimizer: keras.optimizers.Optimizer, receive: Callable[[Nested], None] | None = None
) -> Iterator[None]:
    """Runs the block such that `apply_gradients` gets the gradients captured in the block.

    If its caller passes captured gradients, these are used instead. If `receive` is set, it gets the captured gradients,
    and `apply_gradients` gets none. Optimizers that do not support captured gradients are not changed.
    """
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
            if name is not None:  # `minimize` of Keras 2 passes None, also to optimizers without a parameter `name`.
                kwargs["name"] = name
            if captured_grads is None:
                captured_grads = context.captured_gradients or None
            if captured_grads is not None and receive is not None:
                receive(captured_grads)
            elif captured_grads is not None:
                kwargs["captured_grads"] = captured_grads
            return apply_gradients(grads_and_vars, **kwargs)

        with _replaced(optimizer, "apply_gradients", apply):
            yield


def capturing(model: keras.Model, step: Callable[[Nested], Nested]) -> Callable[[Nested], Nested]:
    """Returns `step` such that the model's optimizer gets the gradients captured in it."""

    def run(batch: Nested) -> Nested:
        with passing_captured_gradients(model.optimizer), internals.transforming_dense(model.optimizer):
            return step(batch)

    return run


@dataclass(frozen=True)
class StepAccumulation:
    """The options of accumulation: the number of steps, the reduction, and the type of accumulators."""

    steps: int
    method: GradientAccumulationReductionMethod
    dtype: DTypeOf = None


def accumulated_step(
    model: keras.Model, step: Callable[[], None], accumulation: StepAccumulation
) -> Callable[[], None]:
    """Returns a function, to be traced, that computes `step` several times and then updates the weights once.

    The steps are a `tf.while_loop` whose loop variables are the step number and an accumulator for each weight. In the
    loop, the update method of the optimizer is replaced by a function that only adds the gradients to the accumulators.
    After the loop, the original method applies the accumulated gradients. Each step must call the update
    method exactly once; otherwise an error names the cause. An `ALSOptimizer` counts the captured gradients of each step
    in that step.
    """

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
            new_sums = list(sums)
            applied = []

            def accumulate(
                gradients: Sequence[Gradient | None], variables: Sequence[Variable] | None = None, **keywords: bool
            ) -> None:
                options.update(keywords)
                if applied:
                    raise ValueError(
                        f"a step of model `{model.name}` applies gradients twice, which cannot be accumulated: apply them"
                        " once a step, or set no gradient accumulation"
                    )
                applied.append(True)
                indices = {id(weight): index for index, weight in enumerate(weights)}
                for gradient, variable in zip(gradients, variables or weights, strict=True):
                    if gradient is None:
                        continue
                    if id(variable) not in indices:
                        raise ValueError(f"`{name_of(variable)}` is no trainable weight of model `{model.name}`")
                    index = indices[id(variable)]
                    has_gradient[index] = True
                    dense = tf.convert_to_tensor(gradient)
                    new_sums[index] = accumulated(sums[index], dense, n, accumulation.steps, accumulation.method)

            def count(captured: Nested) -> None:
                if not hasattr(model.optimizer, "apply_accumulated"):
                    raise ValueError(
                        f"the optimizer of model `{model.name}` needs the captured gradients of each step, but the model"
                        " accumulates the gradients of several steps for one update: use an `ALSOptimizer`, which counts"
                        " captured gradients in each step, or set no gradient accumulation"
                    )
                model.optimizer.count((), captured)
                counted.append(True)

            with (
                _replaced(model.optimizer, *internals.updating(accumulate)),
                internals.scaling_losses(model.optimizer),
                passing_captured_gradients(model.optimizer, count),
            ):
                step()
            if not applied:
                raise ValueError(
                    f"a step of model `{model.name}` applies no gradients with its optimizer, so there are no gradients to"
                    " accumulate: call `self.optimizer.apply_gradients` in `train_step`, or set no gradient accumulation"
                )
            return (n + 1, *new_sums)

        _, *sums = tf.while_loop(
            lambda n, *_: n < accumulation.steps, run_step, (tf.constant(0), *zeros), parallel_iterations=1
        )
        gradients = [total if is_present else None for total, is_present in zip(sums, has_gradient, strict=True)]
        if counted:
            model.optimizer.apply_accumulated(gradients, weights)
        else:
            with internals.casting_gradients(model.optimizer):
                model.optimizer.apply_gradients(zip(gradients, weights, strict=True), **options)

    return update


@contextlib.contextmanager
def _replaced(optimizer: keras.optimizers.Optimizer, method: str, function: Callable[..., object]) -> Iterator[None]:
    """Runs the block with a method of an object replaced by `function`."""
    attributes = optimizer.__dict__
    original = {method: attributes[method]} if method in attributes else {}
    attributes[method] = function
    try:
        yield
    finally:
        del attributes[method]
        attributes.update(original)
