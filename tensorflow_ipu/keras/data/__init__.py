"""The data of `fit`, `evaluate` and `predict`, as datasets that a feed carries."""
