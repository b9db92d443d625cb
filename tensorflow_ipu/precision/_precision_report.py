"""`precision_report`: runs some steps of a model or a function in float32 and in float16, and tells what differs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from tensorflow_ipu import replicas
from tensorflow_ipu._base.checks import is_int, is_number
from tensorflow_ipu.keras import tensor_probes
from tensorflow_ipu.precision._functions import FunctionSteps, ModelSteps
from tensorflow_ipu.strategy import IPUStrategyV1

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Nested
    from tensorflow_ipu.precision._report import PrecisionReport


def precision_report(
    model: keras.Model | Callable[..., Nested],
    data: Nested | tf.data.Dataset | Iterable[Nested],
    *,
    steps: int = 4,
    batch_size: int = 32,
    loss_scale: float = 1.0,
) -> PrecisionReport:
    """Runs some steps in float32, and beside each the same in float16, and tells what float16 makes of each tensor.

    A step of float16 begins with the weights of float32, so that the two do not drift apart. Of each tensor (the results
    of layers, their gradients, the weights with their gradients and updates) there is which share overflowed, which became
    0, which is subnormal, and where its numbers lie in float32; then which loss scales would fit, and the advice.

        report = ipu.precision_report(model, dataset)
        print(report)
        report.save("precision.html")

    A model that was made in a strategy's scope, and a function in one, computes float16 on the strategy's device, as that
    is configured; exceptions of floating point do not stop it here. Others are compiled by XLA, whose float16 is that of
    IEEE 754.

    Args:
      model: A Keras model that is compiled; its layers compute by their policies' counterparts of float32 and float16,
        whatever those are, and it is left as it was. Or a `tf.function` of a step: see `docs/half_precision.md`.
      data: Batches: a dataset or another iterable of what a step takes, `(x, y)` or `(x, y, sample_weight)` for a model, and
        a tuple of arguments for a function. For a model also a tuple of arrays, of which batches are made.
      steps: How many steps to run, at most.
      batch_size: The samples of a batch, where `data` is arrays.
      loss_scale: What the loss is multiplied by in float16, before it is differentiated. Of a function: what it multiplies
        its loss by itself, in both.

    Returns:
      The report.

    Raises:
      TypeError: `model` is neither, or `data` gives no tuples.
      ValueError: A number is out of range; there are no data; or the model was not compiled, or has a `train_step` of its
        own, which would have no part in the report.
    """
    if not is_int(steps) or steps < 1:
        raise ValueError(f"`steps` must be a positive integer, but is {steps!r}")
    if not is_int(batch_size) or batch_size < 1:
        raise ValueError(f"`batch_size` must be a positive integer, but is {batch_size!r}")
    if not is_number(loss_scale) or not 0 < loss_scale < float("inf"):
        raise ValueError(f"`loss_scale` must be a positive number, but is {loss_scale!r}")
    if isinstance(model, keras.Model):
        return _of_model(model, itertools.islice(_batches(data, batch_size), steps), float(loss_scale))
    if replicas.is_graph_function(model):
        return _of_function(model, itertools.islice(_batches(data, None), steps), float(loss_scale))
    raise TypeError(f"`model` must be a Keras model or a `tf.function`, but is {model!r}")


def _batches(data: Any, batch_size: int | None) -> Iterator[Nested]:
    arrays = isinstance(data, tuple) and all(hasattr(leaf, "shape") for leaf in tf.nest.flatten(data))
    if arrays and batch_size is not None:
        count = min(len(leaf) for leaf in tf.nest.flatten(data))
        for first in range(0, count - batch_size + 1, batch_size) or [0]:
            yield tf.nest.map_structure(lambda leaf, at=first: np.asarray(leaf)[at : at + batch_size], data)
        return
    for batch in [data] if arrays else data:
        if not isinstance(batch, tuple):
            raise TypeError(f"`data` must give tuples, but gives {type(batch).__name__}: `(x, y)` for a model")
        yield batch


def _of_model(model: keras.Model, batches: Iterator[Nested], loss_scale: float) -> PrecisionReport:
    if type(model).train_step is not keras.Model.train_step:
        raise ValueError(
            f"`model` has a `train_step` of its own (`{type(model).__name__}.train_step`), which a report on the model does"
            " not run: it computes the compiled loss and its gradients. Give the step as a `tf.function`"
        )
    first = next(batches, None)
    if first is None:
        raise ValueError("`data` has no batch: a report needs at least one")
    tensor_probes.build(model, tf.nest.map_structure(tf.convert_to_tensor, first))
    run, device = _runner(tensor_probes.strategy_of_model(model))
    return ModelSteps(model, run).report(itertools.chain([first], batches), loss_scale, device)


def _of_function(function: Any, batches: Iterator[Nested], loss_scale: float) -> PrecisionReport:
    strategy = tf.distribute.get_strategy()
    run, device = _runner(strategy if isinstance(strategy, IPUStrategyV1) else None)
    return FunctionSteps(function, run).report(batches, loss_scale, device)


def _runner(strategy: IPUStrategyV1 | None) -> tuple[Callable[..., Any], str]:
    if strategy is None:
        return lambda function, arguments: function(*arguments), "the host by XLA"

    def run(function: Callable[..., Any], arguments: Any) -> Any:
        with strategy.extended.without_traps():
            return strategy.run(function, args=arguments)

    return run, strategy.extended.ipu_device.rpartition("/")[2]
