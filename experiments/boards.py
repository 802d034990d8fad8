"""TensorBoard event files, one folder a seed: the numbers of results.jsonl as curves."""

from pathlib import Path
from typing import Any


class Boards:
    """Written by tensorboardX, which needs no TensorFlow."""

    def __init__(self, directory: Path):
        self._directory = directory
        self._writers: dict[int, Any] = {}

    def write(self, kind: str, seed: int, fields: dict[str, Any]) -> None:
        """Every number of a row with a step, as `kind`/field; of a test, with its length."""
        from tensorboardX import SummaryWriter

        step = fields["step"]
        if seed not in self._writers:
            # What an attempt that did not go on wrote from this step on is hidden.
            self._writers[seed] = SummaryWriter(
                str(self._directory / f"seed_{seed}"), purge_step=step, flush_secs=10
            )
        length = fields.get("length")
        prefix = kind if length is None else f"{kind}_{length}"
        for name, value in fields.items():
            if isinstance(value, float) and name != "seconds":
                self._writers[seed].add_scalar(f"{prefix}/{name}", value, step)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
