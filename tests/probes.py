"""Cells made for the tests: each stresses one clause of the cell protocol."""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from seqmodels.cells import Cell, RNNCarry
from seqmodels.cells.base import affine
from seqmodels.types import Noise


@dataclasses.dataclass(frozen=True)
class RunningSum(Cell):
    """h' = h + x: no parameters, and no recurrent product."""

    def init(self, key, in_features):
        return {}

    def initial_carry(self, params, batch, dtype=jnp.float32):
        return RNNCarry(h=jnp.zeros((batch, self.features), dtype))

    def project(self, params, x):
        return x

    def recur(self, params, carry, noise=None):
        return carry.h[..., :0]

    def update(self, params, carry, z, u, noise=None):
        return RNNCarry(h=carry.h + z.astype(carry.h.dtype))

    def output(self, carry):
        return carry.h


class AwkwardCarry(NamedTuple):
    h: jax.Array  # [B, H]
    count: jax.Array  # [B]
    memory: jax.Array  # [B, H, 2]


@dataclasses.dataclass(frozen=True)
class Awkward(Cell):
    """All that a fast path may forget.

    Carry leaves of rank 1 to 3; z and u meet in a product, not a sum; a second product with its
    own parameters stands inside `update`; some of them act on nothing but the carry; the start is
    learned; noise is drawn once a sequence and once a step.
    """

    def init(self, key, in_features):
        k_input, k_recurrent, k_second = jax.random.split(key, 3)
        width = self.features
        return {
            "input": {
                "kernel": jax.random.normal(k_input, (in_features, 2 * width)),
                "bias": jnp.zeros(2 * width),
            },
            "recurrent": {"kernel": jax.random.normal(k_recurrent, (width, 2 * width))},
            "second": {
                "kernel": jax.random.normal(k_second, (width, width)),
                "peephole": jnp.ones(width),
                "decay": jnp.ones(()),
            },
            "start": {"memory": jnp.zeros((width, 2))},
        }

    def initial_carry(self, params, batch, dtype=jnp.float32):
        memory = params["start"]["memory"].astype(dtype)
        return AwkwardCarry(
            h=jnp.zeros((batch, self.features), dtype),
            count=jnp.zeros((batch,), dtype),
            memory=jnp.broadcast_to(memory, (batch, self.features, 2)),
        )

    def project(self, params, x):
        return affine(x, params["input"]["kernel"], params["input"]["bias"], self.dtype)

    def recur(self, params, carry, noise=None):
        h = carry.h if noise is None else carry.h * noise.sequence.astype(carry.h.dtype)
        return affine(h, params["recurrent"]["kernel"], None, self.dtype)

    def update(self, params, carry, z, u, noise=None):
        second = params["second"]
        h, count, memory = (leaf.astype(z.dtype) for leaf in carry)
        gates, candidate = jnp.split(z * jnp.tanh(u) + 0.5 * z, 2, axis=-1)
        peephole = jnp.broadcast_to(second["peephole"], h.shape)
        gates = jax.nn.sigmoid(gates + peephole * memory[..., 0])
        inner = gates * h
        if noise is not None:
            inner *= noise.step.astype(z.dtype)
        candidate = jnp.tanh(candidate + affine(inner, second["kernel"], None, self.dtype))
        h = gates * h + (1 - gates) * candidate
        old = jnp.tanh(second["decay"]) * memory[..., 1]
        return AwkwardCarry(
            h=h + 0.1 * jnp.sin(count)[..., None],
            count=count + 0.5,
            memory=jnp.stack([old, h * memory[..., 0] + memory[..., 1]], axis=-1),
        )

    def output(self, carry):
        return carry.h + carry.memory[..., 0]

    def noise(self, key, batch, steps):
        # Sines of a counter instead of random bits, which take seconds to compile.
        seed = jnp.sum(jax.random.key_data(key)).astype(jnp.float32)

        def draw(*shape):
            counter = jax.lax.iota(jnp.float32, math.prod(shape)).reshape(shape)
            return jnp.sin(37.0 * counter + seed)

        keep = draw(batch, self.features) > -0.4
        return Noise(
            sequence=keep.astype(jnp.float32), step=1 + 0.5 * draw(steps, batch, self.features)
        )
