"""Explains repeated traces, programs that cannot run on an IPU, and errors, with the lines of the user's code."""
