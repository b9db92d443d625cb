"""What a plan costs, and how it compares and looks; without TensorFlow."""
