"""Steps of a Keras model in float32 and in float16, for a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from tensorflow_ipu.keras import watching
from tensorflow_ipu.precision import _report
from tensorflow_ipu.precision._counting import Count, Key, Values, trial_of
from tensorflow_ipu.precision._report import PrecisionReport, TensorRow

if TYPE_CHECKING:
    from tensorflow_ipu._types import Nested


class ModelSteps:
    """Runs steps of a model: each in float32, which updates the weights, and beside it in float16, which does not."""

    def __init__(self, model: keras.Model, run: Callable[[Callable[..., Any], Sequence[Any]], Any]) -> None:
        """Runs steps of `model`.

        Args:
          model: A model that is built and compiled, with its optimizer.
          run: Runs a `tf.function` with arguments.
        """
        self._model = model
        self._run = run
        self._functions: dict[object, tuple[Any, list[Key]]] = {}

    def report(self, batches: Iterable[Nested], loss_scale: float, device: str) -> PrecisionReport:
        """Runs a step for each batch, and leaves the model as it was.

        Args:
          batches: What the steps take: `(x, y)` or `(x, y, sample_weight)` each.
          loss_scale: The scale of the loss in float16.
          device: Where float16 is computed, in words.

        Raises:
          ValueError: There is no batch.
        """
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
            rows = self._in_order(count.rows())
            report = PrecisionReport(self._model.name, device, loss_scale, rows, tuple(losses), half_weights)
            return trial_of(report, single, lambda scale, layers: self._tried(state, batch, scale, layers))
        finally:
            self._assign(before)

    def _tried(self, state: Sequence[Any], batch: Nested, scale: float, layers: Sequence[str]) -> Values:
        self._assign(state)
        return self._computed(batch, scale=scale, single=layers)[1]

    def _computed(self, batch: Nested, scale: float | None = None, single: Sequence[str] = ()) -> tuple[Any, Values]:
        """The loss of a step and its tensors: in float16 with a scale, and without one in float32, with the update."""
        made = self._functions.get((scale, tuple(single)))
        if made is None:
            made = self._functions[scale, tuple(single)] = self._function(scale, single)
        function, keys = made
        loss, tensors = self._run(function, tf.nest.map_structure(tf.convert_to_tensor, tuple(batch)))
        return loss, dict(zip(keys, (np.asarray(each) for each in tensors), strict=True))

    def _function(self, scale: float | None, single: Sequence[str]) -> tuple[Any, list[Key]]:
        keys: list[Key] = []
        model = self._model

        def step(*batch: Any) -> Any:
            made = watching.watched_step(model, batch, scale is not None, 1.0 if scale is None else scale, single)
            tensors: dict[Key, tf.Tensor] = {}
            for kind, owners, values in (
                (_report.ACTIVATION, made.activations, [each.tensor for each in made.activations]),
                (_report.GRADIENT, made.activations, made.gradients),
                (_report.WEIGHT_GRADIENT, made.weights, made.weight_gradients),
            ):
                for owner, value in zip(owners, values, strict=True):
                    if value is not None:
                        tensors[owner.layer, kind, owner.name] = value
            keys[:] = tensors
            if scale is None:
                watching.update(model, made.weight_gradients)
            return made.loss, list(tensors.values())

        return tf.function(step, jit_compile=True, autograph=False), keys

    def _update_since(self, state: Sequence[Any], single: Values) -> tuple[Values, Values, Mapping[Key, float]]:
        """The weights of float32 before a step, its updates, and which share of them is stuck in float16."""
        weights: Values = {}
        updates: Values = {}
        stuck: dict[Key, float] = {}
        trained = {id(weight): at for at, weight in enumerate(self._model.variables)}
        for owner, weight in zip(watching.weights_of(self._model), self._model.trainable_variables, strict=True):
            before = state[trained[id(weight)]].astype(np.float32)
            after = np.asarray(keras.ops.convert_to_numpy(weight), np.float32)
            key = (owner.layer, _report.UPDATE, owner.name)
            weights[owner.layer, _report.WEIGHT, owner.name] = before
            updates[key] = after - before
            if weight.dtype == "float16":
                moves = single.get((owner.layer, _report.WEIGHT_GRADIENT, owner.name), updates[key]) != 0
                stays = after == before
            else:
                moves, half = updates[key] != 0, before.astype(np.float16)
                with np.errstate(over="ignore"):
                    stays = (half.astype(np.float32) + updates[key]).astype(np.float16) == half
            stuck[key] = float(np.count_nonzero(moves & stays) / max(1, np.count_nonzero(moves)))
        return weights, updates, stuck

    def _in_order(self, rows: Sequence[TensorRow]) -> tuple[TensorRow, ...]:
        """Layer by layer in the order in which they are computed."""
        layers = [row.layer for row in rows if row.kind == _report.ACTIVATION]
        layers += [row.layer for row in rows]
        return tuple(sorted(rows, key=lambda row: (layers.index(row.layer), _report.KINDS.index(row.kind))))

    def _variables(self) -> list[Any]:
        optimizer = self._model.optimizer
        return [*self._model.variables, *([] if optimizer is None else optimizer.variables)]

    def _state(self) -> list[Any]:
        return [np.array(keras.ops.convert_to_numpy(variable)) for variable in self._variables()]

    def _assign(self, state: Sequence[Any]) -> None:
        for variable, value in zip(self._variables(), state, strict=True):
            variable.assign(value)
