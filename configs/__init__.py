"""Experiments as plain Python; a config loads without JAX."""
