"""A traced stage: functions of tensors that run it forward, recompute and run it backward."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import tensorflow as tf

from tensorflow_ipu import programs, scopes
from tensorflow_ipu._tensorflow import functions, graphs
from tensorflow_ipu._tensorflow.autograph import add_to_message, user_code
from tensorflow_ipu._tensorflow.gradients import has_gradient
from tensorflow_ipu.pipelining.stage_graphs import DerivedGraph, StageGraph, flat_tensors, placeholder, spec_of

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Nested, Number
    from tensorflow_ipu.analysis.pipelines.cost import StageCost

_numbers = itertools.count()


class GraphFunction:
    """A graph that can be called any number of times, wherever its captured tensors can be used."""

    def __init__(self, graph: graphs.FunctionGraph, inputs: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor]) -> None:
        graph.inputs = [*inputs, *graph.internal_captures]
        graph.outputs = list(outputs)
        self._specs = list(map(spec_of, outputs))
        self._captured = list(graph.external_captures)
        self._function: Any = functions.of_graph(f"__ipu_{graph.name}_{next(_numbers)}", graph, called=False)

    def __call__(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the outputs for values of the inputs, in the function that is being traced."""
        return self._called([*values, *self._captured])

    def elsewhere(self, *values: tf.Tensor) -> list[tf.Tensor]:
        """Returns the outputs outside of the program: with zeros for captured tensors that only exist there."""
        captured = (
            tf.zeros(tensor.shape, tensor.dtype) if hasattr(tensor, "graph") else tensor for tensor in self._captured
        )
        return self._called([*values, *captured])

    def _called(self, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        graphs.hold_function(tf.compat.v1.get_default_graph(), self._function)
        types = [spec.dtype for spec in self._specs]
        result: Any = tf.raw_ops.StatefulPartitionedCall(
            args=programs.with_states(inputs), Tout=types, f=self._function.name
        )
        outputs = list(result) if types else []
        for output, spec in zip(outputs, self._specs, strict=True):
            output.set_shape(spec.shape)
        return outputs


Place: TypeAlias = "tuple[int, int | None]"  # A stage's number, and that of one of its parts; None without parts.
Captured: TypeAlias = "dict[str, list[tf.Tensor]]"  # Gradients by their tags.
Pairs: TypeAlias = "Sequence[tuple[tf.Tensor | None, tf.Variable]]"


class StageBytes(NamedTuple):
    """The bytes of a stage as traced: what its backward pass takes of its forward pass, its inputs or stash, its weights."""

    activation_bytes: int
    input_bytes: int
    weight_bytes: int

    def cost(self) -> StageCost:
        """Returns the cost of the stage, with default times."""
        from tensorflow_ipu.analysis.pipelines.cost import StageCost

        return StageCost(**self._asdict())


class TracedStage:
    """A stage, or one of several parts of a stage that run concurrently."""

    def __init__(
        self, graph: StageGraph, ipu: int, constants: Sequence[tf.Tensor], outputs: Nested, loss: tf.Tensor | None
    ) -> None:
        """Makes a stage that only runs forward. Its first inputs have the values `constants` for all micro-batches."""
        self.name = graph.stage
        self.ipu = ipu
        self.graph = graph
        self.loss = loss
        self.outputs = tf.nest.map_structure(lambda tensor: None if tensor is None else spec_of(tensor), outputs)
        self.output_specs = list(map(spec_of, flat_tensors(outputs)))
        self.stash: list[tf.TensorSpec] = []
        self.residuals: list[tf.TensorSpec] = []
        self.input_gradients: list[int] = []
        self.variables: list[tf.Variable] = []
        self.captures: dict[str, list[tf.TensorSpec]] = {}
        self.handed: list[tf.Tensor] = []  # What the weight update uses of the last micro-batch.
        self.carried: list[tf.Tensor] = []  # What the backward pass uses of the stage that computes the loss.
        self._constants = constants
        self._inputs = graph.end_trace(constants)
        self._results = [*flat_tensors(outputs), *([] if loss is None else [loss])]
        self._stashed: list[tf.Tensor] = []
        self._recompute: GraphFunction | None = None
        self._backward_graph: DerivedGraph | None = None
        self._backward_results: list[tf.Tensor] = []
        self._gradient_placeholders: list[tf.Tensor] = []

    @property
    def used_variables(self) -> list[tf.Variable]:
        """All variables that it uses, each once."""
        return distinct(self.graph.variables)

    @property
    def device(self) -> str:
        """The device of its variables; empty if it has none."""
        return next((variable.device for variable in self.used_variables), "")

    @property
    def varying_inputs(self) -> list[tf.Tensor]:
        """The placeholders of what differs from micro-batch to micro-batch."""
        return self._inputs[len(self._constants) :]

    @property
    def bytes(self) -> StageBytes:
        """Its bytes as traced."""
        return StageBytes(
            size_of(self.residuals),
            size_of(self.stash if self._recompute else self.varying_inputs),
            size_of(self.used_variables),
        )

    def changed_resources(self) -> list[tf.Tensor]:
        """Returns the resources outside that it changes, not only reads."""
        inputs = self.graph.inputs
        read_only = set(graphs.read_only_inputs(self.graph))
        changed = {
            id(tensor) for at, tensor in enumerate(inputs) if tensor.dtype == tf.resource and at not in read_only
        }
        return [outside for outside, inside in self.graph.captures if id(inside) in changed]

    def forward(
        self, inputs: Sequence[tf.Tensor], micro_batch: Number
    ) -> tuple[list[tf.Tensor], tf.Tensor | None, list[tf.Tensor], list[tf.Tensor]]:
        """Runs forward; returns outputs, the loss, what the weight update uses, and the stash."""
        number = [] if self.graph.used_micro_batch is None else [tf.cast(micro_batch, tf.int32)]
        results = iter(self._forward([*self._constants, *inputs, *number]))
        outputs = list(itertools.islice(results, len(self.output_specs)))
        loss = None if self.loss is None else next(results)
        return outputs, loss, list(itertools.islice(results, len(self.handed))), list(results)

    # Made at the first call, when all that it returns is known.
    @functools.cached_property
    def _forward(self) -> GraphFunction:
        counted = self.graph.used_micro_batch
        inputs = [*self._inputs, *([] if counted is None else [counted])]
        return GraphFunction(self.graph, inputs, [*self._results, *self.handed, *self._stashed])

    def recompute(self, stash: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Computes the residuals from the stash."""
        return list(stash) if self._recompute is None else self._recompute(stash)

    def backward(
        self, residuals: Sequence[tf.Tensor], output_gradients: Sequence[tf.Tensor]
    ) -> tuple[list[tf.Tensor], list[tf.Tensor], list[tf.Tensor], list[tf.Tensor]]:
        """Runs backward; returns gradients of inputs and variables, captured ones, and what earlier stages use."""
        if self._backward is None:
            return [], [], [], []
        results = iter(self._backward([*residuals, *output_gradients]))
        widths = (len(self.input_gradients), len(self.variables), sum(map(len, self.captures.values())))
        of_inputs, of_variables, captures = (list(itertools.islice(results, width)) for width in widths)
        return of_inputs, of_variables, captures, list(results)

    @functools.cached_property
    def _backward(self) -> GraphFunction | None:
        graph = self._backward_graph
        if graph is None:
            return None
        stashed = [placeholder for _, placeholder in graph.needed_by(self._backward_results)]
        inputs = [*stashed, *self._gradient_placeholders, *(inside for _, inside in graph.carried)]
        return GraphFunction(graph, inputs, self._backward_results)

    def hand_back(self, tensors: Sequence[tf.Tensor]) -> None:
        """Has the backward pass return tensors of the graph too, for the backward passes of earlier stages."""
        if tensors:
            graph = self._backward_graph
            assert graph is not None
            self._backward_results += [graph.rematerialized(tensor) for tensor in tensors]
            self._set_stash(graph)

    def differentiate(
        self,
        output_gradients: Collection[int] | None,
        variables: Sequence[tf.Variable],
        mapped: Callable[[list[tuple[tf.Tensor, tf.Variable]]], tuple[Pairs, Captured]],
        *,
        of_inputs: bool,
        recompute: bool = False,
        loss: StageGraph | None = None,
    ) -> None:
        """Makes the backward pass, and decides what is stashed for it.

        `output_gradients` are the numbers of the outputs that have gradients; None is the loss. `mapped` maps gradients
        of a micro-batch to those that are accumulated, and returns the captured ones.
        """
        numbers = [-1] if output_gradients is None else sorted(output_gradients)  # The loss is the last result.
        ys = [self._results[at] for at in numbers]
        inside = {id(outside): inside for outside, inside in self.graph.captures}
        used = [(variable, inside[id(variable.handle)]) for variable in variables if id(variable.handle) in inside]
        inputs = [at for at, tensor in enumerate(self.varying_inputs) if of_inputs and has_gradient(tensor)]
        xs = [*(self.varying_inputs[at] for at in inputs), *(handle for _, handle in used)]
        if not xs or not ys:
            return
        # What a loop within the stage leaves for its gradient is no tensor, and cannot be stashed: it is recomputed.
        for again in (False, True):
            graph = DerivedGraph(f"{self.graph.name}_backward", self.graph, recompute=again, loss=loss)
            upstream = None if output_gradients is None else [placeholder(graph, tensor, "gradient") for tensor in ys]
            gradients = graph.gradients(ys, xs, upstream)
            if all(map(_can_be_stashed, graph.stashed)):
                break
        of_input = {at: gradient for at, gradient in zip(inputs, gradients, strict=False) if gradient is not None}
        pairs = zip(gradients[len(inputs) :], (variable for variable, _ in used), strict=True)
        with graph.as_default():
            found, captured = mapped([(gradient, variable) for gradient, variable in pairs if gradient is not None])
            of_variables = list(
                zip(graph.own(one for one, _ in found), (variable for _, variable in found), strict=True)
            )
        here = {tag: [one for one in captured[tag] if one.graph is graph] for tag in sorted(captured)}
        self.input_gradients = sorted(of_input)
        self.variables = [variable for gradient, variable in of_variables if gradient is not None]
        self.captures = {tag: list(map(spec_of, tensors)) for tag, tensors in here.items() if tensors}
        results = [*of_input.values(), *(gradient for gradient, _ in of_variables if gradient is not None)]
        self._backward_results = [*results, *itertools.chain.from_iterable(here.values())]
        self._backward_graph, self._gradient_placeholders = graph, upstream or []
        self.carried = [tensor for tensor, _ in graph.carried]
        self._set_stash(graph, recompute=recompute)

    def _set_stash(self, graph: DerivedGraph, *, recompute: bool = False) -> None:
        """Stashes what a backward pass needs, or what computes that again."""
        self._stashed = [tensor for tensor, _ in graph.needed_by(self._backward_results)]
        self.residuals = list(map(spec_of, self._stashed))
        if recompute:
            again = DerivedGraph(f"{self.graph.name}_recompute", self.graph, recompute=True)
            results = [again.rematerialized(tensor) for tensor in self._stashed]
            self._stashed = again.stashed
            self._recompute = GraphFunction(again, again.placeholders, results)
        self.stash = list(map(spec_of, self._stashed))
        for spec in (*self.stash, *self.residuals):
            if not spec.shape.is_fully_defined():
                raise ValueError(
                    f"{self.name} of the pipeline has a tensor of shape {spec.shape} that its backward pass needs; each"
                    " tensor of a training pipeline needs a static shape. Set `drop_remainder=True` where the dataset is"
                    " batched, or state the shape with `tf.ensure_shape`"
                )

    def passes(self) -> dict[str, tuple[Callable[..., list[tf.Tensor]], list[tf.TensorSpec]]]:
        """Returns what it runs, as functions of tensors without side effects that can be called outside of the program."""
        graph = DerivedGraph(f"{self.graph.name}_alone", self.graph, recompute=True)
        results = [graph.rematerialized(tensor) for tensor in self._results]
        forward = GraphFunction(graph, graph.placeholders, results)
        passes = {"forward": (forward.elsewhere, list(map(spec_of, graph.placeholders)))}
        if self._recompute is not None:
            passes["recompute"] = (self._recompute.elsewhere, self.stash)
        if self._backward is not None:
            further = map(spec_of, (*self._gradient_placeholders, *self.carried))
            passes["backward"] = (self._backward.elsewhere, [*self.residuals, *further])
        return passes

    def lines(self) -> dict[str, str]:
        """Returns the user's line of each operation of the stage, by the operation's name."""
        return programs.user_lines(self.graph)


def distinct(variables: Iterable[tf.Variable]) -> list[tf.Variable]:
    """Returns variables, each once."""
    return list({id(variable.handle): variable for variable in variables}.values())


def size_of(tensors: Iterable[tf.TensorSpec | tf.Tensor | tf.Variable]) -> int:
    """Returns the bytes of tensors; those of unknown shape count as none."""
    return sum((tensor.shape.num_elements() or 0) * tensor.dtype.size for tensor in tensors)


def _can_be_stashed(tensor: tf.Tensor) -> bool:
    return tensor.dtype not in (tf.variant, tf.resource) and tensor.shape.is_fully_defined()


def as_arguments(outputs: Nested) -> tuple[list[Nested], dict[str, Nested]]:
    """Returns what a stage returned as the arguments of the next one: by position, or by name for a dict."""
    if outputs is None:
        return [], {}
    if isinstance(outputs, Mapping) and all(isinstance(key, str) for key in outputs):
        return [], dict(outputs)
    if isinstance(outputs, (list, tuple)):
        return [output for output in outputs if output is not None], {}
    return [outputs], {}


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
) -> TracedStage:
    """Traces a stage, or a part of one; `source` describes where its arguments come from."""
    graph = StageGraph(name)
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
    for outside, _ in graph.captures:
        if outside.dtype != tf.resource and hasattr(outside, "graph"):
            raise ValueError(
                f"Trying to capture the tensor `{outside.name}` in {name} of the pipeline, which is not a resource: a stage"
                " can use variables, and tensors that were made outside of the program, but no other tensor from around"
                " it. Hand it over through `inputs` or the infeed, from stage to stage"
            )
    returned: Nested = graph.structured_outputs
    return TracedStage(graph, ipu, tf.nest.flatten(list(constants)), *returned)


def _without_operations(returned: Nested) -> Nested:
    """Removes operations from what a function returned: those run by themselves."""
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
    """Describes the tensors that a stage gets: `float32[2, 3], int32[], mask: bool[2]`."""
    parts = [*(("", one) for one in positional), *((f"{key}: ", one) for key, one in named.items())]
    specs = [(key, spec) for key, part in parts for spec in tf.nest.flatten(part) if isinstance(spec, tf.TensorSpec)]
    texts = [f"{key}{spec.dtype.name}{spec.shape}".replace("(", "[").replace(")", "]") for key, spec in specs]
    return ", ".join(texts).replace(",]", "]") or "nothing"
