"""What the stages of a pipeline take of a machine, before it is built."""
