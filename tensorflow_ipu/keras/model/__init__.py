"""What makes a Keras model of a scope an IPU model: its methods, its programs and their executions."""
