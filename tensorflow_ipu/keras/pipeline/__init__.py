"""Which pipeline stage each layer of a model is in, and the stages as a program."""
