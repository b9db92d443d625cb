"""Combines changes of a Keras model until it fits: settings, what each comes to, and the code that makes them."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from tensorflow_ipu import pipelining, programs
from tensorflow_ipu.analysis import machine
from tensorflow_ipu.analysis.machine import Memory, Recipe, Report
from tensorflow_ipu.analysis.machine.recipe import (
    FITS,
    HALF,
    STATE_OFF_CHIP,
    TIGHT,
    Effect,
    configuration,
    left_over,
    searched,
    words_of_proportion,
)
from tensorflow_ipu.analysis.pipelines.comparison import Pieces, joined
from tensorflow_ipu.keras.options.options import typed
from tensorflow_ipu.pipelining import RecomputationMode, StageCost

_logger = logging.getLogger(__name__)

MOST_STAGES = 64
# What moving the state of the optimizer may cost, as a share of the time of an update.
_MOVING = 0.1
_TRIES = 3
_SCALED = ("forward", "activation_bytes", "input_bytes", "temporary_bytes")


@dataclasses.dataclass(frozen=True)
class Setting:
    """How a model is trained; `stages` of a model without a pipeline is 1, and with `recompute` alone they share IPU 0."""

    samples: int
    steps: int
    stages: int = 1
    recompute: bool = False
    halved: bool = False
    offload: bool = False
    proportion: float | None = None


@dataclasses.dataclass(frozen=True)
class Layout:
    """A setting as it is traced: the stage of each layer, where the model is cut anew, and the micro-batches of an update.

    `kept` are those options that the model has already, of its pipeline or of accumulation.
    """

    setting: Setting
    stages: tuple[int, ...]
    steps: int
    pipelined: bool
    kept: Mapping[str, object]

    @property
    def ipus(self) -> int:
        """How many IPUs a replica has."""
        return programs.power_of_2(self.setting.stages)

    def options(self) -> dict[str, object]:
        """The options of pipelining, or those of accumulation."""
        found: dict[str, object] = {**self.kept, "gradient_accumulation_steps_per_replica": self.steps}
        if self.stages:
            for name in ("device_mapping", "pipeline_schedule"):  # They were for other stages.
                found.pop(name, None)
            mode = RecomputationMode.RecomputeThenBackpropagate if self.setting.recompute else None
            if self.setting.stages == 1:
                found["device_mapping"] = [0] * (max(self.stages) + 1)
                found["pipeline_schedule"] = pipelining.PipelineSchedule.Sequential
                mode = RecomputationMode.RecomputeAndBackpropagateInterleaved
            found["recomputation_mode"] = mode
        if self.setting.offload:
            found["offload_weight_update_variables"] = True
        return found

    def code(self) -> Iterator[str]:
        """Code to paste: what goes before the strategy, and what goes after `model.compile`."""
        setting = self.setting
        if setting.halved:
            yield "# Before the model is made:"
            yield 'tf.keras.mixed_precision.set_global_policy("float16")'
        several = f"config.auto_select_ipus = {self.ipus}  # Or so many times the number of replicas."
        lines = configuration(setting.proportion, *[several] * (self.ipus > 1))
        if lines:
            yield from ("# Before the strategy is made:", *lines)
        if self.steps == 1 and not self.pipelined:
            return
        yield f"# After `model.compile`; `fit` then takes batches of {setting.samples}:"
        yield f"model.steps_per_execution = {self.steps}  # Or a multiple."
        if self.stages:
            yield "assignment = model.get_pipeline_stage_assignment()"
            yield f"for layer, stage in zip(assignment, {list(self.stages)}):"
            yield "    layer.pipeline_stage = stage"
            yield "model.set_pipeline_stage_assignment(assignment)"
        yield f"model.set_{'pipelining' if self.pipelined else 'gradient_accumulation'}_options("
        for name, value in self.options().items():
            of = "ipu.pipelining." * isinstance(value, RecomputationMode | pipelining.PipelineSchedule)
            yield f"    {name}={of}{typed(value)},"
        yield ")"


class Recipes:
    """A model with what is known of it, and what it takes to trace it otherwise."""

    def __init__(
        self,
        report: Report,
        start: Setting,
        pieces: Pieces | None,
        traced: Callable[[Layout], Report] | None,
        pipelined: bool,
        kept: Mapping[str, object],
    ) -> None:
        """Takes the pieces of the model and what traces it, which are None where nothing is to be traced."""
        self.report = report
        self.start = start
        self.pieces = pieces
        self.traced = traced
        self._pipelined = pipelined
        self._kept = kept
        # All of them are asked for the same more than once.
        self._read = functools.cache(self._read)
        self._read_pieces = functools.cache(self._read_pieces)
        self._cut = functools.cache(self._cut)

    def recipe(self) -> Recipe | None:
        """The changes after which the model fits, or is as near to that as they lead; None where nothing helps."""
        excess, tries = 1.0, 0  # By how much more memory a trace takes than was taken for.
        while True:
            tries += 1
            names = searched(self.start, self._moves(), functools.partial(self._effect, excess=excess))
            if not names:
                return None
            last = names[-1][1]
            layout = self._layout(last)
            effects = [(self._words(name, one), self._effect(one, excess)) for name, one in names]
            steps = [each.as_suggestion(words) for words, each in effects if each is not None]
            memory = next(each.memory for _, each in reversed(effects) if each is not None)
            whole = self._traced_as(layout)
            if whole is None:
                break
            seconds = whole.step_seconds / last.samples
            speed = self.report.step_seconds / self.start.samples / seconds
            steps.append(Effect(speed, whole.memory).as_suggestion("all of them, traced as one program"))
            if whole.fits or memory.verdict != FITS or tries == _TRIES:
                memory = whole.memory
                break
            excess *= whole.memory.high / memory.high
        left = "" if memory.verdict == FITS else self._left(memory, layout)
        return Recipe(tuple(steps), "\n".join(layout.code()), whole is not None, left)

    def _traced_as(self, layout: Layout) -> Report | None:
        try:
            return None if self.traced is None else self.traced(layout)
        except Exception as exc:  # TensorFlow's too, where options of the model exclude others.
            _logger.warning("the recipe was not traced as a whole: %s", str(exc).splitlines()[0])
            return None

    def _left(self, memory: Memory, layout: Layout) -> str:
        text = left_over(memory, layout.ipus)
        if self.pieces is None and self.traced is not None:
            return f"{text}; the model cannot be cut into stages"
        if self.pieces is None:
            return f"{text}. `report.advice(retrace=True)` also tries other micro-batches, recomputation and stages"
        setting = layout.setting
        for name, cost in zip(self.pieces.names, self._costs(setting), strict=True):
            alone = cost.weight_bytes + cost.sum_bytes + cost.state_bytes + cost.input_bytes + cost.temporary_bytes
            if alone > memory.capacity:
                share = f"{alone / memory.capacity:.0%}"
                return f"{text}; `{name}` alone takes {share} of an IPU, so no number of stages does: divide it"
        return f"{text}; {self._enough(setting)}"

    def _enough(self, setting: Setting) -> str:
        """How many IPUs would do, if there were as many as layers."""
        assert self.pieces is not None
        stages = programs.power_of_2(setting.stages + 1)
        while stages <= len(self.pieces.costs):
            found = self._effect(dataclasses.replace(setting, stages=stages, recompute=True), 1.0)
            if found is not None and found.memory.verdict == FITS:
                return f"{stages} IPUs would do, and the machine has {self.report.system.ipus}"
            stages *= 2
        return f"the model has {len(self.pieces.costs)} layers to make stages of: smaller ones could be divided among more IPUs"

    def _words(self, name: str, setting: Setting) -> str:
        update = f"{self._layout(setting).steps} micro-batches of {setting.samples} an update"
        words = {
            "micro-batch": f"{update}, in place of micro-batches of {self.start.samples}",
            "stages": f"{setting.stages} stages, one an IPU, with {update}",
            "state": f"{STATE_OFF_CHIP}, with {update}",
            "proportion": words_of_proportion(setting.proportion),
        }
        return words.get(name, name)

    # Moves.

    def _moves(self) -> dict[str, Callable[[Setting], Setting | None]]:
        found: dict[str, Callable[[Setting], Setting | None]] = {}
        if any("f32[" in each.shape for each in self.report.operations):
            found[HALF] = lambda one: None if one.halved else dataclasses.replace(one, halved=True)
        if self.report.memory.optimizer:
            found["state"] = self._offloaded
        if any(each.plan for each in self.report.operations):
            found["proportion"] = lambda one: None if one.proportion else dataclasses.replace(one, proportion=TIGHT)
        if self.pieces is not None:
            found["micro-batch"] = _with_smaller_batches
            found["recomputation"] = lambda one: None if one.recompute else dataclasses.replace(one, recompute=True)
            found["stages"] = self._with_more_stages
        return found

    def _offloaded(self, setting: Setting) -> Setting | None:
        """The state off the chip, and so many steps an update that moving it costs little."""
        if setting.offload:
            return None
        read = self._read(setting.halved, setting.proportion)
        seconds = _moving(read.memory) / self.report.system.streaming_bytes_per_second
        wanted = programs.power_of_2(math.ceil(seconds / (_MOVING * read.step_seconds)))
        return dataclasses.replace(setting, offload=True, steps=max(2, setting.steps, min(wanted, 1024)))

    def _with_more_stages(self, setting: Setting) -> Setting | None:
        assert self.pieces is not None
        count = programs.power_of_2(setting.stages + 1)
        most = min(MOST_STAGES, self.report.system.ipus, len(self.pieces.costs))
        return dataclasses.replace(setting, stages=count) if count <= most else None

    # What a setting comes to.

    def _is_cut(self, setting: Setting) -> bool:
        """Whether it takes other stages than the report's."""
        return (setting.stages, setting.recompute) != (self.start.stages, self.start.recompute)

    def _read(self, halved: bool, proportion: float | None) -> Report:
        if not halved and proportion is None:
            return self.report
        assert self.report.again is not None
        return self.report.again(halved=halved, proportion=proportion)

    def _costs(self, setting: Setting) -> list[StageCost]:
        """What the pieces take, of micro-batches of this size."""
        assert self.pieces is not None
        scale = setting.samples / self.start.samples
        found = []
        for cost in self._read_pieces(setting.halved, setting.proportion):
            given = {name: scale * getattr(cost, name) for name in _SCALED}
            given["temporary_bytes"] = max(given["temporary_bytes"], min(cost.temporary_bytes, cost.weight_bytes))
            if setting.offload:
                given.update(state_bytes=0.0, off_chip_bytes=cost.state_bytes + cost.off_chip_bytes)
            backward = None if cost.backward is None else scale * cost.backward
            found.append(dataclasses.replace(cost, backward=backward, **given))
        return found

    def _read_pieces(self, halved: bool, proportion: float | None) -> Sequence[StageCost]:
        assert self.pieces is not None
        assert self.pieces.read is not None
        return self.pieces.costs if not halved and proportion is None else self.pieces.read(halved, proportion)

    def _cut(self, setting: Setting) -> tuple[tuple[int, ...], pipelining.PlanCost] | None:
        """The stage of each piece, and what the plan of these stages costs."""
        costs, system = self._costs(setting), self.report.system
        steps = max(setting.steps, 1)
        try:
            if setting.stages > 1:
                given = steps if self.start.stages > 1 or steps % (2 * setting.stages) == 0 else None
                found = pipelining.balance(
                    costs, setting.stages, system, micro_batches=given, recompute=setting.recompute
                )
                return found.stages, found.cost
            return recomputed(costs, steps, system)
        except Exception:  # TensorFlow's too, where a schedule takes other multiples.
            return None

    def _effect(self, setting: Setting, excess: float) -> Effect | None:
        read = self._read(setting.halved, setting.proportion)
        scale = setting.samples / self.start.samples
        before = self.report.step_seconds / self.start.samples
        if setting == dataclasses.replace(self.start, halved=setting.halved, proportion=setting.proportion):
            return Effect(before * setting.samples / read.step_seconds, read.memory, setting.stages)
        if not self._is_cut(setting):
            memory = self._scaled(read.memory, setting, scale)
            moved = _moving(read.memory) / self.report.system.streaming_bytes_per_second if setting.offload else 0.0
            seconds = scale * read.step_seconds + moved / setting.steps
            return Effect(before * setting.samples / seconds, _enlarged(memory, excess), setting.stages)
        cut = self._cut(setting)
        if cut is None:
            return None
        _, cost = cut
        host = scale * read.part_seconds("host") / read.steps
        step = cost.time_per_micro_batch
        if setting.stages == 1:
            one = joined(self._costs(setting))
            once = one.forward + (one.backward or 0.0) + one.update / cost.plan.micro_batches
            step += scale * read.step_seconds - host - once  # What is not of layers.
        seconds = max(step, host) if self.report.overlaps_host else step + host
        pieces = self._read_pieces(setting.halved, setting.proportion)
        memories = [plan_memory(read.memory, pieces, self.start.stages, ipu) for ipu in cost.ipus]
        fullest = _enlarged(max(memories, key=lambda one: one.high), excess)
        return Effect(before * setting.samples / seconds, fullest, programs.power_of_2(setting.stages))

    def _scaled(self, memory: Memory, setting: Setting, scale: float) -> Memory:
        """The memory of the report's own stages, of micro-batches of another size, where gradients may accumulate."""
        activations = 0.0
        if self.pieces is not None:
            activations = sum(cost.activation_bytes for cost in self._read_pieces(setting.halved, setting.proportion))
        sums = memory.variables if setting.steps > 1 and self.start.steps == 1 else 0
        return dataclasses.replace(
            memory,
            data=round(memory.data - (1 - scale) * min(memory.data, activations)),
            stash=round(scale * memory.stash),
            accumulators=memory.accumulators + sums,
            optimizer=0 if setting.offload else memory.optimizer,
        )

    def _layout(self, setting: Setting) -> Layout:
        cut = self._cut(setting) if self._is_cut(setting) else None
        if cut is None or self.pieces is None or self.pieces.assigned is None:
            return Layout(setting, (), setting.steps, self._pipelined, self._kept)
        stages = tuple(each.pipeline_stage for each in self.pieces.assigned(cut[0]))
        return Layout(setting, stages, cut[1].plan.micro_batches, True, self._kept if self._pipelined else {})


def _with_smaller_batches(setting: Setting) -> Setting | None:
    if setting.samples % 2:
        return None
    return dataclasses.replace(setting, samples=setting.samples // 2, steps=2 * setting.steps)


def _moving(memory: Memory) -> int:
    """The bytes that pass for an update, where the state is off the chip."""
    return 2 * memory.optimizer


def _enlarged(memory: Memory, excess: float) -> Memory:
    """The memory with so many times the data."""
    more = round((excess - 1) * memory.high)
    return dataclasses.replace(memory, data=max(0, memory.data + more)) if more else memory


def recomputed(
    costs: Sequence[StageCost], steps: int, system: machine.System
) -> tuple[tuple[int, ...], pipelining.PlanCost]:
    """Stages that are all on one IPU, each recomputed from its input before its backward pass, and what they cost."""
    count = min(len(costs), max(2, round(math.sqrt(len(costs)))))
    cuts = pipelining.balance(list(costs), count, system, recompute=True)
    mode, schedule = RecomputationMode.RecomputeAndBackpropagateInterleaved, pipelining.PipelineSchedule.Sequential
    plan = pipelining.pipeline_plan(count, steps, schedule, device_mapping=[0] * count, recomputation_mode=mode)
    return cuts.stages, pipelining.plan_cost(plan, cuts.costs, machine=system)


def plan_memory(memory: Memory, pieces: Sequence[StageCost], stages: int, ipu: pipelining.IpuCost) -> Memory:
    """The memory of an IPU by a plan, its data scaled down for a program of one stage, which keeps less than stages do."""
    data = ipu.stash_bytes + ipu.link_bytes + ipu.temporary_bytes
    if stages == 1:
        whole = joined(pieces)
        data *= memory.data / (whole.activation_bytes + whole.temporary_bytes or 1.0)
    return Memory(
        variables=round(ipu.weight_bytes),
        constants=memory.constants,
        data=round(data),
        code_low=memory.code_low,
        code_high=memory.code_high,
        capacity=memory.capacity,
        feeds=memory.feeds,
    )
