"""Checks, environment variables, types, units, logging and counters, which all layers use. Imports no other layer."""
