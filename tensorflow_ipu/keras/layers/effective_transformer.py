"""Multi-head attention between padded sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from tensorflow_ipu._base.checks import Faults
from tensorflow_ipu.keras._keras import keras
from tensorflow_ipu.keras.layers._config import arguments_of
from tensorflow_ipu.keras.layers.dropout import Dropout
from tensorflow_ipu.keras.layers.normalization import LayerNormalization

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensorflow_ipu._base.types import Activation, Config, Initializer, Shape

__all__ = ["EffectiveTransformer"]

_SIZES = ("output_layer_size", "max_batch_size", "num_attention_heads", "attention_head_size", "sequences_per_iter")


@keras.saving.register_keras_serializable(package="tensorflow_ipu")
class EffectiveTransformer(keras.layers.Layer):
    """Multi-head attention between two sets of padded sequences, as in https://arxiv.org/abs/1706.03762.

    Each element of a sequence is a scalar. Dense layers turn it into a query, or into a key and a value, of each head.
    They are zero for padding. So a padded key has the score 0, which counts in the softmax, and adds nothing to the
    context.

        from_sequences [n, f] -> query [n, f, heads, size] -.
        to_sequences   [n, t] -> key   [n, t, heads, size] -+-> context [n, f, heads, size] -> output [n, units]
                              -> value [n, t, heads, size] -'

    On real IPUs, `sequences_per_iter` and `max_batch_size` control the packing of sequences. They do not change the
    results, and have no effect here.
    """

    def __init__(
        self,
        output_layer_size: int,
        max_batch_size: int,
        use_scale: bool = False,
        num_attention_heads: int = 1,
        attention_head_size: int = 1,
        sequences_per_iter: int = 1,
        qkv_activation: Activation = None,
        attention_dropout_prob: float | None = None,
        output_activation: Activation = None,
        output_dropout_prob: float | None = None,
        layer_norm_output: bool = True,
        embedding_initializer: Initializer = "glorot_uniform",
        embedding_bias_initializer: Initializer = "zeros",
        output_initializer: Initializer = "glorot_uniform",
        output_bias_initializer: Initializer = "zeros",
        **kwargs: Any,
    ) -> None:
        """Creates the layer.

        Args:
          output_layer_size: The size of the output for a sequence.
          max_batch_size: The number of sequences that real IPUs unpack at a time.
          use_scale: Whether scores are multiplied by a trained scalar, which is 1 at first.
          num_attention_heads: The number of heads.
          attention_head_size: The size of the query, the key and the value of a head.
          sequences_per_iter: The number of rows into which real IPUs pack sequences; at most `max_batch_size`.
          qkv_activation: The activation of queries, keys and values.
          attention_dropout_prob: The dropout rate of the context. None: no dropout.
          output_activation: The activation of the output.
          output_dropout_prob: The dropout rate of the output. None: no dropout.
          layer_norm_output: Whether the output is normalised over its last dimension.
          embedding_initializer: The initializer of the kernels of queries, keys and values.
          embedding_bias_initializer: The initializer of the biases of queries, keys and values.
          output_initializer: The initializer of the kernel of the output.
          output_bias_initializer: The initializer of the bias of the output.
          **kwargs: Arguments of every Keras layer, such as `name` and `dtype`.

        Raises:
          ValueError: A size is below 1, or `sequences_per_iter` is greater than `max_batch_size`.
        """
        super().__init__(**kwargs)
        arguments, faults = locals(), Faults()
        for name in _SIZES:
            if arguments[name] < 1:
                faults.add(ValueError, f"`{name}` must be 1 or more, but is `{arguments[name]}`")
        if sequences_per_iter > max_batch_size:
            faults.add(
                ValueError,
                f"`sequences_per_iter={sequences_per_iter}` must be at most `max_batch_size`, which is {max_batch_size}",
            )
        faults.raise_any()
        self.output_layer_size = output_layer_size
        self.max_batch_size = max_batch_size
        self.use_scale = use_scale
        self.num_attention_heads = num_attention_heads
        self.attention_head_size = attention_head_size
        self.sequences_per_iter = sequences_per_iter
        self.qkv_activation = keras.activations.get(qkv_activation)
        self.attention_dropout_prob = attention_dropout_prob
        self.output_activation = keras.activations.get(output_activation)
        self.output_dropout_prob = output_dropout_prob
        self.layer_norm_output = layer_norm_output
        self.embedding_initializer: Any = keras.initializers.get(embedding_initializer)
        self.embedding_bias_initializer: Any = keras.initializers.get(embedding_bias_initializer)
        self.output_initializer: Any = keras.initializers.get(output_initializer)
        self.output_bias_initializer: Any = keras.initializers.get(output_bias_initializer)
        self._query, self._key, self._value = (self._embedding(name) for name in ("query", "key", "value"))
        self._output = keras.layers.Dense(
            output_layer_size,
            activation=self.output_activation,
            kernel_initializer=self.output_initializer,
            bias_initializer=self.output_bias_initializer,
            dtype=self.dtype_policy,
            name="output_layer",
        )
        self._attention_dropout = None if attention_dropout_prob is None else Dropout(attention_dropout_prob)
        self._output_dropout = None if output_dropout_prob is None else Dropout(output_dropout_prob)
        self._norm = LayerNormalization(dtype=self.dtype_policy) if layer_norm_output else None
        self.scale = None

    def build(self, input_shape: Sequence[Shape]) -> None:
        """Creates the weights for inputs of these four or five shapes.

        Raises:
          ValueError: The number of shapes is not four or five, or the length of the sequences is unknown.
        """
        _check_count(input_shape)
        length = input_shape[0][1]
        if length is None:
            raise ValueError(f"the length of `from_sequences` must be known, and the shape is {tuple(input_shape[0])}")
        for layer in (self._query, self._key, self._value):
            layer.build((None, 1))
        if self.use_scale:
            self.scale = self.add_weight(name="scale", shape=(1,), initializer="ones")
        self._output.build((None, length * self.num_attention_heads * self.attention_head_size))
        if self._norm is not None:
            self._norm.build((None, self.output_layer_size))
        self.built = True

    def call(self, inputs: Sequence[tf.Tensor], training: bool = True) -> tuple[tf.Tensor, tf.Tensor]:
        """Computes the output and the context.

        Args:
          inputs: A list of four or five tensors:
            `from_sequences`, [n, f], for which queries are computed;
            `from_sequence_lengths`, integers [n] or [n, 1];
            `to_sequences`, [n, t], for which keys and values are computed;
            `to_sequence_lengths`, integers [n] or [n, 1];
            optionally `q_mask`, booleans [n, heads]: the context of a head is zero in sequences in which it is False.
          training: Whether dropout is active.

        Returns:
          The output, [n, output_layer_size], and the context, [n, f, heads, size].

        Raises:
          ValueError: The number of inputs is not four or five, or their shapes or types do not match.
        """
        _check_count(inputs)
        sequences, lengths, to_sequences, to_lengths, *masks = map(tf.convert_to_tensor, inputs)
        self._check(sequences, lengths, to_sequences, to_lengths, masks)
        query = self._heads(self._query, sequences, lengths)
        key = self._heads(self._key, to_sequences, to_lengths)
        value = self._heads(self._value, to_sequences, to_lengths)
        scores = tf.einsum("nfhd,nthd->nhft", query, key)
        if self.scale is not None:
            scores *= tf.convert_to_tensor(self.scale)
        context = tf.einsum("nhft,nthd->nfhd", tf.nn.softmax(scores), value)
        if masks:
            context *= tf.cast(masks[0], context.dtype)[:, tf.newaxis, :, tf.newaxis]
        if self._attention_dropout is not None:
            context = self._attention_dropout(context, training=training)
        size = context.shape[1] * self.num_attention_heads * self.attention_head_size
        output = self._output(tf.reshape(context, [-1, size]))
        if self._output_dropout is not None:
            output = self._output_dropout(output, training=training)
        return (output if self._norm is None else self._norm(output)), context

    def compute_output_shape(self, input_shape: Sequence[Shape]) -> tuple[Shape, Shape]:
        """Returns the shapes of the output and of the context."""
        count, length = input_shape[0]
        return (count, self.output_layer_size), (count, length, self.num_attention_heads, self.attention_head_size)

    def get_config(self) -> Config:
        return {**super().get_config(), **arguments_of(self, EffectiveTransformer)}

    def _embedding(self, name: str) -> keras.layers.Dense:
        return keras.layers.Dense(
            self.num_attention_heads * self.attention_head_size,
            activation=self.qkv_activation,
            # A copy of the initializer, so that the three kernels get different values.
            kernel_initializer=type(self.embedding_initializer).from_config(self.embedding_initializer.get_config()),
            bias_initializer=self.embedding_bias_initializer,
            dtype=self.dtype_policy,
            name=f"{name}_layer",
        )

    def _heads(self, layer: keras.layers.Layer, sequences: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        """Applies a dense layer to each element; returns a tensor [n, length, heads, size] that is zero for padding."""
        length = sequences.shape[1]
        embedded = layer(sequences[..., tf.newaxis])  # pyright: ignore[reportArgumentType]  # The stub knows no `...`.
        is_element = tf.range(length) < tf.reshape(tf.cast(lengths, tf.int32), [-1, 1])
        embedded = tf.where(is_element[..., tf.newaxis], embedded, tf.zeros([], embedded.dtype))
        return tf.reshape(embedded, [-1, length, self.num_attention_heads, self.attention_head_size])

    def _check(
        self,
        sequences: tf.Tensor,
        lengths: tf.Tensor,
        to_sequences: tf.Tensor,
        to_lengths: tf.Tensor,
        masks: list[tf.Tensor],
    ) -> None:
        faults = Faults()
        ranks = sequences.shape.rank, to_sequences.shape.rank
        if ranks != (2, 2):
            faults.add(
                ValueError,
                f"`from_sequences` and `to_sequences` must have rank 2, but have shapes {sequences.shape} and"
                f" {to_sequences.shape}",
            )
        elif not sequences.shape[:1].is_compatible_with(to_sequences.shape[:1]):
            faults.add(
                ValueError,
                f"there must be as many `from_sequences` as `to_sequences`, but they have shapes {sequences.shape} and"
                f" {to_sequences.shape}",
            )
        if sequences.dtype != to_sequences.dtype:
            faults.add(
                ValueError,
                f"`from_sequences` and `to_sequences` must have the same type, but have {sequences.dtype.name} and"
                f" {to_sequences.dtype.name}",
            )
        for name, tensor in (("from_sequence_lengths", lengths), ("to_sequence_lengths", to_lengths)):
            if not tensor.shape[:1].is_compatible_with(sequences.shape[:1]) or tensor.shape[1:].num_elements() != 1:
                faults.add(
                    ValueError,
                    f"`{name}` must have a length for each sequence, but has shape {tensor.shape}, and `from_sequences`"
                    f" has shape {sequences.shape}",
                )
        mask_shape = tf.TensorShape([sequences.shape[:1].as_list()[0], self.num_attention_heads])
        if masks and not masks[0].shape.is_compatible_with(mask_shape):
            faults.add(ValueError, f"`q_mask` must have shape {mask_shape}, but has {masks[0].shape}")
        faults.raise_any()


def _check_count(inputs: object) -> None:
    if not isinstance(inputs, (list, tuple)) or len(inputs) not in (4, 5):
        raise ValueError(
            "`inputs` must be a list of four or five: `from_sequences`, `from_sequence_lengths`, `to_sequences`,"
            " `to_sequence_lengths`, and optionally `q_mask`"
        )
