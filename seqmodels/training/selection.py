"""What validation decides: which parameters were best, when to lower the rate, when to stop."""

from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from seqmodels.training.state import RUNNING, STOPPED, TrainState
from seqmodels.types import Params


class Best(flax.struct.PyTreeNode):
    """params   with the best validation score so far
    score    float32; NaN before the first
    waited   validations since then, int32
    drops    how often the rate was lowered, int32
    rate     factor on the learning rate, float32
    """

    params: Any
    score: Any
    waited: Any
    drops: Any
    rate: Any


class Selection(NamedTuple):
    """Keep the best parameters; after `patience` validations without a better score go back to
    them with the rate times `factor`, `drops` times, and then stop. Hashable.

    higher    whether a higher score is better
    patience  None: never
    """

    higher: bool
    patience: int | None = None
    drops: int = 0
    factor: float = 1.0

    def start(self, params: Params) -> Best:
        return Best(
            params=jax.tree.map(jnp.copy, params),
            score=jnp.float32(jnp.nan),
            waited=jnp.int32(0),
            drops=jnp.int32(0),
            rate=jnp.float32(1),
        )


def judge(selection: Selection, state: TrainState, score: jax.Array) -> TrainState:
    """The state after a validation score; only a RUNNING seed is judged. NaN is never better."""
    best = state.best
    first = jnp.isnan(best.score) & ~jnp.isnan(score)
    better = first | ((score > best.score) if selection.higher else (score < best.score))
    waited = jnp.where(better, 0, best.waited + 1)
    out = jnp.bool_(False) if selection.patience is None else waited >= selection.patience
    drop = out & (best.drops < selection.drops)

    def select(flag, new, old):
        return jax.tree.map(lambda a, b: jnp.where(flag, a, b), new, old)

    kept = select(better, state.tried, best.params)
    judged = state.replace(
        params=select(drop, kept, state.params),
        average=None if state.average is None else select(drop, kept, state.average),
        status=jnp.where(out & ~drop, STOPPED, state.status).astype(jnp.int32),
        best=Best(
            params=kept,
            score=jnp.where(better, score, best.score),
            waited=jnp.where(drop, 0, waited).astype(jnp.int32),
            drops=best.drops + drop.astype(jnp.int32),
            rate=jnp.where(drop, best.rate * jnp.float32(selection.factor), best.rate),
        ),
    )
    running = state.status == RUNNING
    new = judged.replace(key=None)
    old = state.replace(key=None)
    return select(running, new, old).replace(key=state.key)
