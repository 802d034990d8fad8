"""Scores: how those of many batches add up, and what validation makes of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from table import KEY, jit
from test_truncated import (
    F1,
    LENGTH,
    MOVING,
    PARAMS,
    chunk_ids,
    cut_chunk,
    f1_state,
    follow,
    stream_of,
    streaming,
    walk,
)
from test_truncated import ROWS as BESIDE
from test_updates import (
    NO_ROW,
    ROWS,
    STEPS,
    TRAIN,
    WIDTH,
    Linear,
    draw,
    equal,
    filled,
    kernel,
    linear,
    one_feature,
    start,
)

from seqmodels import optim
from seqmodels.data.rows import Rows, as_stream, chunk, chunks
from seqmodels.losses import add_up
from seqmodels.metrics import mean, perplexity
from seqmodels.training import seeds as parallel
from seqmodels.training.selection import Selection, judge
from seqmodels.training.state import DIVERGED, RUNNING, SOLVED, STOPPED, UNUSED
from seqmodels.training.step import Learner, eval_steps

EVALUATE = jit(eval_steps, static_argnums=(0, 1))
JUDGE = jit(judge, static_argnums=0)

# Sums over batches.


def given_losses(outputs, targets, weights):
    """The targets themselves as losses, whatever the model says."""
    return add_up(targets, weights)


GIVEN = Learner(Linear(), optim.make("sgd", 0.0), given_losses, given_losses)


def scored(losses, lengths, batches):
    """(sum, weight) of these losses in rows of these lengths, in batches of up to 4 rows."""
    assert sum(lengths) == len(losses) <= STEPS and max(lengths) <= WIDTH
    more = (0, ROWS - len(lengths))
    starts = np.cumsum(lengths) - lengths
    targets = np.pad(np.float32(losses), (0, STEPS - len(losses)))
    data = Rows(
        np.zeros((STEPS, 2), np.float32), targets, np.pad(starts, more), np.pad(lengths, more)
    )
    ids = np.full((5, 4), NO_ROW, np.int32)
    for i, rows in enumerate(batches):
        ids[i, : len(rows)] = rows
    count, params = jnp.int32(len(batches)), start(GIVEN).params
    sums, _ = EVALUATE(GIVEN, draw, params, KEY, count, ids, data)
    _, trained = TRAIN(GIVEN, draw, start(GIVEN), count, ids[:, None], data)
    assert float(trained["loss"]) == pytest.approx(float(sums["loss"]))  # what training logs
    return sums["loss"], sums["weight"]


@pytest.mark.parametrize(
    "lengths, batches",
    [
        ([5, 3], [[0], [1]]),
        ([4, 4], [[0], [1]]),
        ([8], [[0]]),
        ([5, 3], [[0, 1]]),
        ([5, 3], [[0], [], [1]]),  # L04: a batch in which nothing is scored
        ([2, 0, 3, 1, 2], [[0, 4], [1], [3, 2], []]),
    ],
)
def test_L01_L04_mean_is_over_examples_however_they_are_batched(lengths, batches):
    losses = [1.0, 1.1, 1.2, 1.3, 1.4, 1.2, 1.3, 1.4]  # 5 of mean 1.2 and 3 of mean 1.3
    assert mean(*scored(losses, lengths, batches)) == pytest.approx(1.2375)  # not 1.25


@pytest.mark.parametrize("batches", [[[0, 1, 2], [3]], [[0], [1], [2], [3]], [[3, 0], [1, 2]]])
def test_L02_F5_perplexity_of_a_corpus_in_any_batches(batches):
    sums = scored([1.0] * 30 + [3.0] * 10, [10] * 4, batches)
    assert perplexity(*sums) == pytest.approx(4.481689)  # not 7.39 or 11.4
    assert float(sums[1]) == 40


def test_L06_sums_are_added_not_overwritten():
    total, weight = scored([1.0, 2.0, 3.0], [1, 1, 1], [[0], [1], [2]])
    assert (float(total), float(weight)) == (6, 3)


def scores(params, carry, *parts):
    """(loss, weight) of each part, one evaluation after another, and the last carry."""
    found = []
    for part in parts:
        count = chunks(part[1], BESIDE, LENGTH)
        ids = chunk_ids(range(3), part)[:, 0]
        given = (params, KEY, jnp.int32(count), ids, stream_of())
        sums, carry = EVALUATE(MOVING, cut_chunk, *given, carry)
        found.append((float(sums["loss"]), float(sums["weight"])))
    return found, carry


def test_G05_evaluation_depends_on_no_carry_and_on_no_call_before():
    a, b = (0, 9), (9, 7)
    state = streaming(MOVING)
    first, left = scores(PARAMS, streaming(MOVING, np.nan).carry, a, b)
    assert scores(PARAMS, state.carry, b, a)[0] == first[::-1]
    assert scores(PARAMS, left, a, b)[0] == first
    for (loss, weight), (place, size) in zip(first, (a, b), strict=True):
        half = -(-size // BESIDE)
        rows = [walk(stream_of(), place, half), walk(stream_of(), place + half, size - half)]
        error = np.concatenate([y for y, _ in rows]) - stream_of().targets[place : place + size]
        assert (loss, weight) == (pytest.approx(np.sum(error**2), rel=1e-5), size)

    straight, _ = follow(MOVING, state, [0, 1, 2], stream_of())
    state, _ = follow(MOVING, state, [0], stream_of())
    scores(state.tried, state.carry, a)
    state, _ = follow(MOVING, state, [1, 2], stream_of())
    equal(state.replace(key=None), straight.replace(key=None))
    assert scores(PARAMS, state.carry, a, b)[0] == first


def test_G06_shorter_last_chunk_has_its_share_and_no_program_of_its_own():
    traced = []

    def draw(key, ids, data):
        traced.append(ids)
        return chunk(data, np.array([0, 5], np.int32), ids, 1, 2)

    losses = np.float32([1, 1, 1, 1, 6])
    data = as_stream(Rows(losses[:, None], losses, np.array([0]), np.array([5])))
    learner = F1._replace(loss=given_losses, metric=given_losses)
    state, added = f1_state(learner), np.zeros(2)
    for count, ids in ((2, [0, 1]), (1, [2, 2])):
        numbers = np.array(ids, np.int32)
        state, sums = TRAIN(learner, draw, state, jnp.int32(count), numbers[:, None], data)
        added += [float(sums["loss"]), float(sums["weight"])]
        before = len(traced) if count == 2 else before
    assert added.tolist() == [10, 5]  # the mean is 2, not 2.67
    assert len(traced) == before

    ids = np.arange(3, dtype=np.int32)
    sums, _ = EVALUATE(learner, draw, state.params, KEY, jnp.int32(3), ids, data, state.carry)
    assert (float(sums["loss"]), float(sums["weight"])) == (10, 5)


# What validation decides.

CHOICES = [
    Selection(higher, *rest)
    for higher in (False, True)
    for rest in ((), (1,), (2, 2, 0.5), (3, 1, 0.25))
]


def by_hand(choice, scores):
    """After each score: (best, its number, waited, drops, rate, parameters' number, stopped).

    The parameters that score n judges have number n; those before training 0.
    """
    best, at, waited, drops, rate, stopped = float("nan"), 0, 0, 0, 1.0, False
    for number, score in enumerate(scores, 1):
        tried = number
        if not stopped:
            if score == score and (
                best != best or (score > best if choice.higher else score < best)
            ):
                best, at, waited = score, number, 0
            else:
                waited += 1
            if choice.patience is not None and waited == choice.patience:
                if drops < choice.drops:
                    waited, drops, rate, tried = 0, drops + 1, rate * choice.factor, at
                else:
                    stopped = True
        yield best, at, waited, drops, rate, tried, stopped


few_scores = st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 1.0, np.inf, np.nan])  # ties are likely
ADAM = optim.make("adam", 0.5)


def numbered(state, number):
    """Parameters n, their average -n."""
    return state.replace(
        params={"kernel": jnp.full(2, number, jnp.float32)},
        average={"kernel": jnp.full(2, -number, jnp.float32)},
    )


@given(scores=st.lists(few_scores, max_size=12))
@example(scores=[np.nan, np.nan, np.nan, 1.0, 1.0])
@example(scores=[0.0, 0.0, 1.0, -1.0, np.nan, 0.5, 0.5, 0.5, 0.5])
@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_judge_is_the_plain_rule(choice, scores):
    state = numbered(start(linear(ADAM, average=0.5, selection=choice)), 0)
    state = state.replace(best=choice.start(state.tried))
    for number, (score, after) in enumerate(zip(scores, by_hand(choice, scores), strict=True), 1):
        old = numbered(state, number)
        state = JUDGE(choice, old, jnp.float32(score))
        best, at, waited, drops, rate, tried, stopped = after
        found = state.best
        np.testing.assert_equal(float(found.score), best)
        assert (int(found.waited), int(found.drops), float(found.rate)) == (waited, drops, rate)
        assert found.params["kernel"].tolist() == [-at] * 2  # the average was tried
        # Back to what was best, the average as well as what it averages.
        back = at != number and tried == at
        assert kernel(state).tolist() == [-at if back else number] * 2
        assert state.average["kernel"].tolist() == [-at if back else -number] * 2
        assert int(state.status) == (STOPPED if stopped else RUNNING)
        equal(
            (state.opt_state, state.step, state.bad_steps), (old.opt_state, old.step, old.bad_steps)
        )


@pytest.mark.parametrize("status", [SOLVED, DIVERGED, UNUSED, STOPPED])
def test_only_a_running_seed_is_judged(status):
    choice = CHOICES[1]
    state = start(linear(ADAM, average=0.5, selection=choice)).replace(status=jnp.int32(status))
    state = numbered(state, 3)
    for score in (-1.0, 1.0, np.nan):
        judged = JUDGE(choice, state, jnp.float32(score))
        equal(judged.replace(key=None), state.replace(key=None))


def test_seeds_are_judged_together_as_each_alone():
    choice = CHOICES[2]
    statuses, scores = [RUNNING, STOPPED, RUNNING, RUNNING], [1.0, 0.0, 0.25, np.nan]
    every = []
    for i, status in enumerate(statuses):
        one = numbered(start(linear(ADAM, average=0.5, selection=choice)), i + 1)
        best = one.best.replace(score=jnp.float32(0.5), waited=jnp.int32(1), drops=jnp.int32(i % 3))
        every.append(one.replace(status=jnp.int32(status), best=best))
    alone = [JUDGE(choice, one, jnp.float32(s)) for one, s in zip(every, scores, strict=True)]

    def stacked(states):
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)

    def judged(shared, state, score):
        return judge(choice, state, score)

    together = jit(parallel.for_each_seed(judged, parallel.seed_mesh(2)))
    found = together((), stacked(every), jnp.float32(scores))
    equal(found.replace(key=None), stacked(alone).replace(key=None))
    assert found.status.tolist() == [RUNNING, STOPPED, RUNNING, RUNNING]


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_rate_multiplies_the_update_and_no_moment(name):
    learner = linear(optim.make(name, 0.5), selection=Selection(True))
    state = start(learner)
    slow = state.replace(best=state.best.replace(rate=jnp.float32(0.25)))
    ids, data = filled([0], (1, 1, 1)), one_feature([2.0, 3.0])
    (full, _), (part, _) = (
        TRAIN(learner, draw, one, jnp.int32(1), ids, data) for one in (state, slow)
    )
    np.testing.assert_allclose(kernel(part), 0.25 * kernel(full), rtol=1e-6)
    assert kernel(full)[0] != 0
    equal(part.opt_state, full.opt_state)


def test_seed_goes_back_to_its_best_with_a_lower_rate_and_then_stops():
    choice = Selection(False, 2, 1, 0.5)
    learner = linear(optim.make("sgd", 1.0), selection=choice)
    state, ids, data = start(learner), filled([0], (1, 1, 1)), one_feature([1.0])
    seen = []
    for score in (3.0, 2.0, 5.0, np.nan, 2.0, 4.0, 0.0):  # 2.0 again is not better
        state, _ = TRAIN(learner, draw, state, jnp.int32(1), ids, data)
        seen.append(float(kernel(state)[0]))
        state = JUDGE(choice, state, jnp.float32(score))
    assert seen == [-1, -2, -3, -4, -2.5, -3, -3]
    assert (int(state.status), int(state.step)) == (STOPPED, 6)
    assert float(state.best.params["kernel"][0]) == -2 and float(state.best.score) == 2
