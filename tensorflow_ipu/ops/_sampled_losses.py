"""Losses over many classes that look at a sample of them, with a sampler that compiled programs can run."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import tensorflow as tf

from tensorflow_ipu._base.checks import Faults

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import TensorLike


class _Sample(NamedTuple):
    classes: tf.Tensor  # int64 [num_sampled], all different
    true_expected: tf.Tensor  # [batch, num_true], how often each is drawn on average
    sampled_expected: tf.Tensor  # [num_sampled]


def sampled_softmax_loss(
    weights: TensorLike,
    biases: TensorLike,
    labels: TensorLike,
    inputs: TensorLike,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: tuple[TensorLike, TensorLike, TensorLike] | None = None,
    name: str = "sampled_softmax_loss",
    seed: int | None = None,
) -> tf.Tensor:
    """The cross entropy of a softmax over the true classes and a sample of the others: `tf.nn.sampled_softmax_loss`.

    TensorFlow's own samples where XLA cannot; this one samples in the program. Sampled classes that are true ones do
    not count.

    Args:
      weights: One tensor [num_classes, size].
      biases: A tensor [num_classes].
      labels: The true classes: integers [batch, num_true].
      inputs: A tensor [batch, size].
      num_sampled: How many classes to sample a batch, of which none comes twice.
      num_classes: How many classes there are. Class k is drawn with a chance that falls as 1/k does, so number them
        from the most frequent to the rarest.
      num_true: How many true classes an example has.
      sampled_values: A sample, as `tf.random.log_uniform_candidate_sampler` returns one; None to draw it.
      name: A name for the operation.
      seed: A number from which the sample follows. None: another sample each time.

    Returns:
      A loss for each example, of shape [batch].

    Raises:
      ValueError: `num_sampled` is not from 1 to `num_classes`, or `num_true` is below 1.
    """
    with tf.name_scope(name):
        logits, targets = _logits(
            weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values, seed, True
        )
        return tf.nn.softmax_cross_entropy_with_logits(targets, logits)


def nce_loss(
    weights: TensorLike,
    biases: TensorLike,
    labels: TensorLike,
    inputs: TensorLike,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: tuple[TensorLike, TensorLike, TensorLike] | None = None,
    name: str = "nce_loss",
) -> tf.Tensor:
    """The noise-contrastive estimation of the classes: `tf.nn.nce_loss`, with a sampler that compiled programs can run.

    Sampled classes that are true ones count all the same. See `sampled_softmax_loss` for the arguments and errors.

    Returns:
      A loss for each example, of shape [batch].
    """
    with tf.name_scope(name):
        logits, targets = _logits(
            weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values, None, False
        )
        return tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(targets, logits), axis=1)


def _logits(
    weights: TensorLike,
    biases: TensorLike,
    labels: TensorLike,
    inputs: TensorLike,
    num_sampled: int,
    num_classes: int,
    num_true: int,
    sampled_values: tuple[TensorLike, TensorLike, TensorLike] | None,
    seed: int | None,
    remove_hits: bool,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Logits and targets, both [batch, num_true + num_sampled]."""
    faults = Faults()
    if not 1 <= num_sampled <= num_classes:
        faults.add(ValueError, f"`num_sampled={num_sampled}` must be from 1 to `num_classes`, which is {num_classes}")
    if num_true < 1:
        faults.add(ValueError, f"`num_true={num_true}` must be 1 or more")
    faults.raise_any()
    labels = tf.reshape(tf.cast(labels, tf.int64), [-1, num_true])
    inputs = tf.convert_to_tensor(inputs)
    sample = (
        _log_uniform(labels, num_sampled, num_classes, seed)
        if sampled_values is None
        else _Sample(*(tf.stop_gradient(tf.convert_to_tensor(value)) for value in sampled_values))
    )
    true = tf.einsum("btd,bd->bt", tf.gather(weights, labels), inputs) + tf.gather(biases, labels)
    others = tf.matmul(inputs, tf.gather(weights, sample.classes), transpose_b=True)
    others += tf.gather(biases, sample.classes)
    if remove_hits:
        hits = tf.reduce_any(tf.equal(labels[:, :, tf.newaxis], tf.cast(sample.classes, tf.int64)), axis=1)
        others = tf.where(hits, others.dtype.min, others)
    true -= tf.math.log(tf.cast(sample.true_expected, true.dtype))
    others -= tf.math.log(tf.cast(sample.sampled_expected, others.dtype))
    targets = tf.concat([tf.ones_like(true) / num_true, tf.zeros_like(others)], 1)
    return tf.concat([true, others], 1), targets


def _log_uniform(labels: tf.Tensor, num_sampled: int, num_classes: int, seed: int | None) -> _Sample:
    """Draws classes until there are enough different ones."""
    scale = tf.math.log(float(num_classes + 1))
    start = tf.random.uniform([2], tf.int32.min, tf.int32.max, tf.int32) if seed is None else tf.stack([seed, 0])

    def draw(tries: tf.Tensor, found: tf.Tensor, classes: tf.Tensor, seen: tf.Tensor) -> tuple[tf.Tensor, ...]:
        chance = tf.random.stateless_uniform([], start + tf.stack([0, tries]))
        one = tf.clip_by_value(tf.cast(tf.exp(chance * scale), tf.int32) - 1, 0, num_classes - 1)
        is_new = tf.logical_not(seen[one])
        here = tf.logical_and(tf.equal(tf.range(num_sampled), found), is_new)
        seen = tf.logical_or(seen, tf.equal(tf.range(num_classes), one))
        return tries + 1, found + tf.cast(is_new, tf.int32), tf.where(here, one, classes), seen

    tries, _, classes, _ = tf.while_loop(
        lambda tries, found, classes, seen: found < num_sampled,  # noqa: ARG005
        draw,
        (0, 0, tf.zeros([num_sampled], tf.int32), tf.zeros([num_classes], tf.bool)),
    )

    def expected(drawn: tf.Tensor) -> tf.Tensor:
        number = tf.cast(drawn, tf.float32)
        chance = tf.math.log((number + 2) / (number + 1)) / scale
        return -tf.math.expm1(tf.cast(tries, tf.float32) * tf.math.log1p(-chance))

    return _Sample(*map(tf.stop_gradient, (tf.cast(classes, tf.int64), expected(labels), expected(classes))))
