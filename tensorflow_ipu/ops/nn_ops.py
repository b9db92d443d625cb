"""Operations of neural networks: activations, softmax, and losses over many classes and over sequences."""

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
    """A sample of classes, as `tf.random.log_uniform_candidate_sampler` returns it."""

    classes: tf.Tensor  # int64 [num_sampled], all different
    true_expected: tf.Tensor  # float [batch, num_true]: the expected number of draws of each true class
    sampled_expected: tf.Tensor  # float [num_sampled]: the expected number of draws of each sampled class


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
    """Computes the cross entropy of a softmax over true and sampled classes, as `tf.nn.sampled_softmax_loss` does.

    The program draws the sample. A sampled class that is a true class of an example does not count for that example.

    Args:
      weights: A single tensor [num_classes, size].
      biases: A tensor [num_classes].
      labels: The true classes: integers [batch, num_true].
      inputs: A tensor [batch, size].
      num_sampled: The number of different classes to sample for each batch.
      num_classes: The number of classes. Class k is drawn with a probability that falls about as 1/k.
      num_true: The number of true classes of each example.
      sampled_values: A sample, as `tf.random.log_uniform_candidate_sampler` returns it; None to draw a sample.
      name: A name for the operation.
      seed: An integer that determines the sample. None draws another sample each time.

    Returns:
      The loss of each example, of shape [batch].

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
    """Computes the noise-contrastive estimation loss, as `tf.nn.nce_loss` does; the program draws the sample.

    A sampled class counts even if it is a true class. See `sampled_softmax_loss` for the arguments and errors.

    Returns:
      The loss of each example, of shape [batch].
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
    """Returns the logits and the targets of the true and the sampled classes, both [batch, num_true + num_sampled]."""
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
    true_logits = tf.einsum("btd,bd->bt", tf.gather(weights, labels), inputs) + tf.gather(biases, labels)
    sampled_logits = tf.matmul(inputs, tf.gather(weights, sample.classes), transpose_b=True)
    sampled_logits += tf.gather(biases, sample.classes)
    if remove_hits:
        hits = tf.reduce_any(tf.equal(labels[:, :, tf.newaxis], tf.cast(sample.classes, tf.int64)), axis=1)
        sampled_logits = tf.where(hits, sampled_logits.dtype.min, sampled_logits)
    true_logits -= tf.math.log(tf.cast(sample.true_expected, true_logits.dtype))
    sampled_logits -= tf.math.log(tf.cast(sample.sampled_expected, sampled_logits.dtype))
    targets = tf.concat([tf.ones_like(true_logits) / num_true, tf.zeros_like(sampled_logits)], 1)
    return tf.concat([true_logits, sampled_logits], 1), targets


def _log_uniform(labels: tf.Tensor, num_sampled: int, num_classes: int, seed: int | None) -> _Sample:
    """Draws candidates from a log-uniform distribution until `num_sampled` of them differ.

    The expected count of a class of probability p is `1 - (1 - p) ** tries`, as in TensorFlow's sampler.
    """
    scale = tf.math.log(float(num_classes + 1))
    start = tf.random.uniform([2], tf.int32.min, tf.int32.max, tf.int32) if seed is None else tf.stack([seed, 0])

    def draw(tries: tf.Tensor, drawn: tf.Tensor, classes: tf.Tensor, is_drawn: tf.Tensor) -> tuple[tf.Tensor, ...]:
        chance = tf.random.stateless_uniform([], start + tf.stack([0, tries]))
        candidate = tf.clip_by_value(tf.cast(tf.exp(chance * scale), tf.int32) - 1, 0, num_classes - 1)
        is_new = tf.logical_not(is_drawn[candidate])
        is_next_place = tf.logical_and(tf.equal(tf.range(num_sampled), drawn), is_new)
        is_drawn = tf.logical_or(is_drawn, tf.equal(tf.range(num_classes), candidate))
        return tries + 1, drawn + tf.cast(is_new, tf.int32), tf.where(is_next_place, candidate, classes), is_drawn

    tries, _, classes, _ = tf.while_loop(
        lambda tries, drawn, classes, is_drawn: drawn < num_sampled,  # noqa: ARG005
        draw,
        (0, 0, tf.zeros([num_sampled], tf.int32), tf.zeros([num_classes], tf.bool)),
    )

    def expected(drawn: tf.Tensor) -> tf.Tensor:
        index = tf.cast(drawn, tf.float32)
        chance = tf.math.log((index + 2) / (index + 1)) / scale
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
    """Computes the connectionist temporal classification (CTC) loss of logits, as `tf.nn.ctc_loss` does.

    Args:
      labels: Integers [batch, longest label]. Values beyond `label_length` are ignored.
      logits: Floats [time, batch, classes].
      label_length: The number of labels of each sequence: integers [batch].
      logit_length: The number of time steps of each sequence: integers [batch].
      blank_index: The class that means "no label". A negative index counts from the last class.
      out_dtype: The dtype of the result; None for the dtype of `logits`.
      name: A name for the operation.

    Returns:
      The loss of each sequence, of shape [batch].

    Raises:
      ValueError: `out_dtype` is float16 and `logits` is not; `blank_index` is out of range; or the number of classes is
        unknown.
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
    """Computes the loss of `ctc_loss_v2` from `data`, which holds logarithms of probabilities.

    The loss does not normalize `data`. The gradient is the gradient with respect to the logits, as on the machine: it
    already includes the softmax. A `log_softmax` before the loss passes this gradient on unchanged.
    """
    return _loss("data", True, labels, data, label_length, data_length, blank_index, out_dtype, name)


def blank_class(blank_index: int, classes: int) -> int:
    """Returns the index of the blank class, counted from the first class."""
    if not -classes <= blank_index < classes:
        raise ValueError(f"`blank_index={blank_index}` is out of range: there are {classes} classes")
    return blank_index % classes


def _loss(
    argument: str,
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
        data = tf.convert_to_tensor(data, name=argument)
        dtype = data.dtype if out_dtype is None else tf.as_dtype(out_dtype)
        if dtype == tf.float16 and data.dtype != tf.float16:
            raise ValueError(f"`out_dtype` is float16, which cannot hold the loss of `{argument}` of {data.dtype.name}")
        classes = data.shape[-1] if data.shape.rank else None
        if classes is None:
            raise ValueError(
                f"`{argument}` has the shape {data.shape}, but the number of classes must be known when the program is"
                " traced: use `tf.ensure_shape`"
            )
        blank = blank_class(blank_index, classes)
        # The loss sums many logarithms. Half precision is too narrow for the sum.
        values = tf.cast(data, tf.float32) if data.dtype == tf.float16 else data
        loss = tf.nn.ctc_loss(
            tf.cast(labels, tf.int32),
            values,
            label_length,  # pyright: ignore[reportArgumentType]  # The stub accepts only tensors.
            data_length,  # pyright: ignore[reportArgumentType]
            logits_time_major=True,
            blank_index=blank,
        )
        if are_log_probs:
            # `tf.nn.ctc_loss` divides the probabilities of each step by their sum. The subtraction undoes this in the
            # loss, but not in the gradient.
            sums = tf.stop_gradient(tf.reduce_logsumexp(values, axis=-1))
            is_used = tf.range(tf.shape(values)[0])[:, tf.newaxis] < tf.cast(data_length, tf.int32)
            loss -= tf.reduce_sum(tf.where(is_used, sums, tf.zeros([], sums.dtype)), axis=0)
        return tf.cast(loss, dtype)


_LOG_ZERO = -1e30  # Stands in for the logarithm of probability 0: sums and differences stay finite.


def ctc_beam_search_decoder(
    logits: TensorLike,
    logits_lengths: TensorLike,
    beam_width: int = 100,
    top_paths: int = 1,
    blank_index: int = -1,
    name: str | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Finds the most probable label sequences for logits by a beam search.

    Args:
      logits: Floats [time, batch, classes].
      logits_lengths: The number of time steps of each sequence: integers [batch].
      beam_width: The number of candidate sequences that remain after each step.
      top_paths: The number of best sequences to return.
      blank_index: The class that means "no label". A negative index counts from the last class.
      name: A name for the operation.

    Returns:
      The logarithms of the probabilities of the sequences, float [batch, top_paths], the best first; their lengths, int32
      [batch, top_paths]; and their labels, int32 [batch, top_paths, time]. Labels beyond the length are undefined.

    Raises:
      ValueError: `top_paths` is not from 1 to `beam_width`; the number of time steps or classes is unknown; or
        `blank_index` is out of range.
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
    """Finds the most probable label sequences for logarithms of probabilities. See `ctc_beam_search_decoder`."""
    log_probs = tf.convert_to_tensor(log_probs, name="log_probs")
    values = tf.cast(log_probs, tf.float32)
    return _search(values, log_probs.dtype, input_lengths, beam_width, top_paths, blank_index, name)


class _Beams(NamedTuple):
    """The candidate sequences of each element of the batch."""

    labels: tf.Tensor  # int32 [batch, width, time], -1 beyond the length
    lengths: tf.Tensor  # int32 [batch, width]
    blank: tf.Tensor  # float [batch, width]: the log probability of the paths that end in a blank
    label: tf.Tensor  # float [batch, width]: the log probability of the paths that end in the last label


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
        log_zeros = tf.fill([batch, beam_width], _LOG_ZERO)
        start = _Beams(
            tf.fill([batch, beam_width, steps], -1),
            tf.zeros([batch, beam_width], tf.int32),
            # Only the first place holds a candidate: the empty sequence.
            tf.where(tf.equal(tf.range(beam_width), 0), 0.0, log_zeros),
            log_zeros,
        )

        def advance(step: tf.Tensor, *beams: tf.Tensor) -> tuple[tf.Tensor, ...]:
            advanced = _advance(_Beams(*beams), log_probs[step], blank)
            has_ended = step >= lengths
            updated = [
                tf.where(tf.reshape(has_ended, [-1] + [1] * (len(new.shape) - 1)), old, new)
                for old, new in zip(beams, advanced, strict=True)
            ]
            return (step + 1, *updated)

        _, *final = tf.while_loop(lambda step, *_: step < steps, advance, (0, *start))
        beams = _Beams(*final)
        scores, best = tf.math.top_k(_log_add(beams.blank, beams.label), top_paths)
        best_sequences = (tf.gather(values, best, batch_dims=1) for values in (beams.lengths, beams.labels))
        return tf.cast(scores, dtype), *best_sequences


def _log_add(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Returns `log(exp(a) + exp(b))`."""
    largest = tf.maximum(a, b)
    return largest + tf.math.log1p(tf.exp(-tf.abs(a - b)))


# TensorFlow's stubs lack `...` in subscripts, hence the comments for Pyright.
def _advance(beams: _Beams, probs: tf.Tensor, blank: int) -> _Beams:
    """Extends the candidates by one time step, whose log probabilities are `probs` [batch, classes].

    A candidate stays the same if the step emits a blank or repeats its last label. It grows if the step emits a label; its
    last label counts as a new one only after a blank. So each candidate has two probabilities: of the paths that end in a
    blank, and of the paths that end in its last label. Example, with "_" for the blank:

        "a" stays "a" by "_" or "a",  grows to "ab" by "b",  and to "aa" by "a" from paths that end in "_"

    If the grown sequence is another candidate (the child), its probability is added to the child's. The best `width` of the
    `width * (1 + classes)` sequences remain. The search for children makes `batch * width**2 * time` comparisons.
    """
    width, steps = known_size(beams.labels, 1), known_size(beams.labels, 2)
    classes = known_size(probs, 1)
    total = _log_add(beams.blank, beams.label)
    last = tf.gather(beams.labels, tf.maximum(beams.lengths - 1, 0)[..., tf.newaxis], batch_dims=2)[..., 0]  # pyright: ignore[reportArgumentType]
    last = tf.where(beams.lengths > 0, last, -1)

    # Probabilities of the sequences that stay the same.
    stay_blank = total + probs[:, blank, tf.newaxis]
    repeated = tf.gather(probs, tf.maximum(last, 0), batch_dims=1)
    stay_label = tf.where(last >= 0, beams.label + repeated, _LOG_ZERO)

    # Probabilities of the sequences that grow, by the new label.
    labels = tf.range(classes)
    is_last = tf.equal(labels, tf.expand_dims(last, -1))
    grow = tf.where(is_last, beams.blank[..., tf.newaxis], total[..., tf.newaxis]) + probs[:, tf.newaxis, :]  # pyright: ignore[reportArgumentType]
    grow = tf.where(tf.equal(labels, blank), _LOG_ZERO, grow)

    # A parent is a candidate that lacks the last label of its child.
    position = tf.range(steps)
    prefix = tf.where(position < beams.lengths[..., tf.newaxis] - 1, beams.labels, -1)  # pyright: ignore[reportArgumentType]
    equal = tf.equal(beams.labels[:, tf.newaxis], prefix[:, :, tf.newaxis])
    is_parent = tf.reduce_all(equal, -1)  # [batch, child, parent]
    is_parent &= tf.equal(beams.lengths[:, tf.newaxis] + 1, beams.lengths[:, :, tf.newaxis])
    is_parent &= (total > _LOG_ZERO / 2)[:, :, tf.newaxis]
    from_parent = tf.gather(grow, tf.tile(tf.maximum(last, 0)[:, tf.newaxis], [1, width, 1]), batch_dims=2)
    from_parent = tf.where(is_parent, tf.transpose(from_parent, [0, 2, 1]), _LOG_ZERO)
    stay_label = _log_add(stay_label, tf.reduce_max(from_parent, -1))  # A sequence has at most one parent.
    has_child = tf.reduce_any(is_parent[..., tf.newaxis] & is_last[:, :, tf.newaxis], 1)  # [batch, parent, classes]
    grow = tf.where(has_child, _LOG_ZERO, grow)

    # The best of the sequences that stay and those that grow.
    score = tf.concat([_log_add(stay_blank, stay_label), tf.reshape(grow, [-1, width * classes])], 1)
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
        tf.where(stays, tf.gather(stay_blank, origin, batch_dims=1), _LOG_ZERO),
        tf.where(
            stays,
            tf.gather(stay_label, origin, batch_dims=1),
            tf.gather(tf.reshape(grow, [-1, width * classes]), grown, batch_dims=1),
        ),
    )


def gelu(x: TensorLike, approximate: bool = True, name: str | None = None) -> tf.Tensor:
    """Computes the Gaussian error linear unit (https://arxiv.org/abs/1606.08415) of a floating-point tensor.

    Args:
      x: The tensor.
      approximate: True to use the hyperbolic tangent, False to use the error function.
      name: A name for the operation.
    """
    with tf.name_scope(name or "gelu"):
        x = tf.convert_to_tensor(x, name="x")
        if not approximate or x.dtype != tf.float16:
            return tf.nn.gelu(x, approximate)
        # The gradient squares `x`, which overflows half precision from 256 on.
        return tf.cast(tf.nn.gelu(tf.cast(x, tf.float32), approximate), tf.float16)


def hard_sigmoid(x: TensorLike, name: str | None = None) -> tf.Tensor:
    """Computes `0.2 x + 0.5`, clipped to the range from 0 to 1, of a floating-point tensor."""
    with tf.name_scope(name or "hard_sigmoid"):
        x = tf.convert_to_tensor(x, name="x")
        return tf.clip_by_value(0.2 * x + 0.5, 0, 1)


def swish(x: TensorLike, name: str | None = None) -> tf.Tensor:
    """Multiplies a floating-point tensor by its sigmoid."""
    with tf.name_scope(name or "swish"):
        return tf.nn.silu(tf.convert_to_tensor(x, name="x"))


def softmax(x: TensorLike, stable: bool = False, name: str | None = None) -> tf.Tensor:
    """Computes the softmax of a floating-point tensor of rank 1 or more over its last dimension.

    Args:
      x: The tensor.
      stable: Accepted without effect: the emulator's softmax is always stable for large values.
      name: A name for the operation.

    Raises:
      TypeError: `stable` is not a bool.
    """
    check_bool("stable", stable)
    return tf.nn.softmax(tf.convert_to_tensor(x, name="x"), name=name)


def multi_conv(func: Callable[..., Any] | None = None, options: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """Decorates a function whose convolutions the machine runs at the same time. Results do not change.

    Both `@multi_conv` and `@multi_conv(options=...)` are supported.

    Args:
      func: The function.
      options: Options of the vendor's library, which are checked and then ignored.

    Raises:
      TypeError: `options` is not a dict.
    """
    if options is not None:
        check_instance("options", options, dict, "a dict")
    return functools.partial(multi_conv, options=options) if func is None else func
