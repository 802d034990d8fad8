"""Which rows make up the batch of each step: shuffled anew each epoch, in buckets of like length.

Everything is a pure function of (seed, step), so the position in the data is the step itself: a
run that goes on later, or with other workers, sees what an uninterrupted one would have seen.
"""

import dataclasses
import functools

import numpy as np
from jaxtyping import Int

from seqmodels.data.rows import NO_ROW


def by_length(
    rows: Int[np.ndarray, "N"], lengths: Int[np.ndarray, "N"], widths: tuple[int, ...]
) -> dict[int, np.ndarray]:
    """Rows by the smallest of `widths` that holds them, without empty buckets.

    `lengths` are those of `rows`. Raises ValueError for a row longer than the largest width.
    """
    edges = np.sort(np.asarray(widths))
    if len(lengths) and lengths.max() > edges[-1]:
        raise ValueError(
            f"the longest row has {lengths.max()} steps, the widest bucket {edges[-1]}"
        )
    bucket = np.searchsorted(edges, lengths)
    return {int(edges[i]): rows[bucket == i] for i in np.unique(bucket)}


def in_order(rows: Int[np.ndarray, "N"], batch: int) -> Int[np.ndarray, "M B"]:
    """Every row once, in order, as batches; the last one is filled with NO_ROW."""
    ids = np.full(-(-len(rows) // batch) * batch, NO_ROW, np.int32)
    ids[: len(rows)] = rows
    return ids.reshape(-1, batch)


@dataclasses.dataclass(frozen=True, eq=False)
class Epochs:
    """Batches of `size` rows, each from one bucket, for any number of epochs.

    buckets  row ids by the width T of their batches
    shuffle  False: rows and buckets in the order given, the same in every epoch

    Each epoch has every row once; what is left of a bucket makes a smaller batch. The order of
    rows depends on (seed, epoch). Which width comes when depends on the epoch alone, so that
    seeds in one program have batches of one shape.
    """

    buckets: dict[int, np.ndarray]
    size: int
    shuffle: bool = True

    @functools.cached_property
    def per_epoch(self) -> int:
        """Batches in one epoch."""
        return sum(-(-len(rows) // self.size) for rows in self.buckets.values())

    def width(self, step: int) -> int:
        """T of the batch of one step."""
        epoch, index = divmod(step, self.per_epoch)
        return int(self._widths(epoch)[index])

    def ids(self, seed: int, step: int) -> Int[np.ndarray, "B"]:
        """Row ids of the batch of one step, filled with NO_ROW."""
        epoch, index = divmod(step, self.per_epoch)
        return self._epoch(seed, epoch)[index]

    @functools.lru_cache(maxsize=4)  # noqa: B019 (they live as long as their run)
    def _widths(self, epoch: int) -> np.ndarray:
        counts = [-(-len(rows) // self.size) for rows in self.buckets.values()]
        widths = np.repeat(list(self.buckets), counts)
        return np.random.default_rng(epoch).permutation(widths) if self.shuffle else widths

    @functools.lru_cache(maxsize=64)  # noqa: B019
    def _epoch(self, seed: int, epoch: int) -> np.ndarray:
        rng = np.random.default_rng((seed, epoch))
        widths = self._widths(epoch)
        ids = np.empty((self.per_epoch, self.size), np.int32)
        for width, rows in self.buckets.items():
            ids[widths == width] = in_order(
                rng.permutation(rows) if self.shuffle else rows, self.size
            )
        return ids
