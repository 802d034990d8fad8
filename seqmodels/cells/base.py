"""The protocol that every cell follows, and the one matrix product they share.

A cell is a frozen dataclass of static settings with pure methods on parameters and carry. One
step is split so that all that does not depend on time can leave the loop:

    z = project(params, x)              the input half; may run for all steps in one product
    u = recur(params, carry)            the recurrent half, affine in the carry; one product
    carry = update(params, carry, z, u) the rest
    y = output(carry)                   what the layer above sees

A new cell is one file with these methods and one line in `cells.CELLS`.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from seqmodels.types import Array, Carry, Key, Noise, Params, cast_like


@dataclasses.dataclass(frozen=True)
class Cell:
    """Settings common to all cells.

    features  hidden width H
    dtype     of the operands of the matrix products of the forward pass; None takes the
              parameters'. Products accumulate, and gates, carry and cotangents are computed, in
              float32 at least.
    """

    # z and u enter `update` only as z + u: the backward pass then keeps the sum alone. Counts only
    # in the class that defines `update`: a subclass with an update of its own says it anew.
    additive: ClassVar[bool] = False

    features: int
    dtype: Any = None

    def __post_init__(self):
        name = type(self).__name__
        if isinstance(self.features, bool) or not isinstance(self.features, int | np.integer):
            raise ValueError(f"{name}: features={self.features!r} must be a whole number")
        if self.features < 1:
            raise ValueError(f"{name}: features={self.features} must be at least 1")
        if self.dtype is not None and not _is_float(self.dtype):
            raise ValueError(f"{name}: dtype={self.dtype!r} is not a floating dtype")

    @property
    def stochastic(self) -> bool:
        """Whether `noise` draws something, so that a training pass needs a key."""
        return type(self).noise is not Cell.noise

    def init(self, key: Key, in_features: int) -> Params:
        """Parameters of one cell for inputs of width E = `in_features`, float32."""
        raise NotImplementedError

    def initial_carry(self, params: Params, batch: int, dtype: Any = jnp.float32) -> Carry:
        """The carry before the first step: arrays [B, H], each a buffer of its own."""
        raise NotImplementedError

    def project(self, params: Params, x: Array) -> Any:
        """The input half of the pre-activations, x [B, E] -> z [B, G*H]."""
        raise NotImplementedError

    def recur(self, params: Params, carry: Carry, noise: Noise | None = None) -> Any:
        """The recurrent half of the pre-activations, affine in the carry -> u [B, G*H]."""
        raise NotImplementedError

    def update(
        self, params: Params, carry: Carry, z: Any, u: Any, noise: Noise | None = None
    ) -> Carry:
        """The next carry."""
        raise NotImplementedError

    def output(self, carry: Carry) -> jax.Array:
        """y [B, H], in the carry's dtype."""
        raise NotImplementedError

    def noise(self, key: Key, batch: int, steps: int) -> Noise | None:
        """Random masks for a whole sequence, drawn outside the loop. None: the cell has none."""
        return None

    def step(self, params: Params, carry: Carry, x: Array) -> tuple[Carry, jax.Array]:
        """One step, x [B, E] -> (carry, y [B, H]): for streaming, notebooks and oracles."""
        z, u = self.project(params, x), self.recur(params, carry)
        carry = cast_like(self.update(params, carry, z, u), carry)
        return carry, self.output(carry)


def _is_float(dtype: Any) -> bool:
    try:
        return jnp.issubdtype(jnp.dtype(dtype), jnp.floating)
    except TypeError:
        return False


def affine(x: Array, kernel: Array, bias: Array | None = None, dtype: Any = None) -> jax.Array:
    """x @ kernel + bias over the last axis: [..., E], [E, F], [F] -> [..., F].

    Operands are cast to `dtype` (None: the kernel's); the product accumulates, and the result
    comes, in float32 or wider.
    """
    dtype = jnp.dtype(kernel.dtype if dtype is None else dtype)
    wide = np.promote_types(dtype, np.float32)  # JAX's own refuses under strict promotion
    y = jnp.matmul(jnp.asarray(x).astype(dtype), kernel.astype(dtype), preferred_element_type=wide)
    return y if bias is None else y + jnp.broadcast_to(bias.astype(wide), y.shape)
