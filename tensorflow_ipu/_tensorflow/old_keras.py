"""The Keras 2 that is left in TensorFlow, which scripts of IPU TensorFlow still import.

Stands on `tensorflow.python.keras`, which has no public name. When it is gone, so is all that is here.
"""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from tensorflow.python.keras.optimizer_v2.optimizer_v2 import OptimizerV2

if TYPE_CHECKING:
    from collections.abc import Hashable

    import tensorflow as tf

# The base class of its optimizers, which no model of Keras 3 takes.
Optimizer = OptimizerV2


def are_asked_for() -> bool:
    """Whether Keras is calling a layer or model with symbols, to find the shapes of what it returns.

    Stands on `in_symbolic_scope`, which Keras has under no public name. It is looked up where Keras was imported already:
    a program without models need not have it. When it is gone: the name of the graph, `scratch_graph`.
    """
    module = sys.modules.get("keras.src.backend.common.symbolic_scope")
    return module is not None and module.in_symbolic_scope()


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


def keras_2_class() -> type | None:
    """The base class of optimizers of the Keras 2 that is left in TensorFlow; None where nobody has imported that.

    Stands on the module that has it, as `old_keras` does, and is looked up among those that are imported: to import it
    takes a while, and who has such an optimizer has done so. When it is gone, so are those optimizers.
    """
    module = sys.modules.get("tensorflow.python.keras.optimizer_v2.optimizer_v2")
    return None if module is None else module.OptimizerV2
