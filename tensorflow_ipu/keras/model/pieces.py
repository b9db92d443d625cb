"""The layers of a model with what each would take of a machine: what stages can be made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tensorflow_ipu import pipelining
from tensorflow_ipu.pipelining.parts import Pieces, joined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensorflow_ipu.keras.model.extension import Extension
    from tensorflow_ipu.machine import Machine, System

# Of a model of more layers, stretches of them are a piece: each piece is compiled by itself.
_MOST = 96


def pieces_of(
    extension: Extension, machine: System | Machine | str | None, described: Callable[[], Callable[[], None]]
) -> Pieces:
    """The pieces of a model: a pipeline of all of them, on one IPU, is traced and read.

    The stages and options that the model has are as before in the end.

    Args:
      extension: The model's.
      machine: As for `predicted_stage_costs`.
      described: Makes the training program of the model as it is when this is called.

    Raises:
      ValueError: The model has fewer than two layers.
    """
    stages, options = extension.stages, extension.options
    names = stages.leaf_names()
    if len(names) < 2:
        raise ValueError(
            f"model `{extension.model.name}` has {len(names)} layers, and a pipeline has 2 stages at least"
        )
    length = -(-len(names) // _MOST)
    of_layers = [number // length for number in range(len(names))]
    count = of_layers[-1] + 1
    before = options.pipelining
    steps = before.gradient_accumulation_steps_per_replica
    options.pipelining = dataclasses.replace(
        before,
        gradient_accumulation_steps_per_replica=1,
        device_mapping=[0] * count,
        pipeline_schedule=pipelining.PipelineSchedule.Sequential,
        recomputation_mode=None,
        forward_propagation_stages_poplar_options=None,
        backward_propagation_stages_poplar_options=None,
    )
    try:
        with stages.staged(of_layers):
            program: Any = described()
            with extension.strategy.scope():
                traced = program.get_concrete_function()
            (pipeline,) = pipelining.pipelines_of(traced)
            costs = pipelining.predicted_stage_costs(pipeline, machine)
    finally:
        options.pipelining = before

    def assigned(of_pieces: Sequence[int]) -> list[Any]:
        with stages.staged([of_pieces[piece] for piece in of_layers]):
            return stages.get()

    first_names = [names[of_layers.index(piece)] for piece in range(count)]
    flat = tuple(joined([cost] if isinstance(cost, pipelining.StageCost) else cost) for cost in costs)
    return Pieces(tuple(first_names), flat, steps, assigned)
