"""One part of a stage, traced: functions of tensors that run it forward, recompute and backward."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu import programs, scopes
from tensorflow_ipu._tensorflow import functions, graphs
from tensorflow_ipu._tensorflow.autograph import add_to_message, user_code
from tensorflow_ipu._tensorflow.gradients import has_gradient
from tensorflow_ipu.pipelining.stages.splitting import DerivedGraph, Sources
from tensorflow_ipu.pipelining.stages.tracing import (
    StageGraph,
    as_arguments,
    flat_tensors,
    placeholder,
    spec_of,
)
from tensorflow_ipu.programs import user_lines

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Nested, Number

_numbers = itertools.count()


class GraphFunction:
    """A graph that can be called any number of times, wherever its captured tensors can be used."""

    def __init__(self, graph: graphs.FunctionGraph, inputs: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor]) -> None:
        """Makes a function of the graph."""
        graph.inputs = [*inputs, *graph.internal_captures]
        graph.outputs = list(outputs)
        self._specs = [tf.TensorSpec(one.shape, one.dtype) for one in outputs]
        self._captured = list(graph.external_captures)
        self._function: Any = functions.of_graph(f"__ipu_{graph.name}_{next(_numbers)}", graph, called=False)

    def __call__(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The outputs for values of the inputs, in the function that is being traced."""
        return self._called([*values, *self._captured])

    def elsewhere(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The outputs, outside of the program: with zeros for those captured tensors that are there alone."""
        captured = (tf.zeros(one.shape, one.dtype) if hasattr(one, "graph") else one for one in self._captured)
        return self._called([*values, *captured])

    def _called(self, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        graphs.hold_function(tf.compat.v1.get_default_graph(), self._function)
        types = [one.dtype for one in self._specs]
        found: Any = tf.raw_ops.StatefulPartitionedCall(
            args=programs.with_states(inputs), Tout=types, f=self._function.name
        )
        for one, spec in zip(found if types else (), self._specs, strict=True):
            one.set_shape(spec.shape)
        return list(found) if types else []


Place = tuple[int, int | None]  # A stage's number, and that of one of its parts; None for a stage without parts.

# From (gradient, variable) pairs of one micro-batch to those that are accumulated.
PairsMap = Callable[[list[tuple[tf.Tensor, tf.Variable]]], Sequence[tuple[tf.Tensor | None, tf.Variable]]]


class StagePart:
    """A stage, or one of several parts of a stage that run concurrently."""

    def __init__(
        self,
        name: str,
        ipu: int,
        graph: StageGraph,
        inputs: Sequence[tf.Tensor],
        constant: Sequence[tf.Tensor | None],
        outputs: Nested,
        loss: tf.Tensor | None,
    ) -> None:
        """A part that only runs forward. `constant` has for each input its value, if all micro-batches have the same."""
        self.name = name
        self.ipu = ipu
        self.graph = graph
        self.inputs = inputs
        self.constant = constant
        self.loss = loss
        self.outputs = tf.nest.map_structure(lambda one: None if one is None else spec_of(one), outputs)
        self.output_specs = [spec_of(one) for one in flat_tensors(outputs)]
        self.stash: list[tf.TensorSpec] = []
        self.residuals: list[tf.TensorSpec] = []
        self.input_gradients: list[int] = []
        self.variables: list[tf.Variable] = []
        self.captures: dict[str, list[tf.TensorSpec]] = {}
        self.handed: list[tf.Tensor] = []
        self.carried: list[tf.Tensor] = []
        self._backward: GraphFunction | None = None
        self._backward_graph: DerivedGraph | None = None
        self._backward_results: list[tf.Tensor] = []
        self._recompute: GraphFunction | None = None
        self._results = [*flat_tensors(outputs), *([] if loss is None else [loss])]
        self._forward: GraphFunction | None = None
        self._stashed: list[tf.Tensor] = []
        self._assigned: Collection[int] = ()
        self._gradient_placeholders: list[tf.Tensor] = []

    @property
    def used_variables(self) -> list[tf.Variable]:
        """All variables that it uses, each once."""
        return distinct(self.graph.variables)

    def outside(self, tensor: tf.Tensor) -> tf.Tensor | None:
        """The tensor outside that one of the graph stands for; None for one that is the graph's own."""
        return next((outside for outside, inside in self.graph.captures if inside is tensor), None)

    def assigned(self) -> list[tf.Tensor]:
        """The resources outside that it changes, not only reads."""
        inputs = self.graph.inputs
        read_only = set(graphs.read_only_inputs(self.graph))
        changed = {id(each) for at, each in enumerate(inputs) if each.dtype == tf.resource and at not in read_only}
        return [outside for outside, inside in self.graph.captures if id(inside) in changed]

    @property
    def varying_input_specs(self) -> list[tf.TensorSpec]:
        """Those inputs that differ from micro-batch to micro-batch."""
        return [spec_of(one) for one in self.varying_inputs]

    @property
    def varying_inputs(self) -> list[tf.Tensor]:
        """The placeholders of what differs from micro-batch to micro-batch."""
        return [one for one, fixed in zip(self.inputs, self.constant, strict=True) if fixed is None]

    def forward(
        self, inputs: Sequence[tf.Tensor], micro_batch: Number
    ) -> tuple[list[tf.Tensor], tf.Tensor | None, list[tf.Tensor], list[tf.Tensor]]:
        """Runs forward."""
        counted = self.graph.used_micro_batch
        if self._forward is None:
            outputs = [*self._results, *self.handed, *self._stashed]
            takes = [*self.inputs, *([] if counted is None else [counted])]
            self._forward = GraphFunction(self.graph, takes, outputs)
        number = [] if counted is None else [tf.cast(micro_batch, tf.int32)]
        constants = [one for one in self.constant if one is not None]
        found = iter(self._forward([*constants, *inputs, *number]))
        outputs = list(itertools.islice(found, len(self.output_specs)))
        loss = None if self.loss is None else next(found)
        return outputs, loss, list(itertools.islice(found, len(self.handed))), list(found)

    def recompute(self, stash: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Computes the residuals from the stash."""
        return list(stash) if self._recompute is None else self._recompute(stash)

    def backward(
        self, residuals: Sequence[tf.Tensor], output_gradients: Sequence[tf.Tensor]
    ) -> tuple[list[tf.Tensor], list[tf.Tensor], list[tf.Tensor], list[tf.Tensor]]:
        """Runs backward."""
        backward = self._backward_function()
        if backward is None:
            return [], [], [], []
        found = iter(backward([*residuals, *output_gradients]))
        widths = (len(self.input_gradients), len(self.variables), sum(map(len, self.captures.values())))
        of_inputs, of_variables, captures = (list(itertools.islice(found, width)) for width in widths)
        return of_inputs, of_variables, captures, list(found)

    def hand_back(self, tensors: Sequence[tf.Tensor]) -> None:
        """Has the backward pass give tensors of the graph too, for the backward passes of earlier stages."""
        if not tensors:
            return
        graph = self._backward_graph
        assert graph is not None
        self._backward_results += [graph.rematerialized(one) for one in tensors]
        self._stashed = self._needed(graph)
        self.residuals = self.stash = [spec_of(one) for one in self._stashed]
        self._check_static()

    def _backward_function(self) -> GraphFunction | None:
        """The backward pass, made when it is first asked for: all that it returns is known then."""
        graph = self._backward_graph
        if self._backward is None and graph is not None:
            stashed = [placeholder for _, placeholder in graph.needed_by(self._backward_results)]
            inputs = [*stashed, *self._gradient_placeholders, *(inside for _, inside in graph.carried)]
            self._backward = GraphFunction(graph, inputs, self._backward_results)
        return self._backward

    def differentiate(
        self,
        output_gradients: Collection[int] | None,
        variables: Sequence[tf.Variable],
        assigned: Collection[int],
        pairs_map: PairsMap,
        captured: Callable[[], dict[str, list[tf.Tensor]]],
        *,
        of_inputs: bool,
        recompute: bool,
        loss: StagePart | None = None,
    ) -> None:
        """Makes the backward pass, and decides what is stashed for it."""
        self._assigned = assigned
        numbers = [-1] if output_gradients is None else sorted(output_gradients)  # The loss is the last result.
        ys = [self._results[at] for at in numbers]
        if not ys:
            return
        inside = {id(outside): inside for outside, inside in self.graph.captures}
        used = [(variable, inside[id(variable.handle)]) for variable in variables if id(variable.handle) in inside]
        inputs = [at for at, one in enumerate(self.varying_inputs) if of_inputs and has_gradient(one)]
        xs = [*(self.varying_inputs[at] for at in inputs), *(handle for _, handle in used)]
        if not xs:
            return
        sources = Sources(self, assigned)
        # What a loop within the stage leaves for its gradient is no tensor, and cannot be stashed: it is recomputed.
        for again in (False, True):
            graph = DerivedGraph(f"{self.graph.name}_backward", sources, recompute=again, loss=loss)
            grad_ys = None if output_gradients is None else [placeholder(graph, spec_of(one), "gradient") for one in ys]
            found = graph.gradients(ys, xs, grad_ys)
            if all(map(_can_be_stashed, graph.stashed)):
                break
        by_input = {at: one for at, one in zip(inputs, found[: len(inputs)], strict=True) if one is not None}
        pairs = zip(found[len(inputs) :], (variable for variable, _ in used), strict=True)
        with graph.as_default():
            pairs = pairs_map([(gradient, variable) for gradient, variable in pairs if gradient is not None])
            mapped = list(zip(graph.own(one for one, _ in pairs), (variable for _, variable in pairs), strict=True))
        self.input_gradients = sorted(by_input)
        self.variables = [variable for gradient, variable in mapped if gradient is not None]
        here = {tag: [one for one in some if one.graph is graph] for tag, some in captured().items()}
        self.captures = {tag: [spec_of(one) for one in some] for tag, some in sorted(here.items()) if some}
        results = [*(by_input[at] for at in self.input_gradients), *(one for one, _ in mapped if one is not None)]
        results += [one for tag in self.captures for one in here[tag]]
        self._gradient_placeholders = list(grad_ys or ())
        self._backward_graph, self._backward_results = graph, results
        self._stashed = self._needed(graph)
        self.residuals = [spec_of(one) for one in self._stashed]
        if recompute:
            self._make_recompute(sources, self._stashed)
        self.stash = [spec_of(one) for one in self._stashed]
        self._check_static()
        self.carried = [tensor for tensor, _ in graph.carried]

    def _needed(self, graph: DerivedGraph) -> list[tf.Tensor]:
        """What the backward pass needs of the forward pass."""
        return [tensor for tensor, _ in graph.needed_by(self._backward_results)]

    @property
    def device(self) -> str:
        """The device of its variables; empty if it has none."""
        return next((variable.device for variable in self.used_variables), "")

    def passes(self) -> dict[str, tuple[Callable[..., list[tf.Tensor]], list[tf.TensorSpec]]]:
        """What it runs, as functions of tensors without side effects that can be called outside of the program."""
        graph = DerivedGraph(f"{self.graph.name}_alone", Sources(self, self._assigned), recompute=True)
        results = [graph.rematerialized(one) for one in self._results]
        forward = GraphFunction(graph, graph.placeholders, results)
        found = {"forward": (forward, [spec_of(one) for one in graph.placeholders])}
        if self._recompute is not None:
            found["recompute"] = (self._recompute, self.stash)
        backward = self._backward_function()
        if backward is not None:
            further = [spec_of(one) for one in (*self._gradient_placeholders, *self.carried)]
            found["backward"] = (backward, [*self.residuals, *further])
        return {
            name: (lambda *values, function=function: function.elsewhere(values), specs)
            for name, (function, specs) in found.items()
        }

    def lines(self) -> dict[str, str]:
        """The user's line of each operation of the stage, by the operation's name."""
        return user_lines(self.graph)

    @property
    def activation_bytes(self) -> int:
        """The bytes that a backward pass takes of a forward pass."""
        return _bytes(self.residuals)

    @property
    def input_bytes(self) -> int:
        """The bytes of its inputs, or of what it stashes where it recomputes."""
        return _bytes(self.stash if self._recompute else [spec_of(one) for one in self.varying_inputs])

    @property
    def weight_bytes(self) -> int:
        """The bytes of its variables."""
        return _bytes([spec_of(variable) for variable in self.used_variables])

    def _make_recompute(self, sources: Sources, wanted: list[tf.Tensor]) -> None:
        graph = DerivedGraph(f"{self.graph.name}_recompute", sources, recompute=True)
        results = [graph.rematerialized(one) for one in wanted]
        self._stashed = graph.stashed
        self._recompute = GraphFunction(graph, graph.placeholders, results)

    def _check_static(self) -> None:
        for one in (*self.stash, *self.residuals):
            if not one.shape.is_fully_defined():
                raise ValueError(
                    f"{self.name} of the pipeline has a tensor of shape {one.shape} that its backward pass needs; each"
                    " tensor of a training pipeline needs a static shape. Set `drop_remainder=True` where the dataset is"
                    " batched, or state the shape with `tf.ensure_shape`"
                )


def distinct(variables: Iterable[tf.Variable]) -> list[tf.Variable]:
    """Returns variables, each once."""
    return list({id(variable.handle): variable for variable in variables}.values())


def _bytes(specs: Sequence[tf.TensorSpec]) -> int:
    return sum((one.shape.num_elements() or 0) * one.dtype.size for one in specs)


def _can_be_stashed(tensor: tf.Tensor) -> bool:
    return tensor.dtype not in (tf.variant, tf.resource) and tensor.shape.is_fully_defined()


def split_outputs(
    parts: Sequence[tuple[int | None, StagePart]], numbers: Sequence[int]
) -> list[tuple[int | None, list[int]]]:
    """Which of the numbered outputs of a stage each of its parts gives."""
    ends = itertools.accumulate((len(runner.output_specs) for _, runner in parts), initial=0)
    ranges = zip(parts, itertools.pairwise(ends), strict=True)
    return [(part, [one for one in numbers if begin <= one < end]) for (part, _), (begin, end) in ranges]


def trace_stage(
    function: Callable[..., Nested],
    name: str,
    ipu: int,
    *,
    constants: Sequence[Nested] = (),
    positional: Sequence[Nested] = (),
    named: Mapping[str, Nested] | None = None,
    loss_of: Callable[..., tf.Tensor] | None = None,
    source: str = "",
) -> StagePart:
    """Traces a stage, or a part of one; `source` says where its arguments come from."""
    graph = StageGraph(f"pipeline_{name.replace(' ', '_').replace('.', '_')}")
    body = user_code(function)

    def traced(args: Nested, by_name: Mapping[str, Nested]) -> tuple[Nested, tf.Tensor | None]:
        outputs = _without_operations(body(*args, **by_name))
        if loss_of is None:
            return outputs, None
        outputs = tf.nest.map_structure(lambda one: None if one is None else tf.convert_to_tensor(one), outputs)
        return outputs, loss_of(*as_arguments(outputs)[0])

    fixed = tf.nest.map_structure(spec_of, list(constants))
    given = f"{source}: {_described([*fixed, *positional], named or {})}"
    _check_call(function, f"{name} of the pipeline", (*constants, *positional), named or {}, given)
    with scopes.ipu_shard(ipu):
        try:
            graphs.trace_into(graph, traced, ((*fixed, *positional), dict(named or {})))
        except (TypeError, ValueError) as exc:
            if source and not isinstance(exc, tf.errors.OpError):
                add_to_message(exc, f"{name} of the pipeline was called with {given}")
            raise
    returned: Nested = graph.structured_outputs
    outputs, loss = returned
    inputs = graph.inputs[: len(graph.inputs) - len(graph.captures)]
    outside = tf.nest.flatten(list(constants))
    _check_captures(graph, name)
    constant = (*outside, *(None for _ in inputs[len(outside) :]))
    return StagePart(name, ipu, graph, inputs, constant, outputs, loss)


def _without_operations(returned: Nested) -> Nested:
    """What a function returned, less the operations: those run by themselves."""
    if isinstance(returned, tf.Operation):
        return None
    if isinstance(returned, (list, tuple)) and any(isinstance(one, tf.Operation) for one in returned):
        return type(returned)(one for one in returned if not isinstance(one, tf.Operation))
    return returned


def _check_call(
    function: Callable[..., Nested], name: str, positional: Sequence[Nested], named: Mapping[str, Nested], given: str
) -> None:
    try:
        signature = inspect.signature(getattr(function, "python_function", function))
    except (TypeError, ValueError):  # A function of C, which says nothing about itself.
        return
    try:
        signature.bind(*positional, **named)
    except TypeError as exc:
        by_name = f" and by name {', '.join(named)}" if named else ""
        raise TypeError(
            f"{name} takes `{signature}`, but gets {len(positional)} arguments by position{by_name}, {given}"
        ) from exc


def _described(positional: Sequence[Nested], named: Mapping[str, Nested]) -> str:
    """The tensors that a stage gets, by type and shape: `float32[2, 3], int32[], mask: bool[2]`."""
    parts = [*(("", one) for one in positional), *((f"{key}: ", one) for key, one in named.items())]
    specs = [(key, spec) for key, part in parts for spec in tf.nest.flatten(part) if isinstance(spec, tf.TensorSpec)]
    texts = [f"{key}{spec.dtype.name}{spec.shape}".replace("(", "[").replace(")", "]") for key, spec in specs]
    return ", ".join(texts).replace(",]", "]") or "nothing"


def _check_captures(graph: graphs.FunctionGraph, name: str) -> None:
    for outside, _ in graph.captures:
        if outside.dtype != tf.resource and hasattr(outside, "graph"):
            raise ValueError(
                f"Trying to capture the tensor `{outside.name}` in {name} of the pipeline, which is not a resource: a stage"
                " can use variables, and tensors that were made outside of the program, but no other tensor from around"
                " it. Hand it over through `inputs` or the infeed, from stage to stage"
            )
