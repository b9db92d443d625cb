"""Recurrent layers of TensorFlow 1's style, as the SDK's add-ons have them in `v1.layers`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu import replicas
from tensorflow_ipu._base.checks import Faults, note_bool
from tensorflow_ipu.ops import _rnn_base
from tensorflow_ipu.ops._rnn_base import LSTMStateTuple, PopnnRNN

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import DTypeLike, TensorLike

__all__ = ["LSTMStateTuple", "PopnnAUGRU", "PopnnDynamicGRU", "PopnnDynamicLSTM", "PopnnGRU", "PopnnLSTM"]


class PopnnLSTM(PopnnRNN):
    """Long short-term memory over [time, batch, size]. Its gates are in the order forget, input, candidate, output."""

    _gates = 4
    _base_name = "popnn_lstm"

    def __call__(self, inputs: TensorLike, initial_state: LSTMStateTuple | None = None, training: bool = True) -> Any:
        """Computes the layer.

        Args:
          inputs: A tensor [time, batch, size].
          initial_state: The states to start from: an `LSTMStateTuple` of (c, h). None: zeros.
          training: Whether it is trained; the numbers are the same.

        Returns:
          The outputs [time, batch, units], and with `return_state` an `LSTMStateTuple` of the last states.

        Raises:
          ValueError: `initial_state` is none, or `inputs` has not three dimensions or an unknown time or size.
        """
        return self._call(inputs, initial_state, training, None)

    call = __call__

    def _call(
        self, inputs: TensorLike, initial_state: LSTMStateTuple | None, training: bool, lengths: TensorLike | None
    ) -> Any:
        del training
        values = self._inputs(inputs)
        if initial_state is None:
            initial_state = LSTMStateTuple(self._zeros(values), self._zeros(values))
        elif not (isinstance(initial_state, tuple) and hasattr(initial_state, "c") and hasattr(initial_state, "h")):
            raise ValueError(
                f"`initial_state` must be an `LSTMStateTuple` of (c, h), but is {type(initial_state).__name__}"
            )
        memory, output = (tf.convert_to_tensor(each, dtype=self.dtype) for each in initial_state)
        kernel, biases = tf.convert_to_tensor(self.kernel), tf.convert_to_tensor(self.biases)
        step = _rnn_base.lstm_step(kernel, biases, self._activation, self._gate)
        with replicas.summed_in(self.partials_dtype, self.dtype):
            outputs, (output, memory) = _rnn_base.run(step, values, (output, memory), lengths, None)
        return (outputs, LSTMStateTuple(memory, output)) if self._return_state else outputs

    def state_shape(self, batch_size: int) -> tuple[list[int], list[int]]:
        """The shapes of the two states."""
        return [batch_size, self._num_units], [batch_size, self._num_units]


class PopnnDynamicLSTM(PopnnLSTM):
    """Long short-term memory over sequences of different lengths."""

    _base_name = "popnn_dynamic_lstm"

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]  # The SDK's order.
        self,
        inputs: TensorLike,
        seq_len: TensorLike,
        initial_state: LSTMStateTuple | None = None,
        training: bool = True,
    ) -> Any:
        """Computes the layer; see `PopnnLSTM`.

        Args:
          inputs: A tensor [time, batch, size].
          seq_len: How many steps of time each sequence has: integers [batch]. Behind them outputs are zeros.
          initial_state: The states to start from.
          training: Whether it is trained.
        """
        return self._call(inputs, initial_state, training, seq_len)

    call = __call__


class PopnnGRU(PopnnRNN):
    """Gated recurrent units over [time, batch, size]. The gates are in the order reset, update, candidate."""

    _gates = 3
    _base_name = "popnn_gru"

    def __init__(
        self,
        num_units: int,
        dtype: DTypeLike = tf.float32,
        partials_dtype: DTypeLike = tf.float32,
        seed: int | None = None,
        weights_initializer: Callable[..., Any] | None = None,
        bias_initializer: Callable[..., Any] | None = None,
        activation: str | Callable[..., Any] = "tanh",
        recurrent_activation: str | Callable[..., Any] = "sigmoid",
        return_state: bool = True,
        name: str | None = None,
        reset_after: bool = False,
        options: Mapping[str, Any] | None = None,
        options_bwd: Mapping[str, Any] | None = None,
    ) -> None:
        """Makes the layer; see `PopnnLSTM` for the other arguments.

        Args:
          num_units: The size of the output.
          dtype: float16 or float32.
          partials_dtype: As for `PopnnLSTM`.
          seed: The seed of the default initializer of the weights.
          weights_initializer: Gives the weights their first values.
          bias_initializer: Gives the biases theirs.
          activation: The activation of the candidate.
          recurrent_activation: The activation of the gates.
          return_state: Whether the last state is returned with the outputs.
          name: The name of the scope of the variables.
          reset_after: Whether the state is reset after its product with the weights. Then the biases are [3, 2, units].
          options: Options for hardware, recorded.
          options_bwd: Options for hardware in the backward pass, recorded.
        """
        faults = Faults()
        note_bool("reset_after", reset_after, faults)
        faults.raise_any()
        super().__init__(
            num_units, dtype, partials_dtype, seed, weights_initializer, bias_initializer, activation,
            recurrent_activation, return_state, name, options, options_bwd,
        )  # fmt: skip
        self._reset_after = reset_after

    @property
    def canonical_bias_shapes(self) -> list[int]:
        """The shape of the biases: for each gate a row, or with `reset_after` two."""
        return [self._gates, *([2] if self._reset_after else []), self._num_units]

    def __call__(self, inputs: TensorLike, initial_state: TensorLike | None = None, training: bool = True) -> Any:
        """Computes the layer.

        Args:
          inputs: A tensor [time, batch, size].
          initial_state: The state to start from, [batch, units]. None: zeros.
          training: Whether it is trained; the numbers are the same.

        Returns:
          The outputs [time, batch, units], and with `return_state` the last state.

        Raises:
          ValueError: `inputs` has not three dimensions, or an unknown time or size.
        """
        return self._call(inputs, initial_state, training)

    call = __call__

    def _call(
        self,
        inputs: TensorLike,
        initial_state: TensorLike | None,
        training: bool,
        lengths: TensorLike | None = None,
        time_major: bool = True,
        attention: TensorLike | None = None,
    ) -> Any:
        del training
        if not time_major:
            inputs = tf.transpose(tf.convert_to_tensor(inputs), [1, 0, 2])
            attention = None if attention is None else tf.transpose(tf.convert_to_tensor(attention))
        values = self._inputs(inputs)
        state = self._zeros(values) if initial_state is None else tf.convert_to_tensor(initial_state, self.dtype)
        scores = None if attention is None else tf.cast(attention, self.dtype)
        biases = tf.convert_to_tensor(self.biases)
        step = _rnn_base.gru_step(
            tf.convert_to_tensor(self.kernel), biases, self._activation, self._gate, self._reset_after
        )
        with replicas.summed_in(self.partials_dtype, self.dtype):
            outputs, (state,) = _rnn_base.run(step, values, (state,), lengths, scores)
        return (outputs, state) if self._return_state else outputs

    def state_shape(self, batch_size: int) -> list[int]:
        """The shape of the state."""
        return [batch_size, self._num_units]


class PopnnDynamicGRU(PopnnGRU):
    """Gated recurrent units over sequences of different lengths."""

    _base_name = "popnn_dynamic_gru"

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]  # The SDK's order.
        self,
        inputs: TensorLike,
        seq_len: TensorLike,
        initial_state: TensorLike | None = None,
        training: bool = True,
        time_major: bool = True,
    ) -> Any:
        """Computes the layer; see `PopnnGRU`.

        Args:
          inputs: A tensor [time, batch, size]; without `time_major`, [batch, time, size].
          seq_len: How many steps of time each sequence has: integers [batch]. Behind them outputs are zeros.
          initial_state: The state to start from.
          training: Whether it is trained.
          time_major: Whether time is the first dimension of `inputs`. It is that of the outputs in any case.
        """
        return self._call(inputs, initial_state, training, seq_len, time_major)

    call = __call__


class PopnnAUGRU(PopnnGRU):
    """Gated recurrent units with attention: the more a step has, the less of the state is kept in it.

    As in the SDK, the biases are two variables: `bias_r_u`, [2, units], of the two gates, which start at 1, and `bias_c`,
    [1, units], of the candidate. With `reset_after` each has two rows a gate.

    Attributes:
      bias_r_u: The biases of the gates.
      bias_c: Those of the candidate.
    """

    _base_name = "popnn_augru"
    bias_r_u: tf.Variable
    bias_c: tf.Variable

    def _build_biases(self) -> None:
        shape = self.canonical_bias_shapes[1:]
        ones, zeros = tf.compat.v1.ones_initializer(), tf.compat.v1.zeros_initializer()
        self.bias_r_u = self._variable("bias_r_u", [2, *shape], self._bias_initializer or ones)
        self.bias_c = self._variable("bias_c", [1, *shape], self._bias_initializer or zeros)

    @property
    def biases(self) -> tf.Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]  # Of two variables.
        """All biases, of shape `canonical_bias_shapes`."""
        return tf.concat([self.bias_r_u, self.bias_c], 0)

    @property
    def variables(self) -> list[tf.Variable]:
        """The weights and the two variables of biases; nothing before the layer is built."""
        return [self.kernel, self.bias_r_u, self.bias_c] if self.built else []

    trainable_variables = variables

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]  # The SDK's order.
        self,
        inputs: TensorLike,
        seq_len: TensorLike,
        attention_score: TensorLike,
        initial_state: TensorLike | None = None,
        training: bool = True,
        time_major: bool = True,
    ) -> Any:
        """Computes the layer; see `PopnnDynamicGRU`.

        Args:
          inputs: A tensor [time, batch, size]; without `time_major`, [batch, time, size].
          seq_len: How many steps of time each sequence has.
          attention_score: How much attention each step has, from 0 to 1: [time, batch]; without `time_major`,
            [batch, time].
          initial_state: The state to start from.
          training: Whether it is trained.
          time_major: Whether time is the first dimension of `inputs` and `attention_score`.
        """
        return self._call(inputs, initial_state, training, seq_len, time_major, attention_score)

    call = __call__
