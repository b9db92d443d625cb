"""What optimizers of TensorFlow 1 (`tf.compat.v1.train`) keep to themselves: their settings, and their slots."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Hashable

    import tensorflow as tf


def setting(optimizer: tf.compat.v1.train.Optimizer, name: str) -> Any:
    """A hyperparameter as it was given; stands on the attribute of that name with `_` ahead, as there is no getter.

    When it is gone: nothing knows it, and `compile` refuses such optimizers.
    """
    return getattr(optimizer, f"_{name}")


def take_over_slots(
    optimizer: tf.compat.v1.train.Optimizer,
    kept: MutableMapping[tuple[Hashable, ...], tuple[Any, Any]],
    place: tuple[Hashable, ...],
) -> None:
    """Gives an optimizer the slots that `kept` has for its place and name; keeps its own where there are none yet.

    Stands on `Optimizer._slots`, `_non_slot_dict` and `_name`; `get_slot` and `variables` are public, and read alone. When
    it is gone: an optimizer that is made in a pipeline has to be made once, outside of it.
    """
    known = kept.setdefault((*place, optimizer._name), (optimizer._slots, optimizer._non_slot_dict))
    optimizer._slots, optimizer._non_slot_dict = known
