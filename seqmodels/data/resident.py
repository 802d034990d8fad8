"""Small data sets that stay on the device: batches are row ids, shuffled on the host."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from seqmodels.types import Array, Batch

NO_ROW = -1
"""The id that fills a batch whose rows have run out: masked, and of weight 0."""


def take(data: Batch, ids: Int[Array, "B"]) -> Batch:
    """Rows `ids` of `data`; a row for NO_ROW has no real step and no weight. Works under jit."""
    there = ids >= 0
    rows = jax.tree.map(lambda leaf: leaf[jnp.maximum(ids, 0)], data)

    def keep(leaf):
        flag = jnp.reshape(there, (-1,) + (1,) * (leaf.ndim - 1))
        return jnp.where(flag, leaf, jnp.zeros_like(leaf))

    return rows._replace(mask=keep(rows.mask), weights=keep(rows.weights))


def stack_splits(splits: dict[str, Batch]) -> tuple[Batch, dict[str, np.ndarray]]:
    """All splits below each other in one Batch, and the row ids of each: one program reads all."""
    sizes = [len(split.mask) for split in splits.values()]
    first = np.cumsum([0, *sizes])
    rows = {
        name: np.arange(start, start + size)
        for name, start, size in zip(splits, first, sizes, strict=False)
    }
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *splits.values()), rows


def in_order(rows: np.ndarray, batch: int) -> Int[np.ndarray, "N B"]:
    """Every row once, in order, as batches; the last one is filled with NO_ROW."""
    ids = np.full(-(-len(rows) // batch) * batch, NO_ROW, np.int32)
    ids[: len(rows)] = rows
    return ids.reshape(-1, batch)


def shuffled(
    rows: np.ndarray, batch: int, seed: int, start: int, steps: int
) -> Int[np.ndarray, "steps B"]:
    """Row ids of training steps start..start+steps-1.

    Each epoch is every row once, in an order that depends on (seed, epoch) alone; the remainder
    makes a last, smaller batch.
    """
    per_epoch = -(-len(rows) // batch)
    batches: list[np.ndarray] = []
    for epoch in range(start // per_epoch, (start + steps - 1) // per_epoch + 1):
        order = np.random.default_rng((seed, epoch)).permutation(rows)
        batches.extend(in_order(order, batch))
    offset = start % per_epoch
    return np.stack(batches[offset : offset + steps])
