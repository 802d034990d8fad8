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
from seqmodels.recurrence.pullback import pull_back
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
    # Turned once, not at each step; the barrier keeps XLA from turning them back. Otherwise it
    # reads the kernel across in every backward product.
    turned = jax.lax.optimization_barrier(_turn(params))

    # All steps at once, [T, B, ...], by the methods themselves.
    every_step = cell_noise(_for_every_step(sequence_noise, len(steps.x)), steps.noise)

    def project(params, x):
        return cell.project(params, x)

    def recur(params):
        return cell.recur(params, before, *every_step)

    def rest(params):
        return _update(cell, params, before, z, u, every_step)

    has_rest = _reads(rest, params)
    # Nothing needs the pre-activations after the loop, unless `update` has parameters.
    walk = _walk_back_in_place if cell.overwrites and not has_rest else _walk_back
    d_carry, d_initial, (dz, du), reached = walk(
        cell, reverse, unroll, turned, steps, sequence_noise, before, z, u, d_carry, dy
    )

    gradients, dx = pull_back(project, dz, params, steps.x)
    more = [pull_back(recur, dz if u is None else du, params)]
    if has_rest:
        more.append(pull_back(rest, reached, params))
    d_params = jax.tree.map(_add_all, gradients, *(one for (one,) in more))
    return d_params, Steps(dx, None, None, None), d_carry, d_initial, None


def _walk_back(
    cell,
    reverse,
    unroll,
    turned,
    steps,
    sequence_noise,
    before,
    z,
    u,
    d_carry,
    dy,
    *,
    in_place=False,
):
    """The backward loop -> cotangents of the carry, of the initial carry, of (z, u) at all steps,
    and of what `update` returned there. `in_place` the first take the place of z and u themselves,
    half the memory, and what is written was just read; the last are not kept.
    """

    def body(state, kept):
        d_carry, d_initial, place = state
        t, step, before, dy, *own = kept
        z, u = _read(place, t) if in_place else own
        noise = cell_noise(sequence_noise, step.noise)
        # A masked step returned the carry it read and a zero: nothing reaches its update.
        d_new = select(step.mask, d_carry, zeros_like(d_carry))
        dy = select(step.mask, dy, jnp.zeros_like(dy))

        params = _turn(turned)
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
        if in_place:
            return (d_before, d_initial, _write(place, t, (dz, du))), None
        return (d_before, d_initial, place), ((dz, du), (d_new, dy))

    place, own = ((z, u), ()) if in_place else (None, (z, u))
    (d_carry, d_initial, place), stored = jax.lax.scan(
        body,
        (d_carry, zeros_like(d_carry), place),
        (jnp.arange(len(steps.x)), steps, before, dy, *own),
        reverse=not reverse,
        unroll=unroll,
    )
    return d_carry, d_initial, *((place, None) if in_place else stored)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def _walk_back_in_place(cell, reverse, unroll, *kept):
    return _walk_back(cell, reverse, unroll, *kept, in_place=True)


@_walk_back_in_place.defjvp
def _walk_back_jvp(cell, reverse, unroll, kept, tangents):
    """Of the other loop: JAX would give a place written at each step a whole [T, B, ...] of
    cotangents at each."""

    def walk(*kept):
        return *_walk_back(cell, reverse, unroll, *kept)[:3], None

    return jax.jvp(walk, kept, tangents)


def _reads(function, params):
    """Whether the function needs any of the parameters."""
    jaxpr = jax.make_jaxpr(function)(params).jaxpr
    read = [*jaxpr.outvars, *(var for eqn in jaxpr.eqns for var in eqn.invars)]
    return any(var is one for var in jaxpr.invars for one in read)


def _read(tree, t):
    """Leaves [T, ...] at step t."""
    return jax.tree.map(lambda a: jax.lax.dynamic_index_in_dim(a, t, keepdims=False), tree)


def _write(tree, t, new):
    return jax.tree.map(lambda a, b: jax.lax.dynamic_update_index_in_dim(a, b, t, 0), tree, new)


def _turn(params):
    """The same with the axes of each kernel swapped."""
    return jax.tree.map(lambda leaf: leaf.T if leaf.ndim == 2 else leaf, params)


def _for_every_step(sequence_noise, length):
    """Masks [B, ...] of a sequence as masks [T, B, ...] of its steps."""

    def leaf(mask):
        return jnp.broadcast_to(mask[None], (length, *mask.shape))

    return jax.tree.map(leaf, sequence_noise)


def _add_all(first, *others):
    """Their sum; parameters that are whole numbers have cotangents without any."""
    return first if first.dtype == jax.dtypes.float0 else sum(others, first)


scan.defvjp(_forward, _backward)
