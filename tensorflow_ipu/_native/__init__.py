"""The compiled library."""
