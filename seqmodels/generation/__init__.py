"""Symbols from a language model: filters, one draw, and sequences that can be resumed.

A language model maps ids [B, T] and a carry to (logits [B, T, V] of the next symbol, carry), as
`models.SequenceLabeller` does.

    state, ids = generate(model, params, prompt, key, 12)     all at once
    state = start(model, params, prompt, key)                 or in pieces of any sizes
    state, ids = advance(model, params, state, 5)
    state, ids = advance(model, params, state, 7)
"""

from seqmodels.generation.sequences import GenState, advance, generate, start
from seqmodels.generation.symbols import NEVER, filter_logits, pick
from seqmodels.types import BORDER, PAD, UNKNOWN

__all__ = [
    "BORDER",
    "NEVER",
    "PAD",
    "UNKNOWN",
    "GenState",
    "advance",
    "filter_logits",
    "generate",
    "pick",
    "start",
]
