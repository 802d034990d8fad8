"""The simple recurrent network of Elman (1990), with tanh or ReLU."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from seqmodels import initializers
from seqmodels.cells.base import Cell, affine
from seqmodels.types import Array, Key, Noise, Params

ACTIVATIONS = {"tanh": jnp.tanh, "relu": jax.nn.relu}


class RNNCarry(NamedTuple):
    h: jax.Array  # [B, H]


@dataclasses.dataclass(frozen=True)
class RNN(Cell):
    """h' = act(x W + b + h U), y = h'   (Elman 1990, "Finding structure in time").

    W [E, H] and b [H] under "input", U [H, H] under "recurrent". `activation` is "tanh" or
    "relu"; ReLU with `recurrent_init=initializers.identity` is the IRNN of Le et al. (2015).

    Raises ValueError for another activation or features < 1.
    """

    additive: ClassVar[bool] = True

    activation: str = "tanh"
    input_init: initializers.Initializer = initializers.glorot_uniform
    recurrent_init: initializers.Initializer = initializers.orthogonal
    bias_init: initializers.Initializer = initializers.zeros

    def __post_init__(self):
        super().__post_init__()
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"RNN: activation={self.activation!r} is not one of {[*ACTIVATIONS]}")

    def init(self, key: Key, in_features: int) -> Params:
        k_input, k_recurrent, k_bias = jax.random.split(key, 3)
        width, dtype = self.features, jnp.float32
        return {
            "input": {
                "kernel": self.input_init(k_input, (in_features, width), dtype),
                "bias": self.bias_init(k_bias, (width,), dtype),
            },
            "recurrent": {"kernel": self.recurrent_init(k_recurrent, (width, width), dtype)},
        }

    def initial_carry(self, params: Params, batch: int, dtype: Any = jnp.float32) -> RNNCarry:
        return RNNCarry(h=jnp.zeros((batch, self.features), dtype))

    def project(self, params: Params, x: Array) -> jax.Array:
        return affine(x, params["input"]["kernel"], params["input"]["bias"], self.dtype)

    def recur(self, params: Params, carry: RNNCarry, noise: Noise | None = None) -> jax.Array:
        return affine(carry.h, params["recurrent"]["kernel"], None, self.dtype)

    def update(
        self,
        params: Params,
        carry: RNNCarry,
        z: jax.Array,
        u: jax.Array,
        noise: Noise | None = None,
    ) -> RNNCarry:
        return RNNCarry(h=ACTIVATIONS[self.activation](z + u))

    def output(self, carry: RNNCarry) -> jax.Array:
        return carry.h
