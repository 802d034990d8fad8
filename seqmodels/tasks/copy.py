"""Copy memory: repeat ten symbols after a long delay."""

import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp

from seqmodels.tasks import lengths
from seqmodels.types import Batch, Key, Spec

SYMBOLS = 10  # to remember in each row
KINDS = 8  # ids 0 to 7
BLANK = KINDS
DELIMITER = KINDS + 1


@dataclasses.dataclass(frozen=True)
class Copy:
    """Ten symbols, a delay T, a delimiter, and then the ten symbols again.

    Inputs are one-hot over 8 kinds of symbol, blank (id 8) and delimiter (id 9): 10 symbols,
    uniform and independent, T - 1 blanks, the delimiter, 10 blanks. Targets are ids over the
    kinds and blank: T + 10 blanks, then the 10 symbols. `length` is T; a row has T + 20 steps,
    and every one of them is scored.

        T = 3, blank written _ and delimiter > :
        input   5 2 7 7 0 1 4 3 2 6 _ _ > _ _ _ _ _ _ _ _ _ _
        target  _ _ _ _ _ _ _ _ _ _ _ _ _ 5 2 7 7 0 1 4 3 2 6

    Arjovsky, Shah & Bengio 2016 (arXiv:1511.06464), after Hochreiter & Schmidhuber 1997.

    min_length  None: the delay is T in every row. Else each row's delay is uniform on
                min_length..T and the rest of the row is padding with inputs 0, targets blank and
                weights 0; 1 gives the variable copy task of Tallec & Ollivier 2018
                (arXiv:1804.11188).

    Raises ValueError if min_length or a length is below 1, or min_length above the length.
    """

    min_length: int | None = None
    spec: ClassVar[Spec] = Spec(
        inputs=KINDS + 2,
        tokens=False,
        outputs=KINDS + 1,
        per_step=True,
        loss="cross_entropy",
        metric="cross_entropy",
    )
    least: ClassVar[int] = 1  # no blank before the delimiter

    def __post_init__(self):
        if self.min_length is not None:
            lengths.require("min_length", self.min_length, self.least)

    def steps(self, length: int) -> int:
        """T + 20, the size of the time axis."""
        lengths.check(length, self.min_length, self.least)
        return length + 2 * SYMBOLS

    def chance(self, length: int) -> float:
        """Nats a step when it is known where symbols are due, but not which: 10 ln 8 / (T + 20).

        Scores pool the losses of all rows before they divide by all steps. So for drawn delays T
        here is the mean delay; the mean over rows of 10 ln 8 / (delay + 20) would be larger.
        """
        lengths.check(length, self.min_length, self.least)
        shortest = length if self.min_length is None else self.min_length
        return SYMBOLS * math.log(KINDS) / ((shortest + length) / 2 + 2 * SYMBOLS)

    def sample(self, key: Key, batch: int, length: int) -> Batch:
        """inputs [B, T + 20, 10], targets [B, T + 20] in 0..8, weights [B, T + 20] as the mask."""
        steps = self.steps(length)
        of_delay, of_symbols = jax.random.split(key)
        delay = lengths.draw(of_delay, batch, length, self.min_length)[:, None]
        symbols = lengths.integers(of_symbols, (batch, SYMBOLS), 0, KINDS)

        time = jnp.arange(steps, dtype=jnp.int32)[None, :]
        mask = lengths.prefix(delay[:, 0] + 2 * SYMBOLS, steps)
        rest = jnp.full((batch, steps - SYMBOLS), BLANK, jnp.int32)
        inputs = jnp.concatenate([symbols, rest], axis=1)
        inputs = jnp.where(time == SYMBOLS + delay - 1, DELIMITER, inputs)

        place = time - (SYMBOLS + delay)  # among the ten answers
        answer = jnp.take_along_axis(symbols, jnp.clip(place, 0, SYMBOLS - 1), axis=1)
        return Batch(
            inputs=jax.nn.one_hot(jnp.where(mask, inputs, -1), KINDS + 2, dtype=jnp.float32),
            targets=jnp.where((place >= 0) & mask, answer, BLANK),
            mask=mask,
            weights=mask.astype(jnp.float32),
        )
