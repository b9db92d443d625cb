"""What the tests of Keras pipelines share: stages by the names of layers, and training that is to be plain Keras's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import pytest

import tensorflow_ipu as ipu

BATCH = 4


@pytest.fixture
def leaves() -> Callable[[list[Any]], list[Any]]:
    """`leaves(assignments)` is those of layers, with what is in nested models in the place of these."""

    def of(assignments: list[Any]) -> list[Any]:
        parts = [of(one.pipeline_stage_assignments) if one.is_nested_model else [one] for one in assignments]
        return [one for part in parts for one in part]

    return of


@pytest.fixture
def stages_of(leaves: Callable[[list[Any]], list[Any]]) -> Callable[[Any], list[tuple[str, int | None]]]:
    """`stages_of(model)` is the name and the stage of each call of a layer."""
    return lambda model: [(one.layer.name, one.pipeline_stage) for one in leaves(model.get_pipeline_stage_assignment())]


@pytest.fixture
def put(leaves: Callable[[list[Any]], list[Any]]) -> Callable[[Any, Mapping[str, int]], None]:
    """`put(model, stages)` puts layers that are in no stage into one by their names."""

    def assign(model: Any, stages: Mapping[str, int]) -> None:
        assignment = model.get_pipeline_stage_assignment()
        for one in leaves(assignment):
            if one.pipeline_stage is None:
                one.pipeline_stage = stages[one.layer.name]
        model.set_pipeline_stage_assignment(assignment)

    return assign


@pytest.fixture
def trained_pipeline(replicas: Callable[..., ipu.IPUStrategy], assert_same: Callable[..., None]) -> Callable[..., Any]:
    """`trained_pipeline(make, x, y, count)` trains in plain Keras too, and checks that weights and losses are the same.

    An update takes `count` batches. `prepare(model)` assigns the stages, and `plain` makes the plain model where `make`
    names stages itself. Both models return.
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

        # The mean gradient of the batches of an update is the gradient of one large batch. Of activities Keras 3.12 takes
        # the sum over a batch: there it is to accumulate too.
        batch, accumulate = (BATCH, count) if by_keras else (BATCH * count, None)
        other, expected = fitted(plain or make, batch, accumulate, jit_compile=False)
        with replicas(ipus).scope():
            steps = len(keras.tree.flatten(x)[0]) // BATCH
            model, history = fitted(make, BATCH, steps_per_execution=steps)
        assert_same([history, model.get_weights()], [expected, other.get_weights()])
        return model, other

    return train
