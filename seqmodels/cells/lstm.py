"""Long short-term memory with forget gates."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from seqmodels import initializers
from seqmodels.cells.base import Cell, affine
from seqmodels.types import Array, Key, Noise, Params


class LSTMCarry(NamedTuple):
    h: jax.Array  # [B, H], what the cell shows
    c: jax.Array  # [B, H], what it remembers


@dataclasses.dataclass(frozen=True)
class LSTM(Cell):
    """LSTM of Hochreiter & Schmidhuber (1997) with the forget gate of Gers et al. (2000).

        i, f, g, o = split(x W + b + h U)
        c' = sigmoid(f) * c + sigmoid(i) * tanh(g)
        h' = sigmoid(o) * tanh(c'),  y = h'

    W [E, 4H] and b [4H] under "input", U [H, 4H] under "recurrent"; gates stand in the order
    i, f, g, o, as in PyTorch and cuDNN, but with one bias vector. `gate_bias` is added to f (and,
    for `Chrono`, to i with the opposite sign) when the cell is initialised, never afterwards.

    Raises ValueError for features < 1.
    """

    additive: ClassVar[bool] = True

    input_init: initializers.Initializer = initializers.glorot_uniform
    recurrent_init: initializers.Initializer = initializers.orthogonal
    bias_init: initializers.Initializer = initializers.zeros
    gate_bias: initializers.GateBias = initializers.Constant(1.0)

    def init(self, key: Key, in_features: int) -> Params:
        k_input, k_recurrent, k_bias, k_gate = jax.random.split(key, 4)
        width, dtype = self.features, jnp.float32
        keep, write = self.gate_bias(k_gate, width, dtype)
        bias = initializers.blocks(self.bias_init, k_bias, (width,), 4, dtype)
        bias += jnp.concatenate([write, keep, jnp.zeros(2 * width, dtype)])
        return {
            "input": {
                "kernel": initializers.blocks(
                    self.input_init, k_input, (in_features, width), 4, dtype
                ),
                "bias": bias,
            },
            "recurrent": {
                "kernel": initializers.blocks(
                    self.recurrent_init, k_recurrent, (width, width), 4, dtype
                )
            },
        }

    def initial_carry(self, params: Params, batch: int, dtype: Any = jnp.float32) -> LSTMCarry:
        # Two arrays, not one used twice: a donated step may overwrite each in place.
        shape = (batch, self.features)
        return LSTMCarry(h=jnp.zeros(shape, dtype), c=jnp.zeros(shape, dtype))

    def project(self, params: Params, x: Array) -> jax.Array:
        return affine(x, params["input"]["kernel"], params["input"]["bias"], self.dtype)

    def recur(self, params: Params, carry: LSTMCarry, noise: Noise | None = None) -> jax.Array:
        return affine(carry.h, params["recurrent"]["kernel"], None, self.dtype)

    def update(
        self,
        params: Params,
        carry: LSTMCarry,
        z: jax.Array,
        u: jax.Array,
        noise: Noise | None = None,
    ) -> LSTMCarry:
        i, f, g, o = jnp.split(z + u, 4, axis=-1)
        c = jax.nn.sigmoid(f) * carry.c.astype(f.dtype) + jax.nn.sigmoid(i) * jnp.tanh(g)
        return LSTMCarry(h=jax.nn.sigmoid(o) * jnp.tanh(c), c=c)

    def output(self, carry: LSTMCarry) -> jax.Array:
        return carry.h
