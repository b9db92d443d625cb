"""The steps of LSTM and GRU layers by kernels of the host: one operation for all steps, and one for their gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from tensorflow_ipu import programs
from tensorflow_ipu._native.library import ops

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Gradient, Nested


class Weights(NamedTuple):
    """The weights of a cell of Keras with `tanh` and `sigmoid`; a GRU resets after the product with its kernel.

    The bias of a GRU is of shape [2, 3 * units]: for the products of the inputs, and for those of the states.
    """

    kernel: tf.Tensor
    recurrent_kernel: tf.Tensor
    bias: tf.Tensor | None


def serves(inputs: tf.Tensor, weights: Weights, mask: tf.Tensor | None) -> bool:
    """Returns True if the kernels compute such steps in the program that is being traced."""
    shape = inputs.shape
    numbers = programs.floating_point_now()
    return (
        programs.wants_host_kernels()
        and not (numbers.stops or numbers.partials_matmul)  # The kernels check nothing, and sum in float32.
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
    """Computes all steps, as `keras.src.backend.rnn` does.

    Those of float16 and bfloat16 are computed in float32, and their results are rounded.

    Args:
      inputs: Of shape [batch, time, features].
      weights: The weights.
      states: The states before the first step: two for an LSTM, one for a GRU.
      mask: Of shape [batch, time]. A step where it is False keeps the states.
      go_backwards: Whether the last step comes first.
      zeros: Whether such a step returns zeros, and not what the step before it returned.

    Returns:
      The output of the last step, those of all steps, and the states after the last one.
    """
    if go_backwards:
        inputs = tf.reverse(inputs, [1])
    masks = []
    if mask is not None:
        mask = tf.cast(mask, tf.bool)
        masks = [tf.reverse(mask, [1]) if go_backwards else mask]
    operands = (inputs, _stacked(weights, gru=len(states) == 1), *states)
    wide_inputs, kernel, before, *cells = (tf.cast(operand, tf.float32) for operand in operands)
    wide, _, wide_cells = ops.ipu_recurrence(wide_inputs, kernel, before, cells, masks)
    outputs, *last_cells = (tf.cast(result, inputs.dtype) for result in (wide, *wide_cells))
    last = outputs[:, -1]
    after = [last, *last_cells]
    for mask in masks:
        # Before the first step that is taken, Keras returns zeros, and not the state.
        shown = mask if zeros else tf.cumsum(tf.cast(mask, tf.int32), axis=1) > 0
        outputs = tf.where(shown[:, :, None], outputs, tf.zeros([], outputs.dtype))
        last_shown = mask[:, -1:] if zeros else tf.reduce_any(mask, axis=1, keepdims=True)
        last = tf.where(last_shown, last, tf.zeros([], last.dtype))
    return last, outputs, after


def _stacked(weights: Weights, gru: bool) -> tf.Tensor:
    """Returns the kernel that a step multiplies `[state, inputs, 1]` by."""
    of_inputs, of_state, bias = weights
    wide = of_inputs.shape[1]
    bias = tf.zeros([1 + gru, wide], of_inputs.dtype) if bias is None else tf.reshape(bias, [-1, wide])
    if not gru:
        return tf.concat([of_state, of_inputs, bias], 0)

    # A GRU multiplies its candidate's product of the state by the reset gate, before it adds that of the inputs. The
    # kernels do not multiply by the zeros, which would make infinities NaN.
    def apart(rows: tf.Tensor, of_state: bool) -> tf.Tensor:
        *gates, candidate = tf.split(rows, 3, axis=1)
        none = tf.zeros_like(candidate)
        return tf.concat([none, *gates, candidate] if of_state else [candidate, *gates, none], 1)

    return tf.concat(
        [apart(of_state, True), apart(of_inputs, False), apart(bias[:1], False) + apart(bias[1:], True)], 0
    )


@tf.RegisterGradient("IpuRecurrence")
def _gradient(op: tf.Operation, of_states: Gradient, _: object, *of_cells: Gradient) -> list[tf.Tensor | None]:
    arguments = _Arguments.of(op)
    states, saved, *_ = op.outputs[0].op.outputs
    of_inputs, of_kernel, of_state, of_cell = ops.ipu_recurrence_grad(
        *arguments,
        states,
        saved,
        tf.convert_to_tensor(of_states),
        [tf.convert_to_tensor(gradient) for gradient in of_cells],
    )
    return [of_inputs, of_kernel, of_state, *of_cell, *(None for _ in arguments.masks)]


@tf.RegisterGradient("IpuRecurrenceGrad")
def _second_gradient(op: tf.Operation, *upstream: Gradient) -> list[tf.Tensor | None]:
    """Differentiates the same steps once more, computed by operations that have gradients themselves."""
    arguments = _Arguments.of(op)
    sources = [arguments.inputs, arguments.kernel, arguments.state, *arguments.cells]
    of_results = list(op.outputs[0].op.inputs)[-1 - len(arguments.cells) :]
    with tf.GradientTape() as outer:
        outer.watch([*sources, *of_results])
        with tf.GradientTape() as inner:
            inner.watch(sources)
            results = _plain(arguments)
        first: Nested = inner.gradient(results, sources, of_results)
    second: Nested = outer.gradient(
        first, [*sources, *of_results], [tf.convert_to_tensor(gradient) for gradient in upstream]
    )
    # What the kernel has saved depends on the other inputs, whose gradients are complete.
    return [*second[: len(sources)], *(None for _ in arguments.masks), None, None, *second[len(sources) :]]


class _Arguments(NamedTuple):
    """The first inputs of both operations."""

    inputs: tf.Tensor
    kernel: tf.Tensor
    state: tf.Tensor
    cells: list[tf.Tensor]
    masks: list[tf.Tensor]

    @classmethod
    def of(cls, op: tf.Operation) -> _Arguments:
        real = op.outputs[0].op  # A tape shows another one.
        inputs, kernel, state, *others = real.inputs
        cells, masks = (real.get_attr(name) for name in ("cells", "masks"))
        return cls(inputs, kernel, state, others[:cells], others[cells : cells + masks])


def _plain(arguments: _Arguments) -> list[tf.Tensor]:
    """Computes the states and the last cell of an LSTM step by step."""
    # Splits alone: in a compiled program, the gradient of a concatenation has no gradient of its own.
    sizes: Any = [arguments.state.shape[1], arguments.inputs.shape[2], 1]
    of_state, of_inputs, bias = tf.split(arguments.kernel, sizes)
    biases = tf.split(bias, 4, axis=1)
    products = tf.transpose(tf.tensordot(arguments.inputs, of_inputs, 1), [1, 0, 2])

    def step(before: list[tf.Tensor], at: list[tf.Tensor]) -> list[tf.Tensor]:
        state, *cells = before
        by_inputs, by_state = (tf.split(rows, 4, axis=1) for rows in (at[0], tf.matmul(state, of_state)))
        gates = [x + h + b for x, h, b in zip(by_inputs, by_state, biases, strict=True)]
        if cells:
            cell = tf.sigmoid(gates[1]) * cells[0] + tf.sigmoid(gates[0]) * tf.tanh(gates[2])
            after = [tf.sigmoid(gates[3]) * tf.tanh(cell), cell]
        else:
            kept, reset = tf.sigmoid(gates[1]), tf.sigmoid(gates[2])
            candidate = tf.tanh(by_inputs[0] + biases[0] + reset * (by_state[3] + biases[3]))
            after = [kept * state + (1 - kept) * candidate]
        return [tf.where(at[1], new, old) for new, old in zip(after, before, strict=True)] if arguments.masks else after

    masks = [tf.transpose(mask)[:, :, None] for mask in arguments.masks]
    states, *cells = tf.scan(step, [products, *masks], [arguments.state, *arguments.cells])
    return [tf.transpose(states, [1, 0, 2]), *(cell[-1] for cell in cells)]
