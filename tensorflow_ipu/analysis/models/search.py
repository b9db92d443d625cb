"""The search for changes of a Keras model: the effect of each change, and code that makes them."""

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
    text_of_proportion,
    tight_moves,
)
from tensorflow_ipu.analysis.pipelines.comparison import Pieces, joined
from tensorflow_ipu.keras.options.options import typed
from tensorflow_ipu.pipelining import RecomputationMode, StageCost

_logger = logging.getLogger(__name__)

MOST_STAGES = 64
# The time that moving the optimizer's slots may cost, as a share of the time of an update.
_MOVING = 0.1
_TRIES = 3
_OPTION = "`gradient_accumulation_steps_per_replica`"
_SCALED = ("forward", "activation_bytes", "input_bytes", "temporary_bytes")


@dataclasses.dataclass(frozen=True)
class Layout:
    """The options for tracing a variant.

    Attributes:
      variant: The variant.
      stages: The stage of each layer; empty if the model is not cut into other stages.
      steps: The micro-batches of an update.
      pipelined: Whether the variant is a pipeline.
      kept: The present options of the model's pipeline or gradient accumulation, which the variant keeps.
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
        """Returns the options of pipelining, or of accumulation if the variant is not a pipeline."""
        options: dict[str, object] = {**self.kept, "gradient_accumulation_steps_per_replica": self.steps}
        if self.stages:
            for name in ("device_mapping", "pipeline_schedule"):  # The present values are for other stages.
                options.pop(name, None)
            mode = RecomputationMode.RecomputeThenBackpropagate if self.variant.recompute else None
            if self.variant.stages == 1:
                options["device_mapping"] = [0] * (max(self.stages) + 1)
                options["pipeline_schedule"] = pipelining.PipelineSchedule.Sequential
                mode = RecomputationMode.RecomputeAndBackpropagateInterleaved
            options["recomputation_mode"] = mode
        if not self.variant.state:
            options["offload_weight_update_variables"] = True
        return options

    def code(self) -> Iterator[str]:
        """Yields lines of code to paste, before the strategy is created and after `model.compile`."""
        variant = self.variant
        if variant.halved:
            yield "# Before the model is created:"
            yield 'tf.keras.mixed_precision.set_global_policy("float16")'
        select_ipus = f"config.auto_select_ipus = {self.ipus}  # Multiplied by the number of replicas."
        lines = configuration(variant.proportion, *([select_ipus] if self.ipus > 1 else []))
        if lines:
            yield from ("# Before the strategy is created:", *lines)
        if self.steps == 1 and not self.pipelined:
            return
        yield f"# After `model.compile`. `fit` then takes batches of {variant.samples}:"
        yield f"model.steps_per_execution = {self.steps}  # Or a multiple of it."
        if self.stages:
            yield "assignment = model.get_pipeline_stage_assignment()"
            yield f"for layer, stage in zip(assignment, {list(self.stages)}):"
            yield "    layer.pipeline_stage = stage"
            yield "model.set_pipeline_stage_assignment(assignment)"
        yield f"model.set_{'pipelining' if self.pipelined else 'gradient_accumulation'}_options("
        for name, value in self.options().items():
            is_enum = isinstance(value, RecomputationMode | pipelining.PipelineSchedule)
            yield f"    {name}={'ipu.pipelining.' if is_enum else ''}{typed(value)},"
        yield ")"


class ModelSearch:
    """The search for changes of a model.

    The search needs the model's report, and functions that trace the model with other options. A trace takes long. So
    the search traces the model once, cut into pieces, and predicts other stages from the costs of the pieces. Only the
    final recipe is traced again, to check the prediction.

    Args:
      report: The report on the model without changes.
      start: The variant without changes: the model's micro-batch, steps and stages.
      training: Whether the report is on training.
      cut: Returns the pieces of the model.
      rescaled: Returns the report for a multiple of the micro-batch, and a number of micro-batches an update.
      traced: Returns the report for a layout.
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
        # The search evaluates the same variants repeatedly.
        self._read = functools.cache(self._read)
        self._read_pieces = functools.cache(self._read_pieces)
        self._cut = functools.cache(self._cut)

    def advice(self, retrace: bool) -> Iterator[Suggestion | NotAsked | Recipe]:
        """Yields the effects of other micro-batches, recomputation and stages, and a recipe if the model needs one."""
        if not retrace:
            text = "other micro-batches" + (", recomputation, more stages" if self._training else "")
            yield NotAsked(text, "the model must be traced again: call `report.advice(retrace=True)`")
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

    # Single changes.

    def _micro_batches(self) -> Suggestion | NotAsked:
        """Returns the effect of a micro-batch of half the size, or of twice the size if the model fits.

        An update still has the same number of samples.
        """
        size, steps = self.start.samples, self.start.steps
        samples, count = (2 * size, max(1, steps // 2)) if self.report.fits else (size // 2, 2 * steps)
        text = f"micro-batches of {samples} in place of {size}"
        if not samples or (samples < size and size % 2):
            return NotAsked(text, f"a micro-batch of {size} cannot be halved")
        memory = self.report.memory
        if samples < size and memory.always > memory.capacity:
            return NotAsked(text, "variables and other permanent data alone exceed the memory")
        if self._training and count != steps:
            text += f", and {_OPTION} of {count}"
        try:
            report = self._rescaled(samples / size, count if self._training else steps)
        except Exception as exc:  # Also TensorFlow's errors: a schedule may reject the number of micro-batches.
            return NotAsked(text, str(exc).splitlines()[0])
        return machine.changed(text, self.report, report, samples / size)

    def _recomputation(self) -> Iterator[Suggestion]:
        """Yields the effect of a pipeline with all stages on one IPU, each recomputed before its backward pass."""
        variant = dataclasses.replace(self.start, recompute=True)
        effect = self._effect(variant)
        if effect is not None:
            count = max(self._cut(variant)[0]) + 1
            yield effect.as_suggestion(
                f"recomputation: {count} stages, all on IPU 0 (`device_mapping=[0] * {count}`,"
                " `PipelineSchedule.Sequential`, `RecomputationMode.RecomputeAndBackpropagateInterleaved`)"
            )

    def _more_stages(self) -> Iterator[Suggestion | NotAsked]:
        """Yields the effects of more stages: each larger power of 2 until the model fits."""
        assert self.pieces is not None
        count, pieces = self.start.stages, len(self.pieces.costs)
        verdict = ""
        while verdict != FITS and count < MOST_STAGES:
            count = programs.power_of_2(count + 1)
            text = f"{count} stages, one an IPU, as `pipelining.balance` cuts them"
            if pieces < count:
                yield NotAsked(text, f"the model has only {pieces} layers")
                return
            steps = self.start.steps if self.start.stages > 1 else 0
            variant = dataclasses.replace(self.start, stages=count, steps=steps, recompute=None)
            try:
                plan = self._cut(variant)[1].plan
            except Exception as exc:  # Also TensorFlow's errors: a schedule may reject the number of micro-batches.
                yield NotAsked(text, str(exc).splitlines()[0])
                return
            if plan.recomputation is not None:
                text += " with recomputation"
            text += f" ({plan.micro_batches} micro-batches; a replica then has {count} IPUs)"
            effect = self._effect(variant)
            assert effect is not None
            verdict = effect.memory.verdict
            yield effect.as_suggestion(text)

    # Combined changes.

    def recipe(self, retrace: bool) -> Recipe | None:
        """Returns a combination of changes that makes the model fit, or nearly fit; None if no change helps.

        The search predicts the memory from the pieces of the model. With `retrace`, the model is then traced once with
        all changes. If it takes more memory than predicted and does not fit, the search starts again, with predictions
        enlarged by the same factor (`excess`). It does so `_TRIES` times at most.
        """
        excess, tries = 1.0, 0
        while True:
            tries += 1
            moves = searched(self.start, self._moves(), functools.partial(self._effect, excess=excess))
            if not moves:
                return None
            last = moves[-1][1]
            layout = self._layout(last)
            effects = [(self._text(name, variant), self._effect(variant, excess)) for name, variant in moves]
            steps = [effect.as_suggestion(text) for text, effect in effects if effect is not None]
            memory = next(effect.memory for _, effect in reversed(effects) if effect is not None)
            traced = self._traced_as(layout) if retrace else None
            if traced is None:
                break
            seconds = traced.step_seconds / last.samples
            speed = self.report.step_seconds / self.start.samples / seconds
            steps.append(Effect(speed, traced.memory).as_suggestion("all of them, traced as one program"))
            if traced.fits or memory.verdict != FITS or tries == _TRIES:
                memory = traced.memory
                break
            excess *= traced.memory.high / memory.high
        shortage = "" if memory.verdict == FITS else self._shortage(memory, layout, retrace)
        return Recipe(tuple(steps), "\n".join(layout.code()), traced is not None, shortage)

    def _traced_as(self, layout: Layout) -> Report | None:
        try:
            return self._traced(layout)
        except Exception as exc:  # Also TensorFlow's errors: options of the model may exclude each other.
            _logger.warning(
                "the model could not be traced with all changes of the recipe: %s", str(exc).splitlines()[0]
            )
            return None

    def _shortage(self, memory: Memory, layout: Layout, retrace: bool) -> str:
        """Returns a sentence about the parts of the model that do not fit, and what would make them fit."""
        text = left_over(memory, layout.ipus)
        if self.pieces is None and retrace:
            return f"{text}; the model cannot be cut into stages"
        if self.pieces is None:
            return f"{text}. `report.advice(retrace=True)` also tries other micro-batches, recomputation and stages"
        variant = layout.variant
        for name, cost in zip(self.pieces.names, self._costs(variant), strict=True):
            size = cost.weight_bytes + cost.sum_bytes + cost.state_bytes + cost.input_bytes + cost.temporary_bytes
            if size > memory.capacity:
                share = f"{size / memory.capacity:.0%}"
                return (
                    f"{text}; the layer `{name}` takes {share} of an IPU, so more stages do not help: divide the layer"
                )
        return f"{text}; {self._needed_ipus(variant)}"

    def _needed_ipus(self, variant: Variant) -> str:
        """Returns a phrase with the number of IPUs that would suffice, up to the number of layers."""
        assert self.pieces is not None
        stages = programs.power_of_2(variant.stages + 1)
        while stages <= len(self.pieces.costs):
            effect = self._effect(dataclasses.replace(variant, stages=stages, recompute=True))
            if effect is not None and effect.memory.verdict == FITS:
                return f"{stages} IPUs would suffice, and the machine has {self.report.system.ipus}"
            stages *= 2
        layers = len(self.pieces.costs)
        return f"the model has only {layers} layers for stages: smaller layers could be divided among more IPUs"

    def _text(self, name: str, variant: Variant) -> str:
        update = f"{self._layout(variant).steps} micro-batches of {variant.samples} an update"
        texts = {
            "micro-batch": f"{update}, in place of micro-batches of {self.start.samples}",
            "stages": f"{variant.stages} stages, one an IPU, with {update}",
            "state": f"{STATE_OFF_CHIP}, with {update}",
            "proportion": text_of_proportion(variant.proportion),
        }
        return texts.get(name, name)

    # Moves.

    def _moves(self) -> Moves[Variant]:
        moves = dict(half_moves(self.report))
        if self.report.memory.optimizer:
            moves["state"] = self._offloaded
        if tight_moves(self.report):
            moves["proportion"] = changing(proportion=TIGHT)
        if self.pieces is not None:
            moves["micro-batch"] = _with_smaller_batches
            moves["recomputation"] = changing(recompute=True)
            moves["stages"] = self._with_more_stages
        return moves

    def _offloaded(self, variant: Variant) -> Variant | None:
        """Returns the variant with slots off the chip, and so many steps an update that moving them costs little."""
        if not variant.state:
            return None
        report = self._read(variant.halved, variant.proportion)
        seconds = _moved_bytes(report.memory) / self.report.system.streaming_bytes_per_second
        steps = programs.power_of_2(math.ceil(seconds / (_MOVING * report.step_seconds)))
        return dataclasses.replace(variant, state=0.0, steps=max(2, variant.steps, min(steps, 1024)))

    def _with_more_stages(self, variant: Variant) -> Variant | None:
        assert self.pieces is not None
        count = programs.power_of_2(variant.stages + 1)
        limit = min(MOST_STAGES, self.report.system.ipus, len(self.pieces.costs))
        return dataclasses.replace(variant, stages=count) if count <= limit else None

    # Evaluation of variants.

    def _is_cut(self, variant: Variant) -> bool:
        """Returns True if a variant has other stages than the report."""
        return (variant.stages, variant.recompute) != (self.start.stages, self.start.recompute)

    def _read(self, halved: bool, proportion: float | None) -> Report:
        changes = Variant(halved=halved, proportion=proportion).reading()
        if not changes:
            return self.report
        assert self.report.again is not None
        return self.report.again(**changes)

    def _costs(self, variant: Variant) -> list[StageCost]:
        """Returns the costs of the pieces for a variant's micro-batches."""
        assert self.pieces is not None
        scale = variant.samples / self.start.samples
        costs = []
        for cost in self._read_pieces(variant.halved, variant.proportion):
            changes = {name: scale * getattr(cost, name) for name in _SCALED}
            changes["temporary_bytes"] = max(changes["temporary_bytes"], min(cost.temporary_bytes, cost.weight_bytes))
            if not variant.state:
                changes.update(state_bytes=0.0, off_chip_bytes=cost.state_bytes + cost.off_chip_bytes)
            backward = None if cost.backward is None else scale * cost.backward
            costs.append(dataclasses.replace(cost, backward=backward, **changes))
        return costs

    def _read_pieces(self, halved: bool, proportion: float | None) -> Sequence[StageCost]:
        assert self.pieces is not None
        if not halved and proportion is None:
            return self.pieces.costs
        assert self.pieces.read is not None
        return self.pieces.read(halved, proportion)

    def _cut(self, variant: Variant) -> tuple[tuple[int, ...], pipelining.PlanCost]:
        """Returns the stage of each piece, and the cost of the plan of these stages. A schedule may reject them."""
        costs, system, steps = self._costs(variant), self.report.system, variant.steps
        if variant.stages == 1:
            return recomputed(costs, max(steps, 1), system)
        count = steps if self.start.stages > 1 or (steps and steps % (2 * variant.stages) == 0) else None
        balance = pipelining.balance(costs, variant.stages, system, micro_batches=count, recompute=variant.recompute)
        return balance.stages, balance.cost

    def _cut_if_possible(self, variant: Variant) -> tuple[tuple[int, ...], pipelining.PlanCost] | None:
        try:
            return self._cut(variant)
        except Exception:  # Also TensorFlow's errors: a schedule may reject the number of micro-batches.
            return None

    def _effect(self, variant: Variant, excess: float = 1.0) -> Effect | None:
        """Returns the predicted effect of a variant, with its memory multiplied by `excess`; None if it is impossible.

        There are three cases, and none of them traces the model:

        1. Only float16 or the proportion changes: the program is read again, which is exact.
        2. The stages stay: the report's time and activations scale with the micro-batch.
        3. The stages change: a plan of the scaled pieces gives the time and memory. With one stage, the time of the
           program outside the pieces, such as the loss, is added.
        """
        report = self._read(variant.halved, variant.proportion)
        scale = variant.samples / self.start.samples
        before = self.report.step_seconds / self.start.samples
        if variant == dataclasses.replace(self.start, halved=variant.halved, proportion=variant.proportion):
            return Effect(before * variant.samples / report.step_seconds, report.memory, variant.stages)
        if not self._is_cut(variant):
            memory = self._scaled(report.memory, variant, scale)
            moving = 0.0
            if not variant.state:
                moving = _moved_bytes(report.memory) / self.report.system.streaming_bytes_per_second
            seconds = scale * report.step_seconds + moving / variant.steps
            return Effect(before * variant.samples / seconds, _enlarged(memory, excess), variant.stages)
        cut = self._cut_if_possible(variant)
        if cut is None:
            return None
        _, cost = cut
        host = scale * report.part_seconds("host") / report.steps
        step = cost.time_per_micro_batch
        if variant.stages == 1:
            layers = joined(self._costs(variant))
            layer_seconds = layers.forward + (layers.backward or 0.0) + layers.update / cost.plan.micro_batches
            step += scale * report.step_seconds - host - layer_seconds
        seconds = max(step, host) if self.report.overlaps_host else step + host
        pieces = self._read_pieces(variant.halved, variant.proportion)
        memories = [plan_memory(report.memory, pieces, self.start.stages, ipu) for ipu in cost.ipus]
        fullest = _enlarged(max(memories, key=lambda memory: memory.high), excess)
        return Effect(before * variant.samples / seconds, fullest, programs.power_of_2(variant.stages))

    def _scaled(self, memory: Memory, variant: Variant, scale: float) -> Memory:
        """Returns the memory for a variant with the report's stages and another micro-batch or number of steps."""
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
        stages = tuple(assignment.pipeline_stage for assignment in self.pieces.assigned(cut[0]))
        return Layout(variant, stages, cut[1].plan.micro_batches, True, self._kept if self._pipelined else {})


def _with_smaller_batches(variant: Variant) -> Variant | None:
    if variant.samples % 2:
        return None
    return dataclasses.replace(variant, samples=variant.samples // 2, steps=2 * variant.steps)


def _moved_bytes(memory: Memory) -> int:
    """Returns the bytes that an update moves if the optimizer's slots are off the chip."""
    return 2 * memory.optimizer


def _enlarged(memory: Memory, excess: float) -> Memory:
    """Returns a memory whose total is `excess` times as large, with the difference in `data`."""
    added = round((excess - 1) * memory.high)
    return dataclasses.replace(memory, data=max(0, memory.data + added)) if added else memory


def recomputed(
    costs: Sequence[StageCost], steps: int, system: machine.System
) -> tuple[tuple[int, ...], pipelining.PlanCost]:
    """Returns the stage of each piece, and the cost of the plan, for stages on one IPU that all recompute."""
    count = min(len(costs), max(2, round(math.sqrt(len(costs)))))
    cuts = pipelining.balance(list(costs), count, system, recompute=True)
    mode, schedule = RecomputationMode.RecomputeAndBackpropagateInterleaved, pipelining.PipelineSchedule.Sequential
    plan = pipelining.pipeline_plan(count, steps, schedule, device_mapping=[0] * count, recomputation_mode=mode)
    return cuts.stages, pipelining.plan_cost(plan, cuts.costs, machine=system)


def plan_memory(memory: Memory, pieces: Sequence[StageCost], stages: int, ipu: pipelining.IpuCost) -> Memory:
    """Returns the memory of an IPU by a plan.

    A program with one stage needs less data than its pieces do in sum. The data of the plan are scaled down
    accordingly.
    """
    data = ipu.stash_bytes + ipu.link_bytes + ipu.temporary_bytes
    if stages == 1:
        total = joined(pieces)
        data *= memory.data / (total.activation_bytes + total.temporary_bytes or 1.0)
    return Memory(
        variables=round(ipu.weight_bytes),
        constants=memory.constants,
        data=round(data),
        code_low=memory.code_low,
        code_high=memory.code_high,
        capacity=memory.capacity,
        feeds=memory.feeds,
    )
