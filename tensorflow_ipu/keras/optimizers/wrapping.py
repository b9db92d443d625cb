"""Functions on wrapped optimizers and on loss scaling, which the programs of models use."""

from tensorflow_ipu.keras.optimizers._wrapper import agree_on_finite, chain, scales_losses

__all__ = ["agree_on_finite", "chain", "scales_losses"]
