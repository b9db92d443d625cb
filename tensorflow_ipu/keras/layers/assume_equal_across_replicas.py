"""A layer for tensors that are equal on all replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorflow_ipu._base.checks import check_bool
from tensorflow_ipu.keras._keras import keras
from tensorflow_ipu.ops import cross_replica_ops

if TYPE_CHECKING:
    from tensorflow_ipu._base.types import Config, Nested

__all__ = ["AssumeEqualAcrossReplicas"]


@keras.saving.register_keras_serializable(package="tensorflow_ipu")
class AssumeEqualAcrossReplicas(keras.layers.Layer):
    """Asserts to the vendor's compiler that its inputs are equal on all replicas, and returns them unchanged.

    It has no effect on emulated IPUs. Masks are passed on.
    """

    def __init__(self, inplace: bool = False, **kwargs: Any) -> None:
        """Creates the layer. If `inplace` is True, it returns the input tensors themselves instead of copies.

        Raises:
          TypeError: `inplace` is not a bool.
        """
        super().__init__(**kwargs)
        check_bool("inplace", inplace)
        self.inplace = inplace
        self.supports_masking = True

    def call(self, inputs: Nested, **kwargs: Any) -> Nested:
        """Returns the tensor, or the structure of tensors, of `inputs`."""
        del kwargs  # Callers may pass arguments of other layers, such as `training`.
        return cross_replica_ops.assume_equal_across_replicas(inputs, self.inplace)

    def get_config(self) -> Config:
        return {**super().get_config(), "inplace": self.inplace}
