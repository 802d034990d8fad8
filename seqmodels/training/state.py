"""What training carries from step to step, and where its random numbers come from."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from seqmodels.types import Key

RUNNING, SOLVED, DIVERGED, UNUSED, STOPPED = range(5)
"""Values of `status`. An UNUSED seed only fills a device's share and never runs; a STOPPED one
has no longer improved."""

STREAMS = ("params", "data", "dropout", "weight_noise", "valid", "confirm", "test")


class TrainState(flax.struct.PyTreeNode):
    """One seed's training state.

    step       updates tried so far, int32
    carry      recurrent carry between chunks of a stream; None where batches are unrelated
    key        root key of the seed; never used up, only folded (`stream`)
    status     RUNNING, SOLVED, DIVERGED, UNUSED or STOPPED, int32
    bad_steps  non-finite steps in a row, int32
    average    exponential moving average of the parameters; None without one
    best       what validation liked best (`selection.Best`); None where it is not kept
    """

    # Any, not jax.Array: tracing puts shapes and shardings in the place of arrays.
    step: Any
    params: Any
    opt_state: Any
    carry: Any
    key: Any
    status: Any
    bad_steps: Any
    average: Any = None
    best: Any = None

    @property
    def tried(self) -> Any:
        """The parameters that are evaluated: the average where there is one."""
        return self.params if self.average is None else self.average


def stream(key: Key, name: str, step: Any) -> Key:
    """The key of one named stream at one step: fold_in(fold_in(root, stream), step).

    It depends on the step alone, so a resumed run draws what an uninterrupted one would have.
    """
    return jax.random.fold_in(jax.random.fold_in(key, STREAMS.index(name)), step)


def init_state(
    learner: Any, key: Key, inputs: jax.Array, mask: jax.Array, carried: bool = False
) -> TrainState:
    """A fresh state; `inputs` and `mask` are one batch, of which only the shapes matter.

    carried: keep a carry between batches. It starts as zeros, which nothing reads: the first
    chunk of a stream is reset.
    """
    params = learner.model.init(stream(key, "params", 0), inputs, mask=mask)["params"]
    return TrainState(
        step=jnp.int32(0),
        params=params,
        opt_state=learner.optimizer.init(params),
        carry=empty_carry(learner.model, params, inputs) if carried else None,
        key=key,
        status=jnp.int32(RUNNING),
        bad_steps=jnp.int32(0),
        average=jax.tree.map(jnp.copy, params) if learner.average else None,
        best=None if learner.selection is None else learner.selection.start(params),
    )


def empty_carry(model: Any, params: Any, inputs: Any) -> Any:
    """Zeros in the shape of the model's carry for such inputs."""
    shapes = jax.eval_shape(lambda p, x: model.apply({"params": p}, x)[1], params, inputs)
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
