"""The plain scan over time: the meaning of `run`, in any differentiation mode.

All arrays are time first here. A cell comes in as an argument; nothing in `recurrence/` knows
which cells exist.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from seqmodels.types import Array, Carry, Noise, Params, cast_like


class Steps(NamedTuple):
    """What the loop reads at each step, leaves [T, B, ...]; None where a flag is absent."""

    x: Array
    mask: Array | None = None  # True: a real step
    reset: Array | None = None  # True: start from the initial carry before this step
    noise: Any = None


def time_first(steps: Steps) -> Steps:
    """Of x [B, T, ...] and flags [B, T], with zeros for what stands in masked steps; noise is drawn
    time first."""
    x = jnp.swapaxes(steps.x, 0, 1)
    mask, reset = (None if flag is None else flag.T for flag in (steps.mask, steps.reset))
    # After the transpose, which then is one copy together with it.
    return Steps(select(mask, x, jnp.zeros_like(x)), mask, reset, steps.noise)


def select(flag: Array | None, on_true: Any, on_false: Any) -> Any:
    """Leafwise `where` of trees with leaves [B, ...] by a flag [B], on_true where flag is None.

    The flag gets its trailing axes by name: a [B] flag that met a [B, H] leaf by broadcasting
    would select columns instead of rows whenever B = H.
    """
    if flag is None:
        return on_true

    def leaf(a, b):
        return jnp.where(jnp.reshape(flag, flag.shape + (1,) * (a.ndim - flag.ndim)), a, b)

    return jax.tree.map(leaf, on_true, on_false)


def zeros_like(tree: Any) -> Any:
    """Leafwise zeros; JAX gives each the sharding and varying axes of its leaf."""
    return jax.tree.map(jnp.zeros_like, tree)


def cell_noise(sequence: Any, step: Any) -> tuple[Noise, ...]:
    """What `recur` and `update` receive besides their ordinary arguments: nothing, or the masks."""
    return () if sequence is None and step is None else (Noise(sequence, step),)


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
    """Runs the cell over time; returns the final carry and y [T, B, H]."""

    def body(carry, step):
        if step.reset is not None:
            carry = select(step.reset, initial, carry)
        noise = cell_noise(sequence_noise, step.noise)
        # A masked row computes with zeros: what it carries, NaN included, reaches no gradient.
        read = select(step.mask, carry, zeros_like(carry))
        z, u = cell.project(params, step.x), cell.recur(params, read, *noise)
        new = cast_like(cell.update(params, read, z, u, *noise), carry)
        y = cell.output(new)
        return select(step.mask, new, carry), select(step.mask, y, jnp.zeros_like(y))

    return jax.lax.scan(body, carry, steps, reverse=reverse, unroll=unroll)
