"""Running a cell over time: one function, several implementations with equal results."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Shaped

from seqmodels.recurrence import associative, chunks, cudnn, fused, reference
from seqmodels.recurrence.reference import Steps, time_first
from seqmodels.types import Array, Carry, Key, Noise, Params, cast_like

IMPLEMENTATIONS: dict[str, Callable[..., Any]] = {
    "reference": reference.scan,
    "fused": fused.scan,
    "associative": associative.scan,
}


def choose(cell: Any, implementation: str = "auto") -> str:
    """The name of the implementation that `run` uses, from static facts only.

    "auto" takes "fused", which serves every cell; "associative" on an accelerator, for cells that
    it serves: measured on a CPU, not yet on accelerators. Raises ValueError for a name that does
    not exist, or that cannot serve this cell.
    """
    if implementation == "auto":
        side_by_side = cell.associates and jax.default_backend() != "cpu"
        return "associative" if side_by_side else "fused"
    if implementation == "cudnn":
        if not cell.cudnn:
            raise ValueError(
                f"implementation='cudnn' serves an LSTM without options, in float32; not {cell}: "
                "take 'auto'"
            )
        return implementation
    if implementation not in IMPLEMENTATIONS:
        allowed = ", ".join(["auto", *IMPLEMENTATIONS, "cudnn"])
        raise ValueError(f"implementation={implementation!r} is not one of {allowed}")
    if implementation == "associative" and not cell.associates:
        raise ValueError(
            f"implementation='associative' serves cells that are linear in their carry; "
            f"{type(cell).__name__} is not: take 'auto'"
        )
    return implementation


def run(
    cell: Any,
    params: Params,
    x: Shaped[Array, "B T *features"],
    carry: Carry | None = None,
    *,
    mask: Bool[Array, "B T"] | None = None,
    lengths: Any = None,
    reset: Bool[Array, "B T"] | None = None,
    reverse: bool = False,
    unroll: int = 1,
    remat: int | None = None,
    key: Key | None = None,
    implementation: str = "auto",
) -> tuple[Shaped[Array, "B T *out"], Carry]:
    """Runs `cell` over the time axis of x; returns (y [B, T, H], final carry).

    mask      True at real steps; may have holes. A masked step leaves the carry untouched and
              outputs zero, and what stands in its input, NaN included, reaches nothing.
    lengths   int [B], the same as a mask with the first `lengths` steps True; excludes `mask`.
              Outside jit a value below 0 or above T raises; inside it is clipped.
    reset     True where a new sequence starts: the initial carry replaces the carry before the
              step is read, at masked steps too. No gradient crosses it.
    reverse   walks from T-1 to 0 under the same flags; y stays aligned with x. Walking backwards
              a sequence ends before t where reset[t+1].
    carry     where to start; None takes `cell.initial_carry`. Each leaf keeps its dtype.
    unroll    steps per loop iteration; changes cost, not values.
    remat     keep the carry only at the borders of chunks of this many steps, and compute the
              rest again in the backward pass; None keeps every step.
    key       draws the cell's noise for this call; None runs without noise.
    implementation  "auto", or one by name (`choose`). Forward-mode differentiation of `run`
              needs "reference". "cudnn", on a GPU, takes `lengths` but no `mask`, `reset` or
              `remat`.

    The final carry alone costs no memory that grows with T: leave y unused under jit.

    Raises ValueError, naming the argument or leaf, for shapes, dtypes and lengths that do not fit.
    """
    chosen = choose(cell, implementation)
    x = jnp.asarray(x)
    if x.ndim < 3:
        raise ValueError(f"x has shape {x.shape}; expected [B, T, features]")
    batch, length = x.shape[:2]
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        raise ValueError(f"x has dtype {x.dtype}; expected real numbers")
    if not jnp.issubdtype(x.dtype, jnp.floating):
        x = x.astype(jnp.float32)
    mask, reset = (None if flag is None else jnp.asarray(flag) for flag in (mask, reset))
    if chosen == "cudnn":
        for name, given in (("mask", mask), ("reset", reset), ("remat", remat)):
            if given is not None:
                raise ValueError(f"implementation='cudnn' takes no {name}; give lengths, or 'auto'")
    mask = _as_mask(mask, lengths, batch, length)
    _check_flag("reset", reset, batch, length)
    if not isinstance(reverse, bool):
        raise ValueError(f"reverse={reverse!r} must be True or False")
    for name, count in (("remat", remat), ("unroll", unroll)):
        if count is not None and (type(count) is not int or count < 1):
            raise ValueError(f"{name}={count!r} must be a whole number of at least 1 step")
    cell.check(params, x.shape[-1])

    initial = cell.initial_carry(params, batch)
    if carry is None:
        carry = initial
    else:
        carry = _check_carry(carry, initial)
        # Asked for in the widest dtype given: a learned start in float64 passes no float32.
        widest = max((leaf.dtype for leaf in jax.tree.leaves(carry)), key=lambda d: d.itemsize)
        initial = cast_like(cell.initial_carry(params, batch, widest), carry)

    if chosen == "cudnn" and length:
        return cudnn.run(cell, params, x, carry, mask, reverse)
    # Where there are no steps there is none for the others to look at.
    scan = IMPLEMENTATIONS[chosen] if length else reference.scan
    if reset is not None and reverse:
        reset = jnp.concatenate([reset[:, 1:], jnp.zeros_like(reset[:, :1])], axis=1)
    noise = cell.noise(key, batch, length) if key is not None else None
    noise = Noise() if noise is None else noise
    anchor = _anchor(params, x)
    noise = Noise(_add_anchor(noise.sequence, anchor), _add_anchor(noise.step, anchor, axis=1))

    steps = Steps(x, mask, reset, noise.step)
    carry, initial = (_add_anchor(tree, anchor) for tree in (carry, initial))
    if remat is not None and length:
        scan = functools.partial(chunks.scan, scan, remat)
    else:
        steps = time_first(steps)
    carry, y = scan(cell, reverse, unroll, params, steps, carry, initial, noise.sequence)
    return jnp.swapaxes(y, 0, 1), carry


def _as_mask(mask, lengths, batch, length):
    if lengths is None:
        _check_flag("mask", mask, batch, length)
        return mask
    if mask is not None:
        raise ValueError("give mask or lengths, not both")
    if not isinstance(lengths, jax.Array):
        lengths = np.asarray(lengths)
    if lengths.shape != (batch,):
        raise ValueError(f"lengths has shape {lengths.shape}; expected one for each row, [{batch}]")
    if not jnp.issubdtype(lengths.dtype, jnp.integer):
        raise ValueError(f"lengths has dtype {lengths.dtype}; expected integers")
    if not isinstance(lengths, jax.core.Tracer):
        values = np.asarray(lengths)
        bad = np.flatnonzero((values < 0) | (values > length))
        if bad.size:
            row = int(bad[0])
            raise ValueError(f"lengths[{row}]={values[row]} is outside 0..{length} (the T of x)")
    lengths = jnp.asarray(lengths)
    if lengths.dtype.itemsize < 4:
        lengths = lengths.astype(jnp.int32)  # or clip would wrap T
    lengths = jnp.clip(lengths, 0, length)  # before a cast could wrap them
    return jnp.arange(length)[None, :] < lengths.astype(int)[:, None]


def _check_flag(name, flag, batch, length):
    if flag is None:
        return
    if flag.shape != (batch, length):
        raise ValueError(f"{name} has shape {flag.shape}; expected [B, T] = [{batch}, {length}]")
    if flag.dtype != bool:
        raise ValueError(f"{name} has dtype {flag.dtype}; expected bool")


def _check_carry(carry, initial):
    """The given carry as arrays, or a ValueError that names the leaf that does not fit."""
    given: Any = jax.tree.structure(carry)
    if given != jax.tree.structure(initial):
        raise ValueError(f"carry is {_outline(carry)}; this cell's is {_outline(initial)}")
    leaves = jax.tree_util.tree_leaves_with_path(carry)
    for (path, leaf), wanted in zip(leaves, jax.tree.leaves(initial), strict=True):
        name = "carry" + jax.tree_util.keystr(path)
        shape, dtype = jnp.shape(leaf), jnp.result_type(leaf)
        if shape != wanted.shape:
            raise ValueError(f"{name} has shape {shape}; expected {wanted.shape}, batch first")
        if not jnp.issubdtype(dtype, jnp.floating):
            raise ValueError(f"{name} has dtype {dtype}; a carry is floating")
    return jax.tree.map(jnp.asarray, carry)


def _outline(tree):
    """A tree's type and the names of its leaves."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return f"{type(tree).__name__}({', '.join(jax.tree_util.keystr(path) for path, _ in leaves)})"


def _anchor(params, x):
    """A zero for each row, [B], with the sharding and varying axes of x and the parameters.

    The loop's carry must enter with the type it leaves with, and drawn masks must meet rows of x,
    under explicit meshes and in `shard_map` too. `and False` keeps NaN out, and the compiler drops
    the sums.
    """
    anchor = jnp.any(jnp.isnan(x), axis=tuple(range(1, x.ndim)))
    for leaf in jax.tree.leaves(params):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            anchor = anchor | jnp.any(jnp.isnan(leaf))
    return anchor & False


def _add_anchor(tree, anchor, axis=0):
    """To leaves with B at that axis; flags take it by `or`."""

    def add(leaf):
        zero = jnp.reshape(anchor, (1,) * axis + anchor.shape + (1,) * (leaf.ndim - axis - 1))
        zero = jnp.broadcast_to(zero, leaf.shape)
        return leaf | zero if leaf.dtype == bool else leaf + zero.astype(leaf.dtype)

    return jax.tree.map(add, tree)
