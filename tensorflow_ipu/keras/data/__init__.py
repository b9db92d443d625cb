"""What `fit`, `evaluate` and `predict` are given, as datasets that a feed carries."""
