"""Datasets that a traced function makes: TensorFlow runs each of a dataset's operations as a function that it makes anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow as tf

if TYPE_CHECKING:
    from tensorflow_ipu._tensorflow import functions
    from tensorflow_ipu._types import Nested

Specs = tuple[tf.TensorSpec, ...]


def made_by(maker: functions.ConcreteFunction, arguments: Sequence[tf.Tensor], spec: Nested) -> tf.data.Dataset:
    """The dataset whose variant a function returns.

    One call of a function takes a third of the time of one of the operations by itself: those TensorFlow has as functions
    of their own, which it optimizes and instantiates at each call.

    Args:
      maker: The function.
      arguments: Its arguments.
      spec: The structure of an element, of `tf.TensorSpec`.
    """
    dataset = tf.data.experimental.from_variant(maker(*arguments), spec)
    dataset._ipu_maker = maker  # Its functions live as long.
    return dataset


def as_it_is(variant: tf.Tensor, elements: Specs) -> tf.Tensor:
    """The dataset of a variant, with options that keep what takes longer than all else before the first batch.

    These are the search for a better form of the dataset, and threads: a pool of as many as there are processors begins
    and ends with each iteration, where these datasets run one function at a time.

    Args:
      variant: The dataset, in a function that is being traced.
      elements: The tensors of an element.
    """
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    options.experimental_optimization.inject_prefetch = False
    options.autotune.enabled = False
    options.threading.private_threadpool_size = 1
    dataset = tf.data.experimental.from_variant(variant, elements)
    return tf.data.experimental.to_variant(dataset.with_options(options))
