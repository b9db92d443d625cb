"""What scripts ask of TensorFlow's classes in ways that they no longer take."""

from __future__ import annotations

from tensorflow.python.ops import resource_variable_ops, variable_v1

from tensorflow_ipu.compat._patches import Patches


def bridge(patches: Patches) -> None:
    """Makes TensorFlow take these; each is undone with `patches`."""
    # Variables on devices derived from `VariableV1` once, and had its methods.
    patches.put(
        resource_variable_ops.BaseResourceVariable,
        "initialized_value",
        vars(variable_v1.VariableV1)["initialized_value"],
    )
