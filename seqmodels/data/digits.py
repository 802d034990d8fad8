"""Handwritten digits read pixel by pixel: scikit-learn's 8x8 images as sequences of 64 numbers.

1,797 images, 10 classes, split 1,200 / 200 / 397 by a fixed permutation.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from seqmodels.data.chance import majority_accuracy
from seqmodels.data.prepare import Feature, check_split, read, stored
from seqmodels.data.rows import Rows, pack
from seqmodels.types import Spec

EXAMPLES = 1797
# Positions in the permutation default_rng(0).permutation(EXAMPLES).
SPLIT_RANGES = {"train": (0, 1200), "valid": (1200, 1400), "test": (1400, EXAMPLES)}

FEATURES: dict[str, Feature] = {"pixels": ((64,), np.uint8), "label": np.uint8, "id": np.int64}


@dataclass(frozen=True)
class Digits:
    """One pixel a step in row-major order: T = 64, E = 1, values in [0, 1], one class a row."""

    spec: ClassVar[Spec] = Spec(
        inputs=1, tokens=False, outputs=10, per_step=False, loss="cross_entropy", metric="accuracy"
    )

    def load(self, split: str, data_dir: str | Path | None = None) -> Rows:
        """N rows of 64 steps: inputs float32 [64 N, 1], targets int32 [N].

        Raises ValueError for an unknown split, OSError if `data_dir` cannot be written.
        """
        examples = self._read(split, data_dir)
        pixels, starts, lengths = pack([example["pixels"] for example in examples])
        return Rows(
            inputs=pixels[:, None].astype(np.float32) / 16,  # stored as integers 0..16
            targets=np.array([example["label"] for example in examples], np.int32),
            starts=starts,
            lengths=lengths,
        )

    def ids(self, split: str, data_dir: str | Path | None = None) -> np.ndarray:
        """The index in scikit-learn's `load_digits` of each row, int64 [N]."""
        return np.array([example["id"] for example in self._read(split, data_dir)], np.int64)

    def chance(self, train: Rows, scored: Rows) -> float:
        """Accuracy of the best answer for all rows alike, in [0, 1]."""
        return majority_accuracy(scored)

    def _read(self, split: str, data_dir: str | Path | None) -> list[dict[str, Any]]:
        check_split(split)
        return read(stored("digits", "1.0.0", FEATURES, _splits, data_dir), split)


def _splits() -> dict[str, Iterator[dict[str, Any]]]:
    from sklearn.datasets import load_digits

    images = load_digits()
    order = np.random.default_rng(0).permutation(EXAMPLES)

    def examples(first: int, stop: int) -> Iterator[dict[str, Any]]:
        for index in order[first:stop]:
            pixels = images.data[index].astype(np.uint8)
            yield {"pixels": pixels, "label": images.target[index], "id": index}

    return {split: examples(*place) for split, place in SPLIT_RANGES.items()}
