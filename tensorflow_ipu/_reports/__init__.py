"""What the package's reports have in common, without TensorFlow: the command that shows saved ones, and the page."""
