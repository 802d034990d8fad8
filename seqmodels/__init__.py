"""Recurrent sequence models in JAX and Flax."""
