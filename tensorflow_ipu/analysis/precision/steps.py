"""Steps of a function in float32 and in float16, for a report."""

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

# These compute no number that was not there before.
_NAMES = """
    BroadcastTo Cast ConcatV2 Const ExpandDims Fill Gather GatherV2 Identity IdentityN OnesLike Pack Pad PadV2
    Placeholder PreventGradient ReadVariableOp Relu Reshape ResourceGather Reverse ReverseV2 Select SelectV2
    Slice Snapshot Split SplitV Squeeze StopGradient StridedSlice Tile Transpose Unpack ZerosLike
"""
_MOVES = frozenset(_NAMES.split())
_OF_TAPES, _OF_GRADIENTS = "gradient_tape/", "gradients/"
_NO_SCOPE = "(no scope)"


class _FunctionSteps:
    """Runs steps of a function, and beside each the same step in float32 and in float16."""

    def __init__(self, function: Any, run: Callable[[Callable[..., Any], Sequence[Any]], Any]) -> None:
        self._function = function
        self._run = run

    def report(self, batches: Iterable[tuple[Nested, ...]], loss_scale: float, device: str) -> PrecisionReport:
        """Runs a step for each tuple of arguments, and restores the variables."""
        count, cast, before = Count(), None, []
        for batch in batches:
            arguments = tf.nest.map_structure(tf.convert_to_tensor, batch)
            if cast is None:
                cast = _CastFunctions(self._function, arguments)
                before = [each.numpy().copy() for each in cast.variables]
            single = cast.compute(tf.float32, arguments, self._run)
            for key in single:
                if key[1] == GRADIENT:
                    single[key] = single[key] / np.float32(loss_scale)
            count.step(single, cast.compute(tf.float16, arguments, self._run))
            self._run(self._function, arguments)
        if cast is None:
            raise ValueError("`data` has no batch: a report needs at least one")
        for variable, value in zip(cast.variables, before, strict=True):
            variable.assign(value)
        name = getattr(self._function.python_function, "__name__", "a function")
        return PrecisionReport(name, device, loss_scale, cast.in_order(count.rows()), ())


class _CastFunctions:
    """A function's graph in both types: its own, and the other."""

    def __init__(self, function: Any, arguments: Nested) -> None:
        self._concrete = function.get_concrete_function(*arguments)
        graph = self._concrete.graph
        operations = [each for each in graph.get_operations() if each.type not in _MOVES]
        types = types_of(operations)
        if not types:
            raise ValueError("the function computes no tensors of float16 or float32")
        # Where there is float16, the rest is float32 on purpose, and is compared with itself.
        self._own = tf.float16 if tf.float16 in types else tf.float32
        self._watched = [each for each in operations if len(each.outputs) == 1 and each.outputs[0].dtype == self._own]
        self._keys = [_key(each) for each in self._watched]
        self._definition = graph.as_graph_def()
        self._made: dict[tf.DType, Any] = {}
        self.variables = list(graph.variables)

    def compute(self, dtype: tf.DType, arguments: Nested, run: Callable[..., Any]) -> Values:
        """Returns the tensors of a step in a type."""
        if dtype not in self._made:
            self._made[dtype] = self._cast_to(dtype)
        flat = [each for each in tf.nest.flatten(arguments) if tf.is_tensor(each)]
        tensors = run(self._made[dtype], [*flat, *self._concrete.captured_inputs])
        return dict(zip(self._keys, (np.asarray(each) for each in tensors), strict=True))

    def _cast_to(self, dtype: tf.DType) -> Any:
        names = [each.name for each in self._watched]
        definition = cast_graph(self._definition, names, self._own, dtype)
        inputs = [each.op.name for each in self._concrete.graph.inputs]
        used = {name.split(":")[0] for node in definition.node for name in node.input}

        def step(*flat: tf.Tensor) -> list[tf.Tensor]:
            values = [tf.cast(each, dtype) if each.dtype == self._own else each for each in flat]
            known = {name: value for name, value in zip(inputs, values, strict=True) if name in used}
            return tf.graph_util.import_graph_def(
                definition, input_map=known, return_elements=[f"{name}:0" for name in names], name=""
            )

        return tf.function(step, jit_compile=True, autograph=False)

    def in_order(self, rows: Sequence[TensorRow]) -> tuple[TensorRow, ...]:
        """Returns the rows scope by scope, in the order in which scopes begin to compute."""
        return _in_order(rows, [(layer, kind) for layer, kind, _ in self._keys])


def _in_order(rows: Sequence[TensorRow], computed: Sequence[tuple[str, str]]) -> tuple[TensorRow, ...]:
    """Orders rows by the first activation of their layers, then by kind."""
    layers = [layer for layer, kind in computed if kind == ACTIVATION] + [layer for layer, _ in computed]
    return tuple(sorted(rows, key=lambda row: (layers.index(row.layer), KINDS.index(row.kind))))


def _key(operation: tf.Operation) -> Key:
    """Returns the scope of an operation, its kind, and its name in the scope."""
    name, kind = operation.name, ACTIVATION
    for prefix in (_OF_TAPES, _OF_GRADIENTS):
        if name.startswith(prefix):
            name, kind = name.removeprefix(prefix), GRADIENT
    parts = name.split("/")
    # The gradient of an operation is named after it: `dense/MatMul/MatMul_1`, `dense/MatMul_grad/MatMul`.
    depth = 2 if kind == GRADIENT else 1
    scope = "/".join(parts[:-depth])
    return scope or _NO_SCOPE, kind, "/".join(parts[-depth:])


class _ModelSteps:
    """Runs steps of a model: each in float32, which updates the weights, and beside it in float16, which does not."""

    def __init__(self, model: keras.Model, run: Callable[[Callable[..., Any], Sequence[Any]], Any]) -> None:
        self._model = model
        self._run = run
        self._functions: dict[object, tuple[Any, list[Key]]] = {}

    def report(self, batches: Iterable[Nested], loss_scale: float, device: str) -> PrecisionReport:
        before = state = self._state()
        count, losses = Count(), []
        batch: Nested = None
        single: Values = {}
        try:
            for batch in batches:
                state = self._state()
                half_loss, half = self._computed(batch, scale=loss_scale)
                self._assign(state)  # Layers may keep what they see, such as means.
                loss, single = self._computed(batch)
                losses.append((float(loss), float(half_loss)))
                count.step(single, half)
                count.updates(*self._update_since(state, single))
            if not losses:
                raise ValueError("`data` has no batch: a report needs at least one")
            half_weights = any(weight.dtype == "float16" for weight in self._model.trainable_variables)
            rows = count.rows()
            rows = _in_order(rows, [(row.layer, row.kind) for row in rows])
            report = PrecisionReport(self._model.name, device, loss_scale, rows, tuple(losses), half_weights)

            def tried(scale: float, layers: Sequence[str]) -> Values:
                self._assign(state)
                return self._computed(batch, scale=scale, single=layers)[1]

            return trial_of(report, single, tried)
        finally:
            self._assign(before)

    def _computed(self, batch: Nested, scale: float | None = None, single: Sequence[str] = ()) -> tuple[Any, Values]:
        """Returns the loss and the tensors of a step: in float16 with a scale; without one in float32, with the update."""
        key = (scale, tuple(single))
        if key not in self._functions:
            self._functions[key] = self._function(scale, single)
        function, keys = self._functions[key]
        loss, tensors = self._run(function, tf.nest.map_structure(tf.convert_to_tensor, tuple(batch)))
        return loss, dict(zip(keys, (np.asarray(each) for each in tensors), strict=True))

    def _function(self, scale: float | None, single: Sequence[str]) -> tuple[Any, list[Key]]:
        keys: list[Key] = []
        model = self._model

        def step(*batch: Any) -> Any:
            made = tensor_probes.probed_step(model, batch, scale is not None, 1.0 if scale is None else scale, single)
            tensors: dict[Key, tf.Tensor] = {}
            for kind, owners, values in (
                (ACTIVATION, made.activations, [each.tensor for each in made.activations]),
                (GRADIENT, made.activations, made.gradients),
                (WEIGHT_GRADIENT, made.weights, made.weight_gradients),
            ):
                known = ((owner, value) for owner, value in zip(owners, values, strict=True) if value is not None)
                tensors.update({(owner.layer, kind, owner.name): value for owner, value in known})
            keys[:] = tensors
            if scale is None:
                tensor_probes.update(model, made.weight_gradients)
            return made.loss, list(tensors.values())

        return tf.function(step, jit_compile=True, autograph=False), keys

    def _update_since(self, state: Sequence[Any], single: Values) -> tuple[Values, Values, Mapping[Key, float]]:
        """Returns the weights before a step, its updates, and the share of each that is lost in float16."""
        weights: Values = {}
        updates: Values = {}
        stuck: dict[Key, float] = {}
        trained = {id(weight): at for at, weight in enumerate(self._model.variables)}
        for owner, weight in zip(tensor_probes.weights_of(self._model), self._model.trainable_variables, strict=True):
            before = state[trained[id(weight)]].astype(np.float32)
            after = np.asarray(tf.convert_to_tensor(weight), np.float32)
            key = (owner.layer, UPDATE, owner.name)
            weights[owner.layer, WEIGHT, owner.name] = before
            updates[key] = after - before
            if weight.dtype == "float16":
                moves = single.get((owner.layer, WEIGHT_GRADIENT, owner.name), updates[key]) != 0
                stays = after == before
            else:
                moves, half = updates[key] != 0, before.astype(np.float16)
                with np.errstate(over="ignore"):
                    stays = (half.astype(np.float32) + updates[key]).astype(np.float16) == half
            stuck[key] = float(np.count_nonzero(moves & stays) / max(1, np.count_nonzero(moves)))
        return weights, updates, stuck

    def _state(self) -> list[Any]:
        return [np.array(tf.convert_to_tensor(variable)) for variable in tensor_probes.variables_of(self._model)]

    def _assign(self, state: Sequence[Any]) -> None:
        for variable, value in zip(tensor_probes.variables_of(self._model), state, strict=True):
            variable.assign(value)


def precision_report(
    model: keras.Model | Callable[..., Nested],
    data: Nested | tf.data.Dataset | Iterable[Nested],
    *,
    steps: int = 4,
    batch_size: int = 32,
    loss_scale: float = 1.0,
) -> PrecisionReport:
    """Runs some steps in float32, and beside each the same in float16, and tells what float16 makes of each tensor.

    A step of float16 begins with the weights of float32. A model that was made in a strategy's scope, and a function in
    one, computes float16 on the strategy's device, as that is configured; exceptions of floating point do not stop it
    here. Others are compiled by XLA, whose float16 is that of IEEE 754.

    Args:
      model: A compiled Keras model, which is left as it was, or a `tf.function` of a step: see `docs/half_precision.md`.
      data: Batches: a dataset or another iterable of what a step takes, `(x, y)` or `(x, y, sample_weight)` for a model, and
        a tuple of arguments for a function. For a model also a tuple of arrays, of which batches are made.
      steps: The most steps to run.
      batch_size: Samples of a batch, where `data` is arrays.
      loss_scale: What the loss is multiplied by in float16, before it is differentiated. Of a function: what it multiplies
        its loss by itself, in both.

    Raises:
      TypeError: `model` is neither, or `data` gives no tuples.
      ValueError: A number is out of range; there are no data; or the model was not compiled, or has a `train_step` of its
        own, which would have no part in the report.
    """
    if not is_int(steps) or steps < 1:
        raise ValueError(f"`steps` must be a positive integer, but is {steps!r}")
    if not is_int(batch_size) or batch_size < 1:
        raise ValueError(f"`batch_size` must be a positive integer, but is {batch_size!r}")
    if not is_number(loss_scale) or not 0 < loss_scale < float("inf"):
        raise ValueError(f"`loss_scale` must be a positive number, but is {loss_scale!r}")
    with progress.of("float16 beside float32, steps", steps) as work:
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
            yield tf.nest.map_structure(lambda leaf, at=first: np.asarray(leaf)[at : at + batch_size], data)
        return
    for batch in [data] if arrays else data:
        if not isinstance(batch, tuple):
            raise TypeError(f"`data` must give tuples, but gives {type(batch).__name__}: `(x, y)` for a model")
        yield batch


def _of_model(model: keras.Model, batches: Iterator[Nested], loss_scale: float) -> PrecisionReport:
    if tensor_probes.has_own_step(model):
        raise ValueError(
            f"`model` has a `train_step` of its own (`{type(model).__name__}.train_step`), which a report on the model does"
            " not run: it computes the compiled loss and its gradients. Give the step as a `tf.function`"
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
