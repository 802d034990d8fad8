"""The linear recurrent unit of Orvieto et al. (2023): a diagonal of complex numbers."""

import dataclasses
import math
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from seqmodels.cells.linear import LinearCell
from seqmodels.types import Key, Params


class LRUCarry(NamedTuple):
    re: jax.Array  # [B, H]
    im: jax.Array  # [B, H]


@dataclasses.dataclass(frozen=True)
class LRU(LinearCell):
    """h' = a * h + exp(gamma) * (x W),  a = exp(-exp(nu) + i exp(theta)),  y = [Re h', Im h']

    (Orvieto et al. 2023, "Resurrecting recurrent neural networks for long sequences",
    arXiv:2303.06349, eq. 5 to 7.) W [E, 2H], real parts first, under "input"; nu, theta and gamma
    [H] under "recurrent". |a| < 1 whatever the parameters are. The paper's C and D belong to the
    layer above: a linear map of y, which has the width 2H, and of x.

    least, most  |a| starts uniform on the ring between these radii
    phase        and its angle on 0..phase; less than 2 pi favours slow waves, for long inputs

    Raises ValueError unless 0 <= least < most <= 1 and 0 < phase <= 2 pi.
    """

    gates: ClassVar[int] = 2

    bias: bool = dataclasses.field(default=False, init=False)
    least: float = 0.0
    most: float = 0.99
    phase: float = 2 * math.pi

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.least < self.most <= 1:
            raise ValueError(
                f"LRU: least={self.least!r} and most={self.most!r} must be 0 <= least < most <= 1"
            )
        if not 0 < self.phase <= 2 * math.pi:
            raise ValueError(f"LRU: phase={self.phase!r} must be above 0 and at most 2 pi")

    @property
    def out_features(self) -> int:
        return 2 * self.features

    def init(self, key: Key, in_features: int) -> Params:
        params = super().init(key, in_features)
        k_radius, k_angle = jax.random.split(jax.random.fold_in(key, 1))
        shape = (self.features,)
        # Uniform in area; neither 0 nor 1, where the logarithms end.
        square = jax.random.uniform(
            k_radius, shape, jnp.float32, self.least**2 + 1e-6, self.most**2 - 1e-6
        )
        angle = jax.random.uniform(k_angle, shape, jnp.float32, 1e-6, self.phase)
        params["recurrent"] = {
            "nu": jnp.log(-0.5 * jnp.log(square)),
            "theta": jnp.log(angle),
            "gamma": 0.5 * jnp.log1p(-square),  # inputs of variance 1 keep h there
        }
        return params

    def initial_carry(self, params: Params, batch: int, dtype: Any = jnp.float32) -> LRUCarry:
        shape = (batch, self.features)
        return LRUCarry(re=jnp.zeros(shape, dtype), im=jnp.zeros(shape, dtype))

    def linear(self, params: Params, z: jax.Array) -> tuple[jax.Array, jax.Array]:
        re, im = jnp.split(z, 2, axis=-1)
        nu, theta, gamma = (
            jnp.broadcast_to(params["recurrent"][name].astype(z.dtype), re.shape)
            for name in ("nu", "theta", "gamma")
        )
        radius, angle = jnp.exp(-jnp.exp(nu)), jnp.exp(theta)
        a = jax.lax.complex(radius * jnp.cos(angle), radius * jnp.sin(angle))
        return a, jax.lax.complex(jnp.exp(gamma) * re, jnp.exp(gamma) * im)

    def output(self, carry: LRUCarry) -> jax.Array:
        return jnp.concatenate([carry.re, carry.im], axis=-1)

    def join(self, carry: LRUCarry) -> jax.Array:
        wide = np.promote_types(carry.re.dtype, np.float32)
        return jax.lax.complex(*(jnp.asarray(part).astype(wide) for part in carry))

    def part(self, h: jax.Array) -> LRUCarry:
        return LRUCarry(re=jnp.real(h), im=jnp.imag(h))
