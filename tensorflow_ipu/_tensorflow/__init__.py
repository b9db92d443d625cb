"""The only modules that use private names of TensorFlow; `tests/seam` checks that.

A comment "Without it: ..." describes what to do if a release of TensorFlow removes the private name.
"""
