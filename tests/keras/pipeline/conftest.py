"""Fixtures of the tests of Keras pipelines: stages by names of layers, and training that must equal plain Keras."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import pytest

import tensorflow_ipu as ipu

BATCH = 4


@pytest.fixture
def leaves() -> Callable[[list[Any]], list[Any]]:
    """Returns a function that expands nested models in a list: `leaves(assignments)` has assignments of layers only."""

    def of(assignments: list[Any]) -> list[Any]:
        parts = [
            of(assignment.pipeline_stage_assignments) if assignment.is_nested_model else [assignment]
            for assignment in assignments
        ]
        return [assignment for part in parts for assignment in part]

    return of


@pytest.fixture
def stages_of(leaves: Callable[[list[Any]], list[Any]]) -> Callable[[Any], list[tuple[str, int | None]]]:
    """Returns a function that returns the name and stage of each call of a layer: `stages_of(model)`."""
    return lambda model: [
        (leaf.layer.name, leaf.pipeline_stage) for leaf in leaves(model.get_pipeline_stage_assignment())
    ]


@pytest.fixture
def put(leaves: Callable[[list[Any]], list[Any]]) -> Callable[[Any, Mapping[str, int]], None]:
    """Returns a function that assigns stages to layers without one: `put(model, {"dense": 1})`."""

    def assign(model: Any, stages: Mapping[str, int]) -> None:
        assignment = model.get_pipeline_stage_assignment()
        for leaf in leaves(assignment):
            if leaf.pipeline_stage is None:
                leaf.pipeline_stage = stages[leaf.layer.name]
        model.set_pipeline_stage_assignment(assignment)

    return assign


@pytest.fixture
def trained_pipeline(replicas: Callable[..., ipu.IPUStrategy], assert_same: Callable[..., None]) -> Callable[..., Any]:
    """Returns a function that trains a pipeline and plain Keras, and checks that weights and losses are the same.

    In `trained_pipeline(make, x, y, count)`, an update takes `count` batches. `prepare(model)` assigns the stages.
    `plain` makes the plain model if `make` itself uses pipeline stages. The function returns both models.
    """

    def train(
        make: Callable[[], Any],
        x: Any,
        y: Any,
        count: int,
        *,
        ipus: int = 2,
        prepare: Callable[[Any], None] | None = None,
        plain: Callable[[], Any] | None = None,
        epochs: int = 1,
        by_keras: bool = False,
        **options: Any,
    ) -> tuple[Any, Any]:
        def fitted(make: Callable[[], Any], batch: int, accumulate: int | None = None, **compiled: Any) -> Any:
            keras.utils.set_random_seed(2)
            model = make()
            optimizer = keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=accumulate)
            model.compile(optimizer, "mse", **compiled)
            if not accumulate and "jit_compile" not in compiled:
                if prepare is not None:
                    prepare(model)
                model.set_pipelining_options(count, gradient_accumulation_reduction_method="mean", **options)
            return model, model.fit(x, y, batch_size=batch, epochs=epochs, shuffle=False, verbose=0).history

        # The mean gradient of the batches of an update is the gradient of one large batch, so plain Keras uses a large
        # batch. With `by_keras`, it accumulates gradients: activity losses of Keras 3.12 are sums over a batch.
        batch, accumulate = (BATCH, count) if by_keras else (BATCH * count, None)
        plain_model, expected = fitted(plain or make, batch, accumulate, jit_compile=False)
        with replicas(ipus).scope():
            steps = len(keras.tree.flatten(x)[0]) // BATCH
            model, history = fitted(make, BATCH, steps_per_execution=steps)
        assert_same([history, model.get_weights()], [expected, plain_model.get_weights()])
        return model, plain_model

    return train
