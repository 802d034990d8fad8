"""Temporal order: remember which of two symbols came first, and which second."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from seqmodels.tasks import lengths
from seqmodels.types import Batch, Key, Spec

START, TRIGGER, NOISE, X = 0, 1, 2, 6  # ids of E, B, the first of a b c d, and X; Y follows X
SYMBOLS = 8


@dataclasses.dataclass(frozen=True)
class Order:
    """Which of X and Y stood at two places far apart: task 6a, four classes.

    Steps are one-hot over E, B, a, b, c, d, X, Y (ids 0 to 7). A row for length T starts with E,
    has n real steps, n uniform on T..1.1 T, and ends with B. X or Y, each with probability 1/2,
    stands at t1, uniform on T/10..T/5, and at t2, uniform on T/2..6T/10 (the whole numbers in
    those ranges, counted from 0); everywhere else is a uniform draw from a, b, c, d. The class,
    asked for once a row, numbers the pairs XX, XY, YX, YY as 0 to 3.

        T = 10:  E c X a d Y b a a B [padding]  ->  XY  ->  1

    Hochreiter & Schmidhuber 1997, "Long short-term memory", experiment 6a: T = 100 there, so
    lengths 100 to 110, t1 in 10..20, t2 in 50..60. Other T are scaled in proportion.

    min_length  is part of the contract of tasks, but lengths are given by the definition here.

    Raises ValueError for any min_length, and for T below 5, where no whole t1 exists.
    """

    min_length: int | None = None
    spec: ClassVar[Spec] = Spec(
        inputs=SYMBOLS,
        tokens=False,
        outputs=4,
        per_step=False,
        loss="cross_entropy",
        metric="accuracy",
    )
    least: ClassVar[int] = 5

    def __post_init__(self):
        if self.min_length is not None:
            raise ValueError(
                "min_length must be None for temporal order, whose lengths are "
                f"length to 1.1 length by definition, got {self.min_length}"
            )

    def steps(self, length: int) -> int:
        """1.1 T rounded down, the size of the time axis."""
        lengths.require("length", length, self.least)
        return length + length // 10

    def chance(self, length: int) -> float:
        """Accuracy of a guess: the four classes are equally likely."""
        lengths.require("length", length, self.least)
        return 0.25

    def sample(self, key: Key, batch: int, length: int) -> Batch:
        """inputs [B, 1.1 T, 8], targets [B] in 0..3, weights [B] all 1."""
        steps = self.steps(length)
        of_length, of_noise, of_t1, of_t2, of_pair = jax.random.split(key, 5)
        n = lengths.draw(of_length, batch, steps, length)
        t1 = lengths.integers(of_t1, (batch,), -(-length // 10), length // 5 + 1)
        t2 = lengths.integers(of_t2, (batch,), -(-length // 2), length * 6 // 10 + 1)
        pair = lengths.integers(of_pair, (batch, 2), 0, 2)  # 0 is X, 1 is Y

        time = jnp.arange(steps, dtype=jnp.int32)[None, :]
        mask = lengths.prefix(n, steps)
        symbols = lengths.integers(of_noise, (batch, steps), NOISE, X)
        symbols = jnp.where(time == 0, START, symbols)
        symbols = jnp.where(time == t1[:, None], X + pair[:, :1], symbols)
        symbols = jnp.where(time == t2[:, None], X + pair[:, 1:], symbols)
        symbols = jnp.where(time == n[:, None] - 1, TRIGGER, symbols)
        return Batch(
            inputs=jax.nn.one_hot(jnp.where(mask, symbols, -1), SYMBOLS, dtype=jnp.float32),
            targets=2 * pair[:, 0] + pair[:, 1],
            mask=mask,
            weights=jnp.ones((batch,), jnp.float32),
        )
