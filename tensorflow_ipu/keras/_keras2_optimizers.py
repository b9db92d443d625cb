"""The optimizers of Keras 2 with the words of Keras 3; part of `_keras2`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf
import tf_keras as keras
from tf_keras.src.mixed_precision import loss_scale_optimizer

from tensorflow_ipu.optimizers import accumulation

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Gradient, Variable

# The module whose optimizers subclasses extend by overriding the update of one variable.
optimizers: Any = keras.optimizers.legacy
LossScaleOptimizer: Any = loss_scale_optimizer.BaseLossScaleOptimizer  # The base of that of either kind.
OPTIMIZERS: Any = (optimizers.Optimizer, keras.optimizers.Optimizer)


def has_own_minimize(optimizer: Any) -> bool:
    """Whether a user's class overrides `minimize`."""
    return not type(optimizer).minimize.__module__.startswith(("tf_keras.", "tensorflow_ipu."))


def strategy_of(optimizer: object) -> tf.distribute.Strategy | None:
    """The strategy that an optimizer was made in, or None; stands on `Optimizer._distribution_strategy`."""
    return getattr(optimizer, "_distribution_strategy", None)


def update_with(optimizer: Any, gradients: Sequence[Gradient | None], variables: Sequence[Variable]) -> None:
    """Has an optimizer update variables, and make what it needs for them; `apply_gradients` is public."""
    with casting_gradients(optimizer):
        optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))


@contextlib.contextmanager
def casting_gradients(optimizer: Any) -> Iterator[None]:
    """A block in which Keras's own optimizers take gradients of other types than their variables, as in Keras 3 anyway.

    Stands on the names of the methods by which they update one variable.
    """
    kind = type(optimizer)
    update = getattr(kind, "_resource_apply_dense", None) or getattr(kind, "update_step", None)
    # Updates of the user's or of this package see to it themselves, and optimizers of TensorFlow 1 have none.
    if update is None or not update.__module__.startswith("tf_keras."):
        yield
        return
    apply, before = optimizer.apply_gradients, vars(optimizer).get("apply_gradients")

    def apply_gradients(pairs: Iterable[tuple[Any, Variable]], *args: object, **kwargs: object) -> object:
        typed = [(None if one is None else tf.cast(one, variable.dtype), variable) for one, variable in pairs]
        return apply(typed, *args, **kwargs)

    vars(optimizer)["apply_gradients"] = apply_gradients
    try:
        yield
    finally:
        del vars(optimizer)["apply_gradients"]
        if before is not None:
            vars(optimizer)["apply_gradients"] = before


@contextlib.contextmanager
def transforming_dense(optimizer: Any) -> Iterator[None]:
    """A block in which `gradient_transformers` of an optimizer get dense gradients, as where gradients accumulate."""
    before = getattr(optimizer, "gradient_transformers", None)
    if not before:
        yield
        return

    def dense(pairs: Iterable[tuple[Gradient | None, Variable]]) -> list[tuple[tf.Tensor | None, Variable]]:
        return [(None if one is None else tf.convert_to_tensor(one), variable) for one, variable in pairs]

    optimizer.gradient_transformers = [dense, *before]
    try:
        yield
    finally:
        optimizer.gradient_transformers = before


def build_optimizer(optimizer: Any, variables: Sequence[Variable]) -> None:
    """Has an optimizer make what it needs for variables; stands on `OptimizerV2._create_all_weights`, else its first update."""
    if isinstance(optimizer, OPTIMIZERS):  # Those of TensorFlow 1 have no such method.
        (getattr(optimizer, "build", None) or optimizer._create_all_weights)(variables)


def variables_of(optimizer: Any) -> list[Any]:
    """The variables of an optimizer; `variables` is public, and callable with either kind."""
    return list(optimizer.variables())


def computed_gradients(
    optimizer: Any, loss: Any, variables: Any, factor: Any, tape: tf.GradientTape | None
) -> list[tuple[Gradient | None, Variable]]:
    """The first half of an optimizer's `minimize`; stands on `OptimizerV2._compute_gradients`."""
    if isinstance(optimizer, optimizers.Optimizer):
        return optimizer._compute_gradients(loss, variables, factor, tape)
    return optimizer.compute_gradients(loss, variables, tape)


@contextlib.contextmanager
def scaling_losses(optimizer: Any) -> Iterator[None]:
    """A block in which `minimize` scales losses as `get_gradients` of a user's class does; see `computed_gradients`."""
    compute = getattr(optimizer, "_compute_gradients", None)

    def scaled(loss: Any, var_list: Any, grad_loss: Any = None, tape: tf.GradientTape | None = None) -> Any:
        scale = None if tape is None else accumulation.scale_of(optimizer, loss)
        if tape is not None and scale is not None:
            with tape:
                loss = loss * scale
        assert compute is not None
        return compute(loss, var_list, grad_loss, tape)

    if compute is not None:
        vars(optimizer)["_compute_gradients"] = scaled
    try:
        yield
    finally:
        vars(optimizer).pop("_compute_gradients", None)


def updating(update: Callable[..., None]) -> tuple[str, Callable[..., None]]:
    """The method of optimizers in which all their ways to update variables end, and `update` in its form; see `update_with`."""

    def apply_gradients(grads_and_vars: Any, name: str | None = None, **options: bool) -> None:
        del name
        update(*zip(*grads_and_vars, strict=True), **options)

    return "apply_gradients", apply_gradients
