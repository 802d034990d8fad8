"""The simple recurrent network of Elman (1990), with tanh or ReLU."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from seqmodels.cells.base import affine
from seqmodels.cells.standard import StandardCell, normalise
from seqmodels.types import Array, Noise, Params

ACTIVATIONS = {"tanh": jnp.tanh, "relu": jax.nn.relu}


class RNNCarry(NamedTuple):
    h: jax.Array  # [B, H]


@dataclasses.dataclass(frozen=True)
class RNN(StandardCell):
    """h' = act(x W + b + h U), y = h'   (Elman 1990, "Finding structure in time").

    W [E, H] and b [H] under "input", U [H, H] under "recurrent". `activation` is "tanh" or
    "relu"; ReLU with `recurrent_init=initializers.identity` is the IRNN of Le et al. (2015).

    layer_norm  h' = act(norm(x W + h U) * s + b), one norm over the sum, s under "norm"

    Other options: `StandardCell`. Raises ValueError for another activation.
    """

    activation: str = "tanh"

    def __post_init__(self):
        super().__post_init__()
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"RNN: activation={self.activation!r} is not one of {[*ACTIVATIONS]}")

    @property
    def additive(self) -> bool:
        return True

    @property
    def overwritable(self) -> bool:
        return True

    def init_norms(self) -> Params:
        return {"norm": {"scale": jnp.ones(self.features, jnp.float32)}}

    def initial_carry(self, params: Params, batch: int, dtype: Any = jnp.float32) -> RNNCarry:
        return RNNCarry(h=jnp.zeros((batch, self.features), dtype))

    def project(self, params: Params, x: Array) -> jax.Array:
        # A bias under the norm would be taken out again; `update` adds it after.
        bias = None if self.layer_norm else params["input"].get("bias")
        return affine(x, params["input"]["kernel"], bias, self.dtype)

    def update(
        self,
        params: Params,
        carry: RNNCarry,
        z: jax.Array,
        u: jax.Array,
        noise: Noise | None = None,
    ) -> RNNCarry:
        a = z + u
        if self.layer_norm:
            a = normalise(a, **params["norm"], bias=params["input"].get("bias"))
        h = ACTIVATIONS[self.activation](self.bound(a))
        return RNNCarry(h=self.drop("candidate", h, noise))
