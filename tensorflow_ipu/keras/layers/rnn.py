"""Recurrent layers with the names and arguments that they have on the IPU."""

# The arguments of inherited methods are IPU TensorFlow's, in other names and another order than Keras's.
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from tensorflow_ipu.keras.layers import _rnn_base

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Activation, Constraint, DTypeLike, Initializer, Regularizer

__all__ = ["PopnnGRU", "PopnnLSTM"]

_NOT_CUDNN: Any = False  # Keras's own default, a string, is what its type is taken from.


@keras.saving.register_keras_serializable(package="tensorflow_ipu")
class PopnnLSTM(_rnn_base.Popnn, keras.layers.LSTM):
    """Long short-term memory, as `keras.layers.LSTM` computes it, with the weights of that.

    Options of `keras.layers.LSTM` that the IPU's layer does not have are refused.
    """

    def __init__(
        self,
        units: int,
        activation: Activation = "tanh",
        recurrent_activation: Activation = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: Initializer = "glorot_uniform",
        recurrent_initializer: Initializer = "orthogonal",
        bias_initializer: Initializer = "zeros",
        unit_forget_bias: bool = True,
        kernel_regularizer: Regularizer = None,
        recurrent_regularizer: Regularizer = None,
        bias_regularizer: Regularizer = None,
        activity_regularizer: Regularizer = None,
        kernel_constraint: Constraint = None,
        recurrent_constraint: Constraint = None,
        bias_constraint: Constraint = None,
        dropout: float = 0.0,
        dropout_seed: int | None = None,
        recurrent_dropout: float = 0.0,
        implementation: int = 2,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        unroll: bool = False,
        partials_dtype: DTypeLike = tf.float32,
        seed: int | None = None,
        time_major: bool = False,
        options: Mapping[str, Any] | None = None,
        options_bwd: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Creates the layer.

        Args:
          units: The size of the output.
          activation: The activation of the cell.
          recurrent_activation: The activation of the gates.
          use_bias: True.
          kernel_initializer: Gives the kernel, of shape [inputs, 4 * units], its first values.
          recurrent_initializer: Gives the recurrent kernel, of shape [units, 4 * units], its first values.
          bias_initializer: Gives the bias, of shape [4 * units], its first values.
          unit_forget_bias: Whether the forget gate's bias starts at 1.
          kernel_regularizer: None; and so are the regularizers and constraints that follow.
          recurrent_regularizer: See there.
          bias_regularizer: See there.
          activity_regularizer: See there.
          kernel_constraint: See there.
          recurrent_constraint: See there.
          bias_constraint: See there.
          dropout: The share of inputs that become zero in training, the same at each step of time.
          dropout_seed: A number from which the masks of all steps of training follow.
          recurrent_dropout: 0.
          implementation: 2.
          return_sequences: Whether to return the outputs of all steps of time, and not of the last alone.
          return_state: Whether to return the last output and the state of the cell too.
          go_backwards: False.
          stateful: Whether a batch starts from the states that the one before ended with.
          unroll: False.
          partials_dtype: The type in which products of float16 sum up: float16, or float32, which goes before
            `partialsType` of `IPUConfig`; a `scopes.partials_type` around the call goes before both.
          seed: The seed of the kernels' initializers where they have none of their own.
          time_major: Whether inputs, and outputs of all steps, are [time, batch, size], and not [batch, time, size].
          options: Options for hardware, recorded.
          options_bwd: Options for hardware in the backward pass, recorded.
          **kwargs: Arguments of every Keras layer, such as `name` and `dtype`.

        Raises:
          ValueError: An option that the layer does not have is asked for.
          TypeError: `time_major` is no bool, or `options` no dict.
        """
        self._check(
            partials_dtype, time_major, {"options": options, "options_bwd": options_bwd},
            use_bias=use_bias, kernel_regularizer=kernel_regularizer, recurrent_regularizer=recurrent_regularizer,
            bias_regularizer=bias_regularizer, activity_regularizer=activity_regularizer,
            kernel_constraint=kernel_constraint, recurrent_constraint=recurrent_constraint,
            bias_constraint=bias_constraint, recurrent_dropout=recurrent_dropout, implementation=implementation,
            go_backwards=go_backwards, unroll=unroll,
        )  # fmt: skip
        super().__init__(
            units,
            activation=activation,  # pyright: ignore[reportArgumentType]  # Keras says no type; that of the default is none.
            recurrent_activation=recurrent_activation,  # pyright: ignore[reportArgumentType]  # Keras says no type; that of the default is none.
            kernel_initializer=_rnn_base.seeded(kernel_initializer, seed),
            recurrent_initializer=_rnn_base.seeded(recurrent_initializer, seed),
            bias_initializer=bias_initializer,  # pyright: ignore[reportArgumentType]  # Keras says no type; that of the default is none.
            unit_forget_bias=unit_forget_bias,
            dropout=dropout,
            seed=dropout_seed,
            return_sequences=return_sequences,
            return_state=return_state,
            stateful=stateful,
            use_cudnn=_NOT_CUDNN,  # Else Keras would not compile models with this layer.
            **kwargs,
        )
        self._record(partials_dtype, seed, dropout_seed, time_major, options, options_bwd)

    def get_bias(self) -> tf.Tensor:
        """The bias, a tensor with a row for each gate: [4, units], in the order input, forget, cell, output."""
        return tf.reshape(tf.convert_to_tensor(self.cell.bias), [4, self.units])

    def state_shape(self, batch_size: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """The shapes of the two states."""
        return (batch_size, self.units), (batch_size, self.units)


@keras.saving.register_keras_serializable(package="tensorflow_ipu")
class PopnnGRU(_rnn_base.Popnn, keras.layers.GRU):
    """Gated recurrent units, as `keras.layers.GRU` computes them, with the weights of that.

    Options of `keras.layers.GRU` that the IPU's layer does not have are refused.
    """

    def __init__(
        self,
        units: int,
        activation: Activation = "tanh",
        recurrent_activation: Activation = "sigmoid",
        use_bias: bool = True,
        kernel_initializer: Initializer = "glorot_uniform",
        recurrent_initializer: Initializer = "orthogonal",
        bias_initializer: Initializer = "zeros",
        kernel_regularizer: Regularizer = None,
        recurrent_regularizer: Regularizer = None,
        bias_regularizer: Regularizer = None,
        activity_regularizer: Regularizer = None,
        kernel_constraint: Constraint = None,
        recurrent_constraint: Constraint = None,
        bias_constraint: Constraint = None,
        dropout: float = 0.0,
        dropout_seed: int | None = None,
        recurrent_dropout: float = 0.0,
        implementation: int = 2,
        return_sequences: bool = False,
        return_state: bool = False,
        go_backwards: bool = False,
        stateful: bool = False,
        unroll: bool = False,
        reset_after: bool = True,
        seed: int | None = None,
        partials_dtype: DTypeLike = tf.float32,
        time_major: bool = False,
        options: Mapping[str, Any] | None = None,
        options_bwd: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Creates the layer. See `PopnnLSTM` for the other arguments, and for what is raised.

        Args:
          units: The size of the output.
          activation: The activation of the output.
          recurrent_activation: The activation of the gates.
          use_bias: True.
          kernel_initializer: Gives the kernel, of shape [inputs, 3 * units], its first values.
          recurrent_initializer: Gives the recurrent kernel, of shape [units, 3 * units], its first values.
          bias_initializer: Gives the bias its first values: [2, 3 * units] with `reset_after`, else [3 * units].
          kernel_regularizer: None.
          recurrent_regularizer: None.
          bias_regularizer: None.
          activity_regularizer: None.
          kernel_constraint: None.
          recurrent_constraint: None.
          bias_constraint: None.
          dropout: The share of inputs that become zero in training.
          dropout_seed: A number from which the masks of all steps of training follow.
          recurrent_dropout: 0.
          implementation: 2.
          return_sequences: Whether to return the outputs of all steps of time.
          return_state: Whether to return the last output once more, as the state.
          go_backwards: False.
          stateful: Whether a batch starts from the state that the one before ended with.
          unroll: False.
          reset_after: Whether the reset gate comes after the product with the recurrent kernel.
          seed: The seed of the kernels' initializers where they have none of their own.
          partials_dtype: As for `PopnnLSTM`.
          time_major: Whether inputs, and outputs of all steps, are [time, batch, size].
          options: Options for hardware, recorded.
          options_bwd: Options for hardware in the backward pass, recorded.
          **kwargs: Arguments of every Keras layer, such as `name` and `dtype`.
        """
        self._check(
            partials_dtype, time_major, {"options": options, "options_bwd": options_bwd},
            use_bias=use_bias, kernel_regularizer=kernel_regularizer, recurrent_regularizer=recurrent_regularizer,
            bias_regularizer=bias_regularizer, activity_regularizer=activity_regularizer,
            kernel_constraint=kernel_constraint, recurrent_constraint=recurrent_constraint,
            bias_constraint=bias_constraint, recurrent_dropout=recurrent_dropout, implementation=implementation,
            go_backwards=go_backwards, unroll=unroll,
        )  # fmt: skip
        super().__init__(
            units,
            activation=activation,  # pyright: ignore[reportArgumentType]  # Keras says no type; that of the default is none.
            recurrent_activation=recurrent_activation,  # pyright: ignore[reportArgumentType]  # Keras says no type; that of the default is none.
            kernel_initializer=_rnn_base.seeded(kernel_initializer, seed),
            recurrent_initializer=_rnn_base.seeded(recurrent_initializer, seed),
            bias_initializer=bias_initializer,  # pyright: ignore[reportArgumentType]  # Keras says no type; that of the default is none.
            dropout=dropout,
            seed=dropout_seed,
            return_sequences=return_sequences,
            return_state=return_state,
            stateful=stateful,
            reset_after=reset_after,
            use_cudnn=_NOT_CUDNN,  # Else Keras would not compile models with this layer.
            **kwargs,
        )
        self._record(partials_dtype, seed, dropout_seed, time_major, options, options_bwd)

    def state_shape(self, batch_size: int) -> tuple[int, int]:
        """The shape of the state."""
        return batch_size, self.units
