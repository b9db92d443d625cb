"""Attributes of floating point and of normalisation."""

from __future__ import annotations

from tensorflow_ipu.config._enums import StochasticRoundingBehaviour
from tensorflow_ipu.config._metadata import Effect
from tensorflow_ipu.config._tree import Category, Option, Subcategory


class FloatingPointBehaviour(Category):
    """What the arithmetic of the device does on exceptional values, and how it rounds."""

    inv = Option(
        False,
        "An operation that gives a NaN from numbers, such as 0/0, stops the program.",
        effect=Effect.ACTS,
    )
    div0 = Option(False, "A division by zero stops the program.", effect=Effect.ACTS)
    oflo = Option(
        False,
        "A result above the largest number of float16, 65504, stops the program.",
        effect=Effect.ACTS,
    )
    esr = Option(
        StochasticRoundingBehaviour.OFF,
        "Whether, and where, results of half precision are rounded at random.",
        effect=Effect.ACTS,
    )
    nanoo = Option(
        False,
        "Half-precision overflow gives a NaN. Otherwise it gives the largest number of the type if another"
        " attribute of these is set, else infinity.",
        effect=Effect.ACTS,
    )
    set_all = Option(
        False,
        "Switches on `inv`, `div0`, `oflo` and `nanoo`, and sets `esr` to `StochasticRoundingBehaviour.ON`. The"
        " configuration in force shows it; this object keeps the assigned values.",
        effect=Effect.ACTS,
    )


class NormsExperimental(Category):
    """Attributes of normalisation that may change or go without notice."""

    distributed_batch_norm_replica_group_size = Option(
        1,
        "How many consecutive replicas share mean, variance and sums of gradients of a batch normalisation in"
        " training: TensorFlow's fused one, Keras's layer of four dimensions. It divides the IPUs of each device"
        " that has several. Not together with I/O tiles.",
        at_least=1,
        effect=Effect.ACTS,
    )


class Norms(Category):
    """Batch, group, layer and instance normalisation."""

    use_stable_statistics = Option(
        False,
        "Subtracts the mean before it computes the variance, in the IPU's own group, layer and instance"
        " normalisation: slower, more precise.",
        effect=Effect.ACTS,
    )
    experimental = Subcategory(NormsExperimental)
