"""One training step, one evaluation step, and loops of either inside one compiled call.

Pure functions: no files, flags or clocks. Sums leave the device; averages are formed at the end,
by whoever adds up the last of them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from seqmodels.optim import global_norm
from seqmodels.training.state import DIVERGED, RUNNING, TrainState, stream
from seqmodels.types import Array, Batch, Key, Params

Term = Callable[[Array, Array, Array], tuple[Array, Array]]
Sums = dict[str, Array]
Draw = Callable[[Key, Any, Any], Batch]  # (key, row ids or None, data or None) -> batch


class Learner(NamedTuple):
    """The static half of training: what to minimise, and how. Hashable.

    loss, metric    (outputs, targets, weights) -> (sum, weight)
    weight_noise    standard deviation of Gaussian noise on every parameter, drawn anew for each
                    step's gradient (Graves 2011); 0 for none
    max_bad_steps   non-finite steps in a row after which a seed stops as DIVERGED
    """

    model: nn.Module
    optimizer: optax.GradientTransformation
    loss: Term
    metric: Term
    weight_noise: float = 0.0
    max_bad_steps: int = 1


def train_step(learner: Learner, state: TrainState, batch: Batch) -> tuple[TrainState, Sums]:
    """One update. Returns the new state and sums: loss, metric, weight, grad_norm, steps.

    A step whose loss or gradient is not finite changes no parameter, moment or carry and is
    counted; a batch without a scored term changes nothing either. What such a step saw is not in
    the sums.
    """

    def objective(params):
        outputs, carry = learner.model.apply(
            {"params": _add_noise(params, learner.weight_noise, state)},
            batch.inputs,
            state.carry,
            mask=batch.mask,
            reset=batch.reset,
            train=True,
            rngs={"dropout": stream(state.key, "dropout", state.step)},
        )
        total, weight = learner.loss(outputs, batch.targets, batch.weights)
        mean = total / jnp.where(weight > 0, weight, 1)
        return mean, (total, weight, outputs, carry)

    gradient, (total, weight, outputs, carry) = jax.grad(objective, has_aux=True)(state.params)
    norm = global_norm(gradient)
    updates, opt_state = learner.optimizer.update(gradient, state.opt_state, state.params)
    # Moments too: the square of a finite gradient may not be, and would freeze adam for good.
    finite = jnp.isfinite(norm) & jnp.isfinite(total) & _all_finite((updates, opt_state))
    new = (optax.apply_updates(state.params, updates), opt_state, jax.lax.stop_gradient(carry))

    old = (state.params, state.opt_state, state.carry)
    if state.carry is None:
        new = (*new[:2], None)
    apply = finite & (weight > 0)
    params, opt_state, carry = jax.tree.map(lambda a, b: jnp.where(apply, a, b), new, old)

    bad_steps = jnp.where(finite, 0, state.bad_steps + 1).astype(jnp.int32)
    state = state.replace(
        step=state.step + 1,
        params=params,
        opt_state=opt_state,
        carry=carry,
        bad_steps=bad_steps,
        status=jnp.where(bad_steps >= learner.max_bad_steps, DIVERGED, state.status),
    )
    metric, _ = learner.metric(outputs, batch.targets, batch.weights)
    sums = {"loss": total, "metric": metric, "weight": weight, "grad_norm": norm, "steps": 1.0}
    return state, jax.tree.map(lambda a: jnp.where(apply, a, jnp.zeros_like(a)), sums)


def eval_step(learner: Learner, params: Params, batch: Batch) -> Sums:
    """Sums of loss, metric and weight over one batch, without noise, from a fresh carry."""
    outputs, _ = learner.model.apply(
        {"params": params}, batch.inputs, mask=batch.mask, reset=batch.reset
    )
    loss, weight = learner.loss(outputs, batch.targets, batch.weights)
    metric, _ = learner.metric(outputs, batch.targets, batch.weights)
    return {"loss": loss, "metric": metric, "weight": weight}


def train_steps(
    learner: Learner, draw: Draw, state: TrainState, steps: jax.Array, ids: Any, data: Any
) -> tuple[TrainState, Sums]:
    """Up to `steps` updates in one call; a seed that is not RUNNING takes none.

    ids   row ids [K, B] with K >= steps for batches from `data`; None for drawn ones
    A while loop rather than a scan: its length is data, so a shorter last call compiles nothing,
    and a seed that stops costs nothing from that step on.
    """

    def step(state, i):
        rows = None if ids is None else ids[i]
        batch = draw(stream(state.key, "data", state.step), rows, data)
        return train_step(learner, state, batch)

    def body(loop):
        i, state, sums = loop
        state, new = step(state, i)
        return i + 1, state, jax.tree.map(jnp.add, sums, new)

    def running(loop):
        i, state, _ = loop
        return (i < steps) & (state.status == RUNNING)

    nothing = _zeros(lambda state: step(state, jnp.int32(0))[1], state)
    _, state, sums = jax.lax.while_loop(running, body, (jnp.int32(0), state, nothing))
    return state, sums


def eval_steps(
    learner: Learner, draw: Draw, params: Params, key: Key, batches: jax.Array, ids: Any, data: Any
) -> Sums:
    """Sums over `batches` batches in one call: drawn ones, or rows `ids` [N, B] of `data`."""

    def step(i):
        rows = None if ids is None else ids[i]
        return eval_step(learner, params, draw(jax.random.fold_in(key, i), rows, data))

    def body(i, sums):
        return jax.tree.map(jnp.add, sums, step(i))

    return jax.lax.fori_loop(0, batches, body, _zeros(step, jnp.int32(0)))


def _zeros(function, *args):
    return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(function, *args))


def _all_finite(tree):
    leaves = [a for a in jax.tree.leaves(tree) if jnp.issubdtype(a.dtype, jnp.floating)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(a)) for a in leaves]))


def _add_noise(params, stddev, state):
    if not stddev:
        return params
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(stream(state.key, "weight_noise", state.step), len(leaves))
    noisy = [
        leaf + stddev * jax.random.normal(key, leaf.shape, leaf.dtype)
        for leaf, key in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(tree, noisy)
