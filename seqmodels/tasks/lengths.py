"""Row lengths of the synthetic tasks: what is allowed, and how they are drawn.

Knows nothing of any task. Errors are one line with the field, the value given and what is allowed.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Int

from seqmodels.types import Array, Key


def require(field: str, value: int, least: int, most: int | None = None) -> None:
    """Raise ValueError unless least <= value, and value <= most where there is a most."""
    if value < least or (most is not None and value > most):
        allowed = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{field} must be {allowed}, got {value}")


def check(length: int, min_length: int | None, least: int) -> None:
    """Raise ValueError unless least <= min_length <= length; None stands for length."""
    require("length", length, least)
    if min_length is not None:
        require("min_length", min_length, least, length)


def draw(key: Key, batch: int, length: int, min_length: int | None) -> Int[Array, "B"]:
    """Lengths uniform on min_length..length; `length` in every row if min_length is None."""
    require("batch", batch, 0)
    if min_length is None:
        return jnp.full((batch,), length, jnp.int32)
    return integers(key, (batch,), min_length, length + 1)


def integers(
    key: Key,
    shape: tuple[int, ...],
    low: int | Int[Array, "*shape"],
    high: int | Int[Array, "*shape"],
) -> Int[Array, "..."]:
    """Uniform on low..high-1, for ranges far below 2^23.

    One draw of 23 bits. `jax.random.randint` draws twice and reduces, which took most of the time
    in which a task's program compiles.
    """
    width = jnp.asarray(high - low, jnp.float32)
    drawn = jnp.floor(jax.random.uniform(key, shape, jnp.float32) * width).astype(jnp.int32)
    return low + jnp.minimum(drawn, high - low - 1)  # a product just below `width` may round up


def prefix(lengths: Int[Array, "B"], steps: int) -> Bool[Array, "B T"]:
    """True at the first `lengths` of `steps` steps of each row."""
    return jnp.arange(steps, dtype=jnp.int32)[None, :] < lengths[:, None]
