"""The drop-in door: the module names of IPU TensorFlow, for scripts that were written for it."""

from tensorflow_ipu.compat._install import install, uninstall

__all__ = ["install", "uninstall"]
