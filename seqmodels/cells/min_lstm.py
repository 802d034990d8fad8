"""The minimal LSTM of Feng et al. (2024): gates that see the input alone, and no second memory."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from seqmodels import initializers
from seqmodels.cells.linear import LinearCell
from seqmodels.types import Key, Params


@dataclasses.dataclass(frozen=True)
class MinLSTM(LinearCell):
    """h' = (F * h + I * g) / (F + I),  F = sigmoid(f), I = sigmoid(i),  y = h'

    with i, f, g = split(x W + b) (Feng et al. 2024, "Were RNNs all we needed?", arXiv:2410.01201,
    section 3.2, without its logarithms). W [E, 3H] and b [3H] under "input". `gate_bias` is added
    to f (and, for `Chrono`, to i with the opposite sign) when the cell is initialised.
    """

    gates: ClassVar[int] = 3

    gate_bias: initializers.GateBias = initializers.Constant(1.0)

    def init_bias(self, k_bias: Key, k_gate: Key) -> jax.Array:
        keep, write = self.gate_bias(k_gate, self.features, jnp.float32)
        start = jnp.concatenate([write, keep, jnp.zeros_like(keep)])
        return super().init_bias(k_bias, k_gate) + start

    def linear(self, params: Params, z: jax.Array) -> tuple[jax.Array, jax.Array]:
        i, f, g = jnp.split(z, 3, axis=-1)
        odds = jax.nn.softplus(-i) - jax.nn.softplus(-f)  # log F - log I: no 0 / 0 for any gates
        return jax.nn.sigmoid(odds), jax.nn.sigmoid(-odds) * g
