"""Loops that stay on the device."""

from tensorflow_ipu.loops._loops import repeat, while_loop

__all__ = ["repeat", "while_loop"]
