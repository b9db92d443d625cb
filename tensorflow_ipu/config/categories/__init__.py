"""The declarations of the categories of attributes."""
