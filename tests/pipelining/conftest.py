"""Fixtures of tests that run pipelines: a system of IPUs, a model in stages, and the same model in one piece."""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensorflow_ipu as ipu
from tensorflow_ipu import pipelining

BATCH, FEATURES, CLASSES = 4, 6, 3


@pytest.fixture
def strategy(configure: Callable[..., ipu.IPUConfig]) -> ipu.IPUStrategy:
    """Returns a strategy on a device of four IPUs: one replica of a program that uses three or four IPUs."""
    configure(4)
    return ipu.IPUStrategy()


def batches(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs of shape `[count, BATCH, FEATURES]` and labels of shape `[count, BATCH]`."""
    rng = np.random.default_rng(seed)
    return (
        rng.normal(size=(count, BATCH, FEATURES)).astype(np.float32),
        rng.integers(0, CLASSES, (count, BATCH)).astype(np.int32),
    )


def weights(stages: int) -> list[np.ndarray]:
    """Returns the initial weight matrix and the initial bias of each stage."""
    rng = np.random.default_rng(1)
    widths = [FEATURES, *(4 + stage % 3 for stage in range(stages - 1)), CLASSES]
    values = []
    for inputs, outputs in itertools.pairwise(widths):
        values += [rng.normal(size=(inputs, outputs)).astype(np.float32), np.zeros(outputs, np.float32)]
    return values


def layer(x: tf.Tensor, variables: Sequence[tf.Variable], stage: int) -> tf.Tensor:
    """Returns the output of a stage of the model, without the loss of the last stage."""
    x = tf.matmul(x, variables[2 * stage]) + variables[2 * stage + 1]
    return tf.nn.tanh(x) if 2 * stage + 2 < len(variables) else x


def loss_of(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, x))


def stages_of(variables: Sequence[tf.Variable]) -> list[Callable[..., Any]]:
    """Returns the stages of the model, which compute the loss of an input and a label."""
    last = len(variables) // 2 - 1

    def make(stage: int) -> Callable[..., Any]:
        def inner(x: tf.Tensor, y: tf.Tensor) -> Any:
            x = layer(x, variables, stage)
            return (x, y) if stage < last else loss_of(x, y)

        return inner

    return [make(stage) for stage in range(last + 1)]


def pipelined(
    strategy: ipu.IPUStrategy,
    optimizer: Callable[[], Any],
    count: int,
    *,
    stages: int = 3,
    runs: int = 1,
    output: Callable[..., pipelining.OptimizerFunctionOutput] | None = None,
    **options: Any,
) -> tuple[list[np.ndarray], np.ndarray]:
    """Trains the model in a pipeline with a number of runs; returns its weights and the losses.

    `output` returns the output of the optimizer function, given the optimizer, the loss and the variables.
    """
    total = count * runs * options.get("repeat_count", 1)
    with strategy.scope():
        variables = [tf.Variable(value) for value in weights(stages)]
        opt = optimizer()
        if isinstance(opt, tf.keras.optimizers.Optimizer):
            opt.build(variables)  # Without this, the program would be traced a second time.

    def optimizer_function(loss: tf.Tensor) -> pipelining.OptimizerFunctionOutput:
        return output(opt, loss, variables) if output else pipelining.OptimizerFunctionOutput(opt, loss)

    dataset = tf.data.Dataset.from_tensor_slices(batches(total))
    options |= {"optimizer_function": optimizer_function}
    losses = run_pipeline(strategy, dataset, stages_of(variables), count, runs=runs, **options)[0]
    return [variable.numpy() for variable in variables], losses


def numbers(count: int) -> tf.data.Dataset:
    """Returns a dataset of the float32 scalars 1, 2, ..., `count`."""
    return tf.data.Dataset.range(1, count + 1).map(lambda x: tf.cast(x, tf.float32))


def sgd_on(loss: tf.Tensor) -> pipelining.OptimizerFunctionOutput:
    """Returns gradient descent with a learning rate of 1; an optimizer function."""
    return pipelining.OptimizerFunctionOutput(tf.compat.v1.train.GradientDescentOptimizer(1.0), loss)


def run_pipeline(
    strategy: ipu.IPUStrategy,
    dataset: tf.data.Dataset | None,
    stages: Any,
    count: int,
    *,
    runs: int = 1,
    **options: Any,
) -> Any:
    """Runs a pipeline, and returns the contents of its outfeed."""
    with strategy.scope():
        infeed = None if dataset is None else ipu.IPUInfeedQueue(dataset)
        outfeed = ipu.IPUOutfeedQueue()

        @tf.function(jit_compile=True)
        def program() -> None:
            pipelining.pipeline(stages, count, infeed_queue=infeed, outfeed_queue=outfeed, **options)

        if infeed is not None:
            infeed.initializer  # noqa: B018  (The access starts it.)
        for _ in range(runs):
            strategy.run(program)
        return tf.nest.map_structure(lambda tensor: tensor.numpy(), outfeed.dequeue())


@pytest.fixture
def run(strategy: ipu.IPUStrategy) -> Callable[..., Any]:
    """Returns `run(dataset, stages, count, **options)`, which runs a pipeline and returns its outfeed's contents."""
    return functools.partial(run_pipeline, strategy)


@pytest.fixture
def trains_as_plain(run: Callable[..., Any], strategy: ipu.IPUStrategy) -> Callable[..., Any]:
    """Returns `trains_as_plain(make, values, dataset, count, **options)`, which checks the stages `make(*variables)`.

    A pipeline of these stages must have the same losses and variables as the stages in plain TensorFlow. The optimizer
    is gradient descent with a rate of 1 on `loss` of the outputs of the last stage. Returns the contents of the outfeed
    and the variables.
    """

    def check(make: Callable[..., Any], values: Sequence[Any], dataset: Any, count: int, **options: Any) -> Any:
        loss = options.pop("loss", lambda *outputs: outputs[0])
        with strategy.scope():
            variables = [tf.Variable(value) for value in values]
        results = run(
            dataset, make(*variables), count, **options, optimizer_function=lambda *outputs: sgd_on(loss(*outputs))
        )
        plain_variables = [tf.Variable(value) for value in values]
        stages, expected = make(*plain_variables), []
        total = [tf.zeros_like(variable) for variable in plain_variables]
        for element in dataset.take(count):
            with tf.GradientTape() as tape:
                outputs = element if isinstance(element, tuple) else (element,)
                for stage in stages:
                    parts = [part(*outputs) for part in (stage if isinstance(stage, list) else [stage])]
                    outputs = tuple(tf.nest.flatten(parts))
                loss_value = loss(*outputs)
            expected.append(outputs)
            gradients = tape.gradient(loss_value, plain_variables, unconnected_gradients="zero")
            total = [old + new for old, new in zip(total, map(tf.convert_to_tensor, gradients), strict=True)]
        for result, value in zip(results, zip(*expected, strict=True), strict=True):
            np.testing.assert_allclose(result, value, rtol=1e-4, atol=1e-4)
        for variable, start, change in zip(variables, plain_variables, total, strict=True):
            np.testing.assert_allclose(variable, start - change, rtol=1e-4, atol=1e-6)
        return results, variables

    return check


@functools.cache  # Many tests compare with the same training.
def accumulated(
    optimizer: Callable[[], Any], count: int, passes: int, *, stages: int = 3, mean: bool = False
) -> tuple[list[np.ndarray], list[float]]:
    """Trains the model in one piece with plain TensorFlow: `passes` updates, each with gradients of `count` batches."""
    variables = [tf.Variable(value) for value in weights(stages)]
    opt = optimizer()
    xs, ys = batches(count * passes)
    losses: list[float] = []

    @tf.function
    def gradients(x: tf.Tensor, y: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            for stage in range(stages):
                x = layer(x, variables, stage)
            loss = loss_of(x, y)
        return loss, tape.gradient(loss, variables)

    for number in range(passes):
        total: Any = None
        for x, y in zip(xs[number * count :][:count], ys[number * count :][:count], strict=True):
            loss, new = gradients(x, y)
            losses.append(float(loss))
            total = new if total is None else [a + b for a, b in zip(total, new, strict=True)]
        if mean:
            total = [gradient / count for gradient in total]
        opt.apply_gradients(list(zip(total, variables, strict=True)))
    return [variable.numpy() for variable in variables], losses


def assert_close(values: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    """Checks that values are equal except for rounding: they are sums of some dozen float32 terms in another order."""
    for a, b in zip(values, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


@pytest.fixture
def toy() -> types.SimpleNamespace:
    """Returns the functions of this module."""
    functions = (numbers, sgd_on, batches, weights, layer, loss_of, stages_of, pipelined, accumulated, assert_close)
    return types.SimpleNamespace(**{function.__name__: function for function in functions})
