"""What training carries from step to step, and where its random numbers come from."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from seqmodels.types import Key

RUNNING, SOLVED, DIVERGED, UNUSED = range(4)
"""Values of `status`. An UNUSED seed only fills a device's share and never runs."""

STREAMS = ("params", "data", "dropout", "weight_noise", "valid", "confirm", "test")


class TrainState(flax.struct.PyTreeNode):
    """One seed's training state.

    step       updates tried so far, int32
    carry      recurrent carry between chunks of a stream; None where batches are unrelated
    key        root key of the seed; never used up, only folded (`stream`)
    status     RUNNING, SOLVED, DIVERGED or UNUSED, int32
    bad_steps  non-finite steps in a row, int32
    """

    # Any, not jax.Array: tracing puts shapes and shardings in the place of arrays.
    step: Any
    params: Any
    opt_state: Any
    carry: Any
    key: Any
    status: Any
    bad_steps: Any


def stream(key: Key, name: str, step: Any) -> Key:
    """The key of one named stream at one step: fold_in(fold_in(root, stream), step).

    It depends on the step alone, so a resumed run draws what an uninterrupted one would have.
    """
    return jax.random.fold_in(jax.random.fold_in(key, STREAMS.index(name)), step)


def init_state(learner: Any, key: Key, inputs: jax.Array, mask: jax.Array) -> TrainState:
    """A fresh state; `inputs` and `mask` are one batch, of which only the shapes matter."""
    params = learner.model.init(stream(key, "params", 0), inputs, mask=mask)["params"]
    return TrainState(
        step=jnp.int32(0),
        params=params,
        opt_state=learner.optimizer.init(params),
        carry=None,
        key=key,
        status=jnp.int32(RUNNING),
        bad_steps=jnp.int32(0),
    )
