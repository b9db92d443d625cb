"""Computes the time steps of Keras's LSTM and GRU layers by host kernels, in programs and layers that support it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import tensorflow as tf

from tensorflow_ipu.keras._keras import internals, keras
from tensorflow_ipu.ops import rnn_steps

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Nested


def of_keras_3(original: Callable[..., Nested]) -> Callable[..., Nested]:
    """Wraps `inner_loop` of a layer of Keras 3, to run host kernels if they support the layer."""

    @functools.wraps(original)
    def inner_loop(
        self: Nested, sequences: Nested, initial_state: Nested, mask: Nested, training: bool = False
    ) -> Nested:
        results = _computed(self, sequences, initial_state, mask, training)
        return original(self, sequences, initial_state, mask, training) if results is None else results

    return inner_loop


def _computed(layer: Nested, sequences: Nested, states: Nested, mask: Nested, training: bool) -> Nested:
    """Returns the results of `inner_loop`, or None if the kernels do not support the layer or its inputs."""
    kind, cell = type(layer.cell), layer.cell
    dropout = training and cell.dropout > 0
    if (
        kind not in (keras.layers.LSTMCell, keras.layers.GRUCell)
        or cell.activation is not keras.activations.tanh
        or cell.recurrent_activation is not keras.activations.sigmoid
        or not getattr(cell, "reset_after", True)
        or (training and cell.recurrent_dropout > 0)
        or (dropout and cell.implementation == 1)  # Each gate has its own dropout mask.
        or (layer.unroll and mask is not None)  # With `go_backwards`, Keras applies the mask in the opposite direction.
        or not tf.is_tensor(sequences)
    ):
        return None
    bias = None if cell.bias is None else tf.convert_to_tensor(cell.bias)
    weights = rnn_steps.Weights(tf.convert_to_tensor(cell.kernel), tf.convert_to_tensor(cell.recurrent_kernel), bias)
    mask = mask[0] if isinstance(mask, list | tuple) else mask
    if not rnn_steps.serves(sequences, weights, mask):
        return None
    if dropout:
        sequences *= cell.get_dropout_mask(sequences[:, 0, :])[:, None]
    states = list(states) if isinstance(states, list | tuple) else [states]
    last, outputs, states = rnn_steps.run(
        sequences, weights, states, mask, layer.go_backwards, layer.zero_output_for_mask
    )
    return last, outputs if layer.return_sequences else last[:, None], states


def of_keras_2(select: Callable[..., Nested]) -> Callable[..., Nested]:
    """Wraps the function with which a layer of Keras 2 selects a kernel, to run host kernels if possible."""
    original = internals.without_selection(select)  # pyright: ignore[reportAttributeAccessIssue]

    def selected(**arguments: Nested) -> Nested:
        inputs, mask = arguments["inputs"], arguments["mask"]
        names = ("kernel", "recurrent_kernel", "bias")
        weights = rnn_steps.Weights(*(tf.convert_to_tensor(arguments[name]) for name in names))
        special = arguments["time_major"] or arguments["sequence_lengths"] is not None
        if special or not rnn_steps.serves(inputs, weights, mask):
            return original(**arguments)
        states = [arguments[name] for name in ("init_h", "init_c") if name in arguments]
        last, outputs, states = rnn_steps.run(
            inputs, weights, states, mask, arguments["go_backwards"], arguments["zero_output_for_mask"]
        )
        outputs = outputs if arguments["return_sequences"] else last[:, None]
        return last, outputs, *states, tf.constant(1.0)  # Keras's CPU kernels return the code 1.0.

    return selected
