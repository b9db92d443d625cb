"""Reports and advice on Keras models."""
