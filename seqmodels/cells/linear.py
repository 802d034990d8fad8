"""What cells share whose next carry is linear in the last: h' = a * h + b, a and b without h.

Two such steps are one such step, so T of them may be taken in log T rounds instead of one by one
(Martin & Cundy 2018, "Parallelizing linear recurrent neural nets over sequence length",
arXiv:1709.04057): `recurrence.associative`.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from seqmodels import initializers
from seqmodels.cells.base import Cell, affine, check_flag, check_initializers, check_size
from seqmodels.types import Array, Carry, Key, Noise, Params


class LinearCarry(NamedTuple):
    h: jax.Array  # [B, H]


@dataclasses.dataclass(frozen=True)
class LinearCell(Cell):
    """G maps of the input side by side, z = x W + b, from which `linear` makes a and b.

    W [E, G*H] and b [G*H] under "input"; there is no recurrent matrix.

    bias  False leaves b out, a `gate_bias` with it

    A kind has `gates`, G, and `linear`; one whose h is not real has `join` and `part` as well.
    """

    gates: ClassVar[int] = 1

    bias: bool = True
    input_init: initializers.Initializer = initializers.glorot_uniform
    bias_init: initializers.Initializer = initializers.zeros

    def __post_init__(self):
        super().__post_init__()
        check_initializers(self)
        check_flag(type(self).__name__, "bias", self.bias)

    @property
    def associative(self) -> bool:
        return True

    def init(self, key: Key, in_features: int) -> Params:
        check_size(type(self).__name__, "in_features", in_features)
        k_input, k_bias, k_gate = jax.random.split(key, 3)
        shape, count = (in_features, self.features), self.gates
        kernel = initializers.blocks(self.input_init, k_input, shape, count, jnp.float32)
        params: Params = {"input": {"kernel": kernel}}
        if self.bias:
            params["input"]["bias"] = self.init_bias(k_bias, k_gate)
        return params

    def init_bias(self, k_bias: Key, k_gate: Key) -> jax.Array:
        return initializers.blocks(
            self.bias_init, k_bias, (self.features,), self.gates, jnp.float32
        )

    def initial_carry(self, params: Params, batch: int, dtype: Any = jnp.float32) -> Carry:
        return LinearCarry(h=jnp.zeros((batch, self.features), dtype))

    def project(self, params: Params, x: Array) -> jax.Array:
        return affine(x, params["input"]["kernel"], params["input"].get("bias"), self.dtype)

    def recur(self, params: Params, carry: Carry, noise: Noise | None = None) -> jax.Array:
        return jnp.asarray(carry[0])[..., :0]

    def update(
        self, params: Params, carry: Carry, z: jax.Array, u: jax.Array, noise: Noise | None = None
    ) -> Carry:
        a, b = self.linear(params, z)
        return self.part(a * self.join(carry).astype(a.dtype) + b)

    def output(self, carry: Carry) -> jax.Array:
        return jnp.asarray(carry.h)

    def join(self, carry: Carry) -> jax.Array:
        return jnp.asarray(carry.h)

    def part(self, h: jax.Array) -> Carry:
        return LinearCarry(h=h)
