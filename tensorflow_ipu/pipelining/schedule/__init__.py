"""From the numbers of a pipeline to its plan, which is checked and written as text; without TensorFlow."""
