"""A traced stage: its forward pass, recomputation and backward pass as functions of tensors."""

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
    """A graph that can be called any number of times, in any graph that can use its captured tensors."""

    def __init__(self, graph: graphs.FunctionGraph, inputs: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor]) -> None:
        graph.inputs = [*inputs, *graph.internal_captures]
        graph.outputs = list(outputs)
        self._specs = list(map(spec_of, outputs))
        self._captured = list(graph.external_captures)
        self._function: Any = functions.of_graph(f"__ipu_{graph.name}_{next(_numbers)}", graph, called=False)

    def __call__(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Adds a call to the function that is being traced; returns the outputs."""
        return self._call([*values, *self._captured])

    def elsewhere(self, *values: tf.Tensor) -> list[tf.Tensor]:
        """Calls the graph outside of the program, with zeros for captured tensors that exist only in the program."""
        captured = (
            tf.zeros(tensor.shape, tensor.dtype) if hasattr(tensor, "graph") else tensor for tensor in self._captured
        )
        return self._call([*values, *captured])

    def _call(self, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        graphs.hold_function(tf.compat.v1.get_default_graph(), self._function)
        types = [spec.dtype for spec in self._specs]
        result: Any = tf.raw_ops.StatefulPartitionedCall(
            args=programs.with_states(inputs), Tout=types, f=self._function.name
        )
        outputs = list(result) if types else []
        for output, spec in zip(outputs, self._specs, strict=True):
            output.set_shape(spec.shape)
        return outputs


Place: TypeAlias = "tuple[int, int | None]"  # The numbers of a stage and of a part; None if its parts are not numbered.
Captured: TypeAlias = "dict[str, list[tf.Tensor]]"  # Captured gradients by tag.
Pairs: TypeAlias = "Sequence[tuple[tf.Tensor | None, tf.Variable]]"


class StageBytes(NamedTuple):
    """The sizes in bytes of a traced stage."""

    activation_bytes: int  # The tensors of the forward pass that the backward pass uses.
    input_bytes: int  # The inputs, or the stash of a stage that recomputes.
    weight_bytes: int

    def cost(self) -> StageCost:
        """Returns the cost of the stage, with default times."""
        from tensorflow_ipu.analysis.pipelines.cost import StageCost

        return StageCost(**self._asdict())


class TracedStage:
    """A stage, or one of several parts of a stage that run concurrently.

    In training, its passes exchange these tensors of a micro-batch:

        forward     inputs -> outputs, loss, handed tensors, stash
        recompute   stash -> residuals      (without recomputation, the residuals are the stash)
        backward    residuals, gradients of outputs, carried tensors -> gradients of inputs and of variables

    Attributes:
      stash: The specs of the tensors that the forward pass stashes.
      residuals: The specs of the tensors of the forward pass that the backward pass uses.
      input_gradients: The indices of the inputs whose gradients the backward pass returns.
      variables: The variables whose gradients the backward pass returns.
      captures: The specs of captured gradients by tag.
      handed: The tensors of the last micro-batch that the weight update uses.
      carried: The tensors that the backward pass uses from the stage that computes the loss.
    """

    def __init__(
        self, graph: StageGraph, ipu: int, constants: Sequence[tf.Tensor], outputs: Nested, loss: tf.Tensor | None
    ) -> None:
        """Creates a stage that only runs forward. Its first inputs are `constants` for all micro-batches."""
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
        self.handed: list[tf.Tensor] = []
        self.carried: list[tf.Tensor] = []
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
        """All variables that the stage uses, each once."""
        return distinct(self.graph.variables)

    @property
    def device(self) -> str:
        """The device of the variables; an empty string if there are no variables."""
        return next((variable.device for variable in self.used_variables), "")

    @property
    def varying_inputs(self) -> list[tf.Tensor]:
        """The placeholders of the inputs that differ between micro-batches."""
        return self._inputs[len(self._constants) :]

    @property
    def bytes(self) -> StageBytes:
        """The sizes of the stage as traced."""
        return StageBytes(
            size_of(self.residuals),
            size_of(self.stash if self._recompute else self.varying_inputs),
            size_of(self.used_variables),
        )

    def changed_resources(self) -> list[tf.Tensor]:
        """Returns the outer resources that the stage changes."""
        inputs = self.graph.inputs
        read_only = set(graphs.read_only_inputs(self.graph))
        changed = {
            id(tensor) for index, tensor in enumerate(inputs) if tensor.dtype == tf.resource and index not in read_only
        }
        return [outside for outside, inside in self.graph.captures if id(inside) in changed]

    def forward(
        self, inputs: Sequence[tf.Tensor], micro_batch: Number
    ) -> tuple[list[tf.Tensor], tf.Tensor | None, list[tf.Tensor], list[tf.Tensor]]:
        """Runs forward; returns outputs, the loss, the handed tensors and the stash."""
        number = [] if self.graph.used_micro_batch is None else [tf.cast(micro_batch, tf.int32)]
        results = iter(self._forward([*self._constants, *inputs, *number]))
        outputs = list(itertools.islice(results, len(self.output_specs)))
        loss = None if self.loss is None else next(results)
        return outputs, loss, list(itertools.islice(results, len(self.handed))), list(results)

    # Created at the first call, when all its results are known.
    @functools.cached_property
    def _forward(self) -> GraphFunction:
        counted = self.graph.used_micro_batch
        inputs = [*self._inputs, *([] if counted is None else [counted])]
        return GraphFunction(self.graph, inputs, [*self._results, *self.handed, *self._stashed])

    def recompute(self, stash: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the residuals, computed from the stash."""
        return list(stash) if self._recompute is None else self._recompute(stash)

    def backward(
        self, residuals: Sequence[tf.Tensor], output_gradients: Sequence[tf.Tensor]
    ) -> tuple[list[tf.Tensor], list[tf.Tensor], list[tf.Tensor], list[tf.Tensor]]:
        """Runs backward; returns gradients of inputs, of variables, captured gradients and carried tensors."""
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

    def return_carried(self, tensors: Sequence[tf.Tensor]) -> None:
        """Adds tensors of the graph to the results of the backward pass, for the backward passes of earlier stages."""
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
        """Creates the backward pass, and selects the tensors to stash for it.

        The gradients are computed in a `DerivedGraph`. They may use tensors of the forward pass: each becomes a residual,
        or its operation is copied into this graph.

        Args:
          output_gradients: The indices of the outputs that have gradients; None to differentiate the loss.
          variables: The variables to train. Those that the stage does not use are ignored.
          mapped: Returns the gradients to accumulate and the captured gradients, given the gradients of a micro-batch.
          of_inputs: True if the stage before needs the gradients of the inputs.
          recompute: True to stash inputs and checkpoints only, and to recompute the residuals from them.
          loss: The graph of the stage that computes the loss, whose tensors `mapped` may use.
        """
        numbers = [-1] if output_gradients is None else sorted(output_gradients)  # The loss is the last result.
        ys = [self._results[number] for number in numbers]
        inside = {id(outside): inside for outside, inside in self.graph.captures}
        used = [(variable, inside[id(variable.handle)]) for variable in variables if id(variable.handle) in inside]
        inputs = [index for index, tensor in enumerate(self.varying_inputs) if of_inputs and has_gradient(tensor)]
        xs = [*(self.varying_inputs[index] for index in inputs), *(handle for _, handle in used)]
        if not xs or not ys:
            return
        # A loop within the stage leaves lists of tensors (variants) for its gradient. Those cannot be stashed, nor can
        # tensors of unknown shape. If there are any, the second attempt recomputes the stage within the backward pass.
        for recomputes_all in (False, True):
            graph = DerivedGraph(f"{self.graph.name}_backward", self.graph, recompute=recomputes_all, loss=loss)
            upstream = None if output_gradients is None else [placeholder(graph, tensor, "gradient") for tensor in ys]
            gradients = graph.gradients(ys, xs, upstream)
            if all(map(_can_be_stashed, graph.stashed)):
                break
        of_input = {index: gradient for index, gradient in zip(inputs, gradients, strict=False) if gradient is not None}
        pairs = zip(gradients[len(inputs) :], (variable for variable, _ in used), strict=True)
        with graph.as_default():
            mapped_pairs, captured = mapped(
                [(gradient, variable) for gradient, variable in pairs if gradient is not None]
            )
            dense = graph.dense(gradient for gradient, _ in mapped_pairs)
            of_variables = list(zip(dense, (variable for _, variable in mapped_pairs), strict=True))
        # `captured` has the gradients of all stages. Only the gradients of this stage are in `graph`.
        captures = {tag: [tensor for tensor in captured[tag] if tensor.graph is graph] for tag in sorted(captured)}
        self.input_gradients = sorted(of_input)
        self.variables = [variable for gradient, variable in of_variables if gradient is not None]
        self.captures = {tag: list(map(spec_of, tensors)) for tag, tensors in captures.items() if tensors}
        results = [*of_input.values(), *(gradient for gradient, _ in of_variables if gradient is not None)]
        self._backward_results = [*results, *itertools.chain.from_iterable(captures.values())]
        self._backward_graph, self._gradient_placeholders = graph, upstream or []
        self.carried = [tensor for tensor, _ in graph.carried]
        self._set_stash(graph, recompute=recompute)

    def _set_stash(self, graph: DerivedGraph, *, recompute: bool = False) -> None:
        """Selects the stash: the residuals of the backward pass, or the tensors from which they are recomputed."""
        self._stashed = [tensor for tensor, _ in graph.needed_by(self._backward_results)]
        self.residuals = list(map(spec_of, self._stashed))
        if recompute:
            recomputation = DerivedGraph(f"{self.graph.name}_recompute", self.graph, recompute=True)
            results = [recomputation.rematerialized(tensor) for tensor in self._stashed]
            self._stashed = recomputation.stashed
            self._recompute = GraphFunction(recomputation, recomputation.placeholders, results)
        self.stash = list(map(spec_of, self._stashed))
        for spec in (*self.stash, *self.residuals):
            if not spec.shape.is_fully_defined():
                raise ValueError(
                    f"{self.name} of the pipeline has a tensor of shape {spec.shape} that its backward pass needs; each"
                    " tensor of a training pipeline needs a static shape. Set `drop_remainder=True` in `Dataset.batch`, or"
                    " set the shape with `tf.ensure_shape`"
                )

    def passes(self) -> dict[str, tuple[Callable[..., list[tf.Tensor]], list[tf.TensorSpec]]]:
        """Returns the passes by name, as functions without side effects that can be called outside of the program.

        Each has the function and the specs of its arguments.
        """
        graph = DerivedGraph(f"{self.graph.name}_alone", self.graph, recompute=True)
        results = [graph.rematerialized(tensor) for tensor in self._results]
        forward = GraphFunction(graph, graph.placeholders, results)
        passes = {"forward": (forward.elsewhere, list(map(spec_of, graph.placeholders)))}
        if self._recompute is not None:
            passes["recompute"] = (self._recompute.elsewhere, self.stash)
        if self._backward is not None:
            gradients = map(spec_of, (*self._gradient_placeholders, *self.carried))
            passes["backward"] = (self._backward.elsewhere, [*self.residuals, *gradients])
        return passes

    def lines(self) -> dict[str, str]:
        """Returns the user's line of each operation of the stage, by the operation's name."""
        return programs.user_lines(self.graph)


def distinct(variables: Iterable[tf.Variable]) -> list[tf.Variable]:
    """Returns the variables without duplicates, in their order."""
    return list({id(variable.handle): variable for variable in variables}.values())


def size_of(tensors: Iterable[tf.TensorSpec | tf.Tensor | tf.Variable]) -> int:
    """Returns the size of tensors in bytes; tensors of unknown shape count 0."""
    return sum((tensor.shape.num_elements() or 0) * tensor.dtype.size for tensor in tensors)


def _can_be_stashed(tensor: tf.Tensor) -> bool:
    return tensor.dtype not in (tf.variant, tf.resource) and tensor.shape.is_fully_defined()


def as_arguments(outputs: Nested) -> tuple[list[Nested], dict[str, Nested]]:
    """Returns the outputs of a stage as the arguments of the next one: by position, or by name for a dict."""
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
    """Traces a stage or a part of a stage.

    Args:
      function: The function of the stage.
      name: The name in error messages.
      ipu: The IPU on which operations are placed.
      constants: The first arguments, the same for all micro-batches.
      positional: The specs of further arguments by position.
      named: The specs of arguments by name.
      loss_of: Returns the loss, given the outputs of the stage.
      source: The origin of the arguments, as in "what stage 0 returned", for error messages.
    """
    graph = StageGraph(name)
    body = user_code(function)

    def traced(args: Nested, by_name: Mapping[str, Nested]) -> tuple[Nested, tf.Tensor | None]:
        outputs = _without_operations(body(*args, **by_name))
        if loss_of is None:
            return outputs, None
        outputs = tf.nest.map_structure(
            lambda output: None if output is None else tf.convert_to_tensor(output), outputs
        )
        return outputs, loss_of(*as_arguments(outputs)[0])

    fixed = tf.nest.map_structure(spec_of, list(constants))
    arguments = f"{source}: {_described([*fixed, *positional], named or {})}"
    _check_call(function, f"{name} of the pipeline", (*constants, *positional), named or {}, arguments)
    with scopes.ipu_shard(ipu):
        try:
            graphs.trace_into(graph, traced, ((*fixed, *positional), dict(named or {})))
        except (TypeError, ValueError) as exc:
            if source and not isinstance(exc, tf.errors.OpError):
                add_to_message(exc, f"{name} of the pipeline was called with {arguments}")
            raise
    for outside, _ in graph.captures:
        if outside.dtype != tf.resource and hasattr(outside, "graph"):
            raise ValueError(
                f"Trying to capture the tensor `{outside.name}` in {name} of the pipeline, which is not a resource: a stage"
                " can capture variables and eager tensors, but no tensors of the program. Pass the tensor through `inputs`"
                " or the infeed, and from stage to stage"
            )
    returned: Nested = graph.structured_outputs
    return TracedStage(graph, ipu, tf.nest.flatten(list(constants)), *returned)


def _without_operations(returned: Nested) -> Nested:
    """Returns the outputs of a function without operations, which run in any case."""
    if isinstance(returned, tf.Operation):
        return None
    if isinstance(returned, (list, tuple)) and any(isinstance(output, tf.Operation) for output in returned):
        return type(returned)(output for output in returned if not isinstance(output, tf.Operation))
    return returned


def _check_call(
    function: Callable[..., Nested],
    name: str,
    positional: Sequence[Nested],
    named: Mapping[str, Nested],
    arguments: str,
) -> None:
    try:
        signature = inspect.signature(getattr(function, "python_function", function))
    except (TypeError, ValueError):  # Functions in C may have no signature.
        return
    try:
        signature.bind(*positional, **named)
    except TypeError as exc:
        by_name = f" and by name {', '.join(named)}" if named else ""
        raise TypeError(
            f"{name} takes `{signature}`, but gets {len(positional)} arguments by position{by_name}, {arguments}"
        ) from exc


def _described(positional: Sequence[Nested], named: Mapping[str, Nested]) -> str:
    """Returns a description of the tensors that a stage gets: `float32[2, 3], int32[], mask: bool[2]`."""
    parts = [*(("", value) for value in positional), *((f"{key}: ", value) for key, value in named.items())]
    specs = [(key, spec) for key, part in parts for spec in tf.nest.flatten(part) if isinstance(spec, tf.TensorSpec)]
    texts = [f"{key}{spec.dtype.name}{spec.shape}".replace("(", "[").replace(")", "]") for key, spec in specs]
    return ", ".join(texts).replace(",]", "]") or "nothing"
