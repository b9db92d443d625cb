"""Recurrent layers with the names and arguments of IPU TensorFlow."""

# The arguments of methods are those of IPU TensorFlow. Keras has other names and another order.
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu._base.checks import Faults, note_bool
from tensorflow_ipu.keras._keras import internals, keras

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import (
        Activation,
        Config,
        Constraint,
        DTypeLike,
        Initializer,
        Nested,
        Regularizer,
        Shape,
    )

__all__ = [
    "PopnnGRU",
    "PopnnLSTM",
]


_PARTIALS = (tf.float16, tf.float32)

# Arguments of Keras's layers for which the layers of the IPU support only this value.
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
# Arguments that are passed to Keras's LSTM and GRU unchanged, and arguments that become attributes of the same name.
_PASSED = (
    "activation", "recurrent_activation", "bias_initializer", "dropout", "return_sequences", "return_state", "stateful"
)  # fmt: skip
_RECORDED = ("seed", "dropout_seed", "time_major", "options", "options_bwd")


class Popnn(keras.layers.RNN):
    """The base class of `PopnnLSTM` and `PopnnGRU`: adds `time_major`, seeds and options of real IPUs to Keras's layers."""

    partials_dtype: tf.DType
    seed: int | None
    dropout_seed: int | None
    time_major: bool
    options: dict[str, Any] | None
    options_bwd: dict[str, Any] | None
    _swaps_time: bool  # True if this class has to swap batch and time for `time_major`, which Keras 3 does not support.

    def build(self, inputs_shape: Shape, initial_state_shape: Nested = None) -> None:
        """Creates the weights for inputs of this shape."""
        super().build(self._batch_major(inputs_shape), *_without_none(initial_state_shape))

    def call(
        self,
        inputs: tf.Tensor,
        mask: tf.Tensor | None = None,
        training: bool | None = None,
        initial_state: Nested = None,
    ) -> Nested:
        """Computes the outputs of all time steps.

        Args:
          inputs: A tensor [batch, time, size]; with `time_major`, [time, batch, size].
          mask: Booleans with the shape of the first two dimensions of `inputs`; time steps that are False are skipped.
          training: Whether dropout is active.
          initial_state: The initial state: for `PopnnLSTM` a list of the output and the cell state, for `PopnnGRU` the
            output, each [batch, units]. None: zeros.

        Returns:
          The last output [batch, units], or with `return_sequences` all outputs, in the order of dimensions of
          `inputs`. With `return_state`, a list of these outputs and the final state.

        Raises:
          ValueError: `inputs` does not have three dimensions.
        """
        if not isinstance(inputs, list) and inputs.shape.rank != 3:  # In Keras 2, a list holds inputs and states.
            raise ValueError(f"`inputs` must have three dimensions, but has shape {inputs.shape}")
        with programs.summed_in(self.partials_dtype, self.compute_dtype):
            results = super().call(
                self._swapped(inputs), initial_state=initial_state, mask=self._swapped(mask), training=bool(training)
            )
        return self._map_sequences(results, self._swapped)

    def compute_output_shape(self, inputs_shape: Shape, initial_state_shape: Nested = None) -> Nested:
        shapes = super().compute_output_shape(self._batch_major(inputs_shape), *_without_none(initial_state_shape))
        return self._map_sequences(shapes, self._batch_major)

    def get_config(self) -> Config:
        fixed = {"partials_dtype": self.partials_dtype.name, "implementation": 2}
        return {**super().get_config(), **fixed, **{name: getattr(self, name) for name in _RECORDED}}

    def _initialize(self, arguments: dict[str, Any], *passed: str) -> None:
        """Checks the arguments of a constructor, and calls Keras's constructor with those of `_PASSED` and `passed`.

        The arguments of `_RECORDED` become attributes.
        """
        _check(type(self).__name__, arguments)
        seed, keras_layer = arguments["seed"], cast("Any", super())
        self._swaps_time = internals.make_recurrent(
            self,
            keras_layer.__init__,
            arguments["dropout_seed"],
            arguments["time_major"],
            units=arguments["units"],
            kernel_initializer=_seeded(arguments["kernel_initializer"], seed),
            recurrent_initializer=_seeded(arguments["recurrent_initializer"], seed),
            **{name: arguments[name] for name in (*_PASSED, *passed)},
            **arguments["kwargs"],
        )
        self.partials_dtype = tf.as_dtype(arguments["partials_dtype"])
        for name in _RECORDED:
            value = arguments[name]
            setattr(self, name, dict(value) if isinstance(value, Mapping) else value)

    def _batch_major(self, shape: Shape) -> Shape:
        """Returns the shape of inputs in Keras's order, [batch, time, ...]."""
        if not self._swaps_time:
            return shape
        time, batch, *sizes = shape
        return batch, time, *sizes

    def _swapped(self, tensor: Any) -> Any:
        """Returns the tensor, with its first two dimensions swapped if `_swaps_time`."""
        if tensor is None or not self._swaps_time:
            return tensor
        return tf.transpose(tensor, [1, 0, *range(2, len(tensor.shape))])

    def _map_sequences(self, results: Any, swap: Callable[[Any], Any]) -> Any:
        """Applies `swap` to the sequence in the results of Keras's layer if `_swaps_time`; states have no time dimension."""
        if not self._swaps_time or not self.return_sequences:
            return results
        if not self.return_state:
            return swap(results)
        outputs, *states = results
        return swap(outputs), *states


def _check(kind: str, arguments: Mapping[str, Any]) -> None:
    """Raises one error for all arguments that the layer does not support."""
    faults = Faults()
    for name, supported in _FIXED.items():
        if arguments[name] != supported:
            faults.add(
                ValueError,
                f"`{name}={arguments[name]!r}` is not supported by `{kind}`, only `{name}={supported!r}`;"
                f" use `keras.layers.{kind.removeprefix('Popnn')}`, which runs on the IPU too",
            )
    if tf.as_dtype(arguments["partials_dtype"]) not in _PARTIALS:
        faults.add(ValueError, f"`partials_dtype` must be float16 or float32, but is `{arguments['partials_dtype']!r}`")
    note_bool("time_major", arguments["time_major"], faults)
    for name in ("options", "options_bwd"):
        if arguments[name] is not None and not isinstance(arguments[name], Mapping):
            faults.add(TypeError, f"`{name}` must be a dict, but is `{arguments[name]!r}`")
    faults.raise_any()


def _without_none(shape: Nested) -> list[Nested]:
    return [] if shape is None else [shape]


def _seeded(initializer: Initializer, seed: int | None) -> Any:
    """Returns the initializer, with this seed if it was passed by name and is random."""
    seeded: Any = keras.initializers.get(initializer)
    if seed is None or not isinstance(initializer, str) or "seed" not in seeded.get_config():
        return seeded
    return type(seeded).from_config({**seeded.get_config(), "seed": seed})


@keras.saving.register_keras_serializable(package="tensorflow_ipu")
class PopnnLSTM(Popnn, keras.layers.LSTM):
    """Long short-term memory, with the results and weights of `keras.layers.LSTM`.

    Options of `keras.layers.LSTM` that the IPU's layer does not support are rejected.
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
        """Creates the layer. Arguments that are not named here are as for `keras.layers.LSTM`.

        `use_bias` has to be True, `recurrent_dropout` 0, `implementation` 2, `go_backwards` and `unroll` False, and
        regularizers and constraints None. The kernel has shape [inputs, 4 * units], the recurrent kernel [units, 4 *
        units], and the bias [4 * units].

        `dropout` drops the same inputs in each time step; `dropout_seed` determines the masks. `return_state` adds the
        last output and the cell state. `seed` is the seed of the kernels' initializers that are passed by name. With
        `time_major`, inputs and the outputs of all time steps are [time, batch, size] instead of [batch, time, size].
        `partials_dtype` is the type in which products of float16 are summed: float16 or float32. It takes precedence
        over `partialsType` of `IPUConfig`. A `scopes.partials_type` around the call takes precedence over both. `options` and
        `options_bwd` are for real IPUs, and are only recorded.

        Raises:
          ValueError: An option has a value that the layer does not support.
          TypeError: `time_major` is not a bool, or `options` is not a dict.
        """
        self._initialize(locals(), "unit_forget_bias")

    def get_bias(self) -> tf.Tensor:
        """Returns the bias as a tensor [4, units], with rows for the input, forget, cell and output gates."""
        return tf.reshape(tf.convert_to_tensor(self.cell.bias), [4, self.units])

    def state_shape(self, batch_size: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Returns the shapes of the output and of the cell state, each `(batch_size, units)`."""
        return (batch_size, self.units), (batch_size, self.units)


@keras.saving.register_keras_serializable(package="tensorflow_ipu")
class PopnnGRU(Popnn, keras.layers.GRU):
    """Gated recurrent units, with the results and weights of `keras.layers.GRU`.

    Options of `keras.layers.GRU` that the IPU's layer does not support are rejected.
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
        """Creates the layer; see `PopnnLSTM` for the arguments not named here and for the errors.

        With `reset_after`, the reset gate is applied after the product with the recurrent kernel instead of before. The
        kernel has shape [inputs, 3 * units], the recurrent kernel [units, 3 * units], and the bias [3 * units]. With
        `reset_after`, the bias is [2, 3 * units]. `return_state` adds the last output a second time.
        """
        self._initialize(locals(), "reset_after")

    def state_shape(self, batch_size: int) -> tuple[int, int]:
        """Returns the shape of the state, `(batch_size, units)`."""
        return batch_size, self.units
