"""Data sets, and `DATASETS`, the one table of them.

A data set is one file with a frozen dataclass of its settings, and a line in the table. TFDS
prepares it at the first load, below $SEQMODELS_DATA_DIR (see `prepare`), without TensorFlow.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from seqmodels.data.digits import Digits
from seqmodels.data.japanese_vowels import JapaneseVowels
from seqmodels.data.mnist_10k import Mnist10k
from seqmodels.data.movie_reviews import MovieReviews
from seqmodels.data.music import Music
from seqmodels.data.public import Public
from seqmodels.data.pydoc_topics import PydocTopics
from seqmodels.data.python_tokens import PythonTokens
from seqmodels.data.rows import Rows
from seqmodels.data.temperatures import Temperatures
from seqmodels.data.text_files import TextFiles
from seqmodels.types import Spec


class DataSet(Protocol):
    """What every data set offers; `split` is "train", "valid" or "test".

    Sets of text also have `tokenizer(data_dir)`; where answers without training score more than
    chance, `baselines(train, scored)` has them by name. One that is too large for memory has `size`
    and `chunk` in the place of `load` and `ids`, and its own `chance()` (`text_files`).
    """

    @property
    def spec(self) -> Spec: ...

    def load(self, split: str, data_dir: str | Path | None = None) -> Rows:
        """All rows as NumPy arrays, in the same order at each call."""

    def ids(self, split: str, data_dir: str | Path | None = None) -> np.ndarray:
        """Where each row comes from: to trace errors, and to see that splits are disjoint."""

    def chance(self, train: Rows, scored: Rows) -> float:
        """The score on loaded rows of a model that ignores its inputs; `train` is all it learns."""


DATASETS: dict[str, Callable[..., Any]] = {
    "digits": Digits,
    "japanese_vowels": JapaneseVowels,
    "mnist_10k": Mnist10k,
    "movie_reviews": MovieReviews,
    "music": Music,
    "public": Public,
    "pydoc_topics": PydocTopics,
    "python_tokens": PythonTokens,
    "temperatures": Temperatures,
    "text_files": TextFiles,
}
