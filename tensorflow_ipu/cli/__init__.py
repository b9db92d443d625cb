"""The commands of `tensorflow-ipu`, which is `python -m tensorflow_ipu` too: a module each, of its name."""
