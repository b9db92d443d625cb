"""Functions of neural networks: activations, softmax, and losses over many classes and over sequences."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from tensorflow_ipu._base.checks import Faults, check_bool, check_instance
from tensorflow_ipu._base.tensors import known_size

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import DTypeLike, TensorLike

__all__ = [
    "ctc_beam_search_decoder",
    "ctc_beam_search_decoder_with_log_probs",
    "ctc_loss_v2",
    "ctc_loss_with_log_probs",
    "gelu",
    "hard_sigmoid",
    "multi_conv",
    "nce_loss",
    "sampled_softmax_loss",
    "softmax",
    "swish",
]


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
    """Computes the cross entropy of a softmax over the true classes and a sample: `tf.nn.sampled_softmax_loss`.

    It samples in the program. Sampled classes that are true ones do not count.

    Args:
      weights: One tensor [num_classes, size].
      biases: A tensor [num_classes].
      labels: The true classes: integers [batch, num_true].
      inputs: A tensor [batch, size].
      num_sampled: How many classes to sample a batch, of which none comes twice.
      num_classes: How many classes there are. Class k is drawn with a chance that falls as 1/k does.
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
    """Computes the noise-contrastive estimation of classes: `tf.nn.nce_loss`, with a sampler for compiled programs.

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
    """Computes logits and targets, both [batch, num_true + num_sampled]."""
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

    def draw(tries: tf.Tensor, drawn: tf.Tensor, classes: tf.Tensor, seen: tf.Tensor) -> tuple[tf.Tensor, ...]:
        chance = tf.random.stateless_uniform([], start + tf.stack([0, tries]))
        candidate = tf.clip_by_value(tf.cast(tf.exp(chance * scale), tf.int32) - 1, 0, num_classes - 1)
        is_new = tf.logical_not(seen[candidate])
        here = tf.logical_and(tf.equal(tf.range(num_sampled), drawn), is_new)
        seen = tf.logical_or(seen, tf.equal(tf.range(num_classes), candidate))
        return tries + 1, drawn + tf.cast(is_new, tf.int32), tf.where(here, candidate, classes), seen

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


def ctc_loss_v2(
    labels: TensorLike,
    logits: TensorLike,
    label_length: TensorLike,
    logit_length: TensorLike,
    blank_index: int,
    out_dtype: DTypeLike | None = None,
    name: str | None = None,
) -> tf.Tensor:
    """Computes the loss [batch] of connectionist temporal classification of logits: `tf.nn.ctc_loss` of dense labels.

    Args:
      labels: Integers [batch, the longest], filled up with anything.
      logits: Floats [time, batch, classes].
      label_length: Integers [batch].
      logit_length: Integers [batch].
      blank_index: The class that stands for no label; a negative one counts from the last class.
      out_dtype: The type of the result; None for that of `logits`.
      name: A name for the operation.

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
    """Computes `ctc_loss_v2` of logarithms of probabilities.

    The value takes them as they are. The gradient counts in the softmax by which they were made, as on the machine: it is
    that of the logits, and goes through a `log_softmax` before the loss unchanged.
    """
    return _loss("data", True, labels, data, label_length, data_length, blank_index, out_dtype, name)


def blank_class(blank_index: int, classes: int) -> int:
    """Returns the number of the blank class, counted from the first."""
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
      logits: Floats [time, batch, classes].
      logits_lengths: Integers [batch]: how many steps of each sequence count.
      beam_width: How many sequences are kept from step to step.
      top_paths: How many of them, the best, are returned.
      blank_index: The class that stands for no label; a negative one counts from the last class.
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
    return _search(log_probs, logits.dtype, logits_lengths, beam_width, top_paths, blank_index, name)


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
    return _search(values, log_probs.dtype, input_lengths, beam_width, top_paths, blank_index, name)


class _Beams(NamedTuple):
    """The sequences that are kept, of every element of the batch."""

    labels: tf.Tensor  # int32 [batch, width, time], -1 beyond the length
    lengths: tf.Tensor  # int32 [batch, width]
    blank: tf.Tensor  # float [batch, width]: the probability of paths that end in a blank
    label: tf.Tensor  # float [batch, width]: that of paths that end in the last label


def _search(
    log_probs: tf.Tensor,
    dtype: tf.DType,
    lengths: TensorLike,
    beam_width: int,
    top_paths: int,
    blank_index: int,
    name: str | None,
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
        chosen = (tf.gather(values, best, batch_dims=1) for values in (beams.lengths, beams.labels))
        return tf.cast(scores, dtype), *chosen


def _either(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Computes the logarithm of the sum of two probabilities."""
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


def gelu(x: TensorLike, approximate: bool = True, name: str | None = None) -> tf.Tensor:
    """Computes the Gaussian error linear unit (https://arxiv.org/abs/1606.08415) of a tensor of floating-point numbers.

    Args:
      x: The tensor.
      approximate: Whether by the hyperbolic tangent; else by the error function.
      name: A name for the operation.
    """
    with tf.name_scope(name or "gelu"):
        x = tf.convert_to_tensor(x, name="x")
        if not approximate or x.dtype != tf.float16:
            return tf.nn.gelu(x, approximate)
        # The gradient squares `x`, which half precision cannot from 256 on.
        return tf.cast(tf.nn.gelu(tf.cast(x, tf.float32), approximate), tf.float16)


def hard_sigmoid(x: TensorLike, name: str | None = None) -> tf.Tensor:
    """Computes `0.2 x + 0.5`, cut off below 0 and above 1, of a tensor of floating-point numbers."""
    with tf.name_scope(name or "hard_sigmoid"):
        x = tf.convert_to_tensor(x, name="x")
        return tf.clip_by_value(0.2 * x + 0.5, 0, 1)


def swish(x: TensorLike, name: str | None = None) -> tf.Tensor:
    """Multiplies a tensor of floating-point numbers by its sigmoid."""
    with tf.name_scope(name or "swish"):
        return tf.nn.silu(tf.convert_to_tensor(x, name="x"))


def softmax(x: TensorLike, stable: bool = False, name: str | None = None) -> tf.Tensor:
    """Computes the softmax over the last dimension of a tensor of floating-point numbers, of rank 1 or more.

    Args:
      x: The tensor.
      stable: Whether large numbers may occur; the emulator is prepared for them either way.
      name: A name for the operation.

    Raises:
      TypeError: `stable` is no bool.
    """
    check_bool("stable", stable)
    return tf.nn.softmax(tf.convert_to_tensor(x, name="x"), name=name)


def multi_conv(func: Callable[..., Any] | None = None, options: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """Decorates a function whose convolutions are to run at the same time. They compute the same with and without.

    Both `@multi_conv` and `@multi_conv(options=...)` are right.

    Args:
      func: The function.
      options: Options of the machine's library: checked, and not used.

    Raises:
      TypeError: `options` is no dict.
    """
    if options is not None:
        check_instance("options", options, dict, "a dict")
    return functools.partial(multi_conv, options=options) if func is None else func
