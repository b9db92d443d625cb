"""What the stages of a pipeline take, measured: each compiled alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import tensorflow as tf

from tensorflow_ipu._checks import is_int
from tensorflow_ipu.pipelining.program.costs import Costs, costs_of_stages, traced_cost
from tensorflow_ipu.pipelining.program.registry import TracedPipeline
from tensorflow_ipu.pipelining.report.stage_cost import StageCost
from tensorflow_ipu.pipelining.stages.part import StagePart


def measured_stage_costs(pipeline: TracedPipeline, runs: int = 20) -> Costs:
    """Times the stages of a pipeline, each compiled alone, on zeros.

    What a stage changes is left alone: its variables stay as they are. The times are those of this machine's processor,
    and tell stages apart; they are not those of an IPU.

    Args:
      pipeline: The pipeline, whose program is still there.
      runs: How often each pass is run; the fastest run counts.

    Returns:
      For each stage, or for each part of it, its cost: times in milliseconds, bytes as in `pipeline.stage_costs`. Of
      an update, a load and a save no time is known: it is 0.

    Raises:
      RuntimeError: The program is gone.
      ValueError: `runs` is less than 1.
    """
    if not is_int(runs) or runs < 1:
        raise ValueError(f"`runs` must be 1 or more, but is {runs!r}")
    parts, plan = pipeline.parts(), pipeline.plan
    idle = _fastest(lambda: (), [], "", runs)
    return costs_of_stages(plan, parts, lambda part: _cost(part, idle, runs))


def _cost(part: StagePart, idle: float, runs: int) -> StageCost:
    times = {}
    for name, (function, specs) in part.passes().items():
        times[name] = max(0.0, _fastest(function, specs, part.device, runs) - idle)
    forward = times["forward"]
    return replace(
        traced_cost(part),
        forward=forward,
        backward=times.get("backward", 0.0),
        recompute_factor=times["recompute"] / forward if forward and "recompute" in times else 1.0,
        update=0.0,
        load=0.0,
        save=0.0,
    )


def _fastest(
    function: Callable[..., Sequence[tf.Tensor]], specs: Sequence[tf.TensorSpec], device: str, runs: int
) -> float:
    """The fastest of so many calls, in milliseconds."""
    compiled = tf.function(function, jit_compile=True, autograph=False)
    with tf.device(device or None):
        values = [tf.zeros(one.shape, one.dtype) for one in specs]
        compiled(*values)
        times = []
        for _ in range(runs):
            begin = time.perf_counter()
            for one in compiled(*values):
                one.numpy()  # All is done.
            times.append(time.perf_counter() - begin)
    return min(times) * 1000
