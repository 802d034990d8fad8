"""Flax layers around the recurrence: one direction, both directions, stacks, embeddings.

Every recurrent layer maps (x [B, T, E], carry or None) to (y [B, T, H], carry) and takes the
flags of `recurrence.run`: mask or lengths, and reset. `train=True` draws the cell's noise and
dropout from the rng stream "dropout". A single sequence goes without the batch axis everywhere:
x and y [T, ...], flags [T], lengths a number, carries [H].

time_major  x and y are [T, B, ...] instead of [B, T, ...], flags [T, B]; the carry is the same
"""

from seqmodels.cells.base import check_rate
from seqmodels.layers.carries import stack_carry, unstack_carry
from seqmodels.layers.embed import Embed
from seqmodels.layers.recurrent import MERGES, Bidirectional, Recurrent, Stack, check_layer_params

__all__ = [
    "MERGES",
    "Bidirectional",
    "Embed",
    "Recurrent",
    "Stack",
    "check_layer_params",
    "check_rate",
    "stack_carry",
    "unstack_carry",
]
