"""The costs of a pipeline's stages, as far as their traces tell: bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tensorflow_ipu.pipelining.report.stage_cost import StageCost
from tensorflow_ipu.pipelining.schedule.plan import Plan
from tensorflow_ipu.pipelining.stages.part import Place, StagePart

Costs = tuple[StageCost | tuple[StageCost, ...], ...]


def traced_cost(part: StagePart) -> StageCost:
    """The bytes of a part of a stage, with the default times."""
    return StageCost(
        activation_bytes=part.activation_bytes, input_bytes=part.input_bytes, weight_bytes=part.weight_bytes
    )


def costs_of_stages(plan: Plan, parts: Mapping[Place, StagePart], cost_of: Callable[[StagePart], StageCost]) -> Costs:
    """For each stage of a plan its cost, or those of its parts where it was given as a list.

    Args:
      plan: The plan.
      parts: The stages' functions, by stage and part.
      cost_of: Gives the cost of a part.
    """
    found: list[StageCost | tuple[StageCost, ...]] = []
    for stage in range(plan.stages):
        costs = tuple(cost_of(parts[stage, part]) for part, _ in plan.parts(stage))
        found.append(costs if plan.concurrent[stage] else costs[0])
    return tuple(found)
