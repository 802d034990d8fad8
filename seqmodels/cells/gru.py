"""The gated recurrent unit, with the reset gate after or before the recurrent product."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from seqmodels import initializers
from seqmodels.cells.base import affine, check_flag
from seqmodels.cells.standard import StandardCell, gate_columns, normalise
from seqmodels.types import Key, Noise, Params


class GRUCarry(NamedTuple):
    h: jax.Array  # [B, H]


@dataclasses.dataclass(frozen=True)
class GRU(StandardCell):
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

    z_keeps     False: h' = z * n + (1 - z) * h, as in the papers. Since 1 - sigmoid(a) =
                sigmoid(-a), negating W_z, b_z and U_z turns one form into the other (not under
                layer_norm, which takes z together with r).
    layer_norm  gates from norm(x W_rz) * s + b + norm(h U_rz) * s', both gates together;
                n = tanh(norm(x W_n) * s + b_n + r * (norm(h U_n) * s' + d)), or the same around
                (r * h) U_n (Ba et al. 2016, supplement); s [3H] under "input_norm", s' [3H] under
                "recurrent_norm"

    `gate_bias` is added to b_z when the cell is initialised, with the sign that keeps. Other
    options: `StandardCell`. Raises ValueError for settings that cannot be.
    """

    gates: ClassVar[int] = 3

    reset_after: bool = True
    z_keeps: bool = True
    gate_bias: initializers.GateBias = initializers.Constant(1.0)

    def __post_init__(self):
        super().__post_init__()
        check_flag(type(self).__name__, "reset_after", self.reset_after)
        check_flag(type(self).__name__, "z_keeps", self.z_keeps)

    @property
    def overwritable(self) -> bool:
        return self.gates == 3  # not a MGU, whose cotangents XLA forms while it writes them

    @property
    def _split(self) -> int:
        """Where the gates end and the candidate begins."""
        return (self.gates - 1) * self.features

    def init_biases(self, k_bias: Key, k_gate: Key) -> dict[str, jax.Array]:
        width, dtype = self.features, jnp.float32
        keep, _ = self.gate_bias(k_gate, width, dtype)
        biases = initializers.blocks(self.bias_init, k_bias, (width,), self.gates + 1, dtype)
        *gates, update, candidate, own = jnp.split(biases, self.gates + 1)
        update += keep if self.z_keeps else -keep
        return {"input": jnp.concatenate([*gates, update, candidate]), "recurrent": own}

    def initial_carry(self, params: Params, batch: int, dtype: Any = jnp.float32) -> GRUCarry:
        return GRUCarry(h=jnp.zeros((batch, self.features), dtype))

    def normalise(self, a: jax.Array, norm: Params) -> jax.Array:
        """The gates together, the candidate by itself; either may be absent from the left."""
        scale, split = norm["scale"], self._split
        gates = normalise(a[..., :split], scale[:split])
        if a.shape[-1] == split:
            return gates
        return jnp.concatenate([gates, normalise(a[..., split:], scale[split:])], axis=-1)

    def recur(self, params: Params, carry: GRUCarry, noise: Noise | None = None) -> jax.Array:
        h, kernel = self.drop("hidden", carry.h, noise), params["recurrent"]["kernel"]
        if not self.reset_after:
            gates = gate_columns(kernel, 0, self.gates - 1, self.gates)
            return affine(h, gates, None, self.dtype)
        bias = None
        if self.bias and not self.layer_norm:
            # d belongs inside the product with r, so it is part of the recurrent half.
            bias = jnp.pad(params["recurrent"]["bias"], (self._split, 0))
        return affine(h, kernel, bias, self.dtype)

    def update(
        self,
        params: Params,
        carry: GRUCarry,
        z: jax.Array,
        u: jax.Array,
        noise: Noise | None = None,
    ) -> GRUCarry:
        split, recurrent = self._split, params["recurrent"]
        if self.layer_norm:
            u = self.normalise(u, params["recurrent_norm"])
        h = carry.h.astype(z.dtype)
        reset, keep = self.reset_and_update(
            jax.nn.sigmoid(self.bound(z[..., :split] + u[..., :split]))
        )
        own, outside = recurrent.get("bias"), self.layer_norm or not self.reset_after
        if self.reset_after:
            inner = u[..., split:]
        else:
            kernel = gate_columns(recurrent["kernel"], self.gates - 1, self.gates, self.gates)
            inner = affine(reset * self.drop("hidden", h, noise), kernel, None, self.dtype)
            if self.layer_norm:
                inner = normalise(inner, params["recurrent_norm"]["scale"][split:])
        if own is not None and outside:  # else it is in u
            inner += jnp.broadcast_to(own.astype(inner.dtype), inner.shape)
        candidate = z[..., split:] + (reset * inner if self.reset_after else inner)
        candidate = self.drop("candidate", jnp.tanh(self.bound(candidate)), noise)
        if not self.z_keeps:
            return GRUCarry(h=keep * candidate + (1 - keep) * h)
        return GRUCarry(h=(1 - keep) * candidate + keep * h)

    def reset_and_update(self, gates: jax.Array) -> tuple[jax.Array, jax.Array]:
        """r and z [..., H] from the gates side by side."""
        reset, update = jnp.split(gates, 2, axis=-1)
        return reset, update


@dataclasses.dataclass(frozen=True)
class MGU(GRU):
    """The minimal gated unit of Zhou et al. (2016, arXiv:1603.09420): a GRU with r = z = f.

        f = sigmoid(x W_f + b_f + h U_f)
        n = tanh(x W_n + b_n + (f * h) U_n + d)
        h' = (1 - f) * h + f * n,  y = h'

    W [E, 2H], gates in the order f, n. With `reset_after=True, z_keeps=True` it is Flax's MGUCell.
    """

    gates: ClassVar[int] = 2

    reset_after: bool = False
    z_keeps: bool = False

    def reset_and_update(self, gates: jax.Array) -> tuple[jax.Array, jax.Array]:
        return gates, gates
