"""What RNN, LSTM, GRU and MGU share: their two products, biases, and the options of each."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from seqmodels import initializers
from seqmodels.cells.base import (
    Cell,
    affine,
    check_bound,
    check_flag,
    check_initializers,
    check_rate,
    check_size,
)
from seqmodels.types import Array, Carry, Key, Noise, Params

EPSILON = 1e-5  # of layer normalisation, as in its paper's code


@dataclasses.dataclass(frozen=True)
class StandardCell(Cell):
    """A cell with one input kernel, one recurrent kernel and G gates side by side.

    bias        False leaves out every bias, `gate_bias` with it
    heads       the recurrent kernel is block-diagonal: n blocks [H/n, H/n] a gate, held as
                [n, H/n, G, H/n], and one head of h never reaches another inside the cell (as in
                sLSTM, Beck et al. 2024, arXiv:2405.04517), but through a norm or a projection
    layer_norm  the two halves of the pre-activations, G*H numbers each, are normalised over the
                features of a row (Ba, Kiros & Hinton 2016, arXiv:1607.06450; each cell says where)
    clip        bounds of every pre-activation, [-clip, clip] (the attribute of ONNX); None: none
    hidden_dropout     on h where it enters the products, not where it is kept (Gal & Ghahramani
                       2016, arXiv:1512.05287)
    candidate_dropout  on what is about to be written to the memory, so that nothing is forgotten
                       by it (Semeniuta et al. 2016, arXiv:1603.05118)
    dropout_per_step   a fresh mask each step instead of one for the sequence; for both

    Dropout acts where `run` gets a key, on rows of their own, scaled by 1 / (1 - rate). Raises
    ValueError for a size below 1, heads that do not divide the width and rates outside [0, 1).
    """

    gates: ClassVar[int] = 1

    bias: bool = True
    heads: int = 1
    layer_norm: bool = False
    clip: float | None = None
    hidden_dropout: float = 0.0
    candidate_dropout: float = 0.0
    dropout_per_step: bool = False
    input_init: initializers.Initializer = initializers.glorot_uniform
    recurrent_init: initializers.Initializer = initializers.orthogonal
    bias_init: initializers.Initializer = initializers.zeros

    def __post_init__(self):
        super().__post_init__()
        check_initializers(self)
        name = type(self).__name__
        check_size(name, "heads", self.heads)
        for width in {self.features, self.out_features}:
            if width % self.heads:
                raise ValueError(f"{name}: heads={self.heads} does not divide the width {width}")
        for field in ("bias", "layer_norm", "dropout_per_step"):
            check_flag(name, field, getattr(self, field))
        check_bound(name, "clip", self.clip)
        for field in ("hidden_dropout", "candidate_dropout"):
            check_rate(f"{name}: {field}", getattr(self, field))
        if self.dropout_per_step and not self.stochastic:
            raise ValueError(f"{name}: dropout_per_step=True, and there is no dropout")

    @property
    def stochastic(self) -> bool:
        return self.hidden_dropout > 0 or self.candidate_dropout > 0

    def init(self, key: Key, in_features: int) -> Params:
        check_size(type(self).__name__, "in_features", in_features)
        k_input, k_recurrent, k_bias, k_gate = jax.random.split(key, 4)
        width, dtype = self.features, jnp.float32
        block = (self.out_features // self.heads, width // self.heads)
        count = self.heads * self.gates
        kernel = initializers.blocks(self.recurrent_init, k_recurrent, block, count, dtype)
        if self.heads > 1:
            kernel = kernel.reshape(block[0], self.heads, self.gates, block[1])
            kernel = jnp.moveaxis(kernel, 1, 0)
        params: Params = {
            "input": {
                "kernel": initializers.blocks(
                    self.input_init, k_input, (in_features, width), self.gates, dtype
                )
            },
            "recurrent": {"kernel": kernel},
        }
        if self.bias:
            for name, bias in self.init_biases(k_bias, k_gate).items():
                params[name]["bias"] = bias
        if self.layer_norm:
            params |= self.init_norms()
        return params

    def init_biases(self, k_bias: Key, k_gate: Key) -> dict[str, jax.Array]:
        """The bias of "input" [G*H] and, for cells that have one, of "recurrent"."""
        bias = initializers.blocks(
            self.bias_init, k_bias, (self.features,), self.gates, jnp.float32
        )
        return {"input": bias}

    def init_norms(self) -> Params:
        """Scales of layer normalisation; the shift of both halves is the bias."""
        ones = jnp.ones(self.gates * self.features, jnp.float32)
        return {"input_norm": {"scale": ones}, "recurrent_norm": {"scale": ones.copy()}}

    def project(self, params: Params, x: Array) -> jax.Array:
        kernel, bias = params["input"]["kernel"], params["input"].get("bias")
        if not self.layer_norm:
            return affine(x, kernel, bias, self.dtype)
        z = self.normalise(affine(x, kernel, None, self.dtype), params["input_norm"])
        return z if bias is None else z + jnp.broadcast_to(bias.astype(z.dtype), z.shape)

    def recur(self, params: Params, carry: Carry, noise: Noise | None = None) -> jax.Array:
        h = self.drop("hidden", carry.h, noise)
        return affine(h, params["recurrent"]["kernel"], None, self.dtype)

    def output(self, carry: Carry) -> jax.Array:
        return jnp.asarray(carry.h)

    def normalise(self, a: jax.Array, norm: Params) -> jax.Array:
        """All gates of a row together, [..., G*H]."""
        return normalise(a, **norm)

    def bound(self, a: jax.Array) -> jax.Array:
        """Pre-activations within [-clip, clip]."""
        return a if self.clip is None else jnp.clip(a, -self.clip, self.clip)

    def drop(self, name: str, a: Array, noise: Noise | None) -> jax.Array:
        """`a` under the mask of the dropout of that name, if one was drawn."""
        a = jnp.asarray(a)
        masks = {} if noise is None else (noise.sequence or {}) | (noise.step or {})
        if name not in masks:
            return a
        rate = getattr(self, f"{name}_dropout")
        return jnp.where(masks[name], a / (1 - rate), jnp.zeros_like(a))

    def noise(self, key: Key, batch: int, steps: int) -> Noise | None:
        """True where a unit stays."""
        k_hidden, k_candidate = jax.random.split(key)
        # Rows first: the draws of a row do not change where others are added behind it.
        shape = (batch, steps) if self.dropout_per_step else (batch,)
        masks = {
            name: jax.random.bernoulli(k, 1 - rate, (*shape, width))
            for name, k, rate, width in (
                ("hidden", k_hidden, self.hidden_dropout, self.out_features),
                ("candidate", k_candidate, self.candidate_dropout, self.features),
            )
            if rate
        }
        if not masks:
            return None
        if not self.dropout_per_step:
            return Noise(sequence=masks)
        return Noise(step={name: jnp.swapaxes(mask, 0, 1) for name, mask in masks.items()})


def normalise(a: jax.Array, scale: Array, bias: Array | None = None) -> jax.Array:
    """(a - mean) / deviation * scale + bias over the last axis: layer normalisation."""
    scale = jnp.broadcast_to(scale.astype(a.dtype), a.shape)
    centred = a - jnp.mean(a, axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    y = centred * jax.lax.rsqrt(variance + EPSILON) * scale
    return y if bias is None else y + jnp.broadcast_to(bias.astype(a.dtype), y.shape)


def gate_columns(kernel: Array, first: int, last: int, gates: int) -> Array:
    """The columns of gates first..last-1 out of G, of a kernel [H, G*H] or [n, H/n, G, H/n]."""
    if kernel.ndim == 4:
        return kernel[:, :, first:last]
    width = kernel.shape[1] // gates
    return kernel[:, first * width : last * width]
