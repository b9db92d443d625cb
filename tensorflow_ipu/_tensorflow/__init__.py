"""The only modules that use private names of TensorFlow; `tests/seam` checks that."""
