"""What requests to an exported model are made of, told from signatures, datasets and functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu import _serving_steps

if TYPE_CHECKING:
    from tensorflow_ipu._types import Nested

Signature = Sequence[tf.TensorSpec]


def of_steps(
    predict_step: Callable[..., Nested],
    predict_step_signature: Signature | None,
    input_dataset: tf.data.Dataset | None,
    preprocessing_step: Callable[..., Nested] | None,
    preprocessing_step_signature: Signature | None,
    constants: int = 0,
) -> tuple[list[tf.TensorSpec], list[tf.TensorSpec]]:
    """The signature of requests, and that of the step which predicts; without a step before it, they are the same.

    Args:
      predict_step: The step that predicts.
      predict_step_signature: Its signature, if given.
      input_dataset: A dataset of requests, if given.
      preprocessing_step: The step before it, if there is one.
      preprocessing_step_signature: Its signature, if given.
      constants: How many of the first arguments of the step that predicts no request brings.

    Raises:
      TypeError: A signature is of a wrong kind, or `input_dataset` is no dataset.
      ValueError: A signature cannot be inferred, is given twice, or does not fit the function's arguments.
    """
    first = "predict_step" if preprocessing_step is None else "preprocessing_step"
    given = predict_step_signature if preprocessing_step is None else preprocessing_step_signature
    if input_dataset is not None:
        if not isinstance(input_dataset, (tf.data.Dataset, tf.compat.v1.data.Dataset)):
            raise TypeError(f"`input_dataset` must be a `tf.data.Dataset`, but is {input_dataset!r}")
        if given is not None:
            raise ValueError(
                f"both `{first}_signature` and `input_dataset` are given, and each says what requests are: leave one out"
            )
        element: Any = input_dataset.element_spec
        given = (element,) if isinstance(element, tf.TensorSpec) else element
        if not isinstance(given, (list, tuple)):
            raise TypeError(
                f"the elements of `input_dataset` must be tensors or tuples of them, but are {element!r}: map them, or give"
                f" `{first}_signature`"
            )
    if preprocessing_step is None:
        of_predict = _named("predict_step", predict_step, given, constants)
        return of_predict, of_predict
    requests = _named("preprocessing_step", preprocessing_step, given, 0)
    return requests, _named("predict_step", predict_step, predict_step_signature, constants)


def _named(argument: str, step: Callable[..., Nested], given: Signature | None, constants: int) -> list[tf.TensorSpec]:
    """A signature with the names of the function's arguments, as requests give them by name."""
    if given is None and not getattr(step, "input_signature", None):
        raise ValueError(
            f"what `{argument}` takes cannot be told from it: give `{argument}_signature`, a list of `tf.TensorSpec`, or make"
            f" it a `tf.function` with an `input_signature`"
            + ("" if argument == "predict_step" and constants else "; an `input_dataset` of requests tells it as well")
        )
    specs = _serving_steps.signature(argument, step, given)
    known = _parameters(step)
    if known is None:
        names = [spec.name or f"input_{at}" for at, spec in enumerate(specs)]
    else:
        names, needed = known[0][constants:], max(0, known[1] - constants)
        if len(specs) > len(names) and len(specs) == len(names) + constants:
            specs = specs[constants:]  # Of a `tf.function`, whose signature has the constants too.
        names = names[: max(needed, len(specs))]  # Others have defaults.
    if len(specs) != len(names):
        raise ValueError(
            f"`{argument}_signature` has {len(specs)} entries, and `{argument}` takes {len(names)} arguments"
            f" ({', '.join(names)})" + (f" besides the {constants} of `inputs`" if constants else "")
        )
    for name, spec in zip(names, specs, strict=True):
        if argument == "predict_step" and not spec.shape.is_fully_defined():
            raise ValueError(
                f"`{name}` of `{argument}` has shape {spec.shape}, and a program for an IPU has static shapes: state all of"
                " its dimensions, the batch's too"
            )
    return [tf.TensorSpec(spec.shape, spec.dtype, name) for name, spec in zip(names, specs, strict=True)]


def _parameters(step: Callable[..., Nested]) -> tuple[list[str], int] | None:
    """The names of a function's arguments, and how many it needs; None where it does not say, or takes any number."""
    function = getattr(step, "python_function", step)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        return None
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = [one for one in parameters if one.kind in kinds]
    return [one.name for one in found], sum(one.default is one.empty for one in found)
