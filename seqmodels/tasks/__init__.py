"""Synthetic tasks: pure generators of batches, each with the score that needs no memory.

A task is a frozen dataclass in one file. To add one, write the file and its line in `TASKS`.
"""

from collections.abc import Callable
from typing import Protocol

from seqmodels.tasks.adding import Adding
from seqmodels.tasks.copy import Copy
from seqmodels.tasks.order import Order
from seqmodels.tasks.parity import Parity
from seqmodels.types import Batch, Key, Spec


class Task(Protocol):
    """What every task offers. `length` is the task's own measure of length, always static.

    Impossible lengths raise ValueError with one line: the field, the value, what is allowed.
    """

    @property
    def min_length(self) -> int | None:
        """None: one length for all rows. Else rows are uniform on min_length..length."""

    @property
    def spec(self) -> Spec:
        """What the task asks of a model."""

    def steps(self, length: int) -> int:
        """Size of the time axis of a batch."""

    def chance(self, length: int) -> float:
        """`spec.metric` of the best answer that knows the task but nothing of the row's symbols."""

    def sample(self, key: Key, batch: int, length: int) -> Batch:
        """`batch` fresh rows on the device: the same key gives the same rows, in or out of jit.

        Rows are padded on the right, with mask False and inputs 0 there. Floats are float32 and
        ids int32, also under 64-bit JAX. Works under `jit` (batch and length static) and `vmap`
        over keys.
        """


TASKS: dict[str, Callable[..., Task]] = {
    "adding": Adding,
    "order": Order,
    "copy": Copy,
    "parity": Parity,
}
