"""Pure training functions."""
