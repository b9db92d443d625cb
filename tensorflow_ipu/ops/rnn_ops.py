"""Recurrent layers in the style of TensorFlow 1, as in `v1.layers` of the SDK's add-ons."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu._base.checks import Faults, check_bool, check_int, note_bool
from tensorflow_ipu._base.tensors import known_size
from tensorflow_ipu.ops.nn_ops import hard_sigmoid

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import DTypeLike, ShapeLike, TensorLike

__all__ = [
    "LSTMStateTuple",
    "PopnnAUGRU",
    "PopnnDynamicGRU",
    "PopnnDynamicLSTM",
    "PopnnGRU",
    "PopnnLSTM",
]


_ACTIVATIONS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "hard_sigmoid": hard_sigmoid,
    "relu": tf.nn.relu,
    "sigmoid": tf.sigmoid,
    "softmax": tf.nn.softmax,
    "tanh": tf.tanh,
}


class LSTMStateTuple(NamedTuple):
    """The states of an LSTM: the memory `c` and the output `h`, each of shape [batch, units]."""

    c: tf.Tensor
    h: tf.Tensor


class PopnnRNN:
    """The base class of the layers, which creates the variables at the first call.

    Attributes:
      kernel: The weights, of shape `canonical_weight_shape`.
      biases: The biases, of shape `canonical_bias_shapes`.
    """

    _gates = 0
    _base_name = ""
    kernel: tf.Variable
    biases: tf.Variable

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
        options: Mapping[str, Any] | None = None,
        options_bwd: Mapping[str, Any] | None = None,
    ) -> None:
        """Creates the layer.

        Args:
          num_units: The size of the output.
          dtype: The dtype of inputs, weights and outputs: float16 or float32.
          partials_dtype: The dtype in which products of float16 are summed: float16 or float32. It overrides
            `partialsType` of `IPUConfig`; a `scopes.partials_type` around the call overrides both.
          seed: The seed of the default initializer of the weights.
          weights_initializer: The initializer of the weights; Glorot's uniform initializer if omitted.
          bias_initializer: The initializer of the biases; zeros if omitted.
          activation: "tanh", "relu", "softmax", "sigmoid" or "hard_sigmoid", or a function of such a name.
          recurrent_activation: The activation of the gates, one of the same.
          return_state: Whether the last state is returned with the outputs.
          name: The scope of the variables; a default name of the class if omitted.
          options: Options of the hardware, which are stored without effect.
          options_bwd: Options of the hardware in the backward pass, which are stored without effect.

        Raises:
          ValueError: A dtype or an activation is unsupported, or `num_units` is below 1.
          TypeError: `num_units` is not an int, or `return_state` is not a bool.
        """
        faults = Faults()
        faults.check(check_int, "num_units", num_units, 1)
        for argument, value in (("dtype", dtype), ("partials_dtype", partials_dtype)):
            if tf.as_dtype(value) not in (tf.float16, tf.float32):
                faults.add(ValueError, f"`{argument}` must be float16 or float32, but is {tf.as_dtype(value).name}")
        note_bool("return_state", return_state, faults)
        self._activation = _activation("activation", activation, faults)
        self._gate = _activation("recurrent_activation", recurrent_activation, faults)
        faults.raise_any()
        self.dtype = tf.as_dtype(dtype)
        self.partials_dtype = tf.as_dtype(partials_dtype)
        self.options, self.options_bwd = dict(options or {}), dict(options_bwd or {})
        self.built = False
        self._num_units = num_units
        self._seed = seed
        self._weights_initializer = weights_initializer
        self._bias_initializer = bias_initializer
        self._return_state = return_state
        self._name = name
        self._input_size: int | None = None
        self._scope: Any = None

    @property
    def num_layers(self) -> int:
        """The number of layers, 1."""
        return 1

    @property
    def num_units(self) -> int:
        """The size of the output."""
        return self._num_units

    @property
    def input_size(self) -> int:
        """The size of the inputs.

        Raises:
          ValueError: The layer is not built yet.
        """
        if self._input_size is None:
            raise ValueError("`input_size` is unknown before the layer is built: call the layer, or `build`")
        return self._input_size

    @property
    def canonical_weight_shape(self) -> list[int]:
        """The shape of the weights, [inputs + units, gates * units]: the input weights are above the recurrent weights."""
        return [self.input_size + self._num_units, self._gates * self._num_units]

    @property
    def canonical_bias_shapes(self) -> list[int]:
        """The shape of the biases: one row per gate."""
        return [self._gates, self._num_units]

    @property
    def saveable(self) -> bool:
        """False: checkpoints save the variables, not the layer."""
        return False

    @property
    def variables(self) -> list[tf.Variable]:
        """The weights and the biases; an empty list before the layer is built."""
        return [self.kernel, self.biases] if self.built else []

    trainable_variables = variables

    def build(self, input_shape: ShapeLike) -> None:
        """Creates the variables for inputs of this shape. Does nothing if the layer is built already.

        Raises:
          ValueError: The shape does not have three dimensions, or the last dimension is unknown.
        """
        if self.built:
            return
        shape = tf.TensorShape(input_shape)
        size = shape[2] if shape.rank == 3 else None
        if size is None:
            raise ValueError(f"`inputs` must be [time, batch, size] with a known size, but has shape {shape}")
        self._input_size = size
        glorot = tf.compat.v1.glorot_uniform_initializer(self._seed)
        self.kernel = self._variable("kernel", self.canonical_weight_shape, self._weights_initializer or glorot)
        self._build_biases()
        self.built = True

    def _build_biases(self) -> None:
        zeros = tf.compat.v1.zeros_initializer()
        self.biases = self._variable("biases", self.canonical_bias_shapes, self._bias_initializer or zeros)

    def _variable(self, name: str, shape: list[int], initializer: Callable[..., Any]) -> tf.Variable:
        base = self._name or self._base_name
        if tf.compat.v1.executing_eagerly_outside_functions():
            # `tf.function` only lets its first trace create variables, and the host computes their initial values.
            return tf.Variable(lambda: initializer(shape, dtype=self.dtype), dtype=self.dtype, name=f"{base}/{name}")
        with tf.compat.v1.variable_scope(self._scope, default_name=base, auxiliary_name_scope=False) as scope:
            self._scope = scope
            return tf.compat.v1.get_variable(name, shape, self.dtype, initializer, use_resource=True)

    def _inputs(self, inputs: TensorLike) -> tf.Tensor:
        values = tf.convert_to_tensor(inputs, dtype=self.dtype)
        self.build(values.shape)
        if values.shape[0] is None:
            raise ValueError(f"the number of time steps must be known, but `inputs` has shape {values.shape}")
        return values

    def _zeros(self, inputs: tf.Tensor) -> tf.Tensor:
        return tf.zeros([inputs.shape[1] or tf.shape(inputs)[1], self._num_units], self.dtype)


def _activation(argument: str, value: object, faults: Faults) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns the activation function for a name, or for a function of that name."""
    name = value if isinstance(value, str) else getattr(value, "__name__", value)
    if name not in _ACTIVATIONS:
        faults.add(ValueError, f"`{argument}` must be one of {', '.join(sorted(_ACTIVATIONS))}, but is {value!r}")
    return _ACTIVATIONS.get(str(name), tf.tanh)


Function = Callable[[tf.Tensor], tf.Tensor]
States = tuple[tf.Tensor, ...]
# A function of a step's inputs [batch, size], its attention [batch] or None, and the states. It returns the new states.
# The first of them is the output.
Step = Callable[[tf.Tensor, "tf.Tensor | None", States], States]


def lstm_step(kernel: tf.Tensor, biases: tf.Tensor, activation: Function, gate: Function) -> Step:
    """Creates the step function of an LSTM. Its states are the output and the memory."""

    def step(inputs: tf.Tensor, _: tf.Tensor | None, states: States) -> States:
        output, memory = states
        sums = tf.matmul(tf.concat([inputs, output], 1), kernel) + tf.reshape(biases, [-1])
        forget, enter, candidate, leave = tf.split(sums, 4, axis=1)
        memory = gate(forget) * memory + gate(enter) * activation(candidate)
        return gate(leave) * activation(memory), memory

    return step


def gru_step(kernel: tf.Tensor, biases: tf.Tensor, activation: Function, gate: Function, reset_after: bool) -> Step:
    """Creates the step function of a GRU. Its only state is the output.

    The gates `reset` and `update` are functions of the inputs and the state, and

        new state = update * state + (1 - update) * candidate

    The candidate depends on `reset * state`; with `reset_after`, the reset gate multiplies the product of the state and its
    weights instead. Attention scales `update` by `1 - attention`.
    """
    units = known_size(biases, -1)
    size = known_size(kernel, 0) - units
    input_kernel, state_kernel = kernel[:size], kernel[size:]
    input_biases = tf.reshape(biases[:, 0] if reset_after else biases, [-1])

    def step(inputs: tf.Tensor, attention: tf.Tensor | None, states: States) -> States:
        (state,) = states
        reset, update, candidate = tf.split(tf.matmul(inputs, input_kernel) + input_biases, 3, axis=1)
        if reset_after:
            products = tf.matmul(state, state_kernel) + tf.reshape(biases[:, 1], [-1])
            state_reset, state_update, state_candidate = tf.split(products, 3, axis=1)
            reset, update = gate(reset + state_reset), gate(update + state_update)
            candidate = activation(candidate + reset * state_candidate)
        else:
            state_reset, state_update = tf.split(tf.matmul(state, state_kernel[:, : 2 * units]), 2, axis=1)
            reset, update = gate(reset + state_reset), gate(update + state_update)
            candidate = activation(candidate + tf.matmul(reset * state, state_kernel[:, 2 * units :]))
        if attention is not None:
            update *= 1 - attention[:, tf.newaxis]
        return (update * state + (1 - update) * candidate,)

    return step


def run(
    step: Step, inputs: tf.Tensor, states: States, lengths: TensorLike | None, attention: tf.Tensor | None
) -> tuple[tf.Tensor, States]:
    """Computes the outputs and the last states of all time steps. Outputs beyond `lengths` are zeros."""
    time = known_size(inputs, 0)

    def body(index: tf.Tensor, outputs: tf.TensorArray, states: States) -> tuple[tf.Tensor, tf.TensorArray, States]:
        new_states = step(inputs[index], None if attention is None else attention[index], states)
        output = new_states[0]
        if lengths is not None:
            is_within = (index < tf.cast(lengths, tf.int32))[:, tf.newaxis]
            new_states = tuple(
                tf.where(is_within, new_state, old) for new_state, old in zip(new_states, states, strict=True)
            )
            output = tf.where(is_within, output, tf.zeros_like(output))
        return index + 1, outputs.write(index, output), new_states

    outputs = tf.TensorArray(inputs.dtype, time, element_shape=states[0].shape)
    _, outputs, states = tf.while_loop(
        lambda index, *_: index < time, body, (tf.constant(0), outputs, states), maximum_iterations=time
    )
    return outputs.stack(), states


class PopnnLSTM(PopnnRNN):
    """A long short-term memory (LSTM) of inputs [time, batch, size]. Its gates are forget, input, candidate, output."""

    _gates = 4
    _base_name = "popnn_lstm"

    def __call__(self, inputs: TensorLike, initial_state: LSTMStateTuple | None = None, training: bool = True) -> Any:
        """Computes the layer of `inputs` [time, batch, size]. `training` has no effect.

        `initial_state` is an `LSTMStateTuple` of (c, h), or None for zeros.

        Returns:
          The outputs [time, batch, units], and with `return_state` an `LSTMStateTuple` of the last states.

        Raises:
          ValueError: `initial_state` is not an `LSTMStateTuple`, or `inputs` does not have three dimensions with a known
            time and size.
        """
        del training
        return self._call(inputs, initial_state)

    call = __call__

    def _call(self, inputs: TensorLike, initial_state: LSTMStateTuple | None, lengths: TensorLike | None = None) -> Any:
        values = self._inputs(inputs)
        if initial_state is None:
            initial_state = LSTMStateTuple(self._zeros(values), self._zeros(values))
        elif not (isinstance(initial_state, tuple) and hasattr(initial_state, "c") and hasattr(initial_state, "h")):
            raise ValueError(
                f"`initial_state` must be an `LSTMStateTuple` of (c, h), but is {type(initial_state).__name__}"
            )
        memory, output = (tf.convert_to_tensor(state, dtype=self.dtype) for state in initial_state)
        kernel, biases = tf.convert_to_tensor(self.kernel), tf.convert_to_tensor(self.biases)
        step = lstm_step(kernel, biases, self._activation, self._gate)
        with programs.summed_in(self.partials_dtype, self.dtype):
            outputs, (output, memory) = run(step, values, (output, memory), lengths, None)
        return (outputs, LSTMStateTuple(memory, output)) if self._return_state else outputs

    def state_shape(self, batch_size: int) -> tuple[list[int], list[int]]:
        """Returns the shapes of the states c and h."""
        return [batch_size, self._num_units], [batch_size, self._num_units]


class PopnnDynamicLSTM(PopnnLSTM):
    """An LSTM of sequences of different lengths."""

    _base_name = "popnn_dynamic_lstm"

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]  # The SDK's order.
        self,
        inputs: TensorLike,
        seq_len: TensorLike,
        initial_state: LSTMStateTuple | None = None,
        training: bool = True,
    ) -> Any:
        """Computes the layer. See `PopnnLSTM` for the other arguments, the result and the errors.

        `seq_len` is the number of time steps of each sequence: integers [batch]. Outputs of later steps are zeros.
        """
        del training
        return self._call(inputs, initial_state, seq_len)

    call = __call__


class PopnnGRU(PopnnRNN):
    """A gated recurrent unit (GRU) of inputs [time, batch, size]. Its gates are reset, update, candidate."""

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
        """Creates the layer. See `PopnnLSTM` for the other arguments.

        With `reset_after`, the reset gate multiplies the product of the state and its weights instead of the state. The
        biases then have the shape [3, 2, units].
        """
        check_bool("reset_after", reset_after)
        super().__init__(
            num_units, dtype, partials_dtype, seed, weights_initializer, bias_initializer, activation,
            recurrent_activation, return_state, name, options, options_bwd,
        )  # fmt: skip
        self._reset_after = reset_after

    @property
    def canonical_bias_shapes(self) -> list[int]:
        """The shape of the biases: one row per gate, or two with `reset_after`."""
        return [self._gates, *([2] if self._reset_after else []), self._num_units]

    def __call__(self, inputs: TensorLike, initial_state: TensorLike | None = None, training: bool = True) -> Any:
        """Computes the layer of `inputs` [time, batch, size]. `training` has no effect.

        `initial_state` is a tensor [batch, units], or None for zeros.

        Returns:
          The outputs [time, batch, units], and with `return_state` the last state.

        Raises:
          ValueError: `inputs` does not have three dimensions with a known time and size.
        """
        del training
        return self._call(inputs, initial_state)

    call = __call__

    def _call(
        self,
        inputs: TensorLike,
        initial_state: TensorLike | None,
        lengths: TensorLike | None = None,
        time_major: bool = True,
        attention: TensorLike | None = None,
    ) -> Any:
        if not time_major:
            inputs = tf.transpose(tf.convert_to_tensor(inputs), [1, 0, 2])
            attention = None if attention is None else tf.transpose(tf.convert_to_tensor(attention))
        values = self._inputs(inputs)
        state = self._zeros(values) if initial_state is None else tf.convert_to_tensor(initial_state, self.dtype)
        scores = None if attention is None else tf.cast(attention, self.dtype)
        biases = tf.convert_to_tensor(self.biases)
        step = gru_step(tf.convert_to_tensor(self.kernel), biases, self._activation, self._gate, self._reset_after)
        with programs.summed_in(self.partials_dtype, self.dtype):
            outputs, (state,) = run(step, values, (state,), lengths, scores)
        return (outputs, state) if self._return_state else outputs

    def state_shape(self, batch_size: int) -> list[int]:
        """Returns the shape of the state."""
        return [batch_size, self._num_units]


class PopnnDynamicGRU(PopnnGRU):
    """A GRU of sequences of different lengths."""

    _base_name = "popnn_dynamic_gru"

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]  # The SDK's order.
        self,
        inputs: TensorLike,
        seq_len: TensorLike,
        initial_state: TensorLike | None = None,
        training: bool = True,
        time_major: bool = True,
    ) -> Any:
        """Computes the layer. See `PopnnGRU` for the other arguments, the result and the errors.

        `seq_len` is the number of time steps of each sequence: integers [batch]. Outputs of later steps are zeros. Without
        `time_major`, `inputs` is [batch, time, size], but the outputs are still [time, batch, units].
        """
        del training
        return self._call(inputs, initial_state, seq_len, time_major)

    call = __call__


class PopnnAUGRU(PopnnGRU):
    """A GRU with attention. The higher the attention of a step, the less of the state remains after it.

    Attributes:
      bias_r_u: The biases of the reset and update gates, a variable [2, units], initially ones. With `reset_after`, it is
        [2, 2, units].
      bias_c: The biases of the candidate, a variable [1, units], initially zeros. With `reset_after`, it is [1, 2, units].
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
    def biases(self) -> tf.Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]  # Here it is the concatenation of two variables.
        """All biases, of shape `canonical_bias_shapes`."""
        return tf.concat([self.bias_r_u, self.bias_c], 0)

    @property
    def variables(self) -> list[tf.Variable]:
        """The weights and the two variables of biases; an empty list before the layer is built."""
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
        """Computes the layer. See `PopnnDynamicGRU` for the other arguments.

        `attention_score` is the attention of each step, from 0 to 1, as [time, batch], or [batch, time] without
        `time_major`.
        """
        del training
        return self._call(inputs, initial_state, seq_len, time_major, attention_score)

    call = __call__
