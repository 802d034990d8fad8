"""Long short-term memory with forget gates, and its variants."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from seqmodels import initializers
from seqmodels.cells.base import affine, check_bound, check_flag, check_size
from seqmodels.cells.standard import StandardCell, normalise
from seqmodels.types import Key, Noise, Params


class LSTMCarry(NamedTuple):
    h: jax.Array  # [B, H], or [B, P] after a projection: what the cell shows
    c: jax.Array  # [B, H], what it remembers


@dataclasses.dataclass(frozen=True)
class LSTM(StandardCell):
    """LSTM of Hochreiter & Schmidhuber (1997) with the forget gate of Gers et al. (2000).

        i, f, g, o = split(x W + b + h U)
        c' = sigmoid(f) * c + sigmoid(i) * tanh(g)
        h' = sigmoid(o) * tanh(c'),  y = h'

    W [E, 4H] and b [4H] under "input", U [H, 4H] under "recurrent"; gates stand in the order
    i, f, g, o, as in PyTorch and cuDNN, but with one bias vector. `gate_bias` is added to f (and,
    for `Chrono`, to i with the opposite sign) when the cell is initialised, never afterwards.

    coupled     sigmoid(i) = 1 - sigmoid(f), and i has no weights: gates f, g, o (CIFG of Greff et
                al. 2017, arXiv:1503.04069)
    peepholes   i + p_i * c, f + p_f * c, o + p_o * c': the gates see the memory (Gers & Schmidhuber
                2000, "Recurrent nets that time and count"); p [H] each under "peephole"
    projection  h' = (sigmoid(o) * tanh(c')) P, P [H, projection] under "projection"; h, y and U's
                rows have that width (LSTMP of Sak et al. 2014, arXiv:1402.1128)
    cell_clip   bounds of c', [-cell_clip, cell_clip] (same paper); None: none
    layer_norm  i, f, g, o = split(norm(x W) * s + b + norm(h U) * s'), each over all gates, and
                h' = sigmoid(o) * tanh(norm(c') * s'' + b''); under "input_norm", "recurrent_norm"
                and "cell_norm" (Ba et al. 2016, eq. 20 to 22)

    Other options: `StandardCell`. Raises ValueError for settings that cannot be.
    """

    coupled: bool = False
    peepholes: bool = False
    projection: int | None = None
    cell_clip: float | None = None
    gate_bias: initializers.GateBias = initializers.Constant(1.0)

    def __post_init__(self):
        if self.projection is not None:
            check_size("LSTM", "projection", self.projection)
        super().__post_init__()
        check_flag("LSTM", "coupled", self.coupled)
        check_flag("LSTM", "peepholes", self.peepholes)
        check_bound("LSTM", "cell_clip", self.cell_clip)

    @property
    def gates(self) -> int:  # type: ignore[override]
        return 3 if self.coupled else 4

    @property
    def additive(self) -> bool:
        return not self.layer_norm

    @property
    def overwritable(self) -> bool:
        return True

    @property
    def cudnn(self) -> bool:
        """With nothing that changes the step; how weights are drawn does not matter."""
        drawn = ("bias", "input_init", "recurrent_init", "bias_init", "gate_bias")
        plain = LSTM(self.features, **{name: getattr(self, name) for name in drawn})
        return type(self) is LSTM and self == plain

    def cudnn_weights(self, params: Params) -> jax.Array:
        kernels = [params[name]["kernel"].T.ravel() for name in ("input", "recurrent")]
        none = jnp.zeros(4 * self.features, kernels[0].dtype)
        biases = [params["input"].get("bias", none), none]  # cuDNN adds two
        return jnp.concatenate([*kernels, *biases]).astype(jnp.float32)

    @property
    def out_features(self) -> int:
        return self.features if self.projection is None else self.projection

    def init(self, key: Key, in_features: int) -> Params:
        params = super().init(key, in_features)
        if self.peepholes:
            names = ("f", "o") if self.coupled else ("i", "f", "o")
            params["peephole"] = {name: jnp.zeros(self.features, jnp.float32) for name in names}
        if self.projection is not None:
            k_projection = jax.random.fold_in(key, 1)
            shape = (self.projection, self.features)  # H last: what `uniform_by_width` goes by
            params["projection"] = {"kernel": self.input_init(k_projection, shape, jnp.float32).T}
        return params

    def init_biases(self, k_bias: Key, k_gate: Key) -> dict[str, jax.Array]:
        biases = super().init_biases(k_bias, k_gate)
        keep, write = self.gate_bias(k_gate, self.features, jnp.float32)
        start = [keep] if self.coupled else [write, keep]
        biases["input"] += jnp.concatenate([*start, jnp.zeros(2 * self.features, jnp.float32)])
        return biases

    def init_norms(self) -> Params:
        cell = {"scale": jnp.ones(self.features, jnp.float32)}
        if self.bias:
            cell["bias"] = jnp.zeros(self.features, jnp.float32)
        return super().init_norms() | {"cell_norm": cell}

    def initial_carry(self, params: Params, batch: int, dtype: Any = jnp.float32) -> LSTMCarry:
        # Two arrays, not one used twice: a donated step may overwrite each in place.
        return LSTMCarry(
            h=jnp.zeros((batch, self.out_features), dtype),
            c=jnp.zeros((batch, self.features), dtype),
        )

    def update(
        self,
        params: Params,
        carry: LSTMCarry,
        z: jax.Array,
        u: jax.Array,
        noise: Noise | None = None,
    ) -> LSTMCarry:
        if self.layer_norm:
            u = self.normalise(u, params["recurrent_norm"])
        *i, f, g, o = jnp.split(z + u, self.gates, axis=-1)
        c = carry.c.astype(f.dtype)

        def gate(name: str, a: jax.Array, c: jax.Array) -> jax.Array:
            if self.peepholes:
                a = a + jnp.broadcast_to(params["peephole"][name].astype(c.dtype), c.shape) * c
            return jax.nn.sigmoid(self.bound(a))

        keep = gate("f", f, c)
        add = 1 - keep if self.coupled else gate("i", i[0], c)
        c = keep * c + add * self.drop("candidate", jnp.tanh(self.bound(g)), noise)
        if self.cell_clip is not None:
            c = jnp.clip(c, -self.cell_clip, self.cell_clip)
        shown = normalise(c, **params["cell_norm"]) if self.layer_norm else c
        h = gate("o", o, c) * jnp.tanh(shown)
        if self.projection is not None:
            h = affine(h, params["projection"]["kernel"], None, self.dtype)
        return LSTMCarry(h=h, c=c)
