"""Loads and calls the compiled library, and configures its executable cache."""
