"""From logits to one symbol: what is left to choose from, and the choice."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from seqmodels.types import PAD, UNKNOWN, Array, Key

NEVER = (PAD, UNKNOWN)
"""Ids that are not generated unless asked for: they stand for no text."""

Number = float | Array  # one number, traced or not


def filter_logits(
    logits: Float[Array, "*rows V"], top_k: Number | None = None, top_p: Number | None = None
) -> Float[Array, "*rows V"]:
    """The logits with -inf for what is out, in float32 at least; what stays is not changed.

    Symbols are ranked by their logits, equal ones by their ids, the lower first; so the argmax
    always stays, and no tie lets in more than was asked for.

    top_k  keeps the first `top_k` symbols (Fan, Lewis & Dauphin 2018, arXiv:1805.04833); V or
           more is no filter
    top_p  keeps the first symbols until their share of the mass that top_k has left reaches
           top_p: the smallest such set, and one symbol at least (nucleus sampling, Holtzman et
           al. 2020, arXiv:1904.09751); 1 is no filter

    A logit of NaN counts as -inf and one of +inf as the largest finite number: nothing comes out
    NaN, and a row without a possible symbol comes out all -inf.

    Raises ValueError for top_k below 1 or not whole, and for top_p outside 0 < p <= 1. Inside
    jit, where values are not known, any other top_k or top_p keeps one symbol.
    """
    check_settings(top_k=top_k, top_p=top_p)
    wide = _comparable(logits)
    if top_k is None and top_p is None:
        return wide
    rank = jax.lax.broadcasted_iota(jnp.int32, wide.shape, wide.ndim - 1)
    # Stable, so equal logits stay in the order of their ids.
    negative, order = jax.lax.sort((-wide, rank), num_keys=1, is_stable=True)
    ranked = -negative
    keep = ranked > -jnp.inf
    if top_k is not None:
        keep &= (rank < top_k) | (rank == 0)
    if top_p is not None:
        mass = jnp.where(keep, jnp.exp(_below_the_largest(ranked)), 0)
        mass = jnp.cumsum(mass, axis=-1)
        before = jnp.concatenate([jnp.zeros_like(mass[..., :1]), mass[..., :-1]], axis=-1)
        top_p = jnp.asarray(top_p, mass.dtype)
        # 1 by name: a sum of floats may reach the whole before the last symbol.
        keep &= (before < top_p * mass[..., -1:]) | (top_p == 1) | (rank == 0)
    keep = jnp.put_along_axis(jnp.zeros_like(keep), order, keep, axis=-1, inplace=False)
    return jnp.where(keep, wide, -jnp.inf)


def pick(
    key: Key,
    logits: Float[Array, "*rows V"],
    temperature: Number = 1.0,
    *,
    top_k: Number | None = None,
    top_p: Number | None = None,
    forbidden: tuple[int, ...] = NEVER,
) -> Int[Array, "*rows"]:
    """One id for each row, int32, drawn from softmax(logits / temperature) after the filters.

    temperature   divides the logits, before `top_k` and then `top_p` apply (`filter_logits`);
                  0 is greedy: the symbol with the largest logit, the lowest id among equals
    forbidden     ids that are taken out before all else

    One key draws all rows. A row without a possible symbol, NaN or -inf throughout, gets PAD.

    Raises ValueError for a temperature that is negative or not finite, for `top_k` and `top_p` as
    `filter_logits` does, for a forbidden id outside 0..V-1, and if every id is forbidden. Inside
    jit, where values are not known, a temperature that is not above 0 is greedy.
    """
    check_settings(temperature=temperature, top_k=top_k, top_p=top_p)
    logits = _comparable(_without(logits, forbidden))
    greedy = jnp.argmax(logits, axis=-1)
    temperature = jnp.asarray(temperature, logits.dtype)
    # Below 0 before the division, so that no temperature, however small, gives +inf.
    scaled = _below_the_largest(logits) / jnp.maximum(temperature, jnp.finfo(logits.dtype).tiny)
    drawn = jax.random.categorical(key, filter_logits(scaled, top_k, top_p))
    choice = jnp.where(temperature > 0, drawn, greedy).astype(jnp.int32)
    return jnp.where(jnp.any(logits > -jnp.inf, axis=-1), choice, PAD)


RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "temperature": (lambda t: 0 <= t < math.inf, "a finite number, 0 (greedy) or more"),
    "top_k": (lambda k: k >= 1 and float(k).is_integer(), "a whole number, 1 or more, or None"),
    "top_p": (lambda p: 0 < p <= 1, "above 0 and at most 1, or None"),
}


def check_settings(**settings: Number | None) -> None:
    """ValueError for a setting outside its range, as far as its value is known."""
    for name, value in settings.items():
        if value is None or isinstance(value, jax.core.Tracer):
            continue
        valid, allowed = RANGES[name]
        if isinstance(value, bool) or np.ndim(value) or not valid(value):
            raise ValueError(f"{name}={value} must be {allowed}")


def widened(logits: Array) -> jax.Array:
    """Logits in float32 at least: sums over a vocabulary need it."""
    return jnp.asarray(logits).astype(np.promote_types(logits.dtype, np.float32))


def _comparable(logits):
    """Logits in float32 at least, each finite or -inf."""
    return jnp.nan_to_num(widened(logits), nan=-jnp.inf, posinf=None, neginf=-jnp.inf)


def _below_the_largest(logits):
    """Logits less the largest of their row."""
    largest = jnp.max(logits, axis=-1, keepdims=True)
    return logits - jnp.where(largest > -jnp.inf, largest, 0)


def _without(logits, forbidden):
    """Logits with -inf at the forbidden ids."""
    vocabulary = logits.shape[-1]
    for symbol in forbidden:
        if not 0 <= symbol < vocabulary:
            raise ValueError(f"forbidden: id {symbol} is not in 0..{vocabulary - 1} (V of logits)")
    if len(set(forbidden)) == vocabulary:
        raise ValueError(f"forbidden has all {vocabulary} ids: there is nothing to pick")
    out = np.isin(np.arange(vocabulary), forbidden)
    return jnp.where(jnp.broadcast_to(out, logits.shape), -jnp.inf, logits)
