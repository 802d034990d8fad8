"""Where a run's batches come from: a task that draws them, or a data set that stays resident.

Both offer the same things to the loop, so that it need not know which one it has.
"""

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from seqmodels.data import resident
from seqmodels.training.step import Draw
from seqmodels.types import Batch, Spec


class Source(Protocol):
    """`length` is None for rows as in training; a data set has no other."""

    @property
    def spec(self) -> Spec: ...
    @property
    def data(self) -> Batch | None:
        """Rows that batches are taken from; None where they are drawn."""

    @property
    def lengths(self) -> tuple[int | None, ...]:
        """Lengths tested, the first for the table."""

    @property
    def confirms(self) -> bool:
        """Whether a fresh set can be drawn to confirm that a seed has solved the task."""

    def chance(self, length: int | None) -> float: ...

    def train_draw(self) -> Draw: ...

    def train_ids(self, seed: int, start: int, steps: int) -> np.ndarray | None:
        """Row ids [steps, B] of training steps from `start` on."""

    def drawn_at(self, length: int | None) -> Any:
        """What evaluation at this length draws, hashable; equal ones share a program."""

    def eval_draw(self, drawn: Any) -> Draw: ...

    def eval_ids(self, split: str) -> tuple[int, np.ndarray | None]:
        """How many batches, and their row ids: arrays of one shape for all splits."""


@dataclasses.dataclass(frozen=True)
class Drawn:
    """Fresh rows for every batch, drawn on the device."""

    task: Any
    length: int
    batch: int
    eval_batch: int
    examples: dict[str, int]  # rows of "valid", "confirm" and "test"
    lengths: tuple[int, ...]

    confirms: bool = True
    data: None = None

    @property
    def spec(self) -> Spec:
        return self.task.spec

    def chance(self, length: int | None) -> float:
        return self.task.chance(self.length if length is None else length)

    def train_draw(self) -> Draw:
        return lambda key, ids, data: self.task.sample(key, self.batch, self.length)

    def train_ids(self, seed: int, start: int, steps: int) -> None:
        return None

    def drawn_at(self, length: int | None) -> tuple[Any, int]:
        """Task and length: as in training, or all rows of exactly `length`."""
        if length is None:
            return self.task, self.length
        if getattr(self.task, "min_length", None) is None:
            return self.task, length
        return dataclasses.replace(self.task, min_length=None), length

    def eval_draw(self, drawn: tuple[Any, int]) -> Draw:
        task, length = drawn
        return lambda key, ids, data: task.sample(key, self.eval_batch, length)

    def eval_ids(self, split: str) -> tuple[int, None]:
        return -(-self.examples[split] // self.eval_batch), None


@dataclasses.dataclass(frozen=True)
class Resident:
    """All rows of a data set in memory, shuffled anew each epoch."""

    spec: Spec
    data: Batch  # all splits below each other
    rows: dict[str, np.ndarray]
    majority: float
    batch: int
    eval_batch: int

    confirms: bool = False
    lengths: tuple[None, ...] = (None,)

    def chance(self, length: int | None) -> float:
        return self.majority

    def train_draw(self) -> Draw:
        return lambda key, ids, data: resident.take(data, ids)

    def train_ids(self, seed: int, start: int, steps: int) -> np.ndarray:
        return resident.shuffled(self.rows["train"], self.batch, seed, start, steps)

    def drawn_at(self, length: int | None) -> None:
        return None

    def eval_draw(self, drawn: None) -> Draw:
        return lambda key, ids, data: resident.take(data, ids)

    def eval_ids(self, split: str) -> tuple[int, np.ndarray]:
        ids = resident.in_order(self.rows[split], self.eval_batch)
        longest = max(len(resident.in_order(r, self.eval_batch)) for n, r in self.rows.items())
        padded = np.full((longest, self.eval_batch), resident.NO_ROW, np.int32)
        padded[: len(ids)] = ids
        return len(ids), padded


def example(source: Source) -> Batch:
    """One training batch, of which only shapes and dtypes are read."""
    ids = source.train_ids(0, 0, 1)
    return jax.eval_shape(
        source.train_draw(), jax.random.key(0), None if ids is None else ids[0], source.data
    )


def zeros(batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Inputs and mask of a batch's shapes, for building a model."""
    return jnp.zeros(batch.inputs.shape, batch.inputs.dtype), jnp.ones(batch.mask.shape, bool)
