"""The steps of LSTM and GRU layers by kernels of the host: one operation for all steps, and one for their gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import tensorflow as tf

from tensorflow_ipu import replicas
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
    numbers = replicas.floating_point_now()
    return (
        replicas.wants_host_kernels()
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
    batch, time, features = inputs.shape
    if go_backwards:
        inputs = tf.reverse(inputs, [1])
    products = tf.matmul(tf.reshape(inputs, [-1, features]), weights.kernel)
    biases = []
    if len(states) == 1:
        bias = tf.zeros([2, products.shape[1]], products.dtype) if weights.bias is None else weights.bias
        products += bias[0]
        biases = [bias[1]]
    elif weights.bias is not None:
        products += weights.bias
    masks = []
    if mask is not None:
        mask = tf.cast(mask, tf.bool)
        masks = [tf.reverse(mask, [1]) if go_backwards else mask]
    operands = [tf.reshape(products, [batch, time, -1]), weights.recurrent_kernel, *states, *biases]
    products, kernel, before, *others = (tf.cast(operand, tf.float32) for operand in operands)
    cells = others[: len(states) - 1]
    wide, _, wide_cells = ops.ipu_recurrence(products, kernel, before, cells, others[len(cells) :], masks)
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


@tf.RegisterGradient("IpuRecurrence")
def _gradient(op: tf.Operation, of_states: Gradient, _: object, *of_cells: Gradient) -> list[tf.Tensor | None]:
    given = _Arguments.of(op)
    states, saved, *_ = op.outputs[0].op.outputs
    of_inputs, of_state, of_cell, of_products = ops.ipu_recurrence_grad(
        *given, states, saved, tf.convert_to_tensor(of_states), [tf.convert_to_tensor(one) for one in of_cells]
    )
    before = tf.concat([given.state[:, None], states[:, :-1]], 1)
    products = (of_products or [of_inputs])[0]
    rows = [tf.reshape(tensor, [-1, tensor.shape[-1]]) for tensor in (before, products)]
    of_kernel = tf.matmul(*rows, transpose_a=True)
    of_bias = [tf.reduce_sum(one, [0, 1]) for one in of_products]
    return [of_inputs, of_kernel, of_state, *of_cell, *of_bias, *(None for _ in given.masks)]


@tf.RegisterGradient("IpuRecurrenceGrad")
def _second_gradient(op: tf.Operation, *upstream: Gradient) -> list[tf.Tensor | None]:
    """Differentiates the same steps once more, computed by operations that have gradients of any order."""
    given = _Arguments.of(op)
    of_states, *of_cells = list(op.outputs[0].op.inputs)[-1 - len(given.cells) :]
    products = [tf.zeros_like(given.inputs) for _ in given.biases]
    sources = [given.inputs, given.state, *given.cells, *products]
    with tf.GradientTape() as outer:
        outer.watch([*sources, given.kernel, *given.biases, of_states, *of_cells])
        with tf.GradientTape() as inner:
            inner.watch(sources)
            results = _plain(given, products)
        first: Nested = inner.gradient(results, sources, [of_states, *of_cells])
    of_sources: Nested = outer.gradient(
        first,
        [given.inputs, given.kernel, given.state, *given.cells, *given.biases, of_states, *of_cells],
        [tf.convert_to_tensor(one) for one in upstream],
    )
    behind = 1 + len(of_cells)
    of_given, of_upstream = of_sources[:-behind], of_sources[-behind:]
    # What the kernel has saved depends on the other inputs, whose gradients are complete.
    return [*of_given, *(None for _ in given.masks), None, None, *of_upstream]


class _Arguments(NamedTuple):
    """The first inputs of both operations."""

    inputs: tf.Tensor
    kernel: tf.Tensor
    state: tf.Tensor
    cells: list[tf.Tensor]
    biases: list[tf.Tensor]
    masks: list[tf.Tensor]

    @classmethod
    def of(cls, op: tf.Operation) -> _Arguments:
        real = op.outputs[0].op  # A tape shows another one.
        inputs, kernel, state, *others = real.inputs
        lists = []
        for name in ("cells", "biases", "masks"):
            count = real.get_attr(name)
            lists.append(others[:count])
            others = others[count:]
        return cls(inputs, kernel, state, *lists)


def _plain(given: _Arguments, products: list[tf.Tensor]) -> list[tf.Tensor]:
    """Computes the states and the last cell of an LSTM step by step; `products` are added to those of a GRU's states."""
    by_time = [tf.transpose(tensor, [1, 0, 2]) for tensor in (given.inputs, *products)]
    masks = [tf.transpose(mask)[:, :, None] for mask in given.masks]

    def step(before: list[tf.Tensor], at: list[tf.Tensor]) -> list[tf.Tensor]:
        state, inputs = before[0], at[0]
        product = tf.matmul(state, given.kernel)
        if given.cells:
            taken, forgotten, candidate, shown = tf.split(inputs + product, 4, axis=1)
            cell = tf.sigmoid(forgotten) * before[1] + tf.sigmoid(taken) * tf.tanh(candidate)
            after = [tf.sigmoid(shown) * tf.tanh(cell), cell]
        else:
            of_inputs = tf.split(inputs, 3, axis=1)
            of_states = tf.split(product + given.biases[0] + at[1], 3, axis=1)
            kept, reset = (tf.sigmoid(x + y) for x, y in zip(of_inputs[:2], of_states[:2], strict=True))
            after = [kept * state + (1 - kept) * tf.tanh(of_inputs[2] + reset * of_states[2])]
        return [tf.where(at[-1], new, old) for new, old in zip(after, before, strict=True)] if masks else after

    states, *cells = tf.scan(step, [*by_time, *masks], [given.state, *given.cells])
    return [tf.transpose(states, [1, 0, 2]), *(cell[-1] for cell in cells)]
