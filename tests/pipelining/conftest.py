"""What the tests of pipelines that run share: a system of IPUs, a model in stages, and the same model in one piece."""

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
    """A strategy for a device of four IPUs: one replica of a program of three or four."""
    configure(4)
    return ipu.IPUStrategy()


def batches(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Inputs `[count, BATCH, FEATURES]` and labels `[count, BATCH]`."""
    rng = np.random.default_rng(seed)
    return (
        rng.normal(size=(count, BATCH, FEATURES)).astype(np.float32),
        rng.integers(0, CLASSES, (count, BATCH)).astype(np.int32),
    )


def weights(stages: int) -> list[np.ndarray]:
    """For each stage its first weight matrix and its first bias."""
    rng = np.random.default_rng(1)
    widths = [FEATURES, *(4 + stage % 3 for stage in range(stages - 1)), CLASSES]
    found = []
    for before, behind in itertools.pairwise(widths):
        found += [rng.normal(size=(before, behind)).astype(np.float32), np.zeros(behind, np.float32)]
    return found


def layer(x: tf.Tensor, variables: Sequence[tf.Variable], stage: int) -> tf.Tensor:
    """One stage of the model, without the last one's loss."""
    x = tf.matmul(x, variables[2 * stage]) + variables[2 * stage + 1]
    return tf.nn.tanh(x) if 2 * stage + 2 < len(variables) else x


def loss_of(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, x))


def stages_of(variables: Sequence[tf.Variable]) -> list[Callable[..., Any]]:
    """The model in stages: from an input and a label to the loss."""
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
    """Trains the model in a pipeline, `runs` times: its weights, and the losses.

    `output` gives, of the optimizer, the loss and the variables, what the optimizer function returns.
    """
    total = count * runs * options.get("repeat_count", 1)
    with strategy.scope():
        variables = [tf.Variable(value) for value in weights(stages)]
        opt = optimizer()
        if isinstance(opt, tf.keras.optimizers.Optimizer):
            opt.build(variables)  # Else the program would be traced a second time.

    def optimizer_function(loss: tf.Tensor) -> pipelining.OptimizerFunctionOutput:
        return output(opt, loss, variables) if output else pipelining.OptimizerFunctionOutput(opt, loss)

    dataset = tf.data.Dataset.from_tensor_slices(batches(total))
    options |= {"optimizer_function": optimizer_function}
    losses = run_pipeline(strategy, dataset, stages_of(variables), count, runs=runs, **options)[0]
    return [variable.numpy() for variable in variables], losses


def numbers(count: int) -> tf.data.Dataset:
    """The float32 scalars 1, 2, ..., `count`."""
    return tf.data.Dataset.range(1, count + 1).map(lambda x: tf.cast(x, tf.float32))


def sgd_on(loss: tf.Tensor) -> pipelining.OptimizerFunctionOutput:
    """An optimizer function: gradient descent at a learning rate of 1."""
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
    """Runs a pipeline, and gives what its outfeed has."""
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
    """`run(dataset, stages, count, **options)` runs a pipeline, and gives what its outfeed has."""
    return functools.partial(run_pipeline, strategy)


@pytest.fixture
def trains_as_plain(run: Callable[..., Any], strategy: ipu.IPUStrategy) -> Callable[..., Any]:
    """`trains_as_plain(make, values, dataset, count, **options)` checks a pipeline of the stages `make(*variables)`.

    Its losses and variables must be those of the same stages in plain TensorFlow, by gradient descent at a rate of 1 on
    `loss` of what the last stage returns. What the outfeed has returns, with the variables.
    """

    def check(make: Callable[..., Any], values: Sequence[Any], dataset: Any, count: int, **options: Any) -> Any:
        loss = options.pop("loss", lambda *outputs: outputs[0])
        with strategy.scope():
            variables = [tf.Variable(value) for value in values]
        found = run(dataset, make(*variables), count, **options, optimizer_function=lambda *all: sgd_on(loss(*all)))
        plain = [tf.Variable(value) for value in values]
        stages, expected, total = make(*plain), [], [tf.zeros_like(each) for each in plain]
        for element in dataset.take(count):
            with tf.GradientTape() as tape:
                passed = element if isinstance(element, tuple) else (element,)
                for stage in stages:
                    results = [part(*passed) for part in (stage if isinstance(stage, list) else [stage])]
                    passed = tuple(tf.nest.flatten(results))
                result = loss(*passed)
            expected.append(passed)
            gradients = tape.gradient(result, plain, unconnected_gradients="zero")
            total = [one + other for one, other in zip(total, map(tf.convert_to_tensor, gradients), strict=True)]
        for one, other in zip(found, zip(*expected, strict=True), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
        for variable, start, change in zip(variables, plain, total, strict=True):
            np.testing.assert_allclose(variable, start - change, rtol=1e-4, atol=1e-6)
        return found, variables

    return check


@functools.cache  # Of the same training there is one, for all that is to come to the same weights.
def accumulated(
    optimizer: Callable[[], Any], count: int, passes: int, *, stages: int = 3, mean: bool = False
) -> tuple[list[np.ndarray], list[float]]:
    """Trains the model in one piece with plain TensorFlow: `passes` updates by the gradients of `count` batches."""
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
            loss, found = gradients(x, y)
            losses.append(float(loss))
            total = found if total is None else [a + b for a, b in zip(total, found, strict=True)]
        if mean:
            total = [each / count for each in total]
        opt.apply_gradients(list(zip(total, variables, strict=True)))
    return [variable.numpy() for variable in variables], losses


def assert_close(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> None:
    """Equal to float rounding: sums of some dozen float32 terms, in another order."""
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


@pytest.fixture
def toy() -> types.SimpleNamespace:
    """The functions of this module."""
    functions = (numbers, sgd_on, batches, weights, layer, loss_of, stages_of, pipelined, accumulated, assert_close)
    return types.SimpleNamespace(**{function.__name__: function for function in functions})
