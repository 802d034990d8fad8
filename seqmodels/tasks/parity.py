"""Parity: whether the number of ones is odd."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from seqmodels.tasks import lengths
from seqmodels.types import Batch, Key, Spec


@dataclasses.dataclass(frozen=True)
class Parity:
    """Sum modulo 2 of the bits of a row.

    Bits are uniform and independent, one-hot: 0 is (1, 0), 1 is (0, 1). The class, asked for
    once a row, is the sum of its n real bits modulo 2.

        1 0 1 1 [padding]  ->  3 mod 2  ->  1

    The usual use, as in Delétang et al. 2023, "Neural networks and the Chomsky hierarchy"
    (arXiv:2207.02098), trains on lengths 1..40 (min_length=1, length=40) and tests on longer rows
    of one length.

    min_length  None: every row has `length` bits. Else each row's n is uniform on
                min_length..length and the rest of the row is padding, all 0.

    Raises ValueError if min_length or a length is below 1, or min_length above the length.
    """

    min_length: int | None = None
    spec: ClassVar[Spec] = Spec(
        inputs=2, tokens=False, outputs=2, per_step=False, loss="cross_entropy", metric="accuracy"
    )
    least: ClassVar[int] = 1

    def __post_init__(self):
        if self.min_length is not None:
            lengths.require("min_length", self.min_length, self.least)

    def steps(self, length: int) -> int:
        """T, the size of the time axis."""
        lengths.check(length, self.min_length, self.least)
        return length

    def chance(self, length: int) -> float:
        """Accuracy of a guess: both classes are equally likely at every length."""
        lengths.check(length, self.min_length, self.least)
        return 0.5

    def sample(self, key: Key, batch: int, length: int) -> Batch:
        """inputs [B, T, 2], targets [B] in 0..1, weights [B] all 1; T = length."""
        steps = self.steps(length)
        of_length, of_bits = jax.random.split(key)
        n = lengths.draw(of_length, batch, length, self.min_length)
        mask = lengths.prefix(n, steps)
        bits = lengths.integers(of_bits, (batch, steps), 0, 2)
        return Batch(
            inputs=jax.nn.one_hot(jnp.where(mask, bits, -1), 2, dtype=jnp.float32),
            targets=jnp.sum(jnp.where(mask, bits, 0), axis=1, dtype=jnp.int32) % 2,
            mask=mask,
            weights=jnp.ones((batch,), jnp.float32),
        )
