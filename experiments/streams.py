"""Batches that go on where the one before stopped: chunks of one stream, for truncated BPTT."""

import dataclasses
from collections.abc import Generator, Iterator
from functools import partial
from typing import ClassVar, Protocol

import jax
import numpy as np

from experiments.errors import blame
from experiments.sources import DataSetSource, Facts, Part, joined
from seqmodels.data.rows import Rows, Stream, as_stream, chunk, chunks
from seqmodels.data.streamed import batches
from seqmodels.training.step import Draw
from seqmodels.types import Batch, Spec


@dataclasses.dataclass(frozen=True, eq=False)
class Continued(DataSetSource):
    """A data set as one stream, in chunks for truncated backpropagation."""

    spec: Spec
    data: Stream  # all splits, one behind the other
    splits: dict[str, tuple[int, int]]  # first step and number of steps
    facts: Facts
    batch: int
    eval_batch: int
    steps: int  # of one chunk
    accumulate: int

    carried: ClassVar[bool] = True

    @property
    def per_epoch(self) -> int:
        return -(-chunks(self.splits["train"][1], self.batch, self.steps) // self.accumulate)

    def shapes(self) -> tuple[None]:
        return (None,)

    def shape(self, step: int) -> None:
        return None

    def ids(self, seed: int, start: int, stop: int) -> np.ndarray:
        return chunk_numbers(start, stop, self.per_epoch, self.accumulate)

    def draw(self, shape: None) -> Draw:
        part = np.array(self.splits["train"], np.int32)
        return lambda key, ids, data: chunk(data, part, ids, self.batch, self.steps)

    def parts(self, split: str, length: int | None = None) -> tuple[Part]:
        first, size = self.splits[split]
        count = chunks(size, self.eval_batch, self.steps)
        most = max(chunks(n, self.eval_batch, self.steps) for _, n in self.splits.values())
        ids = np.zeros((most, 3), np.int32)
        ids[:, 0], ids[:, 1], ids[:, 2] = first, size, np.arange(most)
        return (Part(None, count, ids),)

    def eval_draw(self, shape: None) -> Draw:
        return lambda key, ids, data: chunk(data, ids[:2], ids[2], self.eval_batch, self.steps)


EVAL_CHUNKS = 64
"""Chunks of a large stream that are held at once for evaluation."""


class Large(Protocol):
    """A data set that is never held as a whole (`data.text_files`)."""

    def size(self, split: str) -> int: ...

    def chunk(self, split: str, index: int, batch: int, steps: int) -> Batch: ...


@dataclasses.dataclass(eq=False)
class Streamed(DataSetSource):
    """A stream too large for memory: its chunks are read ahead while the devices compute."""

    spec: Spec
    dataset: Large
    facts: Facts
    batch: int
    eval_batch: int
    steps: int
    accumulate: int
    workers: int
    prefetch: int

    carried: ClassVar[bool] = True
    data: ClassVar[None] = None
    _reading: Iterator[Batch] | None = None
    _next: int = -1  # the number of the batch that `_reading` gives next
    _last: tuple[tuple[int, int], Batch] | None = None

    @property
    def per_epoch(self) -> int:
        return -(-chunks(self.dataset.size("train"), self.batch, self.steps) // self.accumulate)

    def shapes(self) -> tuple[None]:
        return (None,)

    def shape(self, step: int) -> None:
        return None

    def ids(self, seed: int, start: int, stop: int) -> Batch:
        """The chunks themselves, the same for every seed."""
        if self._last is None or self._last[0] != (start, stop):
            with blame("config.task"):
                found = self._read(start * self.accumulate, stop * self.accumulate)
            self._last = (
                (start, stop),
                jax.tree.map(
                    lambda *leaves: np.stack(leaves).reshape(-1, self.accumulate, *leaves[0].shape),
                    *found,
                ),
            )
        return self._last[1]

    def close(self) -> None:
        """Ends the threads and processes that read ahead; whoever asks again starts others."""
        if isinstance(self._reading, Generator):
            self._reading.close()
        self._reading, self._next = None, -1

    def _read(self, start: int, stop: int) -> list[Batch]:
        """Chunks start..stop-1 since training began."""
        sizes = (self.batch, self.steps, self.accumulate, self.per_epoch)
        read = partial(read_chunk, self.dataset, *sizes)
        if stop == self.accumulate:  # also asked for to learn the shapes; no worker starts for that
            return [read(number) for number in range(start, stop)]
        if self._next != start:
            self.close()
            self._reading = batches(read, start, workers=self.workers, prefetch=self.prefetch)
        assert self._reading is not None
        self._next = stop
        return [next(self._reading) for _ in range(start, stop)]

    def draw(self, shape: None) -> Draw:
        return lambda key, ids, data: ids

    eval_draw = draw

    def parts(self, split: str, length: int | None = None) -> Iterator[Part]:
        total = chunks(self.dataset.size(split), self.eval_batch, self.steps)
        for first in range(0, total, EVAL_CHUNKS):
            with blame("config.task"):
                found = [
                    self.dataset.chunk(split, i, self.eval_batch, self.steps)
                    for i in range(first, first + EVAL_CHUNKS)  # those beyond the end are padding
                ]
            ids = jax.tree.map(lambda *leaves: np.stack(leaves), *found)
            yield Part(None, min(EVAL_CHUNKS, total - first), ids)


def read_chunk(
    dataset: Large, batch: int, steps: int, accumulate: int, per_epoch: int, number: int
) -> Batch:
    """Chunk number `number` since training began, over all epochs."""
    update, part = divmod(number, accumulate)
    return dataset.chunk("train", update % per_epoch * accumulate + part, batch, steps)


def chunk_numbers(start: int, stop: int, per_epoch: int, accumulate: int) -> np.ndarray:
    """Numbers of the chunks that updates start..stop-1 read, int32 [stop - start, accumulate]."""
    update = np.arange(start, stop, dtype=np.int32)[:, None] % per_epoch
    return update * accumulate + np.arange(accumulate, dtype=np.int32)


def continued(
    spec: Spec,
    splits: dict[str, Rows],
    facts: Facts,
    *,
    batch: int,
    eval_batch: int,
    accumulate: int,
    steps: int,
) -> Continued:
    """A stream in chunks of `steps` steps."""
    data, _, places = joined(splits, per_step=True)
    return Continued(spec, as_stream(data), places, facts, batch, eval_batch, steps, accumulate)
