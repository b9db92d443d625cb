"""Names that programs may use and whose use changes no result here: what is noted of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorflow_ipu.compat._table import Target

# Where a name is: what becomes of its use.
RECORDED: dict[str, str] = {
    "tensorflow_ipu.config:move_variable_initialization_to_cpu": "initial values are computed on the host in any case",
    "tensorflow_ipu.ops.internal_ops:remap": "it asks for a layout on tiles, of which there are none here",
    "tensorflow_ipu.ops.internal_ops:remap_deduce": "it asks for a layout on tiles, of which there are none here",
    "tensorflow_ipu.scopes:ipu_jit_scope": "`ipu_compiler.compile` and `IPUStrategy.run` say what becomes one program",
    "tensorflow_ipu.sharding:enable_sharded_gradient_tape": "gradients follow the shards of their operations in any case",
}

_OPTIONS = {"MODEL": "for the machine's report", "RECORDED": "checked, and nothing changes by it"}


def recorded(target: Target | None) -> str | None:
    """What becomes of the use of a name that leads there; None where it does what it says."""
    return RECORDED.get(target) if isinstance(target, str) else None


def of_option(effect: str) -> str | None:
    """Likewise of an option of `IPUConfig`, by the name of its effect."""
    return _OPTIONS.get(effect)
