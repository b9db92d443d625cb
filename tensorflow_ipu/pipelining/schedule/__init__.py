"""Plans of pipelines, made from a few counts, checked, and written as text; without TensorFlow."""
