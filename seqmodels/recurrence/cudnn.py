"""A plain LSTM by NVIDIA's own loop, through `jax.experimental.rnn`.

cuDNN keeps the recurrent kernel on the chip from step to step (Appleyard et al. 2016,
arXiv:1604.01946) and knows rows that end early, but no holes, resets or other cells.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import rnn

from seqmodels.recurrence.reference import select
from seqmodels.types import Array, Carry, Params, cast_like


def run(
    cell: Any, params: Params, x: Array, carry: Carry, mask: Array | None, reverse: bool
) -> tuple[jax.Array, Carry]:
    """x [B, T, E], a carry of h and c [B, H], mask bool [B, T] without holes or None -> (y [B, T,
    H], carry), in float32 with the products' precision of `jax_default_matmul_precision`.

    Raises ValueError where there is no GPU, or for x of another dtype.
    """
    if jax.default_backend() != "gpu":
        raise ValueError(
            f"implementation='cudnn' needs a GPU; this is a {jax.default_backend()}: take 'auto'"
        )
    if x.dtype != jnp.float32:
        raise ValueError(f"x has dtype {x.dtype}; implementation='cudnn' takes float32")
    mask = jnp.ones(x.shape[:2], bool) if mask is None else mask
    lengths = jnp.sum(mask, axis=1, dtype=jnp.int32)
    x = select(mask, x, jnp.zeros_like(x))
    if reverse:
        x = turn_rows(x, lengths)
    y, h, c = rnn.lstm(
        x,
        carry.h[None].astype(jnp.float32),
        carry.c[None].astype(jnp.float32),
        cell.cudnn_weights(params),
        jnp.maximum(lengths, 1),  # it takes no empty rows; theirs is put right below
        x.shape[-1],
        cell.features,
        1,
        0.0,
        False,
    )
    if reverse:
        y = turn_rows(y, lengths)
    final = select(lengths > 0, type(carry)(h=h[0], c=c[0]), carry)
    y = select(mask, y, jnp.zeros_like(y))
    return y.astype(carry.h.dtype), cast_like(final, carry)


def turn_rows(x: Array, lengths: Array) -> jax.Array:
    """The first `lengths` steps of each row, last first; what follows stays."""
    steps = jnp.arange(x.shape[1])[None, :]
    order = jnp.where(steps < lengths[:, None], lengths[:, None] - 1 - steps, steps)
    return jnp.take_along_axis(x, order[:, :, None], axis=1)
