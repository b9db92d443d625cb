"""The beam search of connectionist temporal classification, made of operations that compiled programs can run."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import tensorflow as tf

from tensorflow_ipu._tensors import known_size
from tensorflow_ipu.ops._ctc_loss import blank_class

if TYPE_CHECKING:
    from tensorflow_ipu._types import TensorLike

_NOTHING = -1e30  # The logarithm of no probability, from which sums stay finite.


def ctc_beam_search_decoder(
    logits: TensorLike,
    logits_lengths: TensorLike,
    beam_width: int = 100,
    top_paths: int = 1,
    blank_index: int = -1,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Finds the most probable sequences of labels for logits, by a search that keeps the best few at each step.

    Args:
      logits: A tensor [time, batch, classes].
      logits_lengths: How many steps of time each sequence has: integers [batch].
      beam_width: How many sequences are kept from step to step.
      top_paths: How many are returned, at most `beam_width`.
      blank_index: The class that means nothing; a negative one counts from the last.
      name: A name for the operation.

    Returns:
      The logarithm of the probability of each path, float [batch, top_paths], the best first; the length of each, int32
      [batch, top_paths]; and their labels, int32 [batch, top_paths, time], where those beyond the length mean nothing.

    Raises:
      ValueError: `top_paths` is not from 1 to `beam_width`, the number of time steps or classes is not known, or there
        is no such class as `blank_index`.
    """
    logits = tf.convert_to_tensor(logits, name="logits")
    log_probs = tf.nn.log_softmax(tf.cast(logits, tf.float32))
    labels, lengths, scores = _search(log_probs, logits_lengths, beam_width, top_paths, blank_index, name)
    return tf.cast(scores, logits.dtype), lengths, labels


def ctc_beam_search_decoder_with_log_probs(
    log_probs: TensorLike,
    input_lengths: TensorLike,
    beam_width: int = 100,
    top_paths: int = 1,
    blank_index: int = -1,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Finds the most probable sequences of labels for logarithms of probabilities. See `ctc_beam_search_decoder`."""
    log_probs = tf.convert_to_tensor(log_probs, name="log_probs")
    values = tf.cast(log_probs, tf.float32)
    labels, lengths, scores = _search(values, input_lengths, beam_width, top_paths, blank_index, name)
    return tf.cast(scores, log_probs.dtype), lengths, labels


class _Beams(NamedTuple):
    """The sequences that are kept, of every element of the batch."""

    labels: tf.Tensor  # int32 [batch, width, time], -1 beyond the length
    lengths: tf.Tensor  # int32 [batch, width]
    blank: tf.Tensor  # float [batch, width]: the probability of paths that end in a blank
    label: tf.Tensor  # float [batch, width]: that of paths that end in the last label


def _search(
    log_probs: tf.Tensor, lengths: TensorLike, beam_width: int, top_paths: int, blank_index: int, name: str | None
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    if not 1 <= top_paths <= beam_width:
        raise ValueError(f"`top_paths={top_paths}` must be from 1 to `beam_width`, which is {beam_width}")
    steps, _, classes = log_probs.shape
    if steps is None or classes is None:
        raise ValueError(f"the numbers of time steps and of classes must be known, and the shape is {log_probs.shape}")
    blank = blank_class(blank_index, classes)
    with tf.name_scope(name or "ctc_beam_search_decoder"):
        batch = tf.shape(log_probs)[1]
        lengths = tf.cast(lengths, tf.int32)
        none = tf.fill([batch, beam_width], _NOTHING)
        start = _Beams(
            tf.fill([batch, beam_width, steps], -1),
            tf.zeros([batch, beam_width], tf.int32),
            # The empty sequence comes once; the other places are free.
            tf.where(tf.equal(tf.range(beam_width), 0), 0.0, none),
            none,
        )

        def advance(step: tf.Tensor, *beams: tf.Tensor) -> tuple[tf.Tensor, ...]:
            moved = _advance(_Beams(*beams), log_probs[step], blank)
            ended = step >= lengths
            kept = [
                tf.where(tf.reshape(ended, [-1] + [1] * (len(new.shape) - 1)), old, new)
                for old, new in zip(beams, moved, strict=True)
            ]
            return (step + 1, *kept)

        _, *last = tf.while_loop(lambda step, *_: step < steps, advance, (0, *start))
        beams = _Beams(*last)
        scores, best = tf.math.top_k(_either(beams.blank, beams.label), top_paths)
        return tf.gather(beams.labels, best, batch_dims=1), tf.gather(beams.lengths, best, batch_dims=1), scores


def _either(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """The logarithm of the sum of two probabilities."""
    largest = tf.maximum(a, b)
    return largest + tf.math.log1p(tf.exp(-tf.abs(a - b)))


# TensorFlow's stubs know no `...` in brackets.
def _advance(beams: _Beams, probs: tf.Tensor, blank: int) -> _Beams:
    """Goes one step of time on; `probs` is [batch, classes]."""
    width, steps = known_size(beams.labels, 1), known_size(beams.labels, 2)
    classes = known_size(probs, 1)
    either = _either(beams.blank, beams.label)
    last = tf.gather(beams.labels, tf.maximum(beams.lengths - 1, 0)[..., tf.newaxis], batch_dims=2)[..., 0]  # pyright: ignore[reportArgumentType]
    last = tf.where(beams.lengths > 0, last, -1)

    # A sequence stays: a blank follows, or its last label again.
    stay_blank = either + probs[:, blank, tf.newaxis]
    repeated = tf.gather(probs, tf.maximum(last, 0), batch_dims=1)
    stay_label = tf.where(last >= 0, beams.label + repeated, _NOTHING)

    # A label follows. After the same label, a blank must have come between.
    labels = tf.range(classes)
    same = tf.equal(labels, tf.expand_dims(last, -1))
    grow = tf.where(same, beams.blank[..., tf.newaxis], either[..., tf.newaxis]) + probs[:, tf.newaxis, :]  # pyright: ignore[reportArgumentType]
    grow = tf.where(tf.equal(labels, blank), _NOTHING, grow)

    # Where the grown sequence is one that stays, they are the same: its probability goes to that one.
    position = tf.range(steps)
    before = tf.where(position < beams.lengths[..., tf.newaxis] - 1, beams.labels, -1)  # pyright: ignore[reportArgumentType]
    equal = tf.equal(beams.labels[:, tf.newaxis], before[:, :, tf.newaxis])
    is_parent = tf.reduce_all(equal, -1)  # [batch, child, parent]
    is_parent &= tf.equal(beams.lengths[:, tf.newaxis] + 1, beams.lengths[:, :, tf.newaxis])
    is_parent &= (either > _NOTHING / 2)[:, :, tf.newaxis]
    from_parent = tf.gather(grow, tf.tile(tf.maximum(last, 0)[:, tf.newaxis], [1, width, 1]), batch_dims=2)
    from_parent = tf.where(is_parent, tf.transpose(from_parent, [0, 2, 1]), _NOTHING)
    stay_label = _either(stay_label, tf.reduce_max(from_parent, -1))  # A sequence has one parent at most.
    taken = tf.reduce_any(is_parent[..., tf.newaxis] & same[:, :, tf.newaxis], 1)  # [batch, parent, classes]
    grow = tf.where(taken, _NOTHING, grow)

    # The best of both.
    score = tf.concat([_either(stay_blank, stay_label), tf.reshape(grow, [-1, width * classes])], 1)
    _, best = tf.math.top_k(score, width)
    stays = best < width
    grown = tf.maximum(best - width, 0)
    origin = tf.where(stays, best, grown // classes)
    new_label = grown % classes
    lengths = tf.gather(beams.lengths, origin, batch_dims=1)
    sequences = tf.gather(beams.labels, origin, batch_dims=1)
    appended = tf.where(tf.equal(position, lengths[..., tf.newaxis]), new_label[..., tf.newaxis], sequences)
    return _Beams(
        tf.where(stays[..., tf.newaxis], sequences, appended),
        tf.where(stays, lengths, lengths + 1),
        tf.where(stays, tf.gather(stay_blank, origin, batch_dims=1), _NOTHING),
        tf.where(
            stays,
            tf.gather(stay_label, origin, batch_dims=1),
            tf.gather(tf.reshape(grow, [-1, width * classes]), grown, batch_dims=1),
        ),
    )
