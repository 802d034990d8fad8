"""The minimal GRU of Feng et al. (2024): gates that see the input alone."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from seqmodels import initializers
from seqmodels.cells.linear import LinearCell
from seqmodels.types import Key, Params


@dataclasses.dataclass(frozen=True)
class MinGRU(LinearCell):
    """h' = (1 - sigmoid(z)) * h + sigmoid(z) * n,  z, n = split(x W + b),  y = h'

    (Feng et al. 2024, "Were RNNs all we needed?", arXiv:2410.01201, section 3.1, without its
    logarithms.) W [E, 2H] and b [2H] under "input", in the order z, n. `gate_bias` is taken from
    z's when the cell is initialised, so that a larger one keeps more; the paper has none.
    """

    gates: ClassVar[int] = 2

    gate_bias: initializers.GateBias = initializers.Constant(1.0)

    def init_bias(self, k_bias: Key, k_gate: Key) -> jax.Array:
        keep, _ = self.gate_bias(k_gate, self.features, jnp.float32)
        return super().init_bias(k_bias, k_gate) - jnp.concatenate([keep, jnp.zeros_like(keep)])

    def linear(self, params: Params, z: jax.Array) -> tuple[jax.Array, jax.Array]:
        write, n = jnp.split(z, 2, axis=-1)
        return jax.nn.sigmoid(-write), jax.nn.sigmoid(write) * n
