"""Handwritten digits read pixel by pixel: scikit-learn's 8x8 images as sequences of 64 numbers.

1,797 images, 10 classes, split 1,200 / 200 / 397 by a fixed permutation.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from seqmodels.data.chance import majority_accuracy
from seqmodels.data.prepare import check_split, prepare, read
from seqmodels.data.rows import Rows, pack
from seqmodels.types import Spec

EXAMPLES = 1797
# Positions in the permutation default_rng(0).permutation(EXAMPLES).
SPLIT_RANGES = {"train": (0, 1200), "valid": (1200, 1400), "test": (1400, EXAMPLES)}


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
        builder = _builder_class()
        return read(
            prepare(lambda path: builder(data_dir=path, file_format="array_record"), data_dir),
            split,
        )


@functools.cache
def _builder_class() -> type:
    import tensorflow_datasets as tfds

    class DigitsBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
        name = "digits"
        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> tfds.core.DatasetInfo:
            return tfds.core.DatasetInfo(
                builder=self,
                features=tfds.features.FeaturesDict(
                    {
                        "pixels": tfds.features.Tensor(shape=(64,), dtype=np.uint8),
                        "label": tfds.features.Scalar(np.uint8),
                        "id": tfds.features.Scalar(np.int64),
                    }
                ),
                disable_shuffling=True,  # stored in the order of the keys
            )

        def _split_generators(self, dl_manager: Any) -> dict[str, Iterator]:
            return {split: self._generate_examples(split) for split in SPLIT_RANGES}

        def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
            from sklearn.datasets import load_digits

            images = load_digits()
            order = np.random.default_rng(0).permutation(EXAMPLES)
            for key, index in enumerate(order[slice(*SPLIT_RANGES[split])]):
                pixels = images.data[index].astype(np.uint8)
                yield key, {"pixels": pixels, "label": images.target[index], "id": index}

    return DigitsBuilder
