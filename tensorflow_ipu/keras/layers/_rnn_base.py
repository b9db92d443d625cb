"""What recurrent layers of the IPU add to Keras's own."""

# The arguments of methods are IPU TensorFlow's, in other names and another order than Keras's.
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tensorflow_ipu import replicas
from tensorflow_ipu._base.checks import Faults, note_bool

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Config, DTypeLike, Initializer, Nested, Shape

_PARTIALS = (tf.float16, tf.float32)

# What Keras's layers can do otherwise, and those of the IPU cannot.
_FIXED: dict[str, object] = {
    "use_bias": True,
    "kernel_regularizer": None,
    "recurrent_regularizer": None,
    "bias_regularizer": None,
    "activity_regularizer": None,
    "kernel_constraint": None,
    "recurrent_constraint": None,
    "bias_constraint": None,
    "recurrent_dropout": 0,
    "implementation": 2,
    "go_backwards": False,
    "unroll": False,
}


class Popnn(keras.layers.RNN):
    """What both layers add to Keras's own: the order of dimensions, seeds, and options for hardware."""

    def build(self, inputs_shape: Shape, initial_state_shape: Nested = None) -> None:
        """Makes the weights for inputs of this shape."""
        super().build(self._batch_major(inputs_shape), initial_state_shape)

    def call(
        self,
        inputs: tf.Tensor,
        mask: tf.Tensor | None = None,
        training: bool | None = None,
        initial_state: Nested = None,
    ) -> Nested:
        """Computes the layer.

        Args:
          inputs: A tensor [batch, time, size]; with `time_major`, [time, batch, size].
          mask: Which steps of time count, booleans of the first two dimensions of `inputs`.
          training: Whether to drop inputs.
          initial_state: The state to start from: of `PopnnLSTM` the output and the state of the cell, of `PopnnGRU` the
            output alone, each [batch, units]. None: zeros.

        Returns:
          The last output [batch, units], or with `return_sequences` all outputs, in the order of dimensions of `inputs`.
          With `return_state` a list of this and of the state after the last step.

        Raises:
          ValueError: `inputs` has not three dimensions.
        """
        if inputs.shape.rank != 3:
            raise ValueError(f"`inputs` must have three dimensions, but has shape {inputs.shape}")
        with replicas.summed_in(self.partials_dtype, self.compute_dtype):
            results = super().call(
                self._swapped(inputs), initial_state=initial_state, mask=self._swapped(mask), training=bool(training)
            )
        return self._of_outputs(results, self._swapped)

    def compute_output_shape(self, inputs_shape: Shape, initial_state_shape: Nested = None) -> Nested:
        """The shapes of the results."""
        shapes = super().compute_output_shape(self._batch_major(inputs_shape), initial_state_shape)
        return self._of_outputs(shapes, self._batch_major)

    def get_config(self) -> Config:
        """The arguments to make the layer anew."""
        return {**super().get_config(), **self._recorded()}

    def _check(
        self,
        partials_dtype: DTypeLike,
        time_major: object,
        options: Mapping[str, object],
        **fixed: object,
    ) -> None:
        """Refuses what the layer does not have, all at once."""
        faults = Faults()
        for name, value in fixed.items():
            if value != _FIXED[name]:
                kind = type(self).__name__
                faults.add(
                    ValueError,
                    f"`{kind}` has no `{name}={value!r}`, only `{name}={_FIXED[name]!r}`;"
                    f" `keras.layers.{kind.removeprefix('Popnn')}` runs on the IPU too, and has it",
                )
        if tf.as_dtype(partials_dtype) not in _PARTIALS:
            faults.add(ValueError, f"`partials_dtype` must be float16 or float32, but is `{partials_dtype!r}`")
        note_bool("time_major", time_major, faults)
        for name, value in options.items():
            if value is not None and not isinstance(value, Mapping):
                faults.add(TypeError, f"`{name}` must be a dict, but is `{value!r}`")
        faults.raise_any()

    def _record(
        self,
        partials_dtype: DTypeLike,
        seed: int | None,
        dropout_seed: int | None,
        time_major: bool,
        options: Mapping[str, Any] | None,
        options_bwd: Mapping[str, Any] | None,
    ) -> None:
        self.partials_dtype = tf.as_dtype(partials_dtype)
        self.seed = seed
        self.dropout_seed = dropout_seed
        self.time_major = time_major
        self.options = None if options is None else dict(options)
        self.options_bwd = None if options_bwd is None else dict(options_bwd)

    def _recorded(self) -> dict[str, Any]:
        return {
            "partials_dtype": self.partials_dtype.name,
            "seed": self.seed,
            "dropout_seed": self.dropout_seed,
            "time_major": self.time_major,
            "options": self.options,
            "options_bwd": self.options_bwd,
            "implementation": 2,
        }

    def _batch_major(self, shape: Shape) -> tuple[int | None, ...]:
        """The shape of inputs as Keras has it."""
        batch, time, *rest = shape
        return (time, batch, *rest) if self.time_major else (batch, time, *rest)

    def _swapped(self, tensor: Any) -> Any:
        """A tensor with its first two dimensions swapped, where time comes first."""
        if tensor is None or not self.time_major:
            return tensor
        return tf.transpose(tensor, [1, 0, *range(2, len(tensor.shape))])

    def _of_outputs(self, results: Any, swapped: Callable[[Any], Any]) -> Any:
        """The results of Keras's layer with the outputs of all steps `swapped`, where time comes first; states stay."""
        if not self.time_major or not self.return_sequences:
            return results
        if not self.return_state:
            return swapped(results)
        outputs, *states = results
        return swapped(outputs), *states


def seeded(initializer: Initializer, seed: int | None) -> Any:
    """The initializer, with this seed if it is random and has none of its own."""
    found: Any = keras.initializers.get(initializer)
    if seed is None or not isinstance(initializer, str) or "seed" not in found.get_config():
        return found
    return type(found).from_config({**found.get_config(), "seed": seed})
