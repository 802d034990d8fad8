"""Chunks of steps of which only the first carry is kept: memory grows like the root of T.

An outer loop over chunks; the backward pass takes each chunk's steps again (Chen et al. 2016,
arXiv:1604.06174). A chunk is cut from x as it lies, [B, T, ...], inside the loop: to scan over the
steps of x would be to hold all of it a second time, turned.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from seqmodels.recurrence.reference import Steps, time_first
from seqmodels.types import Array, Carry, Params


def scan(
    scan_steps: Callable[..., Any],
    size: int,
    cell: Any,
    reverse: bool,
    unroll: int,
    params: Params,
    steps: Steps,
    carry: Carry,
    initial: Carry,
    sequence_noise: Any,
) -> tuple[Carry, jax.Array]:
    """As `scan_steps` of `time_first(steps)`, by chunks of `size` steps."""
    length = steps.x.shape[1]
    size = min(size, length)
    count = -(-length // size)

    still = steps._replace(x=jax.lax.stop_gradient(steps.x))

    @jax.checkpoint
    def body(carry, chunk):
        at, moved = chunk
        cut = _cut(still, at, size)
        cut = time_first(cut._replace(x=cut.x + moved))
        return scan_steps(cell, reverse, unroll, params, cut, carry, initial, sequence_noise)

    chunks = (jnp.arange(count), moves(count, size, steps.x))
    carry, y = jax.lax.scan(body, carry, chunks, reverse=reverse)
    y = y.reshape(count * size, *y.shape[2:])
    last, twice = (count - 1) * size, count * size - length
    return carry, jnp.concatenate([y[:last], y[last + twice :]]) if twice else y


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def moves(count: int, size: int, x: Array) -> jax.Array:
    """Zeros [count, B, size, ...] that take the gradient of each chunk of x; x itself, cut in a
    loop, would be given a whole gradient [B, T, ...] by every chunk."""
    zero = jnp.zeros_like(x[None, :, :1])  # sharded as x is
    return jnp.broadcast_to(zero, (count, x.shape[0], size, *x.shape[2:]))


@moves.defjvp
def _moves_jvp(count, size, primals, tangents):
    return moves(count, size, *primals), _chunks(count, size, *tangents)


def _chunks(count, size, x):
    whole = x[:, : (count - 1) * size]
    whole = jnp.reshape(whole, (x.shape[0], count - 1, size, *x.shape[2:]))
    return jnp.swapaxes(jnp.concatenate([whole, x[:, None, -size:]], axis=1), 0, 1)


def _cut(steps: Steps, at: Array, size: int) -> Steps:
    """Chunk number `at` of steps that lie batch first, its noise time first. Where T is no multiple
    of the size the last one starts early, and what the one before had is masked."""
    batch, length = steps.x.shape[:2]
    start = jnp.minimum(at * size, length - size)

    def cut(leaf, axis):
        return None if leaf is None else jax.lax.dynamic_slice_in_dim(leaf, start, size, axis)

    x, mask, reset = (cut(leaf, 1) for leaf in (steps.x, steps.mask, steps.reset))
    if length % size:
        new = jnp.broadcast_to(start + jnp.arange(size) >= at * size, (batch, size))
        mask = new if mask is None else mask & new
        reset = None if reset is None else reset & new
    return Steps(x, mask, reset, jax.tree.map(lambda leaf: cut(leaf, 0), steps.noise))
