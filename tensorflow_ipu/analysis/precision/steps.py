"""Runs steps of a model or function in float32 and in float16, for a precision report."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu._base import progress
from tensorflow_ipu._base.checks import is_int, is_number
from tensorflow_ipu.analysis.precision.cast_graph import cast_graph, types_of
from tensorflow_ipu.analysis.precision.figures import (
    ACTIVATION,
    GRADIENT,
    KINDS,
    UPDATE,
    WEIGHT,
    WEIGHT_GRADIENT,
    Count,
    Key,
    TensorRow,
    Values,
)
from tensorflow_ipu.analysis.precision.report import PrecisionReport, trial_of
from tensorflow_ipu.keras import tensor_probes
from tensorflow_ipu.strategy import IPUStrategyV1

if TYPE_CHECKING:
    import keras

    from tensorflow_ipu._base.types import Nested

# Operations that only copy, move or select values of their operands.
_NAMES = """
    BroadcastTo Cast ConcatV2 Const ExpandDims Fill Gather GatherV2 Identity IdentityN OnesLike Pack Pad PadV2
    Placeholder PreventGradient ReadVariableOp Relu Reshape ResourceGather Reverse ReverseV2 Select SelectV2
    Slice Snapshot Split SplitV Squeeze StopGradient StridedSlice Tile Transpose Unpack ZerosLike
"""
_MOVES = frozenset(_NAMES.split())
_OF_TAPES, _OF_GRADIENTS = "gradient_tape/", "gradients/"
_NO_SCOPE = "(no scope)"


class _FunctionSteps:
    """Runs steps of a function, and for each step the function's graph in float32 and in float16."""

    def __init__(self, function: Any, run: Callable[[Callable[..., Any], Sequence[Any]], Any]) -> None:
        self._function = function
        self._run = run

    def report(self, batches: Iterable[tuple[Nested, ...]], loss_scale: float, device: str) -> PrecisionReport:
        """Returns the report of a step for each tuple of arguments. Variables are restored at the end."""
        count, cast, originals = Count(), None, []
        for batch in batches:
            arguments = tf.nest.map_structure(tf.convert_to_tensor, batch)
            if cast is None:
                cast = _CastFunctions(self._function, arguments)
                originals = [variable.numpy().copy() for variable in cast.variables]
            single = cast.compute(tf.float32, arguments, self._run)
            for key in single:
                if key[1] == GRADIENT:
                    single[key] = single[key] / np.float32(loss_scale)
            count.step(single, cast.compute(tf.float16, arguments, self._run))
            self._run(self._function, arguments)
        if cast is None:
            raise ValueError("`data` has no batch: a report needs at least one")
        for variable, value in zip(cast.variables, originals, strict=True):
            variable.assign(value)
        name = getattr(self._function.python_function, "__name__", "a function")
        return PrecisionReport(name, device, loss_scale, cast.in_order(count.rows()), ())


class _CastFunctions:
    """A function's graph in float32 and in float16."""

    def __init__(self, function: Any, arguments: Nested) -> None:
        self._concrete = function.get_concrete_function(*arguments)
        graph = self._concrete.graph
        operations = [operation for operation in graph.get_operations() if operation.type not in _MOVES]
        types = types_of(operations)
        if not types:
            raise ValueError("the function computes no tensors of float16 or float32")
        # In a function of mixed precision, the float32 part is intended. Only its float16 part is cast and compared.
        self._dtype = tf.float16 if tf.float16 in types else tf.float32
        self._watched = [
            operation
            for operation in operations
            if len(operation.outputs) == 1 and operation.outputs[0].dtype == self._dtype
        ]
        self._keys = [_key(operation) for operation in self._watched]
        self._definition = graph.as_graph_def()
        self._functions: dict[tf.DType, Any] = {}
        self.variables = list(graph.variables)

    def compute(self, dtype: tf.DType, arguments: Nested, run: Callable[..., Any]) -> Values:
        """Returns the watched tensors of a step that is computed in `dtype`."""
        if dtype not in self._functions:
            self._functions[dtype] = self._cast_to(dtype)
        flat = [argument for argument in tf.nest.flatten(arguments) if tf.is_tensor(argument)]
        tensors = run(self._functions[dtype], [*flat, *self._concrete.captured_inputs])
        return dict(zip(self._keys, (np.asarray(tensor) for tensor in tensors), strict=True))

    def _cast_to(self, dtype: tf.DType) -> Any:
        names = [operation.name for operation in self._watched]
        definition = cast_graph(self._definition, names, self._dtype, dtype)
        inputs = [tensor.op.name for tensor in self._concrete.graph.inputs]
        used = {name.split(":")[0] for node in definition.node for name in node.input}

        def step(*flat: tf.Tensor) -> list[tf.Tensor]:
            values = [tf.cast(tensor, dtype) if tensor.dtype == self._dtype else tensor for tensor in flat]
            input_map = {name: value for name, value in zip(inputs, values, strict=True) if name in used}
            return tf.graph_util.import_graph_def(
                definition, input_map=input_map, return_elements=[f"{name}:0" for name in names], name=""
            )

        return tf.function(step, jit_compile=True, autograph=False)

    def in_order(self, rows: Sequence[TensorRow]) -> tuple[TensorRow, ...]:
        """Returns the rows scope by scope, ordered by the first operation of each scope."""
        return _in_order(rows, [(layer, kind) for layer, kind, _ in self._keys])


def _in_order(rows: Sequence[TensorRow], computed: Sequence[tuple[str, str]]) -> tuple[TensorRow, ...]:
    """Returns the rows ordered by the first activation of their layers, then by kind."""
    layers = [layer for layer, kind in computed if kind == ACTIVATION] + [layer for layer, _ in computed]
    return tuple(sorted(rows, key=lambda row: (layers.index(row.layer), KINDS.index(row.kind))))


def _key(operation: tf.Operation) -> Key:
    """Returns the scope of an operation, its kind, and its name in the scope."""
    name, kind = operation.name, ACTIVATION
    for prefix in (_OF_TAPES, _OF_GRADIENTS):
        if name.startswith(prefix):
            name, kind = name.removeprefix(prefix), GRADIENT
    parts = name.split("/")
    # The name of a gradient contains the name of its operation: `dense/MatMul/MatMul_1`, `dense/MatMul_grad/MatMul`.
    depth = 2 if kind == GRADIENT else 1
    scope = "/".join(parts[:-depth])
    return scope or _NO_SCOPE, kind, "/".join(parts[-depth:])


class _ModelSteps:
    """Runs steps of a model, each first in float16 and then in float32. Only the float32 step updates the weights."""

    def __init__(self, model: keras.Model, run: Callable[[Callable[..., Any], Sequence[Any]], Any]) -> None:
        self._model = model
        self._run = run
        self._functions: dict[object, tuple[Any, list[Key]]] = {}

    def report(self, batches: Iterable[Nested], loss_scale: float, device: str) -> PrecisionReport:
        """Returns the report of a step for each batch. The model's variables are restored at the end."""
        originals = values = self._variable_values()
        count, losses = Count(), []
        batch: Nested = None
        single: Values = {}
        try:
            for batch in batches:
                values = self._variable_values()
                half_loss, half = self._computed(batch, scale=loss_scale)
                self._assign(values)  # Layers such as batch normalization update variables in the forward pass.
                loss, single = self._computed(batch)
                losses.append((float(loss), float(half_loss)))
                count.step(single, half)
                count.updates(*self._update_since(values, single))
            if not losses:
                raise ValueError("`data` has no batch: a report needs at least one")
            half_weights = any(weight.dtype == "float16" for weight in self._model.trainable_variables)
            rows = count.rows()
            rows = _in_order(rows, [(row.layer, row.kind) for row in rows])
            report = PrecisionReport(self._model.name, device, loss_scale, rows, tuple(losses), half_weights)

            def repeat_last_step(scale: float, layers: Sequence[str]) -> Values:
                self._assign(values)
                return self._computed(batch, scale=scale, single=layers)[1]

            return trial_of(report, single, repeat_last_step)
        finally:
            self._assign(originals)

    def _computed(self, batch: Nested, scale: float | None = None, single: Sequence[str] = ()) -> tuple[Any, Values]:
        """Returns the loss and the tensors of a step.

        With a `scale`, the step computes in float16, except for the layers `single`. Without one, it computes in
        float32 and updates the weights.
        """
        key = (scale, tuple(single))
        if key not in self._functions:
            self._functions[key] = self._function(scale, single)
        function, keys = self._functions[key]
        loss, tensors = self._run(function, tf.nest.map_structure(tf.convert_to_tensor, tuple(batch)))
        return loss, dict(zip(keys, (np.asarray(tensor) for tensor in tensors), strict=True))

    def _function(self, scale: float | None, single: Sequence[str]) -> tuple[Any, list[Key]]:
        keys: list[Key] = []
        model = self._model

        def step(*batch: Any) -> Any:
            probed = tensor_probes.probed_step(model, batch, scale is not None, 1.0 if scale is None else scale, single)
            tensors: dict[Key, tf.Tensor] = {}
            for kind, owners, values in (
                (ACTIVATION, probed.activations, [activation.tensor for activation in probed.activations]),
                (GRADIENT, probed.activations, probed.gradients),
                (WEIGHT_GRADIENT, probed.weights, probed.weight_gradients),
            ):
                pairs = ((owner, value) for owner, value in zip(owners, values, strict=True) if value is not None)
                tensors.update({(owner.layer, kind, owner.name): value for owner, value in pairs})
            keys[:] = tensors
            if scale is None:
                tensor_probes.update(model, probed.weight_gradients)
            return probed.loss, list(tensors.values())

        return tf.function(step, jit_compile=True, autograph=False), keys

    def _update_since(self, values: Sequence[Any], single: Values) -> tuple[Values, Values, Mapping[Key, float]]:
        """Returns the weights before a step, their updates, and the share of each that changes nothing in float16.

        `values` are the values of all variables before the step, and `single` its tensors in float32.
        """
        weights: Values = {}
        updates: Values = {}
        stuck: dict[Key, float] = {}
        indices = {id(weight): index for index, weight in enumerate(self._model.variables)}
        for owner, weight in zip(tensor_probes.weights_of(self._model), self._model.trainable_variables, strict=True):
            old = values[indices[id(weight)]].astype(np.float32)
            new = np.asarray(tf.convert_to_tensor(weight), np.float32)
            key = (owner.layer, UPDATE, owner.name)
            weights[owner.layer, WEIGHT, owner.name] = old
            updates[key] = new - old
            if weight.dtype == "float16":
                should_change = single.get((owner.layer, WEIGHT_GRADIENT, owner.name), updates[key]) != 0
                is_unchanged = new == old
            else:
                should_change, half = updates[key] != 0, old.astype(np.float16)
                with np.errstate(over="ignore"):
                    is_unchanged = (half.astype(np.float32) + updates[key]).astype(np.float16) == half
            share = np.count_nonzero(should_change & is_unchanged) / max(1, np.count_nonzero(should_change))
            stuck[key] = float(share)
        return weights, updates, stuck

    def _variable_values(self) -> list[Any]:
        return [np.array(tf.convert_to_tensor(variable)) for variable in tensor_probes.variables_of(self._model)]

    def _assign(self, values: Sequence[Any]) -> None:
        for variable, value in zip(tensor_probes.variables_of(self._model), values, strict=True):
            variable.assign(value)


def precision_report(
    model: keras.Model | Callable[..., Nested],
    data: Nested | tf.data.Dataset | Iterable[Nested],
    *,
    steps: int = 4,
    batch_size: int = 32,
    loss_scale: float = 1.0,
) -> PrecisionReport:
    """Runs steps in float32 and in float16, and reports the overflows, underflows and gradients of each tensor.

    Each float16 step begins with the weights of the float32 step. If a model was created in a strategy's scope, or a
    function is called in one, float16 is computed on the strategy's device with its configuration. Floating-point
    exceptions do not stop these steps. All other models and functions are compiled by XLA for the host, with float16 of
    IEEE 754.

    Args:
      model: A compiled Keras model, whose variables are restored, or a `tf.function` of a step: see
        `docs/half_precision.md`.
      data: Batches, as a dataset or another iterable: `(x, y)` or `(x, y, sample_weight)` for a model, or a tuple of
        arguments for a function. For a model also a tuple of arrays, which are cut into batches.
      steps: The largest number of steps to run.
      batch_size: The number of samples of a batch if `data` is arrays.
      loss_scale: The factor of the loss in float16, before it is differentiated. For a function: the factor that the
        function itself applies to its loss, in both types.

    Raises:
      TypeError: `model` is neither of these, or `data` yields no tuples.
      ValueError: An argument is out of range, `data` is empty, the model is not compiled, or the model overrides
        `train_step`, which the report could not include.
    """
    if not is_int(steps) or steps < 1:
        raise ValueError(f"`steps` must be a positive integer, but is {steps!r}")
    if not is_int(batch_size) or batch_size < 1:
        raise ValueError(f"`batch_size` must be a positive integer, but is {batch_size!r}")
    if not is_number(loss_scale) or not 0 < loss_scale < float("inf"):
        raise ValueError(f"`loss_scale` must be a positive number, but is {loss_scale!r}")
    with progress.of("comparing float16 with float32, steps", steps) as work:
        if tensor_probes.is_model(model):
            batches = work.counting(itertools.islice(_batches(data, batch_size), steps))
            return _of_model(model, batches, float(loss_scale))
        if isinstance(model, programs.GRAPH_FUNCTIONS):
            strategy = tf.distribute.get_strategy()
            run, device = _runner(strategy if isinstance(strategy, IPUStrategyV1) else None)
            batches = work.counting(itertools.islice(_batches(data, None), steps))
            return _FunctionSteps(model, run).report(batches, float(loss_scale), device)
    raise TypeError(f"`model` must be a Keras model or a `tf.function`, but is {model!r}")


def _batches(data: Any, batch_size: int | None) -> Iterator[Nested]:
    arrays = isinstance(data, tuple) and all(hasattr(leaf, "shape") for leaf in tf.nest.flatten(data))
    if arrays and batch_size is not None:
        count = min(len(leaf) for leaf in tf.nest.flatten(data))
        for first in range(0, count - batch_size + 1, batch_size) or [0]:
            yield tf.nest.map_structure(lambda leaf, begin=first: np.asarray(leaf)[begin : begin + batch_size], data)
        return
    for batch in [data] if arrays else data:
        if not isinstance(batch, tuple):
            raise TypeError(
                f"`data` must yield tuples, such as `(x, y)` for a model, but yields {type(batch).__name__}"
            )
        yield batch


def _of_model(model: keras.Model, batches: Iterator[Nested], loss_scale: float) -> PrecisionReport:
    if tensor_probes.has_own_step(model):
        raise ValueError(
            f"`model` overrides `train_step` (`{type(model).__name__}.train_step`), which a report on the model does"
            " not run: it computes the compiled loss and its gradients. Pass the step as a `tf.function`"
        )
    first = next(batches, None)
    if first is None:
        raise ValueError("`data` has no batch: a report needs at least one")
    tensor_probes.build(model, tf.nest.map_structure(tf.convert_to_tensor, first))
    run, device = _runner(tensor_probes.strategy_of_model(model))
    return _ModelSteps(model, run).report(itertools.chain([first], batches), loss_scale, device)


def _runner(strategy: IPUStrategyV1 | None) -> tuple[Callable[..., Any], str]:
    if strategy is None:
        return lambda function, arguments: function(*arguments), "the host by XLA"

    def run(function: Callable[..., Any], arguments: Any) -> Any:
        with strategy.extended.without_traps():
            return strategy.run(function, args=arguments)

    return run, strategy.extended.ipu_device.rpartition("/")[2]
