"""Adding problem: remember two numbers far apart and add them."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from seqmodels.tasks import lengths
from seqmodels.types import Batch, Key, Spec


@dataclasses.dataclass(frozen=True)
class Adding:
    """Sum of two marked numbers, one in each half of the row.

    Each step of a row of n real steps holds (u, marker) with u ~ U[0, 1). The marker is 1 at two
    steps and 0 elsewhere: one step uniform in the first n // 2, one uniform in the rest. The
    target is the sum of the two marked u, asked for once a row.

        u       .3  .9  .5  .2  .7  .4
        marker   0   1   0   0   0   1     ->  .9 + .4 = 1.3

    The variant of Le, Jaitly & Hinton 2015 (arXiv:1504.00941) and Arjovsky, Shah & Bengio 2016
    (arXiv:1511.06464). Hochreiter & Schmidhuber 1997 draw u from [-1, 1] and put both markers
    into the first half; others put them anywhere. Their scores do not compare with these.

    min_length  None: every row has `length` steps. Else each row's n is uniform on
                min_length..length and the rest of the row is padding, all 0.

    Raises ValueError if min_length or a length is below 2, or min_length above the length.
    """

    min_length: int | None = None
    spec: ClassVar[Spec] = Spec(
        inputs=2, tokens=False, outputs=1, per_step=False, loss="squared_error", metric="mse"
    )
    least: ClassVar[int] = 2  # one step for each half

    def __post_init__(self):
        if self.min_length is not None:
            lengths.require("min_length", self.min_length, self.least)

    def steps(self, length: int) -> int:
        """T, the size of the time axis."""
        lengths.check(length, self.min_length, self.least)
        return length

    def chance(self, length: int) -> float:
        """MSE of always answering the mean, 1: the variance of a sum of two uniform numbers."""
        lengths.check(length, self.min_length, self.least)
        return 1 / 6

    def sample(self, key: Key, batch: int, length: int) -> Batch:
        """inputs [B, T, 2], targets [B, 1], weights [B] all 1; T = length."""
        steps = self.steps(length)
        of_length, of_first, of_second, of_numbers = jax.random.split(key, 4)
        n = lengths.draw(of_length, batch, length, self.min_length)
        mask = lengths.prefix(n, steps)
        half = n // 2
        first = lengths.integers(of_first, (batch,), 0, half)
        second = lengths.integers(of_second, (batch,), half, n)

        time = jnp.arange(steps, dtype=jnp.int32)[None, :]
        marker = ((time == first[:, None]) | (time == second[:, None])).astype(jnp.float32)
        numbers = jax.random.uniform(of_numbers, (batch, steps), jnp.float32)
        numbers = jnp.where(mask, numbers, 0.0)
        return Batch(
            inputs=jnp.stack([numbers, marker], axis=-1),
            targets=jnp.sum(numbers * marker, axis=1, keepdims=True),
            mask=mask,
            weights=jnp.ones((batch,), jnp.float32),
        )
