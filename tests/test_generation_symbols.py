"""One symbol: what filters leave, and how often each is drawn, against NumPy in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from table import jit

from seqmodels.data import tokenizers
from seqmodels.generation import BORDER, NEVER, PAD, UNKNOWN, filter_logits, pick

INF, NAN = np.inf, np.nan
KEY = jax.random.key(0)
filtered = jit(filter_logits)


@functools.partial(jit, static_argnames=("count", "forbidden"))
def draw(key, logits, count, forbidden=(), **settings):
    """`count` independent draws from one row of logits."""
    return pick(key, jnp.tile(logits[None, :], (count, 1)), forbidden=forbidden, **settings)


def kept(logits, top_k, top_p):
    """The oracle for one row, a plain loop: which symbols stay, and how near the mass of some
    first few comes to top_p."""
    order = sorted(np.flatnonzero(logits > -INF), key=lambda i: (-logits[i], i))[:top_k]
    if top_p is None or top_p == 1 or not order:
        return order, INF
    mass = np.exp(np.float64(logits[order]) - logits[order[0]])
    reached = np.cumsum(mass / mass.sum())
    count = 1
    while reached[count - 1] < top_p:
        count += 1
    return order[:count], np.min(np.abs(reached - top_p))


def rows_of(values):
    """Three rows of seven logits, many of them equal."""
    row = st.lists(st.sampled_from(values), min_size=7, max_size=7)
    return st.lists(row, min_size=3, max_size=3).map(np.float32)


@given(
    rows_of([-INF, -20, -1, -0.5, -0.0, 0.0, 0.7, 1, 3]),
    st.none() | st.integers(1, 9),
    st.none() | st.sampled_from([1e-6, 1.0]) | st.floats(0.01, 0.999),
)
def test_filters_against_a_plain_loop(logits, top_k, top_p):
    expected = np.full_like(logits, -INF)
    for out, row in zip(expected, logits, strict=True):
        stays, margin = kept(row, top_k, top_p)
        assume(margin > 1e-5)  # nearer than float32 can tell, either answer would be right
        out[stays] = row[stays]
    np.testing.assert_array_equal(filtered(logits, top_k, top_p), expected)


@given(
    rows_of([-INF, INF, NAN, -3e38, 0.0, 1, 3e38]),
    st.none() | st.integers(1, 9),
    st.none() | st.floats(0.01, 1),
)
def test_filters_never_give_nan(logits, top_k, top_p):
    out = np.asarray(filtered(logits, top_k, top_p))
    possible = logits > -INF  # False for NaN
    assert not np.any(np.isnan(out)) and not np.any(out == INF)
    assert not np.any((out > -INF) & ~possible)
    np.testing.assert_array_equal(np.any(out > -INF, axis=1), np.any(possible, axis=1))


def test_filters_by_hand():
    def stays(logits, *settings):
        return [*np.flatnonzero(np.asarray(filtered(np.float32(logits), *settings)) > -INF)]

    equal = [0, 0, 0, 0]
    assert stays(equal, None, 0.5) == [0, 1]  # mass that reaches p exactly is enough
    assert stays(equal, None, 0.5001) == [0, 1, 2]
    assert stays(equal, None, 1e-9) == [0]
    assert stays([1, 2, 2, 2], 2, None) == [1, 2]  # a tie is cut, the lower ids stay
    assert stays([1, 2, 3], 3, None) == stays([1, 2, 3], 99, None) == [0, 1, 2]
    assert stays([0, -30, -80], None, 1.0) == [0, 1, 2]  # p = 1 loses no tail to rounding
    # k first: of the two symbols left, one has half of the mass.
    assert stays(equal, 2, 0.5) == [0] and stays(equal, None, 0.5) == [0, 1]
    assert stays([-INF] * 4, 2, 0.5) == []
    np.testing.assert_array_equal(filter_logits(np.float32([[1, 2]])), [[1, 2]])


def test_filters_work_in_float32_at_least():
    """Among 4096 equal symbols a sum in bfloat16 would stop at 256 of them."""
    out = filtered(jnp.zeros(4096, jnp.bfloat16), None, 0.5)
    assert out.dtype == np.float32
    np.testing.assert_array_equal(out, np.repeat([0, -INF], 2048))  # the lower ids


# Draws ------------------------------------------------------------------------------------------


def assert_frequencies(symbols, probabilities):
    """Chi-square: its mean is the degrees of freedom d and its variance 2 d."""
    counts = np.bincount(np.asarray(symbols), minlength=len(probabilities))
    possible = probabilities > 0
    assert not counts[~possible].any(), "a symbol that is out was drawn"
    expected = probabilities[possible] * counts.sum()
    statistic = np.sum((counts[possible] - expected) ** 2 / expected)
    freedom = possible.sum() - 1
    assert statistic < freedom + 4 * np.sqrt(2 * freedom), (counts, expected)


LOGITS = np.float32([0.3, -1.2, 1.4, 0.0, 1.0, -0.4, 0.9, 1.4])


@pytest.mark.parametrize(
    "settings, forbidden",
    [
        ({}, ()),
        ({}, NEVER),
        ({"temperature": 2.0}, ()),
        ({"temperature": 0.5, "top_k": 4}, ()),
        ({"temperature": 2.0, "top_p": 0.6}, ()),  # 5 symbols; 3 if p came before temperature
        ({"temperature": 2.0, "top_k": 4, "top_p": 0.6}, (2,)),
    ],
)
def test_draws_follow_the_softmax(settings, forbidden):
    logits = LOGITS / np.float64(settings.get("temperature", 1.0))
    logits[list(forbidden)] = -INF
    stays, _ = kept(logits, settings.get("top_k"), settings.get("top_p"))
    probabilities = np.zeros(len(logits))
    probabilities[stays] = np.exp(logits[stays]) / np.sum(np.exp(logits[stays]))
    assert_frequencies(draw(KEY, LOGITS, 8000, forbidden, **settings), probabilities)


def test_M06_temperature():
    logits = np.float32([[0, 0, 1, 3, 2], [0, 0, 2, 1, 2]])  # a tie in the second row
    drawn = draw(KEY, logits[0], 1000, temperature=1.0)
    assert len(np.unique(drawn)) == 5

    # 0 is greedy: the lowest id among equals, with or without filters, whatever the key.
    for settings in ({}, {"top_k": 3}, {"top_p": 0.5}):
        np.testing.assert_array_equal(pick(KEY, logits, 0, **settings), [3, 2])
    np.testing.assert_array_equal(pick(jax.random.key(5), logits, 0.0), [3, 2])

    # 1e-4 is finite: no other symbol than the largest, but equals are still drawn alike.
    assert set(np.asarray(draw(KEY, logits[0], 1000, temperature=1e-4))) == {3}
    assert_frequencies(draw(KEY, logits[1], 1000, temperature=1e-4), np.array([0, 0, 0.5, 0, 0.5]))
    for heat in (1e-30, 1e-45, 1e30):
        assert pick(KEY, logits, heat, top_p=0.9).shape == (2,)
    assert set(np.asarray(draw(KEY, 1e38 * logits[0], 9, temperature=1e-30))) == {3}

    for heat in (-1, -1e-9, NAN, INF, True):
        with pytest.raises(ValueError, match=f"temperature={heat} must be a finite number, 0"):
            pick(KEY, logits, heat)

    # A key is needed and reproducible.
    np.testing.assert_array_equal(draw(KEY, logits[0], 1000, temperature=1.0), drawn)
    assert np.any(draw(jax.random.key(1), logits[0], 1000, temperature=1.0) != drawn)


def test_inside_jit_a_temperature_not_above_0_is_greedy():
    for heat in (0.0, -1.0, NAN):
        assert set(np.asarray(draw(KEY, LOGITS, 50, temperature=heat))) == {2}


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"top_k": 0}, "top_k=0 must be a whole number, 1 or more, or None"),
        ({"top_k": 2.5}, "top_k=2.5 must be a whole"),
        ({"top_k": INF}, "top_k=inf must be a whole"),
        ({"top_k": True}, "top_k=True must be a whole"),
        ({"top_p": 0.0}, "top_p=0.0 must be above 0 and at most 1, or None"),
        ({"top_p": 1.01}, "top_p=1.01 must be above 0"),
        ({"top_p": NAN}, "top_p=nan must be above 0"),
    ],
)
def test_filters_that_mean_nothing_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        filter_logits(LOGITS, **settings)
    with pytest.raises(ValueError, match=message):
        pick(KEY, LOGITS, **settings)


def test_padding_and_unknown_are_not_drawn_unless_asked_for():
    logits = np.float32([9, 9, 0, 0])
    assert set(np.asarray(draw(KEY, logits, 200, NEVER))) == {2, 3}
    assert set(np.asarray(draw(KEY, logits, 200, ()))) == {0, 1}
    assert int(pick(KEY, logits, 0.0)) == 2
    assert int(pick(KEY, np.float32([0, 0, -INF, NAN]))) == PAD  # nothing left
    with pytest.raises(ValueError, match=r"forbidden: id 4 is not in 0\.\.3"):
        pick(KEY, logits, forbidden=(1, 4))
    with pytest.raises(ValueError, match="forbidden has all 4 ids"):
        pick(KEY, logits, forbidden=(0, 1, 2, 3))


def test_ids_mean_what_they_mean_to_tokenizers():
    assert (PAD, UNKNOWN, BORDER) == (tokenizers.PAD, tokenizers.UNKNOWN, tokenizers.BORDER)
