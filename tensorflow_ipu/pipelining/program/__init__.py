"""A plan and the stages that it is for, as a TensorFlow program."""
