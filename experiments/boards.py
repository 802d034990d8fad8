"""TensorBoard event files, one folder a seed: the numbers of results.jsonl as curves."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Boards:
    """Written by tensorboardX, which needs no TensorFlow.

    rows: reads all rows of results.jsonl.
    """

    def __init__(self, directory: Path, rows: Callable[[], list[dict[str, Any]]]):
        self._directory, self._rows = directory, rows
        self._writers: dict[int, Any] = {}

    def write(self, kind: str, seed: int, fields: dict[str, Any]) -> None:
        """Every number of a row with a step, as `kind`/field; of a test, with its length.

        The row is already in results.jsonl. At the first one of a seed that has a folder, what is
        there is of an attempt that was interrupted: it may have rows that the run went back
        behind, and lack some that a kill kept from the disk. So all of it is written again.
        """
        if seed in self._writers:
            self._add(kind, seed, fields)
            return
        folder = self._directory / f"seed_{seed}"
        old = list(folder.glob("events.*"))
        self._open(seed, folder)
        if not old:
            self._add(kind, seed, fields)
            return
        for row in self._rows():
            if row["seed"] == seed:
                self._add(row["kind"], seed, row)
        for path in old:
            path.unlink()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def _open(self, seed: int, folder: Path) -> None:
        from tensorboardX import SummaryWriter

        self._writers[seed] = SummaryWriter(
            str(folder),
            purge_step=0,  # a TensorBoard that is open forgets what it read of the old file
            flush_secs=10,
            filename_suffix=f".{time.time_ns()}",  # beside an old file of this second
        )

    def _add(self, kind: str, seed: int, fields: dict[str, Any]) -> None:
        length = fields.get("length")
        prefix = kind if length is None else f"{kind}_{length}"
        for name, value in fields.items():
            if isinstance(value, float) and math.isfinite(value) and name != "seconds":
                self._writers[seed].add_scalar(f"{prefix}/{name}", value, fields["step"])
