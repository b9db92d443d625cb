"""Stages as graphs: traced, and split into what runs forward and what runs backward."""
