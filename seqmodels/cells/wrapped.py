"""Cells around a cell: a learned initial carry, and zoneout. They fit every cell, one's own too."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from seqmodels.cells.base import Cell, check_rate
from seqmodels.types import Array, Carry, Key, Noise, Params


@dataclasses.dataclass(frozen=True)
class Wrapped(Cell):
    """Passes everything on to `cell`; a kind overrides what it changes."""

    features: int = dataclasses.field(init=False, repr=False)
    dtype: Any = dataclasses.field(init=False, repr=False)
    cell: Cell

    def __post_init__(self):
        # Copies, so that a wrapped cell is read like any other.
        object.__setattr__(self, "features", self.cell.features)
        object.__setattr__(self, "dtype", self.cell.dtype)
        super().__post_init__()

    @property
    def additive(self) -> bool:
        return self.cell.adds

    @property
    def overwritable(self) -> bool:
        return self.cell.overwrites

    @property
    def stochastic(self) -> bool:
        return self.cell.stochastic

    @property
    def out_features(self) -> int:
        return self.cell.out_features

    def init(self, key: Key, in_features: int) -> Params:
        return self.cell.init(key, in_features)

    def initial_carry(self, params: Params, batch: int, dtype: Any = jnp.float32) -> Carry:
        return self.cell.initial_carry(params, batch, dtype)

    def project(self, params: Params, x: Array) -> Any:
        return self.cell.project(params, x)

    def recur(self, params: Params, carry: Carry, noise: Noise | None = None) -> Any:
        return self.cell.recur(params, carry, noise)

    def update(
        self, params: Params, carry: Carry, z: Any, u: Any, noise: Noise | None = None
    ) -> Carry:
        return self.cell.update(params, carry, z, u, noise)

    def output(self, carry: Carry) -> jax.Array:
        return self.cell.output(carry)

    def noise(self, key: Key, batch: int, steps: int) -> Noise | None:
        return self.cell.noise(key, batch, steps)


@dataclasses.dataclass(frozen=True)
class LearnedCarry(Wrapped):
    """The initial carry is learned: one vector for each of its leaves, the same for all rows.

    Under "start", by the names of the carry; zeros at first. Its gradient is the sum over the rows
    and the resets that start from it. A carry that is passed in, as in later chunks of a stream,
    does not touch it.
    """

    @property
    def associative(self) -> bool:
        return self.cell.associates

    def linear(self, params: Params, z: Any) -> tuple[jax.Array, jax.Array]:
        return self.cell.linear(params, z)

    def join(self, carry: Carry) -> jax.Array:
        return self.cell.join(carry)

    def part(self, h: jax.Array) -> Carry:
        return self.cell.part(h)

    def init(self, key: Key, in_features: int) -> Params:
        params = self.cell.init(key, in_features)
        carry = self.cell.initial_carry(params, 1)
        return {**params, "start": {k: v[0] for k, v in carry._asdict().items()}}

    def initial_carry(self, params: Params, batch: int, dtype: Any = jnp.float32) -> Carry:
        carry = self.cell.initial_carry(params, batch, dtype)
        start = {
            name: jnp.broadcast_to(params["start"][name].astype(dtype), leaf.shape)
            for name, leaf in carry._asdict().items()
        }
        return carry._replace(**start)


@dataclasses.dataclass(frozen=True)
class Zoneout(Wrapped):
    """Each unit keeps its old value with some probability (Krueger et al. 2017, arXiv:1606.01305).

        h' = d * h + (1 - d) * update(h),  d ~ Bernoulli(rate) each step, row and unit

    `h` and `c` are the rates for those leaves of the carry. With a key `run` draws d; without one
    it takes the mean, d = rate, as the paper does for testing: `rate` acts in both.

    Raises ValueError for rates outside [0, 1), for two zeros, and for a rate of a leaf that the
    cell's carry does not have.
    """

    h: float = 0.0
    c: float = 0.0

    def __post_init__(self):
        super().__post_init__()
        for name, rate in (("h", self.h), ("c", self.c)):
            check_rate(f"Zoneout: {name}", rate)
        if not self.rates:
            raise ValueError("Zoneout: h=0 and c=0 do nothing; give a rate")

    @property
    def additive(self) -> bool:
        return self.cell.adds  # said anew: `update` hands z and u on as they are

    @property
    def rates(self) -> dict[str, float]:
        return {name: rate for name, rate in (("h", self.h), ("c", self.c)) if rate}

    @property
    def stochastic(self) -> bool:
        return True

    def initial_carry(self, params: Params, batch: int, dtype: Any = jnp.float32) -> Carry:
        carry = self.cell.initial_carry(params, batch, dtype)
        for name in self.rates:
            if name not in carry._fields:
                raise ValueError(
                    f"Zoneout: {name}={self.rates[name]}, and the carry has {carry._fields} alone"
                )
        return carry

    def recur(self, params: Params, carry: Carry, noise: Noise | None = None) -> Any:
        return self.cell.recur(params, carry, _inner(noise))

    def update(
        self, params: Params, carry: Carry, z: Any, u: Any, noise: Noise | None = None
    ) -> Carry:
        new = self.cell.update(params, carry, z, u, _inner(noise))
        mixed = {}
        for name, rate in self.rates.items():
            after = getattr(new, name)
            before = getattr(carry, name).astype(after.dtype)
            if noise is None:
                mixed[name] = rate * before + (1 - rate) * after
            else:
                mixed[name] = jnp.where(noise.step["zoneout"][name], before, after)
        return new._replace(**mixed)

    def noise(self, key: Key, batch: int, steps: int) -> Noise:
        k_zoneout, k_cell = jax.random.split(key)
        inner = self.cell.noise(k_cell, batch, steps) or Noise()
        carry = jax.eval_shape(
            lambda key: self.cell.initial_carry(self.cell.init(key, 1), batch), key
        )
        keep = {}
        for n, (name, rate) in enumerate(self.rates.items()):
            rows, *units = getattr(carry, name).shape
            k_leaf = jax.random.fold_in(k_zoneout, n)
            drawn = jax.random.bernoulli(k_leaf, rate, (rows, steps, *units))
            keep[name] = jnp.swapaxes(drawn, 0, 1)  # rows first: see `StandardCell.noise`
        return Noise(sequence=inner.sequence, step={"zoneout": keep, "cell": inner.step})


def _inner(noise: Noise | None) -> Noise | None:
    """What the cell inside sees."""
    if noise is None:
        return None
    sequence, step = noise.sequence, noise.step["cell"]
    return None if sequence is None and step is None else Noise(sequence, step)
