"""Costs, comparisons, pictures and reports of pipelines."""
