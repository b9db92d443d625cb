"""A stage's Python function as a graph of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu import scopes
from tensorflow_ipu._tensorflow import graphs
from tensorflow_ipu._tensorflow.autograph import add_to_message, user_code

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Nested, ShapeLike

# A tensor that was made outside of the program is a constant of a stage if it has up to so many elements, as with
# TensorFlow's functions; else all passes of the stage take it from there.
_LARGEST_CONSTANT = 128


@dataclass(frozen=True)
class StageTrace:
    """What tracing a part of a stage gave."""

    name: str
    ipu: int
    graph: _StageGraph
    inputs: tuple[tf.Tensor, ...]
    constant: tuple[tf.Tensor | None, ...]
    outputs: Nested
    loss: tf.Tensor | None

    @property
    def loss_tensor(self) -> tf.Tensor:
        """The loss, of a stage that has one."""
        assert self.loss is not None
        return self.loss

    @property
    def flat_outputs(self) -> list[tf.Tensor]:
        """The tensors that the function returned."""
        return flat_tensors(self.outputs)

    @property
    def variables(self) -> list[tf.Variable]:
        """The variables that it uses, each once."""
        found: dict[int, tf.Variable] = {}
        for variable in self.graph.variables:
            found.setdefault(id(variable.handle), variable)
        return list(found.values())

    def outside(self, tensor: tf.Tensor) -> tf.Tensor | None:
        """The tensor outside that one of the graph stands for; None for one that is the graph's own."""
        return next((outside for outside, inside in self.graph.captures if inside is tensor), None)

    def internal(self, variable: tf.Variable) -> tf.Tensor | None:
        """The handle of a variable as the graph sees it; None where the stage does not use it."""
        return next((inside for outside, inside in self.graph.captures if outside is variable.handle), None)

    def assigned(self) -> list[tf.Tensor]:
        """The resources outside that it changes, not only reads."""
        inputs = self.graph.inputs
        read_only = set(graphs.read_only_inputs(self.graph))
        changed = {id(each) for at, each in enumerate(inputs) if each.dtype == tf.resource and at not in read_only}
        return [outside for outside, inside in self.graph.captures if id(inside) in changed]


def flat_tensors(structure: Nested) -> list[Any]:
    """The tensors of a structure, without its Nones."""
    return [tensor for tensor in tf.nest.flatten(structure) if tensor is not None]


def spec_of(tensor: tf.Tensor | tf.Variable) -> tf.TensorSpec:
    """The shape and type of a tensor."""
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def placeholder(graph: tf.Graph, spec: tf.TensorSpec, name: str) -> tf.Tensor:
    """A placeholder of a graph of a function, which is no input of it yet, and waits for nothing."""
    with graph.as_default(), tf.control_dependencies(None):
        return tf.compat.v1.placeholder(spec.dtype, spec.shape, name)


class _StageGraph(graphs.FunctionGraph):
    """A graph that takes small tensors from outside of the program as its constants, and does not count them as captured."""

    runs_in_loop = True  # The one over the micro-batches; see `graphs.in_loop`.

    def __init__(self, name: str) -> None:
        """Makes an empty graph."""
        super().__init__(name)
        # Each tensor, so that its id stays its own, with its constant.
        self._taken: dict[int, tuple[tf.Tensor, tf.Tensor]] = {}
        self.used_micro_batch: tf.Tensor | None = None

    @property
    def ipu_micro_batch(self) -> tf.Tensor:
        """The number of the micro-batch, an input of the graph once it was asked for."""
        number = self.used_micro_batch
        if number is None:
            number = self.used_micro_batch = placeholder(self, tf.TensorSpec([], tf.int32), "micro_batch")
        return number

    def capture(self, tensor: tf.Tensor, name: str | None = None, shape: ShapeLike | None = None) -> tf.Tensor:
        """Gives a tensor of another graph, or of none, as one of this graph."""
        if not _is_small_value(tensor):
            return super().capture(tensor, name, shape)
        if id(tensor) not in self._taken:
            with self.as_default(), tf.control_dependencies(None):
                self._taken[id(tensor)] = tensor, tf.constant(tensor.numpy(), tensor.dtype, tensor.shape)
        return self._taken[id(tensor)][1]


def check_static(tensor: tf.Tensor) -> None:
    """Refuses a tensor that an optimizer uses and whose shape is not known."""
    if not tensor.shape.is_fully_defined():
        raise ValueError(
            f"`optimizer_function` has an optimizer use a tensor of shape {tensor.shape} of the pipeline's last stage, and"
            " such a tensor needs a static shape: state it with `tf.ensure_shape`"
        )


def is_of_stage(graph: object) -> bool:
    """Whether a graph is that of a stage."""
    return isinstance(graph, _StageGraph)


def _is_small_value(tensor: tf.Tensor) -> bool:
    """Whether a tensor has a value already, of few enough elements for a constant."""
    if hasattr(tensor, "graph") or tensor.dtype in (tf.resource, tf.variant, tf.string):
        return False
    return tensor.shape.num_elements() <= _LARGEST_CONSTANT


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
) -> StageTrace:
    """Traces a stage, or a part of one; `source` says where its arguments come from."""
    graph = _StageGraph(f"pipeline_{name.replace(' ', '_').replace('.', '_')}")
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
    return StageTrace(
        name=name,
        ipu=ipu,
        graph=graph,
        inputs=tuple(inputs),
        constant=tuple(outside) + (None,) * (len(inputs) - len(outside)),
        outputs=outputs,
        loss=loss,
    )


def as_arguments(outputs: Nested) -> tuple[list[Nested], dict[str, Nested]]:
    """What a stage returned, as the arguments of the next one: by position, or by name where it is a dict."""
    if outputs is None:
        return [], {}
    if isinstance(outputs, Mapping) and all(isinstance(key, str) for key in outputs):
        return [], dict(outputs)
    if isinstance(outputs, (list, tuple)):
        return [one for one in outputs if one is not None], {}
    return [outputs], {}


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
