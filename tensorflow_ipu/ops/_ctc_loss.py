"""The loss of connectionist temporal classification."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import tensorflow as tf

from tensorflow_ipu._base.tensors import known_size

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import DTypeLike, TensorLike


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
    """The number of the class that means nothing, counted from the first."""
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
