"""Recurrent layers with the names and arguments that they have on the IPU."""

# The arguments of methods are IPU TensorFlow's, in other names and another order than Keras's.
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
# What both of Keras's layers take as it is; and what the layers themselves keep.
_PASSED = (
    "activation", "recurrent_activation", "bias_initializer", "dropout", "return_sequences", "return_state", "stateful"
)  # fmt: skip
_RECORDED = ("seed", "dropout_seed", "time_major", "options", "options_bwd")


class Popnn(keras.layers.RNN):
    """What both layers add to Keras's own: the order of dimensions, seeds, and options for hardware."""

    partials_dtype: tf.DType
    seed: int | None
    dropout_seed: int | None
    time_major: bool
    options: dict[str, Any] | None
    options_bwd: dict[str, Any] | None
    _turns_time: bool  # Whether the layer swaps the first two dimensions, which Keras 3 does not.

    def build(self, inputs_shape: Shape, initial_state_shape: Nested = None) -> None:
        """Makes the weights for inputs of this shape."""
        super().build(self._batch_major(inputs_shape), *_given(initial_state_shape))

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
        if not isinstance(inputs, list) and inputs.shape.rank != 3:  # Keras 2 has states in the list.
            raise ValueError(f"`inputs` must have three dimensions, but has shape {inputs.shape}")
        with programs.summed_in(self.partials_dtype, self.compute_dtype):
            results = super().call(
                self._swapped(inputs), initial_state=initial_state, mask=self._swapped(mask), training=bool(training)
            )
        return self._of_outputs(results, self._swapped)

    def compute_output_shape(self, inputs_shape: Shape, initial_state_shape: Nested = None) -> Nested:
        shapes = super().compute_output_shape(self._batch_major(inputs_shape), *_given(initial_state_shape))
        return self._of_outputs(shapes, self._batch_major)

    def get_config(self) -> Config:
        own = {"partials_dtype": self.partials_dtype.name, "implementation": 2}
        return {**super().get_config(), **own, **{name: getattr(self, name) for name in _RECORDED}}

    def _begin(self, arguments: dict[str, Any], *own: str) -> None:
        """Makes Keras's layer of the arguments of a constructor, its `own` and those of both; records the others."""
        _check(type(self).__name__, arguments)
        seed, keras_layer = arguments["seed"], cast("Any", super())
        self._turns_time = internals.make_recurrent(
            self,
            keras_layer.__init__,
            arguments["dropout_seed"],
            arguments["time_major"],
            units=arguments["units"],
            kernel_initializer=_seeded(arguments["kernel_initializer"], seed),
            recurrent_initializer=_seeded(arguments["recurrent_initializer"], seed),
            **{name: arguments[name] for name in (*_PASSED, *own)},
            **arguments["kwargs"],
        )
        self.partials_dtype = tf.as_dtype(arguments["partials_dtype"])
        for name in _RECORDED:
            value = arguments[name]
            setattr(self, name, dict(value) if isinstance(value, Mapping) else value)

    def _batch_major(self, shape: Shape) -> Shape:
        """The shape of inputs as Keras has it."""
        if not self._turns_time:
            return shape
        time, batch, *rest = shape
        return batch, time, *rest

    def _swapped(self, tensor: Any) -> Any:
        """A tensor with its first two dimensions swapped, where time comes first."""
        if tensor is None or not self._turns_time:
            return tensor
        return tf.transpose(tensor, [1, 0, *range(2, len(tensor.shape))])

    def _of_outputs(self, results: Any, swapped: Callable[[Any], Any]) -> Any:
        """The results of Keras's layer with the outputs of all steps `swapped`, where time comes first; states stay."""
        if not self._turns_time or not self.return_sequences:
            return results
        if not self.return_state:
            return swapped(results)
        outputs, *states = results
        return swapped(outputs), *states


def _check(kind: str, arguments: Mapping[str, Any]) -> None:
    """Refuses what the layer does not have, all at once."""
    faults = Faults()
    for name, only in _FIXED.items():
        if arguments[name] != only:
            faults.add(
                ValueError,
                f"`{kind}` has no `{name}={arguments[name]!r}`, only `{name}={only!r}`;"
                f" `keras.layers.{kind.removeprefix('Popnn')}` runs on the IPU too, and has it",
            )
    if tf.as_dtype(arguments["partials_dtype"]) not in _PARTIALS:
        faults.add(ValueError, f"`partials_dtype` must be float16 or float32, but is `{arguments['partials_dtype']!r}`")
    note_bool("time_major", arguments["time_major"], faults)
    for name in ("options", "options_bwd"):
        if arguments[name] is not None and not isinstance(arguments[name], Mapping):
            faults.add(TypeError, f"`{name}` must be a dict, but is `{arguments[name]!r}`")
    faults.raise_any()


def _given(shape: Nested) -> list[Nested]:
    return [] if shape is None else [shape]


def _seeded(initializer: Initializer, seed: int | None) -> Any:
    """The initializer, with this seed if it is random and has none of its own."""
    found: Any = keras.initializers.get(initializer)
    if seed is None or not isinstance(initializer, str) or "seed" not in found.get_config():
        return found
    return type(found).from_config({**found.get_config(), "seed": seed})


@keras.saving.register_keras_serializable(package="tensorflow_ipu")
class PopnnLSTM(Popnn, keras.layers.LSTM):
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
        """Creates the layer. Arguments that are not named here are as for `keras.layers.LSTM`.

        `use_bias` is True, `recurrent_dropout` 0, `implementation` 2, `go_backwards` and `unroll` False, and
        regularizers and constraints None. The kernel is of shape [inputs, 4 * units], the recurrent kernel [units, 4 *
        units], and the bias [4 * units].

        `dropout` drops the same inputs at each step of time, by masks that all follow from `dropout_seed`. `return_state`
        adds the last output and the state of the cell. `seed` is that of the kernels' initializers which have none of
        their own. With `time_major` inputs, and outputs of all steps, are [time, batch, size], and not [batch, time,
        size]. `partials_dtype` is the type in which products of float16 sum up: float16, or float32, which goes before
        `partialsType` of `IPUConfig`; a `scopes.partials_type` around the call goes before both. `options` and
        `options_bwd` are for hardware, and recorded.

        Raises:
          ValueError: An option that the layer does not have is asked for.
          TypeError: `time_major` is no bool, or `options` no dict.
        """
        self._begin(locals(), "unit_forget_bias")

    def get_bias(self) -> tf.Tensor:
        """The bias, a tensor with a row for each gate: [4, units], in the order input, forget, cell, output."""
        return tf.reshape(tf.convert_to_tensor(self.cell.bias), [4, self.units])

    def state_shape(self, batch_size: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """The shapes of the two states."""
        return (batch_size, self.units), (batch_size, self.units)


@keras.saving.register_keras_serializable(package="tensorflow_ipu")
class PopnnGRU(Popnn, keras.layers.GRU):
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
        """Creates the layer; see `PopnnLSTM` for the other arguments, and for what is raised.

        The kernel is of shape [inputs, 3 * units], the recurrent kernel [units, 3 * units], and the bias [3 * units], or
        [2, 3 * units] with `reset_after`, by which the reset gate comes after the product with the recurrent kernel. The
        state that `return_state` adds is the last output once more.
        """
        self._begin(locals(), "reset_after")

    def state_shape(self, batch_size: int) -> tuple[int, int]:
        """The shape of the state."""
        return batch_size, self.units
