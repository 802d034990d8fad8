"""The same scan with the weight gradients taken out of the backward loop.

JAX's transpose of `lax.scan` adds the gradient of every weight at every step. Here the backward
loop moves only the carry's cotangent. It stores what reaches the pre-activations, and each
parameter's gradient is one `vjp` over all steps afterwards: for a kernel, one matrix product over
T * B rows. cuDNN does the same by hand for its three cells (Appleyard et al. 2016,
arXiv:1604.01946); this is written once for every cell that follows the protocol.

Reverse mode only at the first order; gradients of gradients are ordinary JAX.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from seqmodels.recurrence import reference
from seqmodels.recurrence.reference import Steps, cell_noise, select, zeros_like
from seqmodels.types import Carry, Params, cast_like


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def scan(
    cell: Any,
    reverse: bool,
    unroll: int,
    params: Params,
    steps: Steps,
    carry: Carry,
    initial: Carry,
    sequence_noise: Any,
) -> tuple[Carry, jax.Array]:
    """As `reference.scan`."""
    return reference.scan(cell, reverse, unroll, params, steps, carry, initial, sequence_noise)


def _forward(cell, reverse, unroll, params, steps, carry, initial, sequence_noise):
    """Also keeps, for every step, the carry that it read and its pre-activations."""

    def body(carry, step):
        if step.reset is not None:
            carry = select(step.reset, initial, carry)
        noise = cell_noise(sequence_noise, step.noise)
        read = select(step.mask, carry, zeros_like(carry))
        z, u = cell.project(params, step.x), cell.recur(params, read, *noise)
        if cell.adds:
            z, u = jax.tree.map(jnp.add, z, u), None
        new, y = _update(cell, params, read, z, u, noise)
        after = select(step.mask, new, carry)
        return after, (select(step.mask, y, jnp.zeros_like(y)), read, z, u)

    carry, (y, *kept) = jax.lax.scan(body, carry, steps, reverse=reverse, unroll=unroll)
    return (carry, y), (params, steps, initial, sequence_noise, *kept)


def _update(cell, params, carry, z, u, noise):
    """The step after the two products; u is None where z already holds their sum."""
    u = zeros_like(z) if u is None else u
    new = cast_like(cell.update(params, carry, z, u, *noise), carry)
    return new, cell.output(new)


def _backward(cell, reverse, unroll, residuals, cotangents):
    params, steps, initial, sequence_noise, before, z, u = residuals
    d_carry, dy = cotangents

    def body(cotangents, kept):
        d_carry, d_initial = cotangents
        step, before, z, u, dy = kept
        noise = cell_noise(sequence_noise, step.noise)
        # A masked step returned the carry it read and a zero: nothing reaches its update.
        d_new = select(step.mask, d_carry, zeros_like(d_carry))
        dy = select(step.mask, dy, jnp.zeros_like(dy))

        update = functools.partial(_update, cell, params, noise=noise)
        _, pullback = jax.vjp(update, before, z, u)
        d_before, dz, du = pullback((d_new, dy))
        _, pullback = jax.vjp(lambda carry: cell.recur(params, carry, *noise), before)
        (d_recur,) = pullback(dz if u is None else du)
        d_before = select(step.mask, jax.tree.map(jnp.add, d_before, d_recur), d_carry)

        if step.reset is not None:
            zero = zeros_like(d_before)
            d_start = select(step.reset, d_before, zero)
            d_initial = jax.tree.map(jnp.add, d_initial, d_start)
            d_before = select(step.reset, zero, d_before)
        return (d_before, d_initial), (d_new, dy, dz, du)

    (d_carry, d_initial), (d_new, dy, dz, du) = jax.lax.scan(
        body,
        (d_carry, zeros_like(d_carry)),
        (steps, before, z, u, dy),
        reverse=not reverse,
        unroll=unroll,
    )

    # All steps at once. XLA drops what a cell does not need: for most, `update` has no parameters
    # and the whole last pullback is empty.
    def over_time(method, *axes):
        return jax.vmap(method, in_axes=axes)

    noise = cell_noise(sequence_noise, steps.noise)
    noise_axes = cell_noise(None, 0) if noise else ()  # masks of a step vary, of a sequence do not
    d_u = dz if u is None else du

    _, pullback = jax.vjp(over_time(cell.project, None, 0), params, steps.x)
    d_params, dx = pullback(dz)
    _, pullback = jax.vjp(
        lambda p: over_time(cell.recur, None, 0, *noise_axes)(p, before, *noise), params
    )
    (d_recurrent,) = pullback(d_u)
    _, pullback = jax.vjp(
        lambda p: over_time(functools.partial(_update, cell), None, 0, 0, 0, noise_axes)(
            p, before, z, u, noise
        ),
        params,
    )
    (d_rest,) = pullback((d_new, dy))
    d_params = jax.tree.map(_add_all, d_params, d_recurrent, d_rest)
    return d_params, Steps(dx, None, None, None), d_carry, d_initial, None


def _add_all(first, *others):
    """Their sum; parameters that are whole numbers have cotangents without any."""
    return first if first.dtype == jax.dtypes.float0 else sum(others, first)


scan.defvjp(_forward, _backward)
