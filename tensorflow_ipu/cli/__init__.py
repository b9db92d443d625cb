"""The commands of `tensorflow-ipu`, also called as `python -m tensorflow_ipu`. Each command has a module of its name."""
