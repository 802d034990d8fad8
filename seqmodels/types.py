"""Names that the whole project shares: the dimension key, the batch, what a task asks of a model.

Dimension key. Public functions annotate their arrays with these letters, and a local may carry
them as a suffix (`x_BTE`):

    B batch · T time · E input features · H hidden · G stacked gates · L layers
    V vocabulary or classes · O regression outputs · S seeds

Batch first at every public edge; time first only inside `recurrence/`.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

Array = jax.Array | np.ndarray
Key = jax.Array
Params = dict[str, Any]
Carry = Any  # a NamedTuple of floating arrays [B, ...]

PAD, UNKNOWN, BORDER = 0, 1, 2
"""Ids that mean the same in every vocabulary: padding; a symbol that training did not have; before
and after a document, its start and its end at once."""
RESERVED = 3
"""The id of a vocabulary's first symbol."""


class Batch(NamedTuple):
    """Rows of one batch, or all N rows of a data set that fits in memory.

    `mask` is True at real steps. `weights` has one number for each loss term: [B] where a
    sequence has one target, [B, T] where every step has one; 0 takes the term out of every loss
    and metric. `reset` is True where a new sequence starts inside a row; None means nowhere.
    """

    inputs: Float[Array, "B T E"] | Int[Array, "B T"]
    targets: Shaped[Array, "B *rest"]
    mask: Bool[Array, "B T"]
    weights: Float[Array, "B *steps"]
    reset: Bool[Array, "B T"] | None = None


class Spec(NamedTuple):
    """What a task or a data set asks of a model.

    inputs    features E of one step, or the number of token ids if `tokens`
    tokens    True: inputs are ids [B, T] and id 0 is padding; False: numbers [B, T, E]
    outputs   classes V, or regression outputs O
    per_step  True: one target for each step; False: one for each sequence
    loss      name in `losses.LOSSES`
    metric    name in `metrics.METRICS`
    """

    inputs: int
    tokens: bool
    outputs: int
    per_step: bool
    loss: str
    metric: str


class Noise(NamedTuple):
    """Random masks of a cell, drawn before the time loop.

    `sequence` holds leaves [B, ...] that stay the same at every step, `step` holds leaves
    [T, B, ...] of which a step sees its own slice. Either may be None.
    """

    sequence: Any = None
    step: Any = None


def cast_like(tree: Any, like: Any) -> Any:
    """Each leaf of `tree` in the dtype of the same leaf of `like`."""
    return jax.tree.map(lambda leaf, old: leaf.astype(old.dtype), tree, like)
