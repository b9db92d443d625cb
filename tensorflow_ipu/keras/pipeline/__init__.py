"""The pipeline stages of the layers of a model, and the program that runs the stages."""
