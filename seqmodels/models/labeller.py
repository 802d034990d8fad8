"""Many to many: a class or a number for every step. With `tied`, or without: a language model."""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from seqmodels import initializers
from seqmodels.layers import Embed, Stack, check_rate
from seqmodels.types import Array, Carry, Key


class SequenceLabeller(nn.Module):
    """Embed (for tokens) -> stack -> linear head at every step.

    outputs   classes V (logits come out) or regression outputs O
    embed     None where inputs are numbers already
    dropout   on the stack's output, before the head, a fresh mask each step
    input_dropout  on what the stack reads, likewise
    start     of the head's bias, one number for each output; None: zeros
    tied      the head's kernel is the embedding (Press & Wolf 2017, arXiv:1608.05859), so inputs
              and outputs are the same ids, and the stack is as wide as the embedding. Divided by
              the root of that width, as in T5 (Raffel et al. 2020, arXiv:1910.10683): the vectors
              start with variance 1, and logits as large as that would

    Outputs at masked steps are the head's bias: what scores them has the mask.
    Raises ValueError for a dropout that is no probability, or for sizes that cannot be tied.
    """

    stack: Stack
    outputs: int
    embed: Embed | None = None
    dropout: float = 0.0
    input_dropout: float = 0.0
    start: tuple[float, ...] | None = None
    tied: bool = False

    def setup(self):
        check_rate("dropout", self.dropout)
        check_rate("input_dropout", self.input_dropout)
        if self.tied:
            ids = None if self.embed is None else self.embed.vocabulary
            if ids != self.outputs:
                raise ValueError(f"tied: the embedding has {ids} ids and outputs={self.outputs}")
            self.bias = self.param("head_bias", self._start, (self.outputs,))
        else:
            self.head = nn.Dense(
                self.outputs, kernel_init=initializers.glorot_uniform, bias_init=self._start
            )
        self.drop = nn.Dropout(self.dropout)
        self.drop_inputs = nn.Dropout(self.input_dropout)

    def _start(self, key: Key, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        if self.start is None:
            return jnp.zeros(shape, dtype)
        return jnp.reshape(jnp.asarray(self.start, dtype), shape)

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
        x = self.drop_inputs(x, deterministic=not train)
        y, carry = self.stack(x, carry, mask=mask, reset=reset, train=train)
        y = self.drop(y, deterministic=not train)
        if not self.tied:
            return self.head(y), carry
        assert self.embed is not None
        if y.shape[-1] != self.embed.features:
            raise ValueError(
                f"tied: the stack is {y.shape[-1]} wide and the embedding {self.embed.features}"
            )
        logits = self.embed.attend(y / math.sqrt(y.shape[-1]))
        return jnp.asarray(logits + self.bias[None, None, :].astype(y.dtype)), carry
