"""What the programs of models need of optimizers: how they are wrapped, and how they scale losses."""

from tensorflow_ipu.keras.optimizers._wrapper import agree_on_finite, chain, scales_losses

__all__ = ["agree_on_finite", "chain", "scales_losses"]
