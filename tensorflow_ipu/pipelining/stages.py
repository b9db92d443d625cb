"""All stages of a pipeline: traced, differentiated in training, with the tensors that they pass to each other."""

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
OfStages = tuple[T | tuple[T, ...], ...]  # A value of each stage, or a tuple with one of each part.


@dataclass(frozen=True)
class Footprint:
    """The memory of a pipeline's program in bytes, and the specs of the accumulators of each part."""

    buffers: Mapping[Buffer, int]
    accumulators: Mapping[Place, list[tf.TensorSpec]]
    state: int  # Of the optimizer.
    element: int  # Of the infeed.
    result: int  # An element of the outfeed.
    once: bool  # True if a pass of the pipeline enqueues once.

    def scaled(self, share: float) -> Footprint:
        """Returns the footprint with all bytes multiplied by `share`."""
        return replace(
            self,
            buffers={buffer: round(share * size) for buffer, size in self.buffers.items()},
            state=round(share * self.state),
            element=round(share * self.element),
            result=round(share * self.result),
        )


class Stages(dict[Place, TracedStage]):
    """The traced stages of a pipeline by number and part. They live as long as the program."""

    def __init__(self, arguments: Arguments, plan: Plan) -> None:
        """Traces the stages, and differentiates them if there is an optimizer function."""
        super().__init__()
        self.plan = plan
        self.training: Training | None = None
        self.head: TracedStage | None = None  # Computes the loss if the last stage has several parts.
        self.weight_update: WeightUpdate | None = None
        self.footprint: Footprint | None = None
        self._last = plan.stages - 1
        loss = None if arguments.optimizer_function is None else _Loss(arguments.optimizer_function)
        with progress.of("tracing stages", plan.stages) as work:
            self._trace(arguments, loss, work)
        _check_shared(self.values())
        self._loss_stage = self.of(self._last)[0]  # Replaced by the head if there is one.
        if loss is not None:
            self._differentiate(loss)

    def of(self, stage: int) -> list[TracedStage]:
        """Returns the parts of a stage; a stage that is not a list of functions has one."""
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
            positional, named = self._next_arguments(stage)
            source = f"what stage {stage} returned"

    def _next_arguments(self, stage: int) -> tuple[list[Nested], dict[str, Nested]]:
        """Returns the outputs of a stage as the arguments of the next one: by position, and by name."""
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
        """Differentiates the stages from the last one to the first.

        The last stage differentiates the loss. Each other stage differentiates those of its outputs whose gradients the
        next stage computes. So the next stage has to be differentiated first. Example of three stages:

            stage 2   d loss / d weights of 2, d loss / d inputs of 2 (= outputs of 1)
            stage 1   from the gradients of its outputs: those of its weights and of its inputs
            stage 0   from the gradients of its outputs: those of its weights

        Backward passes may use tensors of the last stage, for example in the `compute_gradients` of an optimizer. The
        last backward pass returns them, and backward links carry them to the other stages.
        """
        if len(self.of(self._last)) > 1:
            # The loss needs the outputs of all parts, so a further stage after them computes it.
            positional, _ = self._next_arguments(self._last)
            ipu = self.plan.mapping[-1][0]
            self.head = trace_stage(lambda *outputs: outputs, "the loss", ipu, positional=positional, loss_of=loss)
        head = self.head
        assert loss.output is not None
        training = self.training = Training(loss.output, loss.function, [*self.values(), *([head] if head else [])])
        if head is not None:
            head.differentiate(None, training.variables, lambda pairs: (training.mapped(pairs)[0], {}), of_inputs=True)
            if head.variables:
                raise ValueError(
                    f"`optimizer_function` uses the variable `{head.variables[0].name}`, but the last stage has several"
                    " parts, so no part owns it: use it in a stage, and return the values that the loss needs"
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
                        None if stage == self._last and head is None else [index - first for index in numbers[part]],
                        training.variables,
                        training.mapped,
                        of_inputs=stage > 0,
                        recompute=self.plan.recomputes(stage),
                        loss=self._loss_stage.graph,
                    )
        self._loss_stage.return_carried(self.carried(self._last))

    def trace_update(self, accumulation: Accumulation) -> None:
        """Traces the weight update. The forward pass of the loss then returns the tensors that the optimizer uses."""
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
        """The specs of the tensors of the last micro-batch that the weight update uses."""
        return list(map(spec_of, self._loss_stage.handed))

    @property
    def outputs(self) -> Nested:
        """The specs of the last stage's outputs: their structure, or the list of the outputs of all parts."""
        parts = self.of(self._last)
        return parts[0].outputs if len(parts) == 1 else self.output_specs(self._last)

    @property
    def loss_spec(self) -> tf.TensorSpec | None:
        loss = self._loss_stage.loss
        return None if loss is None else spec_of(loss)

    def output_specs(self, stage: int) -> list[tf.TensorSpec]:
        """Returns the specs of the outputs of all parts of a stage."""
        return [spec for part in self.of(stage) for spec in part.output_specs]

    def range_of_outputs(self, stage: int, part: int | None) -> tuple[int, int]:
        """Returns the begin and the end of a part's outputs in the list of all outputs of its stage."""
        first = sum(len(earlier.output_specs) for earlier in self.of(stage)[: part or 0])
        return first, first + len(self[stage, part].output_specs)

    def output_gradients(self, stage: int) -> list[tuple[int | None, list[int]]]:
        """Returns the outputs of each part that have gradients, by their indices in the list of the stage's outputs.

        Example: `[(0, [1]), (1, [2, 3])]` if parts 0 and 1 have two outputs each, and output 0 has no gradient.
        """
        users = self.of(stage + 1) if stage < self._last else [self.head] if self.head else []
        numbers = sorted({number for part in users for number in part.input_gradients})
        ranges = [(part, self.range_of_outputs(stage, part)) for part, _ in self.plan.parts(stage)]
        return [(part, [number for number in numbers if first <= number < end]) for part, (first, end) in ranges]

    def carried(self, stage: int) -> list[tf.Tensor]:
        """Returns the tensors of the last stage that the backward passes of stages 0 to `stage` use, in this order."""
        parts = itertools.chain.from_iterable(map(self.of, range(stage + 1)))
        return list({id(tensor): tensor for part in parts for tensor in part.carried}.values())

    def figures(self, figure: Callable[[TracedStage], T]) -> OfStages[T]:
        """Returns a figure of each stage, or a tuple with one of each part if the stage was passed as a list."""
        return tuple(
            tuple(map(figure, self.of(stage))) if self.plan.concurrent[stage] else figure(self.of(stage)[0])
            for stage in range(self.plan.stages)
        )


class _Loss:
    """The loss: calls the optimizer function and stores its output."""

    def __init__(self, function: Callable[..., OptimizerFunctionOutput]) -> None:
        self.function = function
        self.output: OptimizerFunctionOutput | None = None

    def __call__(self, *outputs: tf.Tensor) -> tf.Tensor:
        output = self.output = self.function(*outputs)
        if not isinstance(output, OptimizerFunctionOutput):
            raise TypeError(f"`optimizer_function` must return an `OptimizerFunctionOutput`, but returns {output!r}")
        return output.differentiated()


def _check_shared(parts: Iterable[TracedStage]) -> None:
    """Raises an error if stages on different IPUs use the same variable."""
    users: dict[int, TracedStage] = {}
    for part in parts:
        for variable in () if part.ipu == ALL_IPUS else part.used_variables:
            first_user = users.setdefault(id(variable.handle), part)
            if first_user.ipu != part.ipu:
                raise ValueError(
                    f"{first_user.name} on IPU {first_user.ipu} and {part.name} on IPU {part.ipu} both use the variable"
                    f" `{variable.name}`: an input can only be used by pipeline stages on the same IPU. Map the stages to"
                    " one IPU with `device_mapping`, or use it in one stage and pass its value to the others"
                )
