"""The commands of `python -m tensorflow_ipu`."""
