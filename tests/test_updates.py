"""Updates: what the gradients of several batches add up to, and what a run of bad ones does.

Most use a model whose gradients are known: the loss is the sum of x . kernel over the steps x, so
its gradient is the sum of the steps themselves.
"""

import collections
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from hypothesis import example, given
from hypothesis import strategies as st
from table import KEY, jit, module_params

from seqmodels import optim
from seqmodels.cells import LSTM
from seqmodels.data.epochs import Epochs
from seqmodels.data.rows import NO_ROW, Rows, pack, take
from seqmodels.layers import Stack
from seqmodels.losses import add_up
from seqmodels.models import SequenceLabeller
from seqmodels.training.selection import Selection
from seqmodels.training.state import DIVERGED, RUNNING, TrainState, init_state
from seqmodels.training.step import LENGTH_BINS, Learner, train_step, train_steps
from seqmodels.types import Batch

WIDTH, STEPS, ROWS, UPDATES, PARTS = 10, 60, 16, 4, 4  # room for every example: few programs
BAD = np.full((1, 2), np.nan)


class Linear(nn.Module):
    """x . kernel at every step."""

    @nn.compact
    def __call__(self, x, carry=None, *, mask=None, reset=None, train=False):
        kernel = self.param("kernel", nn.initializers.zeros, (x.shape[-1],))
        return (x @ kernel)[..., None], carry


def total(outputs, targets, weights):
    """The outputs themselves as losses."""
    return add_up(outputs[..., 0], weights)


def linear(optimizer, **settings):
    return Learner(Linear(), optimizer, total, total, **settings)


def start(learner, params=None, carry=None):
    """A state before the first update; without `params`, that of `Linear`."""
    params = {"kernel": jnp.zeros(2)} if params is None else params
    return TrainState(
        step=jnp.int32(0),
        params=params,
        opt_state=learner.optimizer.init(params),
        carry=carry,
        key=KEY,
        status=jnp.int32(RUNNING),
        bad_steps=jnp.int32(0),
        average=params if learner.average else None,
        best=None if learner.selection is None else learner.selection.start(params),
    )


def table_of(rows):
    """Arrays [length, 2] as `Rows`, filled up so that all tables have the same shapes."""
    data, starts, lengths = pack([np.zeros((0, 2)), *rows])
    more = (0, ROWS - len(rows))
    return Rows(
        np.pad(data, ((0, STEPS - len(data)), (0, 0))).astype(np.float32),
        np.zeros(STEPS, np.float32),
        np.pad(starts[1:], more),
        np.pad(lengths[1:], more),
    )


def one_feature(*rows):
    """Rows of numbers, as the first of two features."""
    return table_of([np.stack([row, np.zeros(len(row))], 1) for row in rows])


def draw(key, ids, data):
    return take(data, ids, WIDTH, True)


def filled(ids, shape=(UPDATES, PARTS, 1)):
    """Row ids, one batch each, followed by batches without a row."""
    every = np.full(shape, NO_ROW, np.int32)
    every.flat[: len(ids)] = ids
    return every


STEP = jit(train_step, static_argnums=0)
TRAIN = jit(train_steps, static_argnums=(0, 1))
SGD = linear(optim.make("sgd", 1.0), accumulate=PARTS)
CLIPPED = linear(optim.make("sgd", 1.0, clip=1.0), clip=1.0)
RATES = [1.0, 0.75, 0.5, 0.25]
FALLING = linear(
    optim.make("sgd", 1.0, schedule="linear", steps=4, clip=1.0), accumulate=PARTS, clip=1.0
)


def update(learner, data, ids, count=1, state=None):
    state = start(learner) if state is None else state
    return TRAIN(learner, draw, state, jnp.int32(count), filled(ids), data)


def kernel(state):
    return np.asarray(state.params["kernel"])


def equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(np.testing.assert_array_equal, a, b)


# Accumulation.


def test_D05_clipping_acts_once_after_accumulation():
    data = table_of([np.array([[2.0, 0.0]]), np.array([[0.0, 2.0]])])
    state, sums = update(FALLING, data, [0, 1])
    np.testing.assert_allclose(kernel(state), [-(0.5**0.5)] * 2, rtol=1e-6)  # not -0.5
    assert float(sums["grad_norm"]) == pytest.approx(2**0.5)
    assert (float(sums["clipped"]), float(sums["steps"])) == (1, 1)


def test_D06_leftover_batches_are_applied_with_their_own_weight():
    """10 batches in fours: the last update is the mean of two, in every epoch, however called."""
    data = one_feature(*([float(n)] for n in range(1, 11)))
    epochs = Epochs({WIDTH: np.arange(10)}, PARTS, shuffle=False)
    assert epochs.per_epoch == 3
    ids = np.stack([epochs.ids(0, step) for step in range(4)])[..., None]
    assert (ids[2, :, 0] == [8, 9, NO_ROW, NO_ROW]).all()
    state, sums = TRAIN(SGD, draw, start(SGD), jnp.int32(3), ids, data)
    np.testing.assert_allclose(kernel(state), [-(2.5 + 6.5 + 9.5), 0])
    assert (int(state.step), float(sums["weight"]), float(sums["steps"])) == (3, 10, 3)
    again, _ = TRAIN(SGD, draw, state, jnp.int32(1), ids[3:].repeat(UPDATES, 0), data)
    np.testing.assert_allclose(kernel(again), [-(18.5 + 2.5), 0])  # the next epoch is whole

    part, _ = TRAIN(SGD, draw, start(SGD), jnp.int32(2), ids, data)
    resumed, _ = TRAIN(SGD, draw, part, jnp.int32(1), ids[[2, 2, 2, 2]], data)
    equal(resumed.replace(key=None), state.replace(key=None))


def test_D07_schedule_counts_updates_that_were_applied():
    """Neither batches, nor updates without a term or with a number that is not finite."""
    patient = FALLING._replace(max_bad_steps=2)
    data = table_of([np.array([[1.0, 0.0]]), BAD])
    state, seen = start(patient), []
    for ids in ([0, 0, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0], [], [0, 0, 0, 0], [0, 0, 0, 0]):
        new, _ = update(patient, data, ids, state=state)
        seen.append(float(kernel(state)[0] - kernel(new)[0]))
        state = new
        if len(seen) == 2:  # 8 batches
            assert [int(n) for n in jax.tree.leaves(state.opt_state)] == [2]
    np.testing.assert_allclose(seen, [1, 0.75, 0, 0, 0.5, 0.25], rtol=1e-6)
    assert int(state.step) == 6


TOKENS = [1.0] * 9 + [5.0]


@pytest.mark.parametrize("cut", [9, 5, 10, 1])
def test_D08_F6_tokens_have_equal_weight_however_they_are_split(cut):
    data = one_feature(TOKENS[:cut], TOKENS[cut:])
    for ids in ([0, 1], [1, 0], [0, NO_ROW, 1], [NO_ROW, NO_ROW, 0, 1], [NO_ROW, 1, NO_ROW, 0]):
        state, sums = update(SGD, data, ids)
        np.testing.assert_allclose(kernel(state), [-1.4, 0], rtol=1e-6)  # not 3.0
        assert float(sums["weight"]) == 10


numbers = st.integers(-6, 6).map(lambda n: n / 2)
ragged = st.lists(st.lists(st.tuples(numbers, numbers), max_size=3), min_size=1, max_size=ROWS)


@given(rows=ragged)
def test_D05_D06_D07_D08_any_batches_give_the_mean_over_tokens_clipped_once(rows):
    rows = [np.array(row, np.float64).reshape(-1, 2) for row in rows]
    expected, norms = np.zeros(2), []
    for first in range(0, len(rows), PARTS):
        tokens = np.concatenate(rows[first : first + PARTS])
        if len(tokens):
            slope = tokens.mean(0)
            expected -= RATES[len(norms)] * slope / max(1, np.linalg.norm(slope))
            norms.append(np.linalg.norm(slope))
    updates = -(-len(rows) // PARTS)
    state, sums = update(FALLING, table_of(rows), range(len(rows)), updates)
    np.testing.assert_allclose(kernel(state), expected, atol=1e-5)
    assert float(sums["weight"]) == sum(map(len, rows))
    assert (int(state.step), float(sums["steps"])) == (updates, len(norms))
    assert float(sums["grad_norm"]) == pytest.approx(sum(norms), rel=1e-5)
    rounding = 1e-6  # where a norm is 1 to the last digit
    assert np.sum(np.array(norms) > 1 + rounding) <= float(sums["clipped"])
    assert float(sums["clipped"]) <= np.sum(np.array(norms) > 1 - rounding)


# Updates that are not finite.


@functools.cache
def momentum(allowed):
    optimizer = optim.make("sgd", 0.5, momentum=0.5)
    return linear(optimizer, average=0.75, max_bad_steps=allowed)


OUTCOMES = {"good": 0, "other": 1, "bad": 2, "empty": NO_ROW}
SLOPES = table_of([np.array([[1.0, -2.0]]), np.array([[0.5, 0.25], [3.5, 0.75]]), BAD])


def by_hand(outcomes, allowed, params):
    """(parameters, momentum, average, steps tried, bad ones in a row, whether it stopped)."""
    trace, average, bad, step = np.zeros(2), params, 0, 0
    for outcome in outcomes:
        step += 1
        bad = bad if outcome == "empty" else bad + 1 if outcome == "bad" else 0
        if outcome in ("good", "other"):
            trace = 0.5 * trace + {"good": [1, -2], "other": [2, 0.5]}[outcome]
            params = params - 0.5 * trace
            decay = min(0.75, (1 + step) / (10 + step))
            average = decay * average + (1 - decay) * params
        if bad == allowed:
            break
    return params, trace, average, step, bad, bad == allowed


def follow(learner, state, outcomes):
    ids = filled([OUTCOMES[o] for o in outcomes], (8, 1, 1))
    return TRAIN(learner, draw, state, jnp.int32(len(outcomes)), ids, SLOPES)


@given(
    outcomes=st.lists(st.sampled_from(["good", "other", "bad", "bad", "empty"]), max_size=8),
    cut=st.integers(0, 8),
)
@pytest.mark.parametrize("allowed", [1, 3])
def test_D03_bad_updates_in_a_row_stop_a_seed_at_its_last_good_parameters(allowed, outcomes, cut):
    """Also the moving average and the moments, and wherever a call ends in between."""
    learner = momentum(allowed)
    first = start(learner, {"kernel": jnp.array([0.5, 4.0])})
    state, sums = follow(learner, first, outcomes[:cut])
    state, more = follow(learner, state, outcomes[cut:])
    params, trace, average, step, bad, stopped = by_hand(outcomes, allowed, np.array([0.5, 4.0]))
    np.testing.assert_allclose(kernel(state), params, rtol=1e-6)
    np.testing.assert_allclose(state.average["kernel"], average, rtol=1e-6)
    assert state.tried is state.average
    moments = [leaf for leaf in jax.tree.leaves(state.opt_state) if leaf.ndim]
    np.testing.assert_allclose(moments, [trace], rtol=1e-6)
    assert int(state.status) == (DIVERGED if stopped else RUNNING)
    assert (int(state.step), int(state.bad_steps)) == (step, bad)
    applied = sum(o in ("good", "other") for o in outcomes[:step])
    assert float(sums["steps"] + more["steps"]) == applied


@pytest.mark.parametrize("at", range(PARTS))
def test_D03_one_bad_batch_skips_the_whole_update(at):
    learner = SGD._replace(max_bad_steps=2, average=0.5)
    data = table_of([np.array([[1.0, 2.0]]), BAD])
    before, _ = update(learner, data, [0, 0])
    ids = [0] * PARTS
    ids[at] = 1
    after, sums = update(learner, data, ids, state=before)
    expected = before.replace(step=before.step + 1, bad_steps=jnp.int32(1))
    equal(after.replace(key=None), expected.replace(key=None))
    assert not any(np.any(np.asarray(value)) for value in sums.values())


def test_N05_fresh_state_can_be_donated_with_its_average_and_its_best():
    learner = linear(optim.make("adam", 0.5), average=0.5, selection=Selection(True))
    batch = draw(KEY, np.array([0], np.int32), SLOPES)
    own = jax.random.clone(KEY)  # a donated state takes its key along
    state = init_state(learner, own, batch.inputs, batch.mask)
    kept = state.replace(key=None)
    step = jit(train_step, static_argnums=0, donate_argnums=1)
    for _ in range(2):
        state, _ = step(learner, state, batch)
    assert kept.params["kernel"].is_deleted()
    assert kernel(state).tolist() != state.best.params["kernel"].tolist() == [0, 0]


# What is recorded.


@given(
    lengths=st.lists(st.integers(0, 40), min_size=4, max_size=4),
    holes=st.lists(st.integers(0, 39), max_size=6),
)
@example(lengths=[1, 2, 3, 4], holes=[])
@example(lengths=[7, 8, 15, 16], holes=[])
@example(lengths=[31, 32, 33, 0], holes=[])
def test_real_steps_padding_and_lengths_are_counted(lengths, holes):
    """Rows by their real steps in bins from a power of two up to, not including, the next."""
    mask = np.arange(40) < np.array(lengths)[:, None]
    mask[:, holes] = False
    weights = np.ones(4, np.float32)
    batch = Batch(np.zeros((4, 40, 2), np.float32), weights, mask, mask.astype(np.float32))
    _, sums = STEP(CLIPPED, start(CLIPPED), batch)
    bins = collections.Counter(int(n).bit_length() - 1 for n in mask.sum(1) if n)
    scored = bool(mask.any())
    assert sums["lengths"].shape == (LENGTH_BINS,)
    assert {i: int(n) for i, n in enumerate(sums["lengths"]) if n} == dict(bins)
    slots = 40 * mask.any(axis=1).sum()
    assert (float(sums["real"]), float(sums["slots"])) == (mask.sum(), slots)
    assert (float(sums["batches"]), float(sums["steps"])) == (scored, scored)


def test_sums_add_up_over_batches_and_updates():
    data = one_feature([1.0], [0.5, 0.5], [3.0] * 5)
    _, sums = update(SGD, data, [0, 1, 2, NO_ROW, 1, 1], count=2)
    assert (float(sums["batches"]), float(sums["steps"])) == (5, 2)  # the other three are fillers
    assert (float(sums["real"]), float(sums["slots"])) == (12, 5 * WIDTH)
    assert sums["lengths"][:4].tolist() == [1, 3, 1, 0]
    assert float(sums["grad_norm"]) == pytest.approx(17 / 8 + 0.5)


def test_clip_rate_counts_gradients_above_the_limit():
    state, clipped = start(CLIPPED), []
    for slope in (0.5, 1.0, 1.5, 30.0):
        state, sums = STEP(CLIPPED, state, draw(KEY, np.zeros(1, np.int32), one_feature([slope])))
        clipped.append(float(sums["clipped"]))
    assert clipped == [0, 0, 1, 1]


@pytest.mark.parametrize("fillers", [0, 2])
def test_norms_of_the_final_carry(fillers):
    """Root mean square over rows and units, averaged over layers; not of rows that fill up."""
    model = SequenceLabeller(Stack((LSTM(2), LSTM(3))), 1)
    learner = Learner(model, optim.make("sgd", 0.0), total, total)
    rng, mask = np.random.default_rng(0), np.arange(4) < np.array([[4], [1], [3]])
    x, weights = rng.normal(size=(3, 4, 2)).astype(np.float32), mask.astype(np.float32)
    params = module_params(model, x, scale=0.9)["params"]
    batch = Batch(x, weights, mask, weights)
    filled = jax.tree.map(lambda a: np.pad(a, [(0, fillers)] + [(0, 0)] * (a.ndim - 1)), batch)
    _, sums = STEP(learner, start(learner, params), filled)
    expected, y = {"h": [], "c": []}, x
    for i, width in enumerate((2, 3)):
        carry = {name: np.zeros((3, width)) for name in "hc"}
        layer = params["stack"][f"layer_{i}"]
        y, final = reference.run(reference.lstm(), layer, y, carry, mask=mask)
        for name in "hc":
            expected[name].append(np.sqrt(np.mean(final[name] ** 2)))
    for name, norms in expected.items():
        assert float(sums[f"{name}_norm"]) == pytest.approx(np.mean(norms), rel=1e-5)
