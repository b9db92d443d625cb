"""Attributes of floating point and of normalisation."""

from __future__ import annotations

from tensorflow_ipu.config._enums import StochasticRoundingBehaviour
from tensorflow_ipu.config._metadata import Effect
from tensorflow_ipu.config._tree import Category, Option, Subcategory


class FloatingPointBehaviour(Category):
    """What the arithmetic of the device does on exceptional values, and how it rounds."""

    inv = Option(
        False,
        "Whether an operation that gives a NaN from numbers, such as 0/0, stops the program.",
        effect=Effect.ACTS,
    )
    div0 = Option(False, "Whether a division by zero stops the program.", effect=Effect.ACTS)
    oflo = Option(
        False,
        "Whether an operation whose result is above the largest number of float16, 65504, stops the program.",
        effect=Effect.ACTS,
    )
    esr = Option(
        StochasticRoundingBehaviour.OFF,
        "Whether, and where, results of half precision are rounded at random.",
        effect=Effect.ACTS,
    )
    nanoo = Option(
        False,
        "Whether half-precision overflow gives a NaN. Otherwise it gives the largest number of the type where another"
        " attribute of these is set, and infinity where none is.",
        effect=Effect.ACTS,
    )
    set_all = Option(
        False,
        "Whether to switch on all of `inv`, `div0`, `oflo` and `nanoo` and to set `esr` to"
        " `StochasticRoundingBehaviour.ON`, whatever they say. The configuration in force shows it; this object keeps"
        " the values that were assigned.",
        effect=Effect.ACTS,
    )


class NormsExperimental(Category):
    """Attributes of normalisation that may change or go without notice."""

    distributed_batch_norm_replica_group_size = Option(
        1,
        "How many consecutive replicas share the mean and variance of a batch normalisation in training, and the sums of"
        " their gradients: of TensorFlow's fused one, and of Keras's layer of four dimensions. 1 leaves each replica its"
        " own. It divides the IPUs of each device that has several. Not together with I/O tiles.",
        at_least=1,
        effect=Effect.ACTS,
    )


class Norms(Category):
    """Batch, group, layer and instance normalisation."""

    use_stable_statistics = Option(
        False,
        "Whether the mean is subtracted before the variance is computed, which is slower and loses fewer digits: in the"
        " IPU's own layers and operations of group, layer and instance normalisation.",
        effect=Effect.ACTS,
    )
    experimental = Subcategory(NormsExperimental)
