"""From outputs and final carries to one vector for each sequence.

Readouts see real steps only. A row without any reads 0, with a finite gradient.
"""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from seqmodels.types import Array


def last(
    y: Float[Array, "B T H"], final: Float[Array, "B H"], mask: Bool[Array, "B T"]
) -> Float[Array, "B H"]:
    """`output(final carry)` of each direction, side by side; never y[:, -1].

    For a bidirectional layer that is the forward output at the last real step beside the backward
    output at the first: both have seen the whole sequence.
    """
    return jnp.where(jnp.any(mask, axis=1)[:, None], final, jnp.zeros_like(final))


def first(
    y: Float[Array, "B T H"], final: Float[Array, "B H"], mask: Bool[Array, "B T"]
) -> Float[Array, "B H"]:
    """The output at the first real step."""
    if y.shape[1] == 0:
        return jnp.zeros_like(final)
    step = jnp.argmax(mask, axis=1)  # 0 for an empty row, whose outputs are all 0
    return jnp.take_along_axis(y, step[:, None, None], axis=1)[:, 0]


def mean(
    y: Float[Array, "B T H"], final: Float[Array, "B H"], mask: Bool[Array, "B T"]
) -> Float[Array, "B H"]:
    """The mean of y over real steps (y is 0 elsewhere)."""
    steps = jnp.maximum(jnp.sum(mask, axis=1, dtype=jnp.int32), 1)
    wide = y.astype(np.promote_types(y.dtype, np.float32))  # sums and counts outgrow 16 bits
    return (jnp.sum(wide, axis=1) / steps[:, None].astype(wide.dtype)).astype(y.dtype)


def max(
    y: Float[Array, "B T H"], final: Float[Array, "B H"], mask: Bool[Array, "B T"]
) -> Float[Array, "B H"]:
    """The maximum of y over real steps, unit by unit."""
    real = jnp.where(mask[:, :, None], y, jnp.full_like(y, -jnp.inf))
    highest = jnp.max(real, axis=1, initial=-jnp.inf)
    return jnp.where(jnp.any(mask, axis=1)[:, None], highest, jnp.zeros_like(highest))


Readout = Callable[[Array, Array, Array], Array]
READOUTS: dict[str, Readout] = {"last": last, "first": first, "mean": mean, "max": max}
