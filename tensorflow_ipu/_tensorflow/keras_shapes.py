"""Whether Keras is finding shapes, which layers below `tensorflow_ipu.keras` ask as well."""

from __future__ import annotations

import sys


def are_asked_for() -> bool:
    """Whether Keras is calling a layer or model with symbols, to find the shapes of what it returns.

    Stands on `in_symbolic_scope`, which Keras has under no public name. It is looked up where Keras was imported already:
    a program without models need not have it. When it is gone: the name of the graph, `scratch_graph`.
    """
    module = sys.modules.get("keras.src.backend.common.symbolic_scope")
    return module is not None and module.in_symbolic_scope()
