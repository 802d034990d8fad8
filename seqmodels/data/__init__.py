"""Data sets at hand: no download, no TensorFlow. `DATASETS` is the one table of them.

A data set is one file with a frozen dataclass of its settings, and a line in the table. TFDS
prepares it at the first load, below $SEQMODELS_DATA_DIR (see `prepare`).
"""

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np

from seqmodels.data.digits import Digits
from seqmodels.data.python_tokens import PythonTokens
from seqmodels.types import Batch, Spec


class DataSet(Protocol):
    """What every data set offers; `split` is "train", "valid" or "test"."""

    spec: ClassVar[Spec]

    def load(self, split: str, data_dir: str | Path | None = None) -> Batch:
        """All rows as NumPy arrays, in the same order at each call."""

    def ids(self, split: str, data_dir: str | Path | None = None) -> np.ndarray:
        """Where each row comes from: to trace errors, and to see that splits are disjoint."""

    def chance(self, data_dir: str | Path | None = None) -> float:
        """The test score of a model that ignores its inputs."""


DATASETS: dict[str, Callable[..., DataSet]] = {"digits": Digits, "python_tokens": PythonTokens}
