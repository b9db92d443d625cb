"""The loss of connectionist temporal classification."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow as tf

if TYPE_CHECKING:
    from tensorflow_ipu._types import DTypeLike, TensorLike


def ctc_loss_v2(
    labels: TensorLike,
    logits: TensorLike,
    label_length: TensorLike,
    logit_length: TensorLike,
    blank_index: int,
    out_dtype: DTypeLike | None = None,
    name: str | None = None,
) -> tf.Tensor:
    """The loss of connectionist temporal classification, of logits: `tf.nn.ctc_loss` with dense labels.

    Args:
      labels: The classes: integers [batch, the longest], filled up with anything.
      logits: A tensor [time, batch, classes].
      label_length: How many labels each sequence has: integers [batch].
      logit_length: How many steps of time each sequence has: integers [batch].
      blank_index: The class that means nothing; a negative one counts from the last.
      out_dtype: The type of the result; None for that of `logits`.
      name: A name for the operation.

    Returns:
      A loss for each sequence, of shape [batch].

    Raises:
      ValueError: `out_dtype` is float16 while `logits` is not, there is no such class, or how many there are is not known.
    """
    return _loss("logits", False, labels, logits, label_length, logit_length, blank_index, out_dtype, name)


def ctc_loss_with_log_probs(
    labels: TensorLike,
    data: TensorLike,
    label_length: TensorLike,
    data_length: TensorLike,
    blank_index: int,
    out_dtype: DTypeLike | None = None,
    name: str | None = None,
) -> tf.Tensor:
    """The loss of connectionist temporal classification, of logarithms of probabilities.

    The value takes them as they are. The gradient counts in the softmax by which they were made, as on the machine: it is
    that of the logits, and goes through a `log_softmax` before the loss unchanged. See `ctc_loss_v2`; `data` is in the
    place of `logits`.
    """
    return _loss("data", True, labels, data, label_length, data_length, blank_index, out_dtype, name)


def blank_class(blank_index: int, classes: int) -> int:
    """The number of the class that means nothing, counted from the first.

    Raises:
      ValueError: There is no such class.
    """
    if not -classes <= blank_index < classes:
        raise ValueError(f"`blank_index={blank_index}` is out of range: there are {classes} classes")
    return blank_index % classes


def _loss(
    which: str,
    are_log_probs: bool,
    labels: TensorLike,
    data: TensorLike,
    label_length: TensorLike,
    data_length: TensorLike,
    blank_index: int,
    out_dtype: DTypeLike | None,
    name: str | None,
) -> tf.Tensor:
    with tf.name_scope(name or "ctc_loss"):
        data = tf.convert_to_tensor(data, name=which)
        dtype = data.dtype if out_dtype is None else tf.as_dtype(out_dtype)
        if dtype == tf.float16 and data.dtype != tf.float16:
            raise ValueError(f"`out_dtype` is float16, which cannot hold the loss of `{which}` of {data.dtype.name}")
        classes = data.shape[-1] if data.shape.rank else None
        if classes is None:
            raise ValueError(
                f"`{which}` has the shape {data.shape}, and how many classes there are must be known when the program is"
                " made: say it by `tf.ensure_shape`"
            )
        blank = blank_class(blank_index, classes)
        # A loss adds many logarithms up, which half precision cannot.
        values = tf.cast(data, tf.float32) if data.dtype == tf.float16 else data
        loss = tf.nn.ctc_loss(
            tf.cast(labels, tf.int32),
            values,
            label_length,  # pyright: ignore[reportArgumentType]  # The stub has tensors alone.
            data_length,  # pyright: ignore[reportArgumentType]
            logits_time_major=True,
            blank_index=blank,
        )
        if are_log_probs:
            # `tf.nn.ctc_loss` divides by the sum of each step's probabilities; this takes it back, in the value alone.
            sums = tf.stop_gradient(tf.reduce_logsumexp(values, axis=-1))
            used = tf.range(tf.shape(values)[0])[:, tf.newaxis] < tf.cast(data_length, tf.int32)
            loss -= tf.reduce_sum(tf.where(used, sums, tf.zeros([], sums.dtype)), axis=0)
        return tf.cast(loss, dtype)
