"""Recurrent layers of TensorFlow 1's style, as the SDK's add-ons have them in `v1.layers`."""

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
    """The states of long short-term memory: the memory and the output, [batch, units] each."""

    c: tf.Tensor
    h: tf.Tensor


class PopnnRNN:
    """The weights of a layer, made at the first call, and their names.

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
        """Makes the layer.

        Args:
          num_units: The size of the output.
          dtype: The type of inputs, weights and outputs: float16 or float32.
          partials_dtype: The type in which products of float16 sum up: float16, or float32, which goes before
            `partialsType` of `IPUConfig`; a `scopes.partials_type` around the call goes before both.
          seed: The seed of the default initializer of the weights.
          weights_initializer: Gives the weights their first values; Glorot's uniform ones if omitted.
          bias_initializer: Gives the biases their first values; zeros if omitted.
          activation: The activation: "tanh", "relu", "softmax", "sigmoid" or "hard_sigmoid", or such a function.
          recurrent_activation: The activation of the gates.
          return_state: Whether the last state is returned with the outputs.
          name: The name of the scope of the variables; that of the class if omitted.
          options: Options for hardware, recorded.
          options_bwd: Options for hardware in the backward pass, recorded.

        Raises:
          ValueError: A type or an activation is none of those, or `num_units` is below 1.
          TypeError: `num_units` is no int, or `return_state` no bool.
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
        """Returns the number of layers, 1."""
        return 1

    @property
    def num_units(self) -> int:
        """Returns the size of the output."""
        return self._num_units

    @property
    def input_size(self) -> int:
        """Returns the size of the inputs.

        Raises:
          ValueError: The layer has no weights yet.
        """
        if self._input_size is None:
            raise ValueError("`input_size` is not known before the layer is built: call it, or `build`")
        return self._input_size

    @property
    def canonical_weight_shape(self) -> list[int]:
        """Returns the shape of the weights: those of the inputs above those of the state, the gates side by side."""
        return [self.input_size + self._num_units, self._gates * self._num_units]

    @property
    def canonical_bias_shapes(self) -> list[int]:
        """Returns the shape of the biases: a row for each gate."""
        return [self._gates, self._num_units]

    @property
    def saveable(self) -> bool:
        """Returns False: the variables are saved, and not the layer."""
        return False

    @property
    def variables(self) -> list[tf.Variable]:
        """Returns the weights and the biases; an empty list before the layer is built."""
        return [self.kernel, self.biases] if self.built else []

    trainable_variables = variables

    def build(self, input_shape: ShapeLike) -> None:
        """Makes the variables for inputs of this shape; the second time nothing.

        Raises:
          ValueError: It has not three dimensions, or the last one is not known.
        """
        if self.built:
            return
        shape = tf.TensorShape(input_shape)
        size = shape[2] if shape.rank == 3 else None
        if size is None:
            raise ValueError(f"inputs must be [time, batch, size] with a known size, but are of shape {shape}")
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
            # As `tf.function` has it: made in the first trace, from values of the host's.
            return tf.Variable(lambda: initializer(shape, dtype=self.dtype), dtype=self.dtype, name=f"{base}/{name}")
        with tf.compat.v1.variable_scope(self._scope, default_name=base, auxiliary_name_scope=False) as scope:
            self._scope = scope
            return tf.compat.v1.get_variable(name, shape, self.dtype, initializer, use_resource=True)

    def _inputs(self, inputs: TensorLike) -> tf.Tensor:
        values = tf.convert_to_tensor(inputs, dtype=self.dtype)
        self.build(values.shape)
        if values.shape[0] is None:
            raise ValueError(f"the number of steps of time must be known, and `inputs` has shape {values.shape}")
        return values

    def _zeros(self, inputs: tf.Tensor) -> tf.Tensor:
        return tf.zeros([inputs.shape[1] or tf.shape(inputs)[1], self._num_units], self.dtype)


def _activation(argument: str, value: object, faults: Faults) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns the function of an activation, which is a name or a function of that name."""
    name = value if isinstance(value, str) else getattr(value, "__name__", value)
    if name not in _ACTIVATIONS:
        faults.add(ValueError, f"`{argument}` must be one of {', '.join(sorted(_ACTIVATIONS))}, but is {value!r}")
    return _ACTIVATIONS.get(str(name), tf.tanh)


Function = Callable[[tf.Tensor], tf.Tensor]
States = tuple[tf.Tensor, ...]
# From the inputs of a step [batch, size], the attention on them [batch] or None, and the states, to new states, of which
# the first is the output.
Step = Callable[[tf.Tensor, "tf.Tensor | None", States], States]


def lstm_step(kernel: tf.Tensor, biases: tf.Tensor, activation: Function, gate: Function) -> Step:
    """Makes a step of long short-term memory; the states are the output and the memory."""

    def step(inputs: tf.Tensor, _: tf.Tensor | None, states: States) -> States:
        output, memory = states
        sums = tf.matmul(tf.concat([inputs, output], 1), kernel) + tf.reshape(biases, [-1])
        forget, enter, candidate, leave = tf.split(sums, 4, axis=1)
        memory = gate(forget) * memory + gate(enter) * activation(candidate)
        return gate(leave) * activation(memory), memory

    return step


def gru_step(kernel: tf.Tensor, biases: tf.Tensor, activation: Function, gate: Function, reset_after: bool) -> Step:
    """Makes a step of gated recurrent units, whose state is the output. With attention, that much less of it is kept."""
    units = known_size(biases, -1)
    size = known_size(kernel, 0) - units
    of_inputs, of_state = kernel[:size], kernel[size:]
    both = tf.reshape(biases[:, 0] if reset_after else biases, [-1])

    def step(inputs: tf.Tensor, attention: tf.Tensor | None, states: States) -> States:
        (state,) = states
        reset, update, candidate = tf.split(tf.matmul(inputs, of_inputs) + both, 3, axis=1)
        if reset_after:
            kept = tf.matmul(state, of_state) + tf.reshape(biases[:, 1], [-1])
            more_reset, more_update, more_candidate = tf.split(kept, 3, axis=1)
            reset, update = gate(reset + more_reset), gate(update + more_update)
            candidate = activation(candidate + reset * more_candidate)
        else:
            more_reset, more_update = tf.split(tf.matmul(state, of_state[:, : 2 * units]), 2, axis=1)
            reset, update = gate(reset + more_reset), gate(update + more_update)
            candidate = activation(candidate + tf.matmul(reset * state, of_state[:, 2 * units :]))
        if attention is not None:
            update *= 1 - attention[:, tf.newaxis]
        return (update * state + (1 - update) * candidate,)

    return step


def run(
    step: Step, inputs: tf.Tensor, states: States, lengths: TensorLike | None, attention: tf.Tensor | None
) -> tuple[tf.Tensor, States]:
    """Runs a layer over all steps of time."""
    time = known_size(inputs, 0)

    def body(at: tf.Tensor, outputs: tf.TensorArray, states: States) -> tuple[tf.Tensor, tf.TensorArray, States]:
        new = step(inputs[at], None if attention is None else attention[at], states)
        output = new[0]
        if lengths is not None:
            runs = (at < tf.cast(lengths, tf.int32))[:, tf.newaxis]
            new = tuple(tf.where(runs, new_state, old) for new_state, old in zip(new, states, strict=True))
            output = tf.where(runs, output, tf.zeros_like(output))
        return at + 1, outputs.write(at, output), new

    outputs = tf.TensorArray(inputs.dtype, time, element_shape=states[0].shape)
    _, outputs, states = tf.while_loop(
        lambda at, *_: at < time, body, (tf.constant(0), outputs, states), maximum_iterations=time
    )
    return outputs.stack(), states


class PopnnLSTM(PopnnRNN):
    """Long short-term memory over [time, batch, size]. Its gates are in the order forget, input, candidate, output."""

    _gates = 4
    _base_name = "popnn_lstm"

    def __call__(self, inputs: TensorLike, initial_state: LSTMStateTuple | None = None, training: bool = True) -> Any:
        """Computes the layer of inputs [time, batch, size]; the numbers are the same in training.

        `initial_state` is an `LSTMStateTuple` of (c, h); None for zeros.

        Returns:
          The outputs [time, batch, units], and with `return_state` an `LSTMStateTuple` of the last states.

        Raises:
          ValueError: `initial_state` is none, or `inputs` has not three dimensions or an unknown time or size.
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
        """Returns the shapes of the two states."""
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
        """Computes the layer; see `PopnnLSTM` for the other arguments, and for what is returned and raised.

        `seq_len` has the number of steps of each sequence: integers [batch]. Behind them outputs are zeros.
        """
        del training
        return self._call(inputs, initial_state, seq_len)

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

        With `reset_after` the state is reset after its product with the weights, and the biases are [3, 2, units].
        """
        check_bool("reset_after", reset_after)
        super().__init__(
            num_units, dtype, partials_dtype, seed, weights_initializer, bias_initializer, activation,
            recurrent_activation, return_state, name, options, options_bwd,
        )  # fmt: skip
        self._reset_after = reset_after

    @property
    def canonical_bias_shapes(self) -> list[int]:
        """Returns the shape of the biases: for each gate a row, or with `reset_after` two."""
        return [self._gates, *([2] if self._reset_after else []), self._num_units]

    def __call__(self, inputs: TensorLike, initial_state: TensorLike | None = None, training: bool = True) -> Any:
        """Computes the layer of inputs [time, batch, size], from an initial state [batch, units], or zeros.

        Returns:
          The outputs [time, batch, units], and with `return_state` the last state.

        Raises:
          ValueError: `inputs` has not three dimensions, or an unknown time or size.
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
        """Computes the layer; see `PopnnGRU` for the other arguments, and for what is returned and raised.

        `seq_len` has the number of steps of each sequence: integers [batch]. Behind them outputs are zeros. Without
        `time_major`, `inputs` are [batch, time, size]; the outputs are [time, batch, units] in any case.
        """
        del training
        return self._call(inputs, initial_state, seq_len, time_major)

    call = __call__


class PopnnAUGRU(PopnnGRU):
    """Gated recurrent units with attention: the more a step has, the less of the state is kept in it.

    Attributes:
      bias_r_u: The biases of the two gates, a variable [2, units] of ones at first; with `reset_after` two rows a gate.
      bias_c: That of the candidate, likewise: [1, units], zeros at first.
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
        """Returns all biases, of shape `canonical_bias_shapes`."""
        return tf.concat([self.bias_r_u, self.bias_c], 0)

    @property
    def variables(self) -> list[tf.Variable]:
        """Returns the weights and the two variables of biases; an empty list before the layer is built."""
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
        """Computes the layer; see `PopnnDynamicGRU` for the other arguments.

        `attention_score` is the attention of each step, from 0 to 1, as [time, batch], or [batch, time] without
        `time_major`.
        """
        del training
        return self._call(inputs, initial_state, seq_len, time_major, attention_score)

    call = __call__
