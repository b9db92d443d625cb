"""LSTM and GRU layers on host kernels: one operation computes all time steps, and one their gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu._native.library import ops

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Gradient, Nested


class Weights(NamedTuple):
    """The weights of a Keras LSTM or GRU cell with `tanh` and `sigmoid`; a GRU has `reset_after`.

    The bias of a GRU has the shape [2, 3 * units]: one row for the inputs' part, and one row for the state's part.
    """

    kernel: tf.Tensor
    recurrent_kernel: tf.Tensor
    bias: tf.Tensor | None


def serves(inputs: tf.Tensor, weights: Weights, mask: tf.Tensor | None) -> bool:
    """Returns True if the kernels support this layer in the program that is being traced."""
    shape = inputs.shape
    floating_point = programs.floating_point_now()
    return (
        programs.wants_host_kernels()
        # The kernels ignore floating-point exceptions, and always sum in float32.
        and not (floating_point.stops or floating_point.partials_matmul)
        and inputs.dtype in (tf.float32, tf.float16, tf.bfloat16)
        and all(tensor is None or tensor.dtype == inputs.dtype for tensor in weights)
        and (shape.rank == 3 and shape.is_fully_defined() and 0 not in shape)  # Batch, time, features.
        and (mask is None or mask.shape == shape[:2])
    )


def run(
    inputs: tf.Tensor,
    weights: Weights,
    states: Sequence[tf.Tensor],
    mask: tf.Tensor | None,
    go_backwards: bool,
    zeros: bool,
) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
    """Computes all time steps, with the results of `keras.src.backend.rnn`.

    Inputs of float16 and bfloat16 are computed in float32, and the results are rounded.

    Args:
      inputs: The inputs, of shape [batch, time, features].
      weights: The weights.
      states: The states before the first step: two for an LSTM, one for a GRU.
      mask: Booleans [batch, time]. A step where it is False does not change the states.
      go_backwards: Whether the last time step is computed first.
      zeros: Whether the output of a masked step is zero; otherwise it repeats the previous output.

    Returns:
      The output of the last step, the outputs of all steps, and the last states.
    """
    if go_backwards:
        inputs = tf.reverse(inputs, [1])
    masks = []
    if mask is not None:
        mask = tf.cast(mask, tf.bool)
        masks = [tf.reverse(mask, [1]) if go_backwards else mask]
    operands = (inputs, _stacked(weights, gru=len(states) == 1), *states)
    wide_inputs, kernel, initial_state, *cells = (tf.cast(operand, tf.float32) for operand in operands)
    wide_outputs, _, wide_cells = ops.ipu_recurrence(wide_inputs, kernel, initial_state, cells, masks)
    outputs, *last_cells = (tf.cast(result, inputs.dtype) for result in (wide_outputs, *wide_cells))
    last = outputs[:, -1]
    last_states = [last, *last_cells]
    for mask in masks:
        # Until the first unmasked step, Keras outputs zeros, not the initial state.
        is_shown = mask if zeros else tf.cumsum(tf.cast(mask, tf.int32), axis=1) > 0
        outputs = tf.where(is_shown[:, :, None], outputs, tf.zeros([], outputs.dtype))
        is_last_shown = mask[:, -1:] if zeros else tf.reduce_any(mask, axis=1, keepdims=True)
        last = tf.where(is_last_shown, last, tf.zeros([], last.dtype))
    return last, outputs, last_states


def _stacked(weights: Weights, gru: bool) -> tf.Tensor:
    """Returns the kernel by which a step multiplies `[state, inputs, 1]`.

    For an LSTM, it stacks the recurrent kernel, the kernel and the bias. In a GRU, the reset gate only multiplies the
    state's part of the candidate. So the candidate has two blocks of columns, each with a block of zeros:

                     inputs' candidate   update   reset   state's candidate
        state               0              U        U            U
        inputs              W              W        W            0
        1                   b            b + b'   b + b'         b'

    The kernels skip the zeros, since 0 times infinity is NaN.
    """
    kernel, recurrent_kernel, bias = weights
    columns = kernel.shape[1]
    bias = tf.zeros([1 + gru, columns], kernel.dtype) if bias is None else tf.reshape(bias, [-1, columns])
    if not gru:
        return tf.concat([recurrent_kernel, kernel, bias], 0)

    def blocks(rows: tf.Tensor, is_recurrent: bool) -> tf.Tensor:
        *gates, candidate = tf.split(rows, 3, axis=1)
        zeros = tf.zeros_like(candidate)
        return tf.concat([zeros, *gates, candidate] if is_recurrent else [candidate, *gates, zeros], 1)

    return tf.concat(
        [blocks(recurrent_kernel, True), blocks(kernel, False), blocks(bias[:1], False) + blocks(bias[1:], True)], 0
    )


@tf.RegisterGradient("IpuRecurrence")
def _gradient(
    op: tf.Operation, states_gradient: Gradient, _: object, *cell_gradients: Gradient
) -> list[tf.Tensor | None]:
    arguments = _Arguments.of(op)
    states, saved, *_ = op.outputs[0].op.outputs
    inputs_gradient, kernel_gradient, state_gradient, cells_gradient = ops.ipu_recurrence_grad(
        *arguments,
        states,
        saved,
        tf.convert_to_tensor(states_gradient),
        [tf.convert_to_tensor(gradient) for gradient in cell_gradients],
    )
    return [inputs_gradient, kernel_gradient, state_gradient, *cells_gradient, *(None for _ in arguments.masks)]


@tf.RegisterGradient("IpuRecurrenceGrad")
def _second_gradient(op: tf.Operation, *upstream: Gradient) -> list[tf.Tensor | None]:
    """Differentiates the gradient. The kernels have no second gradient, so it differentiates the steps as plain operations."""
    arguments = _Arguments.of(op)
    sources = [arguments.inputs, arguments.kernel, arguments.state, *arguments.cells]
    results_gradient = list(op.outputs[0].op.inputs)[-1 - len(arguments.cells) :]
    with tf.GradientTape() as outer:
        outer.watch([*sources, *results_gradient])
        with tf.GradientTape() as inner:
            inner.watch(sources)
            results = _step_by_step(arguments)
        first: Nested = inner.gradient(results, sources, results_gradient)
    second: Nested = outer.gradient(
        first, [*sources, *results_gradient], [tf.convert_to_tensor(gradient) for gradient in upstream]
    )
    # The saved tensors are functions of the other inputs. The gradients of those inputs are already complete.
    return [*second[: len(sources)], *(None for _ in arguments.masks), None, None, *second[len(sources) :]]


class _Arguments(NamedTuple):
    """The inputs that `IpuRecurrence` and `IpuRecurrenceGrad` have in common."""

    inputs: tf.Tensor
    kernel: tf.Tensor
    state: tf.Tensor
    cells: list[tf.Tensor]
    masks: list[tf.Tensor]

    @classmethod
    def of(cls, op: tf.Operation) -> _Arguments:
        operation = op.outputs[0].op  # A `tf.GradientTape` passes a mock operation.
        inputs, kernel, state, *cells_and_masks = operation.inputs
        cells, masks = (operation.get_attr(name) for name in ("cells", "masks"))
        return cls(inputs, kernel, state, cells_and_masks[:cells], cells_and_masks[cells : cells + masks])


def _step_by_step(arguments: _Arguments) -> list[tf.Tensor]:
    """Computes the states and the last cell of the layer step by step, with plain TensorFlow operations."""
    # The code avoids concatenations, since compiled programs cannot differentiate the gradient of a concatenation.
    sizes: Any = [arguments.state.shape[1], arguments.inputs.shape[2], 1]
    recurrent_kernel, input_kernel, bias = tf.split(arguments.kernel, sizes)
    biases = tf.split(bias, 4, axis=1)
    products = tf.transpose(tf.tensordot(arguments.inputs, input_kernel, 1), [1, 0, 2])

    def step(previous: list[tf.Tensor], current: list[tf.Tensor]) -> list[tf.Tensor]:
        state, *cells = previous
        by_inputs, by_state = (tf.split(rows, 4, axis=1) for rows in (current[0], tf.matmul(state, recurrent_kernel)))
        gates = [x + h + b for x, h, b in zip(by_inputs, by_state, biases, strict=True)]
        if cells:
            cell = tf.sigmoid(gates[1]) * cells[0] + tf.sigmoid(gates[0]) * tf.tanh(gates[2])
            new_states = [tf.sigmoid(gates[3]) * tf.tanh(cell), cell]
        else:
            update, reset = tf.sigmoid(gates[1]), tf.sigmoid(gates[2])
            candidate = tf.tanh(by_inputs[0] + biases[0] + reset * (by_state[3] + biases[3]))
            new_states = [update * state + (1 - update) * candidate]
        return (
            [tf.where(current[1], new, old) for new, old in zip(new_states, previous, strict=True)]
            if arguments.masks
            else new_states
        )

    masks = [tf.transpose(mask)[:, :, None] for mask in arguments.masks]
    states, *cells = tf.scan(step, [products, *masks], [arguments.state, *arguments.cells])
    return [tf.transpose(states, [1, 0, 2]), *(cell[-1] for cell in cells)]
