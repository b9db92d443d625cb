"""The stages of a pipeline: traced, and where it trains, split into what runs forward and what runs backward."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu._base import progress
from tensorflow_ipu.feeds import infeed
from tensorflow_ipu.pipelining.schedule.plan_arguments import ALL_IPUS
from tensorflow_ipu.pipelining.stages.part import Place, StagePart, split_outputs, trace_stage
from tensorflow_ipu.pipelining.stages.tracing import as_arguments, flat_tensors, spec_of
from tensorflow_ipu.pipelining.weight_update import Accumulation, OptimizerFunctionOutput, Training, WeightUpdate

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Nested
    from tensorflow_ipu.pipelining.options import Arguments
    from tensorflow_ipu.pipelining.program.layout import Footprint
    from tensorflow_ipu.pipelining.schedule.plan import Plan


@dataclass(frozen=True)
class _Loss:
    """What the optimizer function returned, once it was traced."""

    found: list[OptimizerFunctionOutput]
    function: Callable[..., OptimizerFunctionOutput]

    def __call__(self, *outputs: tf.Tensor) -> tf.Tensor:
        output = self.function(*outputs)
        if not isinstance(output, OptimizerFunctionOutput):
            raise TypeError(f"`optimizer_function` must return an `OptimizerFunctionOutput`, but returns {output!r}")
        self.found.append(output)
        return output.differentiated()


class Parts(dict[Place, StagePart]):
    """The stages of a pipeline as functions, by stage and part: what lives as long as the program."""

    weight_update: WeightUpdate | None = None
    footprint: Footprint | None = None


class Model:
    """The stages of a pipeline, traced, and split in two where it trains."""

    def __init__(self, arguments: Arguments, plan: Plan) -> None:
        """Traces the stages."""
        self._plan = plan
        self._loss: _Loss | None = (
            None if arguments.optimizer_function is None else _Loss([], arguments.optimizer_function)
        )
        self.parts = Parts()
        with progress.of("tracing stages", plan.stages) as work:
            self._trace(arguments, work)
        last = self._plan.stages - 1
        # Where the loss is computed: in the last stage, or after its parts.
        self._loss_part = self.parts[last, self._plan.parts(last)[0][0]]
        _check_shared(self.parts.values())
        self.training: Training | None = None
        self.head: StagePart | None = None
        if self._loss is not None:
            alone = len(self._plan.parts(last)) == 1
            head = None if alone else self._trace_head()
            stages = [*self.parts.values(), *([] if head is None else [head])]
            self.training = Training(self._loss.found[-1], stages)
            if head is not None:
                self._differentiate_head(head, self.training)
            with progress.of("differentiating stages", plan.stages) as work:
                self._differentiate(self.training, work)

    def _trace(self, arguments: Arguments, work: progress.Work) -> None:
        positional: list[Nested] = []
        named: dict[str, Nested] = {}
        inputs = arguments.inputs
        inputs = () if inputs is None else inputs if isinstance(inputs, (list, tuple)) else (inputs,)
        constants = [tf.nest.map_structure(tf.convert_to_tensor, each) for each in inputs]
        if arguments.infeed is not None:
            positional, named = infeed.specs(arguments.infeed)
        given = arguments.device_mapping or arguments.mapping
        last = len(arguments.stages) - 1
        source = "the `inputs`, and an element of the infeed"
        for stage, functions in enumerate(work.counting(arguments.stages)):
            places = self._plan.parts(stage)
            for (part, ipu), function in zip(places, functions, strict=True):
                self.parts[stage, part] = trace_stage(
                    function,
                    f"stage {stage}" if part is None else f"stage {stage}.{part}",
                    ALL_IPUS if given[stage] == ALL_IPUS else ipu,
                    constants=constants,
                    positional=positional,
                    named={key: named[key] for key in sorted(named)},
                    source=source,
                    loss_of=self._loss if stage == last and len(functions) == 1 else None,
                )
            constants = []
            positional, named = self._handed_on(stage)
            source = f"what stage {stage} returned"

    def _handed_on(self, stage: int) -> tuple[list[Nested], dict[str, Nested]]:
        """What a stage returns, as the arguments of the next one."""
        parts = [self.parts[stage, part] for part, _ in self._plan.parts(stage)]
        each = [as_arguments(part.outputs) for part in parts]
        if len(each) == 1:
            return each[0]
        for part, (_, named) in zip(parts, each, strict=True):
            if named:
                raise ValueError(
                    f"{part.name} of the pipeline returns a dict; what concurrent stages return is concatenated, so"
                    " return tensors"
                )
        return [one for positional, _ in each for one in positional], {}

    def _differentiate(self, training: Training, work: progress.Work) -> None:
        assigned = {id(handle) for part in self.parts.values() for handle in part.assigned()}
        last = self._plan.stages - 1
        wanted = [] if self.head is None else self.head.input_gradients
        for stage in work.counting(reversed(range(self._plan.stages))):
            parts = [(part, self.parts[stage, part]) for part, _ in self._plan.parts(stage)]
            begins = itertools.accumulate((len(runner.output_specs) for _, runner in parts[:-1]), initial=0)
            for (_, numbers), (_, runner), begin in zip(split_outputs(parts, wanted), parts, begins, strict=True):
                runner.differentiate(
                    None if stage == last and self.head is None else [number - begin for number in numbers],
                    training.variables,
                    assigned,
                    training.mapped,
                    training.captured,
                    of_inputs=stage > 0,
                    recompute=self._plan.recomputation is not None and stage < last,
                    loss=self._loss_part,
                )
            wanted = sorted({number for _, runner in parts for number in runner.input_gradients})
        carried = (tensor for runner in self.parts.values() for tensor in runner.carried)
        self._loss_part.hand_back(list({id(tensor): tensor for tensor in carried}.values()))

    def _trace_head(self) -> StagePart:
        """The loss of a last stage of several parts: a stage after them, as it needs the outputs of all."""
        positional, _ = self._handed_on(self._plan.stages - 1)
        ipu = self._plan.mapping[-1][0]
        return trace_stage(lambda *outputs: outputs, "the loss", ipu, positional=positional, loss_of=self._loss)

    def _differentiate_head(self, head: StagePart, training: Training) -> None:
        head.differentiate(None, training.variables, (), training.mapped, dict, of_inputs=True, recompute=False)
        if head.variables:
            raise ValueError(
                f"`optimizer_function` uses the variable `{head.variables[0].name}`, and the last stage has several parts,"
                " of which none is its owner: use it in a stage, and return what the loss needs of it"
            )
        self._loss_part = self.head = head

    def outputs(self) -> Nested:
        """What the last stage returns: its structure as specs, for a stage of parts the list of all their outputs."""
        places = self._plan.parts(self._plan.stages - 1)
        last = [self.parts[self._plan.stages - 1, part] for part, _ in places]
        return last[0].outputs if len(last) == 1 else [one for each in last for one in flat_tensors(each.outputs)]

    def loss_spec(self) -> tf.TensorSpec | None:
        """The loss."""
        return None if self._loss_part.loss is None else spec_of(self._loss_part.loss)

    def update(self, training: Training, accumulation: Accumulation) -> WeightUpdate:
        """Traces the update of the weights, and has the last stage keep what the optimizer uses of it."""
        variables = [variable for runner in self.parts.values() for variable in runner.variables]

        def apply(gradients: Sequence[tf.Tensor]) -> None:
            training.update(list(zip(gradients, variables, strict=True)))

        assert self._loss is not None
        training.prepare(self._loss.function, self._loss_part.graph)
        update = WeightUpdate(apply, accumulation.specs(variables), self._loss_part)
        self._loss_part.handed = update.handed
        return update


def _check_shared(parts: Iterable[StagePart]) -> None:
    """Refuses a variable that stages of different IPUs use."""
    users: dict[int, StagePart] = {}
    for part in parts:
        if part.ipu == ALL_IPUS:
            continue
        for variable in part.used_variables:
            other = users.setdefault(id(variable.handle), part)
            if other.ipu != part.ipu:
                raise ValueError(
                    f"{other.name} on IPU {other.ipu} and {part.name} on IPU {part.ipu} both use the variable"
                    f" `{variable.name}`: an input can only be used by pipeline stages on the same IPU. Map the stages to"
                    " one IPU with `device_mapping`, or use it in one stage and hand its value on"
                )
