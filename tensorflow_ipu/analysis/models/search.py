"""The search for changes of a Keras model: the effect of each, and the code that makes them."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from tensorflow_ipu import pipelining, programs
from tensorflow_ipu.analysis import machine
from tensorflow_ipu.analysis.machine import Memory, NotAsked, Recipe, Report, Suggestion
from tensorflow_ipu.analysis.machine.memory import FITS
from tensorflow_ipu.analysis.machine.search import (
    STATE_OFF_CHIP,
    TIGHT,
    Effect,
    Moves,
    Variant,
    changing,
    configuration,
    half_moves,
    left_over,
    searched,
    tight_moves,
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
_OPTION = "`gradient_accumulation_steps_per_replica`"
_SCALED = ("forward", "activation_bytes", "input_bytes", "temporary_bytes")


@dataclasses.dataclass(frozen=True)
class Layout:
    """A variant as it is traced: the stage of each layer, where the model is cut anew, and the micro-batches of an update.

    `kept` are those options that the model has already, of its pipeline or of accumulation.
    """

    variant: Variant
    stages: tuple[int, ...]
    steps: int
    pipelined: bool
    kept: Mapping[str, object]

    @property
    def ipus(self) -> int:
        return programs.power_of_2(self.variant.stages)

    def options(self) -> dict[str, object]:
        """Returns the options of pipelining, or those of accumulation."""
        found: dict[str, object] = {**self.kept, "gradient_accumulation_steps_per_replica": self.steps}
        if self.stages:
            for name in ("device_mapping", "pipeline_schedule"):  # They were for other stages.
                found.pop(name, None)
            mode = RecomputationMode.RecomputeThenBackpropagate if self.variant.recompute else None
            if self.variant.stages == 1:
                found["device_mapping"] = [0] * (max(self.stages) + 1)
                found["pipeline_schedule"] = pipelining.PipelineSchedule.Sequential
                mode = RecomputationMode.RecomputeAndBackpropagateInterleaved
            found["recomputation_mode"] = mode
        if not self.variant.state:
            found["offload_weight_update_variables"] = True
        return found

    def code(self) -> Iterator[str]:
        """Yields code to paste: lines before the strategy, and lines after `model.compile`."""
        variant = self.variant
        if variant.halved:
            yield "# Before the model is made:"
            yield 'tf.keras.mixed_precision.set_global_policy("float16")'
        several = f"config.auto_select_ipus = {self.ipus}  # Or so many times the number of replicas."
        lines = configuration(variant.proportion, *[several] * (self.ipus > 1))
        if lines:
            yield from ("# Before the strategy is made:", *lines)
        if self.steps == 1 and not self.pipelined:
            return
        yield f"# After `model.compile`; `fit` then takes batches of {variant.samples}:"
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


class ModelSearch:
    """The search for changes of a model: what is known of it, and functions that trace it otherwise.

    Attributes:
      report: The report on the model as it is.
      start: How the model is trained.
      training: Whether the report is of training.
      cut: Returns the pieces of the model.
      rescaled: Returns the report of so many times the micro-batch, with so many micro-batches an update.
      traced: Returns the report of a layout.
      pipelined: Whether the model has a pipeline.
      kept: The options of the pipeline, or of accumulation.
    """

    def __init__(
        self,
        report: Report,
        start: Variant,
        *,
        training: bool,
        cut: Callable[[], Pieces],
        rescaled: Callable[[float, int], Report],
        traced: Callable[[Layout], Report],
        pipelined: bool,
        kept: Mapping[str, object],
    ) -> None:
        self.report = report
        self.start = start
        self.pieces: Pieces | None = None
        self._training = training
        self._cut_model = cut
        self._rescaled = rescaled
        self._traced = traced
        self._pipelined = pipelined
        self._kept = kept
        # All of them are asked for the same more than once.
        self._read = functools.cache(self._read)
        self._read_pieces = functools.cache(self._read_pieces)
        self._cut = functools.cache(self._cut)

    def advice(self, retrace: bool) -> Iterator[Suggestion | NotAsked | Recipe]:
        """Yields the effects of other micro-batches, recomputation and stages, and a recipe if the model may not fit."""
        if not retrace:
            words = "other micro-batches" + (", recomputation, more stages" if self._training else "")
            yield NotAsked(words, "they take another trace of the model: `report.advice(retrace=True)` asks")
        else:
            yield self._micro_batches()
        if not self._training:
            return
        if retrace:
            try:
                self.pieces = self._cut_model()
            except (ValueError, NotImplementedError, RuntimeError) as exc:
                yield NotAsked("recomputation, more stages", f"the model cannot be cut: {exc}")
            else:
                if self.start.stages == 1 and not self.start.recompute:
                    yield from self._recomputation()
                yield from self._more_stages()
        if self.report.fits is not True:
            yield from filter(None, [self.recipe(retrace)])

    # Changes alone.

    def _micro_batches(self) -> Suggestion | NotAsked:
        """Returns the effect of half the micro-batch, or twice if the model fits, for an update of as many samples."""
        size, steps = self.start.samples, self.start.steps
        samples, count = (2 * size, max(1, steps // 2)) if self.report.fits else (size // 2, 2 * steps)
        words = f"micro-batches of {samples} in place of {size}"
        if not samples or (samples < size and size % 2):
            return NotAsked(words, "a micro-batch is of whole samples")
        memory = self.report.memory
        if samples < size and memory.always > memory.capacity:
            return NotAsked(words, "what is there all the time is too large at any size")
        if self._training and count != steps:
            words += f", and {_OPTION} of {count}"
        try:
            made = self._rescaled(samples / size, count if self._training else steps)
        except Exception as exc:  # TensorFlow's too, where a schedule takes other multiples.
            return NotAsked(words, str(exc).splitlines()[0])
        return machine.changed(words, self.report, made, samples / size)

    def _recomputation(self) -> Iterator[Suggestion]:
        """Yields the effect of stages that are all on one IPU, each recomputed before its backward pass."""
        variant = dataclasses.replace(self.start, recompute=True)
        effect = self._effect(variant)
        if effect is not None:
            count = max(self._cut(variant)[0]) + 1
            yield effect.as_suggestion(
                f"recomputation: {count} stages, all on IPU 0 (`device_mapping=[0] * {count}`, `PipelineSchedule.Sequential`,"
                " `RecomputationMode.RecomputeAndBackpropagateInterleaved`)"
            )

    def _more_stages(self) -> Iterator[Suggestion | NotAsked]:
        """Yields the effect of the next number of stages that replicas can have; if these do not fit, of twice as many."""
        assert self.pieces is not None
        count, pieces = self.start.stages, len(self.pieces.costs)
        verdict = ""
        while verdict != FITS and count < MOST_STAGES:
            count = programs.power_of_2(count + 1)
            words = f"{count} stages, one an IPU, as `pipelining.balance` cuts them"
            if pieces < count:
                yield NotAsked(words, f"the model has {pieces} layers")
                return
            steps = self.start.steps if self.start.stages > 1 else 0
            variant = dataclasses.replace(self.start, stages=count, steps=steps, recompute=None)
            try:
                plan = self._cut(variant)[1].plan
            except Exception as exc:  # TensorFlow's, where a schedule takes other multiples.
                yield NotAsked(words, str(exc).splitlines()[0])
                return
            recomputed = " with recomputation" * (plan.recomputation is not None)
            words += f"{recomputed} ({plan.micro_batches} micro-batches; a replica then has {count} IPUs)"
            effect = self._effect(variant)
            assert effect is not None
            verdict = effect.memory.verdict
            yield effect.as_suggestion(words)

    # Changes together.

    def recipe(self, retrace: bool) -> Recipe | None:
        """Returns the changes after which the model fits, or is as near to that as they lead; None if nothing helps."""
        excess, tries = 1.0, 0  # By how much more memory a trace takes than was predicted.
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
            whole = self._traced_as(layout) if retrace else None
            if whole is None:
                break
            seconds = whole.step_seconds / last.samples
            speed = self.report.step_seconds / self.start.samples / seconds
            steps.append(Effect(speed, whole.memory).as_suggestion("all of them, traced as one program"))
            if whole.fits or memory.verdict != FITS or tries == _TRIES:
                memory = whole.memory
                break
            excess *= whole.memory.high / memory.high
        left = "" if memory.verdict == FITS else self._left(memory, layout, retrace)
        return Recipe(tuple(steps), "\n".join(layout.code()), whole is not None, left)

    def _traced_as(self, layout: Layout) -> Report | None:
        try:
            return self._traced(layout)
        except Exception as exc:  # TensorFlow's too, where options of the model exclude others.
            _logger.warning("the recipe was not traced as a whole: %s", str(exc).splitlines()[0])
            return None

    def _left(self, memory: Memory, layout: Layout, retrace: bool) -> str:
        text = left_over(memory, layout.ipus)
        if self.pieces is None and retrace:
            return f"{text}; the model cannot be cut into stages"
        if self.pieces is None:
            return f"{text}. `report.advice(retrace=True)` also tries other micro-batches, recomputation and stages"
        variant = layout.variant
        for name, cost in zip(self.pieces.names, self._costs(variant), strict=True):
            alone = cost.weight_bytes + cost.sum_bytes + cost.state_bytes + cost.input_bytes + cost.temporary_bytes
            if alone > memory.capacity:
                share = f"{alone / memory.capacity:.0%}"
                return f"{text}; `{name}` alone takes {share} of an IPU, so no number of stages does: divide it"
        return f"{text}; {self._enough(variant)}"

    def _enough(self, variant: Variant) -> str:
        """How many IPUs would do, if there were as many as layers."""
        assert self.pieces is not None
        stages = programs.power_of_2(variant.stages + 1)
        while stages <= len(self.pieces.costs):
            found = self._effect(dataclasses.replace(variant, stages=stages, recompute=True))
            if found is not None and found.memory.verdict == FITS:
                return f"{stages} IPUs would do, and the machine has {self.report.system.ipus}"
            stages *= 2
        return f"the model has {len(self.pieces.costs)} layers to make stages of: smaller ones could be divided among more IPUs"

    def _words(self, name: str, variant: Variant) -> str:
        update = f"{self._layout(variant).steps} micro-batches of {variant.samples} an update"
        words = {
            "micro-batch": f"{update}, in place of micro-batches of {self.start.samples}",
            "stages": f"{variant.stages} stages, one an IPU, with {update}",
            "state": f"{STATE_OFF_CHIP}, with {update}",
            "proportion": words_of_proportion(variant.proportion),
        }
        return words.get(name, name)

    # Moves.

    def _moves(self) -> Moves[Variant]:
        found = dict(half_moves(self.report))
        if self.report.memory.optimizer:
            found["state"] = self._offloaded
        if tight_moves(self.report):
            found["proportion"] = changing(proportion=TIGHT)
        if self.pieces is not None:
            found["micro-batch"] = _with_smaller_batches
            found["recomputation"] = changing(recompute=True)
            found["stages"] = self._with_more_stages
        return found

    def _offloaded(self, variant: Variant) -> Variant | None:
        """The state off the chip, and so many steps an update that moving it costs little."""
        if not variant.state:
            return None
        read = self._read(variant.halved, variant.proportion)
        seconds = _moving(read.memory) / self.report.system.streaming_bytes_per_second
        wanted = programs.power_of_2(math.ceil(seconds / (_MOVING * read.step_seconds)))
        return dataclasses.replace(variant, state=0.0, steps=max(2, variant.steps, min(wanted, 1024)))

    def _with_more_stages(self, variant: Variant) -> Variant | None:
        assert self.pieces is not None
        count = programs.power_of_2(variant.stages + 1)
        most = min(MOST_STAGES, self.report.system.ipus, len(self.pieces.costs))
        return dataclasses.replace(variant, stages=count) if count <= most else None

    # What a variant comes to.

    def _is_cut(self, variant: Variant) -> bool:
        """Whether it takes other stages than the report's."""
        return (variant.stages, variant.recompute) != (self.start.stages, self.start.recompute)

    def _read(self, halved: bool, proportion: float | None) -> Report:
        changes = Variant(halved=halved, proportion=proportion).reading()
        if not changes:
            return self.report
        assert self.report.again is not None
        return self.report.again(**changes)

    def _costs(self, variant: Variant) -> list[StageCost]:
        """What the pieces take, of micro-batches of this size."""
        assert self.pieces is not None
        scale = variant.samples / self.start.samples
        found = []
        for cost in self._read_pieces(variant.halved, variant.proportion):
            given = {name: scale * getattr(cost, name) for name in _SCALED}
            given["temporary_bytes"] = max(given["temporary_bytes"], min(cost.temporary_bytes, cost.weight_bytes))
            if not variant.state:
                given.update(state_bytes=0.0, off_chip_bytes=cost.state_bytes + cost.off_chip_bytes)
            backward = None if cost.backward is None else scale * cost.backward
            found.append(dataclasses.replace(cost, backward=backward, **given))
        return found

    def _read_pieces(self, halved: bool, proportion: float | None) -> Sequence[StageCost]:
        assert self.pieces is not None
        if not halved and proportion is None:
            return self.pieces.costs
        assert self.pieces.read is not None
        return self.pieces.read(halved, proportion)

    def _cut(self, variant: Variant) -> tuple[tuple[int, ...], pipelining.PlanCost]:
        """Returns the stage of each piece, and the cost of the plan of these stages; a schedule may refuse them."""
        costs, system, steps = self._costs(variant), self.report.system, variant.steps
        if variant.stages == 1:
            return recomputed(costs, max(steps, 1), system)
        given = steps if self.start.stages > 1 or (steps and steps % (2 * variant.stages) == 0) else None
        found = pipelining.balance(costs, variant.stages, system, micro_batches=given, recompute=variant.recompute)
        return found.stages, found.cost

    def _cut_if_possible(self, variant: Variant) -> tuple[tuple[int, ...], pipelining.PlanCost] | None:
        try:
            return self._cut(variant)
        except Exception:  # TensorFlow's too, where a schedule takes other multiples.
            return None

    def _effect(self, variant: Variant, excess: float = 1.0) -> Effect | None:
        read = self._read(variant.halved, variant.proportion)
        scale = variant.samples / self.start.samples
        before = self.report.step_seconds / self.start.samples
        if variant == dataclasses.replace(self.start, halved=variant.halved, proportion=variant.proportion):
            return Effect(before * variant.samples / read.step_seconds, read.memory, variant.stages)
        if not self._is_cut(variant):
            memory = self._scaled(read.memory, variant, scale)
            moved = _moving(read.memory) / self.report.system.streaming_bytes_per_second if not variant.state else 0.0
            seconds = scale * read.step_seconds + moved / variant.steps
            return Effect(before * variant.samples / seconds, _enlarged(memory, excess), variant.stages)
        cut = self._cut_if_possible(variant)
        if cut is None:
            return None
        _, cost = cut
        host = scale * read.part_seconds("host") / read.steps
        step = cost.time_per_micro_batch
        if variant.stages == 1:
            one = joined(self._costs(variant))
            once = one.forward + (one.backward or 0.0) + one.update / cost.plan.micro_batches
            step += scale * read.step_seconds - host - once  # What is not of layers.
        seconds = max(step, host) if self.report.overlaps_host else step + host
        pieces = self._read_pieces(variant.halved, variant.proportion)
        memories = [plan_memory(read.memory, pieces, self.start.stages, ipu) for ipu in cost.ipus]
        fullest = _enlarged(max(memories, key=lambda one: one.high), excess)
        return Effect(before * variant.samples / seconds, fullest, programs.power_of_2(variant.stages))

    def _scaled(self, memory: Memory, variant: Variant, scale: float) -> Memory:
        """The memory of the report's own stages, of micro-batches of another size, where gradients may accumulate."""
        activations = 0.0
        if self.pieces is not None:
            activations = sum(cost.activation_bytes for cost in self._read_pieces(variant.halved, variant.proportion))
        sums = memory.variables if variant.steps > 1 and self.start.steps == 1 else 0
        return dataclasses.replace(
            memory,
            data=round(memory.data - (1 - scale) * min(memory.data, activations)),
            stash=round(scale * memory.stash),
            accumulators=memory.accumulators + sums,
            optimizer=round(variant.state * memory.optimizer),
        )

    def _layout(self, variant: Variant) -> Layout:
        cut = self._cut_if_possible(variant) if self._is_cut(variant) else None
        if cut is None or self.pieces is None or self.pieces.assigned is None:
            return Layout(variant, (), variant.steps, self._pipelined, self._kept)
        stages = tuple(each.pipeline_stage for each in self.pieces.assigned(cut[0]))
        return Layout(variant, stages, cut[1].plan.micro_batches, True, self._kept if self._pipelined else {})


def _with_smaller_batches(variant: Variant) -> Variant | None:
    if variant.samples % 2:
        return None
    return dataclasses.replace(variant, samples=variant.samples // 2, steps=2 * variant.steps)


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
