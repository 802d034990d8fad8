"""Forecasting windows: where they may be, what they hold, and that they never see the future."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqmodels import recurrence
from seqmodels.cells import CELLS
from seqmodels.data.rows import take
from seqmodels.data.splits import by_horizon, by_time, check
from seqmodels.data.windows import (
    Normaliser,
    fit_normaliser,
    forecast_rows,
    normalise,
    persistence,
    restore,
    seasonal_naive,
    window_spans,
    window_starts,
)

rngs = st.integers(0, 2**32 - 1).map(np.random.default_rng)


def any_series(rng, steps=60, gaps=0.1):
    """Entities of 60 steps in all and their times, with gaps in time."""
    entities = np.sort(rng.choice(np.array(["a", "b", "c"]), steps))
    times = np.cumsum(np.where(rng.random(steps) < gaps, rng.integers(2, 5, steps), 1))
    return entities, times


# Where windows are.


@given(rngs, st.integers(1, 9), st.integers(1, 4), st.booleans())
def test_windows_are_all_that_cross_nothing(rng, length, stride, with_parts):
    entities, times = any_series(rng)
    parts = np.sort(rng.integers(0, 3, 60)) if with_parts else np.zeros(60, int)
    starts = window_starts(entities, times, length, stride, parts if with_parts else None)

    def whole(first, last):
        """One entity and one part, without a gap."""
        here = slice(first, last + 1)
        alike = len(set(entities[here])) == len(set(parts[here])) == 1
        return alike and times[last] - times[first] == last - first

    def into_its_stretch(at):
        first = at
        while first > 0 and whole(first - 1, at):
            first -= 1
        return at - first

    wanted = [
        start
        for start in range(60 - length + 1)
        if whole(start, start + length - 1) and into_its_stretch(start) % stride == 0
    ]
    assert starts.tolist() == wanted
    spans = window_spans(entities, times, starts, length)
    assert (spans.last - spans.first == length - 1).all()
    assert (spans.entity == entities[starts]).all()


def test_a_series_shorter_than_a_window_has_none():
    for steps in (0, 3):
        entities, times = np.array(["a"] * steps, dtype="<U1"), np.arange(steps)
        assert window_starts(entities, times, 4).tolist() == []


@pytest.mark.parametrize(
    "entities, times, options, message",
    [
        ("aaa", [4, 5, 5], {}, r"step 2 \(entity 'a', time 5\) follows time 5; allowed: ascending"),
        ("aab", [4, 3, 5], {}, r"step 1 \(entity 'a', time 3\) follows time 4"),
        ("aba", [1, 2, 3], {}, "entity 'a' stands in several places"),
        ("aaa", [1, 2, 3], {"length": 0}, "length is 0; allowed: 1 or more steps"),
        ("aaa", [1, 2, 3], {"stride": -1}, "stride is -1; allowed: 1 or more steps"),
    ],
)
def test_steps_out_of_order_are_refused(entities, times, options, message):
    with pytest.raises(ValueError, match=message):
        window_starts(np.array(list(entities)), np.array(times), **{"length": 1, **options})


# What they hold.


@given(rngs, st.integers(1, 5), st.integers(1, 3))
def test_rows_hold_the_context_without_missing_steps_and_the_targets(rng, context, horizon):
    entities, times = any_series(rng)
    inputs, series = rng.normal(size=(60, 2)), rng.normal(size=(60, 2))
    inputs[rng.random((60, 2)) < 0.15] = np.nan
    series[rng.random((60, 2)) < 0.03] = np.nan
    starts = window_starts(entities, times, context + horizon)
    rows, kept = forecast_rows(inputs, series, starts, context, horizon)

    row = 0
    for start, used in zip(starts, kept, strict=True):
        history = inputs[start : start + context]
        history = history[~np.isnan(history).any(axis=1)]
        future = series[start + context : start + context + horizon]
        assert used == (len(history) > 0 and not np.isnan(future).any())
        if used:
            here = slice(rows.starts[row], rows.starts[row] + rows.lengths[row])
            np.testing.assert_array_equal(rows.inputs[here], history.astype(np.float32))
            np.testing.assert_array_equal(rows.targets[row], future.ravel().astype(np.float32))
            row += 1
    assert row == len(rows.lengths) == len(rows.targets)
    seen = {int(s) + k for s, n in zip(rows.starts, rows.lengths, strict=True) for k in range(n)}
    assert seen == set(range(len(rows.inputs)))  # each stored step is some window's, stored once
    assert {a.dtype for a in (rows.inputs, rows.targets)} == {np.dtype(np.float32)}
    assert {a.dtype for a in (rows.starts, rows.lengths)} == {np.dtype(np.int32)}


def test_a_missing_step_is_a_masked_step():
    rng = np.random.default_rng(0)
    context, inputs = 7, rng.normal(size=(40, 3))
    inputs[rng.random(40) < 0.3, rng.integers(3)] = np.nan
    starts = np.arange(30)
    rows, kept = forecast_rows(inputs, rng.normal(size=(40, 1)), starts, context, 2)
    assert kept.all() and rows.lengths.min() < context

    cell = CELLS["gru"](4)
    params = cell.init(jax.random.key(0), 3)
    short = take(rows, np.arange(30, dtype=np.int32), context, per_step=False)
    _, carry = recurrence.run(cell, params, short.inputs, mask=short.mask)
    whole = jnp.asarray(inputs[starts[:, None] + np.arange(context)].astype(np.float32))
    mask = ~jnp.isnan(whole).any(axis=-1)
    _, wanted = recurrence.run(cell, params, whole, mask=mask)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), carry, wanted)


# Normalising.


@given(rngs, st.booleans())
def test_normaliser_standardises_the_training_part_and_is_undone(rng, per_entity):
    entities = rng.permutation(np.tile(["a", "b"], 40))
    values = rng.normal(5, 3, size=(80, 3)) * [1, 1e6, 1e-6]
    values[rng.random((80, 3)) < 0.1] = np.nan
    train = np.arange(80) < 50
    given_entities = entities if per_entity else None
    normaliser = fit_normaliser(values, train, given_entities)
    scaled = normalise(normaliser, values, given_entities)
    for name in ("a", "b") if per_entity else ("ab",):
        part = scaled[train & np.isin(entities, list(name))]
        np.testing.assert_allclose(np.nanmean(part, axis=0), 0, atol=1e-9)
        np.testing.assert_allclose(np.nanstd(part, axis=0), 1)
    np.testing.assert_allclose(restore(normaliser, scaled, given_entities), values, rtol=1e-9)
    np.testing.assert_array_equal(np.isnan(scaled), np.isnan(values))
    by_position = fit_normaliser(values, np.flatnonzero(train), given_entities)
    np.testing.assert_array_equal(by_position.std, normaliser.std)


def test_each_entity_is_scaled_by_its_own_numbers_on_any_axes():
    values = np.array([[0.0], [2.0], [10.0], [30.0], [7.0]])
    entities = np.array(["x", "x", "b", "b", "b"])
    normaliser = fit_normaliser(values, np.arange(4), entities)
    predictions = np.array([[[1.0], [-1.0]], [[1.0], [-1.0]]])  # N 2, H 2, F 1
    degrees = restore(normaliser, predictions, np.array(["b", "x"]))
    np.testing.assert_allclose(degrees[..., 0], [[30, 10], [2, 0]])
    degrees = restore(normaliser, predictions, np.array(["x", "x"]))
    np.testing.assert_allclose(degrees[..., 0], [[2, 0], [2, 0]])


def test_a_feature_that_does_not_vary_becomes_zero():
    values = np.full((3, 1), 0.1)
    assert values.std() > 0  # by rounding
    normaliser = fit_normaliser(values, np.ones(3, bool))
    np.testing.assert_allclose(normalise(normaliser, values), 0, atol=1e-12)


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda v, e, n: fit_normaliser(np.where([[True, False]] * 4, v, np.nan), e == "a"),
            "feature 1 is missing in the whole training part",
        ),
        (
            lambda v, e, n: fit_normaliser(v * [np.inf, 1], np.arange(4), e),
            "feature 0 of entity 'a' is missing .*, or infinite; allowed: finite",
        ),
        (lambda v, e, n: fit_normaliser(v, np.zeros(4, bool)), "feature 0 is missing"),
        (
            lambda v, e, n: normalise(n, v, np.array(["a", "b", "oslo", "a"])),
            "entity 'oslo' has no training part; allowed: 'a', 'b'",
        ),
        (lambda v, e, n: restore(n, v), "entities: none were given; the normaliser"),
        (
            lambda v, e, n: restore(Normaliser(n.mean[:1], n.std[:1]), v, e),
            "entities: they were given; the normaliser",
        ),
    ],
)
def test_what_cannot_be_normalised_is_one_clear_line(call, message):
    values, entities = np.arange(1.0, 9).reshape(4, 2), np.array(["a", "a", "b", "b"])
    with pytest.raises(ValueError, match=message):
        call(values, entities, fit_normaliser(values, np.arange(4), entities))


# No future.

CONTEXT, HORIZON = 6, 3


def pipeline(values, entities, times, normaliser=None):
    """Rows, and the positions of their windows, of each split; all that a data set would do."""
    parts = by_time(times, {"train": 0.5, "valid": 0.25, "test": 0.25})
    normaliser = normaliser or fit_normaliser(values, parts["train"])
    cuts = [int(times[parts[split]].min()) for split in ("valid", "test")]
    length = CONTEXT + HORIZON
    starts = window_starts(entities, times, length)
    chosen = by_horizon(window_spans(entities, times, starts, length), cuts, gap=HORIZON)
    spans = {s: window_spans(entities, times, starts[r], length) for s, r in chosen.items()}
    check(spans, gap=HORIZON)
    scaled = normalise(normaliser, values)
    rows = {
        s: forecast_rows(scaled, scaled, starts[r], CONTEXT, HORIZON) for s, r in chosen.items()
    }
    assert all(kept.all() for _, kept in rows.values())
    return {s: (rows[s][0], starts[chosen[s]]) for s in rows}, normaliser, parts


def batch_inputs(rows, row):
    return np.asarray(take(rows, np.array([row], np.int32), CONTEXT, per_step=False).inputs)


def series(rng):
    return rng.normal(size=(160, 2)), np.repeat(["a", "b"], 80), np.tile(np.arange(80), 2)


@given(rngs, st.sampled_from(["train", "valid", "test"]), st.data())
def test_J05_a_window_does_not_see_its_targets(rng, split, data):
    values, entities, times = series(rng)
    splits, normaliser, _ = pipeline(values, entities, times)
    rows, starts = splits[split]
    row = data.draw(st.integers(0, len(starts) - 1))
    changed = values.copy()
    changed[starts[row] + CONTEXT + rng.integers(HORIZON), rng.integers(2)] += 1e3
    # Training targets are part of what the normaliser is fitted to; nothing else is.
    again, _, _ = pipeline(changed, entities, times, normaliser if split == "train" else None)
    np.testing.assert_array_equal(batch_inputs(rows, row), batch_inputs(again[split][0], row))
    assert (again[split][0].targets[row] != rows.targets[row]).any()


@given(rngs)
def test_J05_no_value_after_the_training_part_reaches_it_or_the_normaliser(rng):
    values, entities, times = series(rng)
    splits, normaliser, parts = pipeline(values, entities, times)
    for split, untouched in (("valid", ["train"]), ("test", ["train", "valid"])):
        changed = values.copy()
        changed[parts[split]] = rng.normal(size=changed[parts[split]].shape) * 1e6
        again, refitted, _ = pipeline(changed, entities, times)
        for before, after in zip(normaliser[:2], refitted[:2], strict=True):
            np.testing.assert_array_equal(before, after)
        for name in untouched:
            for before, after in zip(splits[name][0][:4], again[name][0][:4], strict=True):
                np.testing.assert_array_equal(before, after)
        assert (splits[split][0].inputs != again[split][0].inputs).all()


# Forecasts without training.


def test_persistence_and_seasonal_naive_by_hand():
    history = np.array([[1.0, 2, 3, 4], [5, 6, 7, 8]])
    np.testing.assert_array_equal(persistence(history, 3), [[4] * 3, [8] * 3])
    np.testing.assert_array_equal(seasonal_naive(history, 5, 3), [[2, 3, 4, 2, 3], [6, 7, 8, 6, 7]])
    np.testing.assert_array_equal(seasonal_naive(history, 2, 1), persistence(history, 2))
    with pytest.raises(ValueError, match="period is 5; allowed: 1 to the 4 steps of context"):
        seasonal_naive(history, 2, 5)


@given(rngs, st.integers(1, 6), st.integers(0, 9), st.integers(1, 20))
def test_seasonal_naive_is_exact_on_a_period(rng, period, more, horizon):
    values = np.resize(rng.normal(size=period), period + more + horizon)
    history, future = values[None, : period + more], values[None, period + more :]
    np.testing.assert_array_equal(seasonal_naive(history, horizon, period), future)
