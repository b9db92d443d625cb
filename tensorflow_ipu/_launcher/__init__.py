"""The command `run`: one script in several processes, which form a cluster. Without TensorFlow, whose import takes seconds."""
