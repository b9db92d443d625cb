"""What Keras models would take of a real machine, and advice."""
