"""Many to one: a class or a number for each sequence."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from seqmodels import initializers
from seqmodels.layers import Embed, Stack, check_rate
from seqmodels.readout import READOUTS
from seqmodels.types import Array, Carry


class SequenceClassifier(nn.Module):
    """Embed (for tokens) -> stack -> readout over real steps -> linear head.

    outputs   classes V (logits come out) or regression outputs O
    embed     None where inputs are numbers already
    readout   "last", "first", "mean" or "max"
    dropout   on the readout vector, before the head
    input_dropout  on what the stack reads, a fresh mask each step

    Raises ValueError for another readout or a dropout that is no probability.
    """

    stack: Stack
    outputs: int
    embed: Embed | None = None
    readout: str = "last"
    dropout: float = 0.0
    input_dropout: float = 0.0

    def setup(self):
        if self.readout not in READOUTS:
            raise ValueError(f"readout={self.readout!r} is not one of {[*READOUTS]}")
        check_rate("dropout", self.dropout)
        check_rate("input_dropout", self.input_dropout)
        self.head = nn.Dense(self.outputs, kernel_init=initializers.glorot_uniform)
        self.drop = nn.Dropout(self.dropout)
        self.drop_inputs = nn.Dropout(self.input_dropout)

    def __call__(
        self,
        x: Array,
        carry: Carry | None = None,
        *,
        mask: Array | None = None,
        reset: Array | None = None,
        train: bool = False,
    ) -> tuple[jax.Array, Carry]:
        """Inputs [B, T, E], or ids [B, T] with `embed` -> (outputs [B, V or O], final carry)."""
        x = x if self.embed is None else self.embed(x)
        x = self.drop_inputs(x, deterministic=not train)
        y, carry = self.stack(x, carry, mask=mask, reset=reset, train=train)
        mask = jnp.ones(y.shape[:2], bool) if mask is None else mask
        vector = READOUTS[self.readout](y, self.stack.summary(carry), mask)
        return self.head(self.drop(vector, deterministic=not train)), carry
