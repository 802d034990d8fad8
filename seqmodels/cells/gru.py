"""The gated recurrent unit, with the reset gate after or before the recurrent product."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from seqmodels import initializers
from seqmodels.cells.base import Cell, affine
from seqmodels.types import Array, Key, Noise, Params


class GRUCarry(NamedTuple):
    h: jax.Array  # [B, H]


@dataclasses.dataclass(frozen=True)
class GRU(Cell):
    """GRU of Cho et al. (2014, arXiv:1406.1078).

        r = sigmoid(x W_r + b_r + h U_r)          reset
        z = sigmoid(x W_z + b_z + h U_z)          update; here z keeps
        n = tanh(x W_n + b_n + r * (h U_n + d))   candidate, reset_after=True
        n = tanh(x W_n + b_n + (r * h) U_n + d)   candidate, reset_after=False
        h' = (1 - z) * n + z * h,  y = h'

    W [E, 3H] and b [3H] under "input", U [H, 3H] and d [H] under "recurrent"; gates stand in the
    order r, z, n. `reset_after=True` is PyTorch's and cuDNN's (one product a step);
    `reset_after=False` is the paper's first version. Their parameters have equal shapes but mean
    different functions.

    Papers that write h' = z * n + (1 - z) * h call our 1 - z the update gate: since
    1 - sigmoid(a) = sigmoid(-a), negate W_z, b_z and U_z to turn one form into the other.

    `gate_bias` is added to b_z when the cell is initialised. Raises ValueError for features < 1.
    """

    reset_after: bool = True
    input_init: initializers.Initializer = initializers.glorot_uniform
    recurrent_init: initializers.Initializer = initializers.orthogonal
    bias_init: initializers.Initializer = initializers.zeros
    gate_bias: initializers.GateBias = initializers.Constant(1.0)

    def init(self, key: Key, in_features: int) -> Params:
        k_input, k_recurrent, k_bias, k_gate = jax.random.split(key, 4)
        width, dtype = self.features, jnp.float32
        keep, _ = self.gate_bias(k_gate, width, dtype)
        *bias, candidate = jnp.split(
            initializers.blocks(self.bias_init, k_bias, (width,), 4, dtype), 4
        )
        r, z, n = bias
        return {
            "input": {
                "kernel": initializers.blocks(
                    self.input_init, k_input, (in_features, width), 3, dtype
                ),
                "bias": jnp.concatenate([r, z + keep, n]),
            },
            "recurrent": {
                "kernel": initializers.blocks(
                    self.recurrent_init, k_recurrent, (width, width), 3, dtype
                ),
                "bias": candidate,
            },
        }

    def initial_carry(self, params: Params, batch: int, dtype: Any = jnp.float32) -> GRUCarry:
        return GRUCarry(h=jnp.zeros((batch, self.features), dtype))

    def project(self, params: Params, x: Array) -> jax.Array:
        return affine(x, params["input"]["kernel"], params["input"]["bias"], self.dtype)

    def recur(self, params: Params, carry: GRUCarry, noise: Noise | None = None) -> jax.Array:
        kernel, bias = params["recurrent"]["kernel"], params["recurrent"]["bias"]
        if self.reset_after:
            # d belongs inside the product with r, so it is part of the recurrent half.
            return affine(carry.h, kernel, jnp.pad(bias, (2 * self.features, 0)), self.dtype)
        return affine(carry.h, kernel[:, : 2 * self.features], None, self.dtype)

    def update(
        self,
        params: Params,
        carry: GRUCarry,
        z: jax.Array,
        u: jax.Array,
        noise: Noise | None = None,
    ) -> GRUCarry:
        h = carry.h.astype(z.dtype)
        gates = jax.nn.sigmoid(z[..., : 2 * self.features] + u[..., : 2 * self.features])
        reset, keep = jnp.split(gates, 2, axis=-1)
        candidate = z[..., 2 * self.features :]
        if self.reset_after:
            candidate += reset * u[..., 2 * self.features :]
        else:
            kernel, bias = params["recurrent"]["kernel"], params["recurrent"]["bias"]
            candidate += affine(reset * h, kernel[:, 2 * self.features :], bias, self.dtype)
        return GRUCarry(h=(1 - keep) * jnp.tanh(candidate) + keep * h)

    def output(self, carry: GRUCarry) -> jax.Array:
        return carry.h
