"""Predictions and reports: the time and memory that programs take on a real machine. Programs run without this package."""
