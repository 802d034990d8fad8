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
from seqmodels.training.selection import Selection
from seqmodels.training.state import DIVERGED, RUNNING, TrainState, stream
from seqmodels.types import Array, Batch, Carry, Key, Params

Term = Callable[[Array, Array, Array], tuple[Array, Array]]
Sums = dict[str, Array]
Draw = Callable[[Key, Any, Any], Batch]  # (key, row ids or None, data or None) -> batch

LENGTH_BINS = 20
"""Rows are counted by length in bins 1, 2-3, 4-7, ...: bin i holds 2^i to 2^(i+1) - 1 steps."""


class Learner(NamedTuple):
    """The static half of training: what to minimise, and how. Hashable.

    loss, metric    (outputs, targets, weights) -> (sum, weight)
    weight_noise    standard deviation of Gaussian noise on every parameter, drawn anew for each
                    step's gradient (Graves 2011); 0 for none
    max_bad_steps   non-finite steps in a row after which a seed stops as DIVERGED
    accumulate      batches whose gradients add up to one update
    clip            the limit that `optimizer` clips at, for counting how often it does
    average         decay of the moving average of the parameters that is evaluated, after n
                    updates at most (1 + n) / (10 + n); 0 for none
    selection       what to do with validation scores; None: nothing
    """

    model: nn.Module
    optimizer: optax.GradientTransformation
    loss: Term
    metric: Term
    weight_noise: float = 0.0
    max_bad_steps: int = 1
    accumulate: int = 1
    clip: float | None = None
    average: float = 0.0
    selection: Selection | None = None


def train_step(learner: Learner, state: TrainState, batch: Batch) -> tuple[TrainState, Sums]:
    """One update from one batch. Returns the new state and sums.

    A step whose loss, gradient or carry to the next is not finite changes no parameter, moment or
    carry and is counted; a batch without a scored term moves the carry on and changes nothing else.
    What such a step saw is not in the sums: loss, metric and weight; steps, grad_norm and clipped
    (updates whose gradient was clipped); and, of rows with a real step, which leaves out those that
    fill a batch up: batches, real (steps under the mask), slots (all steps), rows by length
    (`lengths`) and the root mean square of each field of the final carry (`h_norm`, `c_norm`).
    """
    return update(learner, state, *gradient(learner, state, noisy(learner, state), batch))


def gradient(
    learner: Learner, state: TrainState, params: Params, batch: Batch, part: Any = 0
) -> tuple[Params, Carry, Sums]:
    """Gradient of the summed loss, the carry, and sums: additive over the parts of an update."""

    def objective(params):
        outputs, carry = learner.model.apply(
            {"params": params},
            batch.inputs,
            state.carry,
            mask=batch.mask,
            reset=batch.reset,
            train=True,
            rngs={"dropout": stream(state.key, "dropout", state.step * learner.accumulate + part)},
        )
        total, weight = learner.loss(outputs, batch.targets, batch.weights)
        return total, (weight, outputs, carry)

    (total, (weight, outputs, carry)), slope = jax.value_and_grad(objective, has_aux=True)(params)
    metric, _ = learner.metric(outputs, batch.targets, batch.weights)
    sums = {"loss": total, "metric": metric, "weight": weight, **_seen(batch)}
    sums |= _norms(carry, jnp.any(batch.mask, axis=1))
    kept = None if state.carry is None else jax.lax.stop_gradient(carry)
    return slope, kept, sums


def update(
    learner: Learner, state: TrainState, slope: Params, carry: Carry, sums: Sums
) -> tuple[TrainState, Sums]:
    """One update from the added gradients of all its parts: averaged, clipped and applied once."""
    weight = sums["weight"]
    share = 1 / jnp.where(weight > 0, weight, 1)
    slope = jax.tree.map(lambda leaf: leaf * share.astype(leaf.dtype), slope)
    norm = global_norm(slope)
    updates, opt_state = learner.optimizer.update(slope, state.opt_state, state.params)
    if state.best is not None:
        updates = jax.tree.map(lambda leaf: leaf * state.best.rate.astype(leaf.dtype), updates)
    # Moments too: the square of a finite gradient may not be, and would freeze adam for good.
    # The carry too: unscored steps at the end of a chunk may overflow where no loss sees it.
    kept = (updates, opt_state, carry)
    finite = jnp.isfinite(norm) & jnp.isfinite(sums["loss"]) & _all_finite(kept)
    params = optax.apply_updates(state.params, updates)
    average = state.average
    if average is not None:
        # A short memory at first, or the start would be in the average for 1 / (1 - decay) updates.
        count = (state.step + 1).astype(jnp.float32)
        decay = jnp.minimum(learner.average, (1 + count) / (10 + count))
        average = optax.incremental_update(params, average, 1 - decay)

    apply = finite & (weight > 0)
    new, old = (params, opt_state, average), (state.params, state.opt_state, state.average)
    params, opt_state, average = jax.tree.map(lambda a, b: jnp.where(apply, a, b), new, old)
    # Unscored steps are steps: what follows them in a stream goes on from the memory they leave.
    carry = jax.tree.map(lambda a, b: jnp.where(finite, a, b), carry, state.carry)
    good = jnp.where(apply, 0, state.bad_steps)  # nothing scored: neither good nor bad
    bad_steps = jnp.where(finite, good, state.bad_steps + 1).astype(jnp.int32)
    state = state.replace(
        step=state.step + 1,
        params=params,
        opt_state=opt_state,
        carry=carry,
        average=average,
        bad_steps=bad_steps,
        status=jnp.where(bad_steps >= learner.max_bad_steps, DIVERGED, state.status),
    )
    clipped = jnp.float32(0) if learner.clip is None else (norm > learner.clip).astype(jnp.float32)
    sums = {**sums, "grad_norm": norm, "clipped": clipped, "steps": jnp.float32(1)}
    return state, jax.tree.map(lambda a: jnp.where(apply, a, jnp.zeros_like(a)), sums)


def eval_step(
    learner: Learner, params: Params, batch: Batch, carry: Carry = None
) -> tuple[Sums, Carry]:
    """Sums of loss, metric and weight over one batch, without noise, and the final carry."""
    outputs, carry = learner.model.apply(
        {"params": params}, batch.inputs, carry, mask=batch.mask, reset=batch.reset
    )
    loss, weight = learner.loss(outputs, batch.targets, batch.weights)
    metric, _ = learner.metric(outputs, batch.targets, batch.weights)
    return {"loss": loss, "metric": metric, "weight": weight}, carry


def train_steps(
    learner: Learner, draw: Draw, state: TrainState, steps: jax.Array, ids: Any, data: Any
) -> tuple[TrainState, Sums]:
    """Up to `steps` updates in one call; a seed that is not RUNNING takes none.

    ids   what `draw` needs for each batch, leaves [K, accumulate, ...] with K >= steps; None where
          batches are drawn from the key alone
    A while loop rather than a scan: its length is data, so a shorter last call compiles nothing,
    and a seed that stops costs nothing from that step on.
    """

    def batch(state, i, part):
        of_batch = None if ids is None else jax.tree.map(lambda leaf: leaf[i, part], ids)
        number = state.step * learner.accumulate + part
        return draw(stream(state.key, "data", number), of_batch, data)

    def step(state, i):
        params = noisy(learner, state)

        def of_part(part, carry):
            of_batch = batch(state, i, part)
            return gradient(learner, state.replace(carry=carry), params, of_batch, part)

        if learner.accumulate == 1:
            return update(learner, state, *of_part(0, state.carry))

        def add(part, total):
            slope, carry, sums = of_part(part, total[1])
            slope, sums = jax.tree.map(jnp.add, (total[0], total[2]), (slope, sums))
            return slope, carry, sums

        slope, _, sums = _zeros(lambda: of_part(0, state.carry))
        total = jax.lax.fori_loop(0, learner.accumulate, add, (slope, state.carry, sums))
        return update(learner, state, *total)

    def body(loop):
        i, state, sums = loop
        state, new = step(state, i)
        return i + 1, state, jax.tree.map(jnp.add, sums, new)

    def running(loop):
        i, state, _ = loop
        return (i < steps) & (state.status == RUNNING)

    nothing = _zeros(lambda: step(state, jnp.int32(0))[1])
    _, state, sums = jax.lax.while_loop(running, body, (jnp.int32(0), state, nothing))
    return state, sums


def eval_steps(
    learner: Learner,
    draw: Draw,
    params: Params,
    key: Key,
    batches: jax.Array,
    ids: Any,
    data: Any,
    carry: Carry = None,
) -> tuple[Sums, Carry]:
    """Sums over `batches` batches in one call: drawn ones, or `ids` [N, ...] of `data`.

    carry: where it is given each batch goes on where the one before stopped, the first one from
    `carry`, and what the last one left is returned.
    """

    def batch(i):
        return draw(jax.random.fold_in(key, i), jax.tree.map(lambda leaf: leaf[i], ids), data)

    def body(i, loop):
        sums, carry = loop
        new, final = eval_step(learner, params, batch(i), carry)
        return jax.tree.map(jnp.add, sums, new), None if carry is None else final

    nothing = _zeros(lambda: eval_step(learner, params, batch(jnp.int32(0)))[0])
    return jax.lax.fori_loop(0, batches, body, (nothing, carry))


def noisy(learner: Learner, state: TrainState) -> Params:
    """The parameters with this step's weight noise."""
    if not learner.weight_noise:
        return state.params
    leaves, tree = jax.tree.flatten(state.params)
    keys = jax.random.split(stream(state.key, "weight_noise", state.step), len(leaves))
    added = [
        leaf + learner.weight_noise * jax.random.normal(key, leaf.shape, leaf.dtype)
        for leaf, key in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(tree, added)


def _seen(batch: Batch) -> Sums:
    lengths = jnp.sum(batch.mask, axis=1, dtype=jnp.int32)[:, None]
    edges = 2 ** jnp.arange(LENGTH_BINS, dtype=jnp.int32)[None, :]
    inside = (lengths >= edges) & (lengths < 2 * edges)
    return {
        "batches": jnp.any(batch.mask).astype(jnp.float32),
        "real": jnp.sum(lengths).astype(jnp.float32),
        "slots": batch.mask.shape[1] * jnp.sum(lengths > 0).astype(jnp.float32),
        "lengths": jnp.sum(inside, axis=0, dtype=jnp.int32).astype(jnp.float32),
    }


def _norms(carry: Carry, rows: Array) -> Sums:
    """Root mean square over `rows` [B] and units of each field of the carry, averaged over layers;
    0 where there is no such row."""
    count = jnp.sum(rows, dtype=jnp.int32).astype(jnp.float32)
    fields: dict[str, list[Array]] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(carry):
        field = jax.tree_util.keystr(path[-1:], simple=True)
        wide = jax.lax.stop_gradient(leaf).astype(jnp.float32)
        units = jnp.mean(jnp.square(wide), axis=range(1, wide.ndim))
        square = jnp.sum(jnp.where(rows, units, 0)) / jnp.maximum(count, 1)
        fields.setdefault(f"{field}_norm", []).append(jnp.sqrt(square))
    return {name: jnp.mean(jnp.stack(norms)) for name, norms in fields.items()}


def _zeros(function):
    return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(function))


def _all_finite(tree):
    leaves = [a for a in jax.tree.leaves(tree) if jnp.issubdtype(a.dtype, jnp.floating)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(a)) for a in leaves]))
