"""Comparisons of float16 with float32: runs steps in both types, counts errors, and reports them with advice."""
