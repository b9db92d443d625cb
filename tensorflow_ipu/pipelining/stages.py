"""All stages of a pipeline: traced, differentiated where it trains, and what they pass to each other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import tensorflow as tf

from tensorflow_ipu._base import progress
from tensorflow_ipu.feeds import infeed
from tensorflow_ipu.pipelining.schedule.plan_arguments import ALL_IPUS
from tensorflow_ipu.pipelining.stage_graphs import spec_of
from tensorflow_ipu.pipelining.traced_stage import Place, TracedStage, as_arguments, trace_stage
from tensorflow_ipu.pipelining.weight_update import Accumulation, OptimizerFunctionOutput, Training, WeightUpdate

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Nested
    from tensorflow_ipu.pipelining.options import Arguments
    from tensorflow_ipu.pipelining.schedule.plan import Buffer, Plan

T = TypeVar("T")
OfStages = tuple[T | tuple[T, ...], ...]  # By stage; of each part if it has several.


@dataclass(frozen=True)
class Footprint:
    """What a program keeps in memory: bytes, and the accumulators of each part."""

    buffers: Mapping[Buffer, int]
    accumulators: Mapping[Place, list[tf.TensorSpec]]
    state: int
    element: int
    result: int
    once: bool

    def scaled(self, share: float) -> Footprint:
        """Returns the footprint with so many times the bytes."""
        return replace(
            self,
            buffers={buffer: round(share * size) for buffer, size in self.buffers.items()},
            state=round(share * self.state),
            element=round(share * self.element),
            result=round(share * self.result),
        )


class Stages(dict[Place, TracedStage]):
    """The stages of a pipeline by number and part: what lives as long as the program."""

    def __init__(self, arguments: Arguments, plan: Plan) -> None:
        """Traces the stages, and differentiates them if there is an optimizer function."""
        super().__init__()
        self.plan = plan
        self.training: Training | None = None
        self.head: TracedStage | None = None  # The loss of a last stage of several parts.
        self.weight_update: WeightUpdate | None = None
        self.footprint: Footprint | None = None
        self._last = plan.stages - 1
        loss = None if arguments.optimizer_function is None else _Loss(arguments.optimizer_function)
        with progress.of("tracing stages", plan.stages) as work:
            self._trace(arguments, loss, work)
        _check_shared(self.values())
        self._loss_stage = self.of(self._last)[0]  # Or the head.
        if loss is not None:
            self._differentiate(loss)

    def of(self, stage: int) -> list[TracedStage]:
        """Returns the parts of a stage; a plain stage has one."""
        return [self[stage, part] for part, _ in self.plan.parts(stage)]

    def _trace(self, arguments: Arguments, loss: _Loss | None, work: progress.Work) -> None:
        inputs = arguments.inputs
        inputs = () if inputs is None else inputs if isinstance(inputs, (list, tuple)) else (inputs,)
        constants = [tf.nest.map_structure(tf.convert_to_tensor, value) for value in inputs]
        positional, named = ([], {}) if arguments.infeed is None else infeed.specs(arguments.infeed)
        mapping = arguments.device_mapping or arguments.mapping
        source = "the `inputs`, and an element of the infeed"
        for stage, functions in enumerate(work.counting(arguments.stages)):
            for (part, ipu), function in zip(self.plan.parts(stage), functions, strict=True):
                self[stage, part] = trace_stage(
                    function,
                    f"stage {stage}" if part is None else f"stage {stage}.{part}",
                    ALL_IPUS if mapping[stage] == ALL_IPUS else ipu,
                    constants=constants,
                    positional=positional,
                    named={key: named[key] for key in sorted(named)},
                    source=source,
                    loss_of=loss if stage == self._last and len(functions) == 1 else None,
                )
            constants = []
            positional, named = self._handed_on(stage)
            source = f"what stage {stage} returned"

    def _handed_on(self, stage: int) -> tuple[list[Nested], dict[str, Nested]]:
        """Returns what a stage returns, as the arguments of the next one."""
        parts = self.of(stage)
        arguments = [as_arguments(part.outputs) for part in parts]
        if len(parts) == 1:
            return arguments[0]
        for part, (_, named) in zip(parts, arguments, strict=True):
            if named:
                raise ValueError(
                    f"{part.name} of the pipeline returns a dict; what concurrent stages return is concatenated, so"
                    " return tensors"
                )
        return [value for positional, _ in arguments for value in positional], {}

    def _differentiate(self, loss: _Loss) -> None:
        if len(self.of(self._last)) > 1:
            # A stage after all parts, as it needs the outputs of all.
            positional, _ = self._handed_on(self._last)
            ipu = self.plan.mapping[-1][0]
            self.head = trace_stage(lambda *outputs: outputs, "the loss", ipu, positional=positional, loss_of=loss)
        head = self.head
        assert loss.output is not None
        training = self.training = Training(loss.output, loss.function, [*self.values(), *([head] if head else [])])
        if head is not None:
            head.differentiate(None, training.variables, lambda pairs: (training.mapped(pairs)[0], {}), of_inputs=True)
            if head.variables:
                raise ValueError(
                    f"`optimizer_function` uses the variable `{head.variables[0].name}`, and the last stage has several"
                    " parts, of which none is its owner: use it in a stage, and return what the loss needs of it"
                )
            self._loss_stage = head
        changed = {id(handle) for part in self.values() for handle in part.changed_resources()}
        with progress.of("differentiating stages", self.plan.stages) as work:
            for stage in work.counting(reversed(range(self.plan.stages))):
                numbers = dict(self.output_gradients(stage))
                for part, _ in self.plan.parts(stage):
                    first, _ = self.range_of_outputs(stage, part)
                    self[stage, part].graph.changed = changed
                    self[stage, part].differentiate(
                        None if stage == self._last and head is None else [at - first for at in numbers[part]],
                        training.variables,
                        training.mapped,
                        of_inputs=stage > 0,
                        recompute=self.plan.recomputes(stage),
                        loss=self._loss_stage.graph,
                    )
        self._loss_stage.hand_back(self.carried(self._last))

    def trace_update(self, accumulation: Accumulation) -> None:
        """Traces the update of the weights; the stage of the loss then keeps what the optimizer uses of it."""
        training = self.training
        if training is None:
            return
        variables = [variable for part in self.values() for variable in part.variables]
        training.prepare(self._loss_stage.graph)
        self.weight_update = WeightUpdate(
            lambda gradients: training.update(list(zip(gradients, variables, strict=True))),
            accumulation.specs(variables),
            self._loss_stage.graph,
        )
        self._loss_stage.handed = self.weight_update.handed

    @property
    def handed(self) -> list[tf.TensorSpec]:
        """The tensors of the last micro-batch that the weight update uses."""
        return list(map(spec_of, self._loss_stage.handed))

    @property
    def outputs(self) -> Nested:
        """What the last stage returns: its structure as specs, for a stage of parts the list of all their outputs."""
        parts = self.of(self._last)
        return parts[0].outputs if len(parts) == 1 else self.output_specs(self._last)

    @property
    def loss_spec(self) -> tf.TensorSpec | None:
        loss = self._loss_stage.loss
        return None if loss is None else spec_of(loss)

    def output_specs(self, stage: int) -> list[tf.TensorSpec]:
        """Returns the outputs of all parts of a stage."""
        return [spec for part in self.of(stage) for spec in part.output_specs]

    def range_of_outputs(self, stage: int, part: int | None) -> tuple[int, int]:
        """Returns where the outputs of a part begin and end among those of its stage."""
        first = sum(len(before.output_specs) for before in self.of(stage)[: part or 0])
        return first, first + len(self[stage, part].output_specs)

    def output_gradients(self, stage: int) -> list[tuple[int | None, list[int]]]:
        """Returns for each part of a stage which outputs of the whole stage have gradients, of those that are its own."""
        after = self.of(stage + 1) if stage < self._last else [self.head] if self.head else []
        numbers = sorted({number for part in after for number in part.input_gradients})
        ranges = [(part, self.range_of_outputs(stage, part)) for part, _ in self.plan.parts(stage)]
        return [(part, [at for at in numbers if first <= at < end]) for part, (first, end) in ranges]

    def carried(self, stage: int) -> list[tf.Tensor]:
        """Returns the tensors of the last stage that a stage and those before it use. Those of the earliest come first."""
        parts = itertools.chain.from_iterable(map(self.of, range(stage + 1)))
        return list({id(tensor): tensor for part in parts for tensor in part.carried}.values())

    def figures(self, figure: Callable[[TracedStage], T]) -> OfStages[T]:
        """Returns a figure of each stage, or those of its parts if it was passed as a list."""
        return tuple(
            tuple(map(figure, self.of(stage))) if self.plan.concurrent[stage] else figure(self.of(stage)[0])
            for stage in range(self.plan.stages)
        )


class _Loss:
    """Computes the loss by the optimizer function, and keeps what that returned."""

    def __init__(self, function: Callable[..., OptimizerFunctionOutput]) -> None:
        self.function = function
        self.output: OptimizerFunctionOutput | None = None

    def __call__(self, *outputs: tf.Tensor) -> tf.Tensor:
        output = self.output = self.function(*outputs)
        if not isinstance(output, OptimizerFunctionOutput):
            raise TypeError(f"`optimizer_function` must return an `OptimizerFunctionOutput`, but returns {output!r}")
        return output.differentiated()


def _check_shared(parts: Iterable[TracedStage]) -> None:
    """Raises an error if stages of different IPUs use a variable."""
    users: dict[int, TracedStage] = {}
    for part in parts:
        for variable in () if part.ipu == ALL_IPUS else part.used_variables:
            other = users.setdefault(id(variable.handle), part)
            if other.ipu != part.ipu:
                raise ValueError(
                    f"{other.name} on IPU {other.ipu} and {part.name} on IPU {part.ipu} both use the variable"
                    f" `{variable.name}`: an input can only be used by pipeline stages on the same IPU. Map the stages to"
                    " one IPU with `device_mapping`, or use it in one stage and hand its value on"
                )
