"""Where a run's batches come from: drawn by a task or cut from data; `streams` has those in a row.

All offer the same to the loop, so that it need not know which one it has. Each is a pure function
of the step: nothing here has to be saved for a run to go on where it stopped.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from seqmodels.data.epochs import Epochs, by_length, in_order
from seqmodels.data.rows import NO_ROW, Rows, take
from seqmodels.training.step import Draw
from seqmodels.types import Batch, Spec


class Part(NamedTuple):
    """Batches of one shape that are evaluated in one call."""

    shape: Any  # hashable; parts of equal shape share a program
    batches: int
    ids: Any  # leaves [N, ...] with N >= batches; None where batches are drawn


class Facts(NamedTuple):
    """What is known beside the rows. All None where they are drawn.

    chance       score of each split without looking at inputs
    baselines    test scores, by name, of answers that need no training
    tokenizer    of text
    frequencies  of yes, for each output, in training
    """

    chance: dict[str, float] | None = None
    baselines: dict[str, float] | None = None
    tokenizer: Any = None
    frequencies: np.ndarray | None = None


class Source(Protocol):
    """`length` is None for rows as in training; a data set has no other."""

    @property
    def spec(self) -> Spec: ...

    @property
    def facts(self) -> Facts: ...

    @property
    def batch(self) -> int: ...

    @property
    def eval_batch(self) -> int: ...

    @property
    def data(self) -> Any:
        """What batches are cut from, for the devices; None where they are drawn or streamed."""

    @property
    def carried(self) -> bool:
        """Whether each batch goes on where the one before stopped."""

    @property
    def per_epoch(self) -> int | None:
        """Updates in one epoch; None where there are none."""

    @property
    def lengths(self) -> tuple[int | None, ...]:
        """Lengths tested, the first for the table."""

    @property
    def confirms(self) -> bool:
        """Whether a fresh set can be drawn to confirm that a seed has solved the task."""

    def chance(self, length: int | None = None, split: str = "test") -> float:
        """The score without looking at inputs, of what `parts(split, length)` gives."""
        ...

    def shapes(self) -> tuple[Any, ...]:
        """Every shape of training batches, hashable; each has a program."""

    def shape(self, step: int) -> Any:
        """That of one step."""

    def ids(self, seed: int, start: int, stop: int) -> Any:
        """What `draw` needs for steps start..stop-1, leaves [stop - start, accumulate, ...]."""

    def draw(self, shape: Any) -> Draw: ...

    def parts(self, split: str, length: int | None = None) -> Iterable[Part]:
        """The batches of one evaluation, every row once."""

    def eval_draw(self, shape: Any) -> Draw: ...

    def close(self) -> None:
        """Lets go of what reads ahead, if anything does; the source can be asked again."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Drawn:
    """Fresh rows for every batch, drawn on the device."""

    task: Any
    length: int
    batch: int
    eval_batch: int
    examples: dict[str, int]  # rows of "valid", "confirm" and "test"
    lengths: tuple[int, ...]

    confirms: ClassVar[bool] = True
    facts: ClassVar[Facts] = Facts()
    data: ClassVar[None] = None
    carried: ClassVar[bool] = False
    per_epoch: ClassVar[None] = None

    @property
    def spec(self) -> Spec:
        return self.task.spec

    def chance(self, length: int | None = None, split: str = "test") -> float:
        return self.task.chance(self.length if length is None else length)

    def shapes(self) -> tuple[None]:
        return (None,)

    def shape(self, step: int) -> None:
        return None

    def ids(self, seed: int, start: int, stop: int) -> None:
        return None

    def draw(self, shape: None) -> Draw:
        return lambda key, ids, data: self.task.sample(key, self.batch, self.length)

    def parts(self, split: str, length: int | None = None) -> tuple[Part]:
        task, drawn = self.task, self.length
        if length is not None:  # all rows of exactly this length
            drawn = length
            if getattr(task, "min_length", None) is not None:
                task = dataclasses.replace(task, min_length=None)
        return (Part((task, drawn), -(-self.examples[split] // self.eval_batch), None),)

    def eval_draw(self, shape: tuple[Any, int]) -> Draw:
        task, length = shape
        return lambda key, ids, data: task.sample(key, self.eval_batch, length)

    def close(self) -> None:
        pass


class DataSetSource:
    """What all data sets have in common."""

    confirms: ClassVar[bool] = False
    lengths: ClassVar[tuple[None]] = (None,)
    spec: Spec
    facts: Facts

    def chance(self, length: int | None = None, split: str = "test") -> float:
        assert self.facts.chance is not None
        return self.facts.chance[split]

    def close(self) -> None:
        pass


@dataclasses.dataclass(frozen=True, eq=False)
class Resident(DataSetSource):
    """All rows of a data set in memory, shuffled anew each epoch, in batches of like length."""

    spec: Spec
    data: Rows  # all splits, one behind the other
    splits: dict[str, dict[int, np.ndarray]]  # row ids by split and width
    epochs: Epochs
    facts: Facts
    batch: int
    eval_batch: int

    carried: ClassVar[bool] = False

    @property
    def per_epoch(self) -> int:
        return self.epochs.per_epoch

    def shapes(self) -> tuple[int, ...]:
        return tuple(self.epochs.buckets)

    def shape(self, step: int) -> int:
        return self.epochs.width(step)

    def ids(self, seed: int, start: int, stop: int) -> np.ndarray:
        ids = np.stack([self.epochs.ids(seed, step) for step in range(start, stop)])
        return ids.reshape(stop - start, -1, self.batch)

    def draw(self, shape: int) -> Draw:
        return lambda key, ids, data: take(data, ids, shape, self.spec.per_step)

    eval_draw = draw

    def parts(self, split: str, length: int | None = None) -> tuple[Part, ...]:
        return tuple(
            _padded(width, in_order(rows, self.eval_batch), self._most(width))
            for width, rows in self.splits[split].items()
        )

    def _most(self, width: int) -> int:
        """Batches of this width in the largest split: all splits share one program."""
        sizes = [len(split.get(width, ())) for split in self.splits.values()]
        return -(-max(sizes) // self.eval_batch)


def resident(
    spec: Spec,
    splits: dict[str, Rows],
    facts: Facts,
    *,
    batch: int,
    eval_batch: int,
    accumulate: int,
    widths: tuple[int, ...],
    shuffle: bool,
) -> Resident:
    """`widths` of the buckets; empty: one, as wide as the longest row of all splits.

    Raises ValueError for a row longer than the widest bucket.
    """
    data, first, _ = joined(splits, spec.per_step)
    widths = widths or (int(data.lengths.max()),)
    by_split = {}
    for name, rows in splits.items():
        ids = np.arange(len(rows.lengths), dtype=np.int32) + first[name]
        by_split[name] = by_length(ids, np.asarray(rows.lengths), widths)
    epochs = Epochs(by_split["train"], batch * accumulate, shuffle)
    return Resident(spec, data, by_split, epochs, facts, batch, eval_batch)


def joined(
    splits: dict[str, Rows], per_step: bool
) -> tuple[Rows, dict[str, int], dict[str, tuple[int, int]]]:
    """All splits in one `Rows`; the first row of each, and its (first step, number of steps)."""
    first, places, parts = {}, {}, []
    row = step = 0
    for name, rows in splits.items():
        first[name], places[name] = row, (step, len(rows.inputs))
        parts.append(rows._replace(starts=np.asarray(rows.starts) + np.int32(step)))
        row, step = row + len(rows.lengths), step + len(rows.inputs)
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts), first, places


def _padded(shape: Any, ids: np.ndarray, most: int) -> Part:
    padded = np.full((most, *ids.shape[1:]), NO_ROW, np.int32)
    padded[: len(ids)] = ids
    return Part(shape, len(ids), padded)


def example(source: Source) -> Batch:
    """One training batch, of which only shapes and dtypes are read."""
    ids = jax.tree.map(lambda leaf: leaf[0, 0], source.ids(0, 0, 1))
    draw = source.draw(source.shape(0))
    return jax.eval_shape(draw, jax.random.key(0), ids, source.data)


def zeros(batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Inputs and mask of a batch's shapes, for building a model."""
    return jnp.zeros(batch.inputs.shape, batch.inputs.dtype), jnp.ones(batch.mask.shape, bool)
