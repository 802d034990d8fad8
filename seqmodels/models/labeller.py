"""Many to many: a class or a number for every step."""

import flax.linen as nn
import jax

from seqmodels import initializers
from seqmodels.layers import Embed, Stack, check_rate
from seqmodels.types import Array, Carry


class SequenceLabeller(nn.Module):
    """Embed (for tokens) -> stack -> linear head at every step.

    outputs   classes V (logits come out) or regression outputs O
    embed     None where inputs are numbers already
    dropout   on the stack's output, before the head, a fresh mask each step

    Outputs at masked steps are the head's bias: what scores them has the mask.
    Raises ValueError for a dropout that is no probability.
    """

    stack: Stack
    outputs: int
    embed: Embed | None = None
    dropout: float = 0.0

    def setup(self):
        check_rate("dropout", self.dropout)
        self.head = nn.Dense(self.outputs, kernel_init=initializers.glorot_uniform)
        self.drop = nn.Dropout(self.dropout)

    def __call__(
        self,
        x: Array,
        carry: Carry | None = None,
        *,
        mask: Array | None = None,
        reset: Array | None = None,
        train: bool = False,
    ) -> tuple[jax.Array, Carry]:
        """Inputs [B, T, E], or ids [B, T] with `embed` -> (outputs [B, T, V or O], final carry)."""
        x = x if self.embed is None else self.embed(x)
        y, carry = self.stack(x, carry, mask=mask, reset=reset, train=train)
        return self.head(self.drop(y, deterministic=not train)), carry
