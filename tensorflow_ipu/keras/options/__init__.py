"""The options that a model's `set_..._options` methods set."""
