"""Steps that are linear in the carry, h' = a * h + b, all at once instead of one by one.

Two such steps are one: (a, b) then (a', b') is (a' a, a' b + b'). So T of them take log T rounds of
an associative scan (Blelloch 1990, "Prefix sums and their applications"), which an accelerator does
side by side. The gradient is the same recurrence walked back, dh = a dh' + dy.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from seqmodels.recurrence.reference import Steps, select
from seqmodels.types import Array, Carry, Params


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
    """As `reference.scan`, of a cell that is `associative`; there is no loop to unroll."""
    a, b = cell.linear(params, cell.project(params, steps.x))  # [T, B, H]
    h, start = (cell.join(tree).astype(a.dtype) for tree in (carry, initial))
    one, zero = jnp.ones_like(a), jnp.zeros_like(a)
    a, b = select(steps.mask, a, one), select(steps.mask, b, zero)
    if steps.reset is not None:
        start = jnp.broadcast_to(start, a.shape)
        a, b = select(steps.reset, zero, a), select(steps.reset, a * start + b, b)
    h = linear_scan(reverse, a, b, h)

    after = jax.tree.map(lambda leaf, old: leaf.astype(old.dtype), cell.part(h), carry)
    y = cell.output(after)
    last = 0 if reverse else -1
    final = jax.tree.map(lambda leaf: leaf[last], after)
    if steps.mask is not None:  # a row without a step returns what it was given, in every digit
        steps_taken = steps.mask if steps.reset is None else steps.mask | steps.reset
        final = select(jnp.any(steps_taken, axis=0), final, carry)
    return final, select(steps.mask, y, jnp.zeros_like(y))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def linear_scan(reverse: bool, a: Array, b: Array, h: Array) -> jax.Array:
    """h_t = a_t * h_(t-1) + b_t with h before the first step: a, b [T, ...], h [...] -> [T, ...].

    `reverse` walks from T-1 to 0. Real or complex numbers. Where a_t is 0 nothing of what was
    before, NaN included, reaches what follows.
    """
    return _scan(reverse, a, b, h)


def _scan(reverse, a, b, h):
    def times(a, b):
        return jnp.where(a == 0, jnp.zeros_like(b), a * b)

    def then(one, other):
        (a, b), (a_next, b_next) = one, other
        return times(a_next, a), times(a_next, b) + b_next

    first = -1 if reverse else 0
    b = jnp.asarray(b).at[first].add(times(a[first], h))
    return jax.lax.associative_scan(then, (a, b), reverse=reverse)[1]


def _forward(reverse, a, b, h):
    out = _scan(reverse, a, b, h)
    return out, (a, h, out)


def _backward(reverse, residuals, d_out):
    a, h, out = residuals
    # dh_t = a_(t+1) dh_(t+1) + dout_t: the same recurrence, the other way round.
    before, after = (jnp.roll(a, 1 if reverse else -1, axis=0)), jnp.zeros_like(h)
    d_b = _scan(not reverse, before, d_out, after)
    first = -1 if reverse else 0
    previous = jnp.roll(out, -1 if reverse else 1, axis=0).at[first].set(h)
    return d_b * previous, d_b, a[first] * d_b[first]


linear_scan.defvjp(_forward, _backward)
