"""Rows of any lengths without padding, and the two ways to cut batches from them.

All steps of all rows stand in one array, so memory follows the real steps; padding appears in
batches only. `take` cuts whole rows, padded to one width. `chunk` walks along the array as one
stream for truncated backpropagation: row i of a chunk goes on where row i of the chunk before
stopped.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from seqmodels.types import Array, Batch

NO_ROW = -1
"""The id that fills a batch whose rows have run out: masked, and of weight 0."""


class Rows(NamedTuple):
    """N rows: row i is the `lengths[i]` steps from `starts[i]` on; P steps in all.

    inputs   ids [P], or features [P, E] of any dtype (batches hold them as float32)
    targets  one for each row [N, ...], one for each step [P, ...], or None: the next input, for
             language models
    weights  of the loss terms, [N] or [P] like the targets; None: 1 everywhere
    """

    inputs: Shaped[Array, "P *E"]
    targets: Shaped[Array, "..."] | None
    starts: Int[Array, "N"]
    lengths: Int[Array, "N"]
    weights: Float[Array, "..."] | None = None


class Stream(NamedTuple):
    """The same steps as one stream; `reset` is True where a row starts."""

    inputs: Shaped[Array, "P *E"]
    targets: Shaped[Array, "P *rest"] | None
    weights: Float[Array, "P"] | None
    reset: Bool[Array, "P"]


def pack(rows: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of their own lengths as (all steps, starts, lengths)."""
    lengths = np.array([len(row) for row in rows], np.int32)
    return np.concatenate(rows), (np.cumsum(lengths) - lengths).astype(np.int32), lengths


def lengths_to(ids: Int[np.ndarray, "N T"], end: int) -> Int[np.ndarray, "N"]:
    """Steps of each row up to and including its first `end`; T where it has none."""
    there = ids == end
    first = there.argmax(axis=1)  # 0 for a row without one, too
    return np.where(there.any(axis=1), first + 1, ids.shape[1])


def take(data: Rows, ids: Int[Array, "B"], width: int, per_step: bool) -> Batch:
    """Rows `ids` as a batch of `width` steps; NO_ROW gives a row without real steps or weight.

    `per_step` tells whether `targets` has one entry for each step or for each row. A row longer
    than `width` is cut off. Works under jit.
    """
    row = jnp.maximum(ids, 0)
    lengths = jnp.where(ids >= 0, jnp.take(data.lengths, row), 0)
    time = jnp.arange(width, dtype=jnp.int32)[None, :]
    mask = time < lengths[:, None]
    at = jnp.take(data.starts, row)[:, None] + time
    inputs = _features(_where(mask, data.inputs, at))
    weights: Array
    if data.targets is None:  # the last step of a row has no next one
        mask_next = time + 1 < lengths[:, None]
        targets, weights = _where(mask_next, data.inputs, at + 1), mask_next
    elif per_step:
        targets, weights = _where(mask, data.targets, at), mask
    else:
        targets, weights = jnp.take(data.targets, row, axis=0), ids >= 0
    weights = weights.astype(jnp.float32)
    if data.weights is not None:
        weights = weights * jnp.take(data.weights, at if per_step else row, mode="clip")
    return Batch(inputs, targets, mask, weights)


def as_stream(data: Rows) -> Stream:
    """Rows, which must lie behind each other, as one stream that resets where each starts."""
    reset = np.zeros(len(data.inputs), bool)
    reset[np.asarray(data.starts)] = True
    return Stream(data.inputs, data.targets, data.weights, reset)


def chunk(data: Stream, part: Int[Array, "2"], index: Any, batch: int, steps: int) -> Batch:
    """Chunk `index`, an int32 scalar, of a part of the stream, [batch, steps].

    `part` is (first step, number of steps). It is laid out in `batch` rows that follow each other,
    of equal length but for one step; chunk j holds their steps from j * steps on. What is left of
    a row in its last chunk is followed by padding. `reset` is set where a row of the data starts,
    and at the first step of chunk 0, so that a carry brought into a new epoch does not matter.
    Where the target is the next input, the last step of each of the `batch` rows has none. Works
    under jit.
    """
    first, size = part[0], part[1]
    row = jnp.arange(batch, dtype=jnp.int32)[:, None]
    length = size // batch + (row < size % batch).astype(jnp.int32)
    start = first + row * (size // batch) + jnp.minimum(row, size % batch)
    time = index * steps + jnp.arange(steps, dtype=jnp.int32)[None, :]
    mask, at = time < length, start + time
    inputs = _features(_where(mask, data.inputs, at))
    if data.targets is None:
        scored = time + 1 < length
        targets = _where(scored, data.inputs, at + 1)
    else:
        scored, targets = mask, _where(mask, data.targets, at)
    weights = scored.astype(jnp.float32)
    if data.weights is not None:
        weights = weights * jnp.take(data.weights, at, mode="clip")
    reset = (_where(mask, data.reset, at)) | (time == 0)
    return Batch(inputs, targets, mask, weights, reset)


def chunks(size: int, batch: int, steps: int) -> int:
    """How many chunks `chunk` needs for a part of `size` steps."""
    longest = -(-size // batch)
    return -(-longest // steps)


def _where(mask: Array, steps: Array, at: Array) -> jax.Array:
    """`steps[at]` where the mask is True, else 0."""
    values = jnp.take(steps, at, axis=0, mode="clip")
    keep = jnp.reshape(mask, mask.shape + (1,) * (values.ndim - mask.ndim))
    return jnp.where(keep, values, jnp.zeros_like(values))


def _features(inputs: jax.Array) -> jax.Array:
    """Ids as int32, features as float32."""
    return inputs.astype(jnp.int32 if inputs.ndim == 2 else jnp.float32)
