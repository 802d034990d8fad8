"""Sequences: each row as if it were alone, whole or in pieces, against runs of the model alone."""

import inspect

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from table import apply, assert_close, jit, module_params
from test_generation_symbols import assert_frequencies

from seqmodels.cells import CELLS, GRU, LSTM, RNN
from seqmodels.generation import BORDER, PAD, UNKNOWN, advance, generate, sequences, start
from seqmodels.layers import Embed, Stack
from seqmodels.models import SequenceLabeller

V = 9
STEPS = 12
KEY = jax.random.key(0)


def compiled(function):
    """All in one program, so that these tests are also those of use inside jit."""
    static = {"model", "steps", "begin", "end", "forbidden"} & set(
        inspect.signature(function).parameters
    )
    return jit(function, static_argnames=tuple(static))


generated, started, advanced = map(compiled, (generate, start, advance))


def labeller(*cells, **options):
    return SequenceLabeller(Stack(cells, **options), V, Embed(V, 5))


def params_of(model):
    """Logits that differ much: rows end early and late (seeds looked for until they did)."""
    return module_params(model, np.ones((1, 1), np.int32), seed=2, scale=1.5)["params"]


MODEL = labeller(GRU(6), LSTM(5))
PARAMS = params_of(MODEL)
PROMPT = np.random.default_rng(0).integers(3, V, (6, 4)).astype(np.int32)
LENGTHS = np.int32([4, 1, 0, 3, 2, 0])
MASK = np.arange(4) < LENGTHS[:, None]


class Countdown(nn.Module):
    """Every symbol is followed by the one below it, 3 by the border: row lengths are known.

    The carry counts the steps read and the calls of the model.
    """

    @nn.compact
    def __call__(self, ids, carry=None, *, mask=None, reset=None):
        if carry is None:
            carry = {name: jnp.zeros(len(ids)) for name in ("read", "calls")}
        mask = jnp.ones(ids.shape, bool) if mask is None else mask
        read = carry["read"] + jnp.sum(mask, axis=1, dtype=jnp.float32)
        logits = jax.nn.one_hot(ids - 1, 30) * jnp.where(mask, 50.0, 0.0)[..., None]
        return logits, {"read": read, "calls": carry["calls"] + 1}


def assert_same(state, expected, tolerance=1e-5):
    """Equal states; what was computed with real numbers up to rounding."""
    np.testing.assert_array_equal(
        jax.random.key_data(state.keys), jax.random.key_data(expected.keys)
    )
    for name in ("lengths", "done"):
        np.testing.assert_array_equal(getattr(state, name), getattr(expected, name))
    numbers = [(s.carry, s.logits, s.log_prob) for s in (state, expected)]
    assert_close(*numbers, tolerance)


# What is generated ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [*(labeller(cell(6)) for cell in CELLS.values()), MODEL, labeller(LSTM(6, dtype="bfloat16"))],
    ids=[*CELLS, "deep", "bfloat16"],
)
def test_greedy_is_the_argmax_of_the_whole_sequence_each_time(model):
    params = params_of(model)
    width, symbols = PROMPT.shape[1], PROMPT
    for _ in range(STEPS):  # a fixed width, the rest masked, so that one program serves
        ids = np.pad(symbols, [(0, 0), (0, width + STEPS - symbols.shape[1])])
        mask = np.broadcast_to(np.arange(ids.shape[1]) < symbols.shape[1], ids.shape)
        logits = np.array(apply(model)({"params": params}, ids, mask=mask)[0])
        logits = logits[:, symbols.shape[1] - 1]
        logits[:, [PAD, UNKNOWN]] = -np.inf
        symbols = np.concatenate([symbols, np.argmax(logits, axis=1)[:, None]], axis=1)
    expected = symbols[:, width:].astype(np.int32)
    ended = np.cumsum(expected == BORDER, axis=1) - (expected == BORDER) > 0
    expected[ended] = PAD

    state, ids = generated(model, params, PROMPT, KEY, STEPS, temperature=0.0)
    np.testing.assert_array_equal(ids, expected)
    np.testing.assert_array_equal(state.lengths, np.sum(~ended, axis=1))
    assert state.logits.dtype == state.log_prob.dtype == np.float32
    assert len(np.unique(expected)) > 2, "nothing to compare"


def test_log_prob_is_that_of_the_whole_model():
    """Of all V symbols at temperature 1, whatever was forbidden or filtered; the end counts."""
    settings = {"temperature": 0.7, "top_k": 5, "top_p": 0.9}
    state, ids = generated(MODEL, PARAMS, PROMPT, KEY, STEPS, **settings)
    whole = np.concatenate([PROMPT, ids], axis=1)
    log_p = jax.nn.log_softmax(apply(MODEL)({"params": PARAMS}, whole[:, :-1])[0])
    log_p = np.take_along_axis(np.asarray(log_p), whole[:, 1:, None], axis=2)[..., 0][:, -STEPS:]
    emitted = np.arange(STEPS) < np.asarray(state.lengths)[:, None]
    np.testing.assert_allclose(state.log_prob, np.sum(log_p * emitted, axis=1), rtol=1e-4)
    assert np.min(state.lengths) < STEPS == np.max(state.lengths)


def test_rows_and_steps_draw_independently():
    """A model of constant logits: pairs of neighbours, in time and in the batch, are products."""
    model = labeller(RNN(3))
    params = jax.tree.map(np.zeros_like, params_of(model))
    params["head"]["bias"] = np.float32([0, 0, 0, 0.5, 1.0, -0.5, 0, 0, 0.3])
    share = np.exp(params["head"]["bias"])
    share[:3] = 0
    share /= share.sum()
    _, ids = generated(model, params, PROMPT[:2], KEY, 3000, forbidden=(0, 1, 2))
    ids = np.asarray(ids)
    pairs = np.outer(share, share).ravel()
    for row in ids:
        assert_frequencies(row, share)
        assert_frequencies(V * row[::2] + row[1::2], pairs)
    assert_frequencies(V * ids[0] + ids[1], pairs)


def test_the_key_decides():
    state, ids = generated(MODEL, PARAMS, PROMPT, KEY, STEPS)
    again, same = generated(MODEL, PARAMS, PROMPT, KEY, STEPS)
    np.testing.assert_array_equal(ids, same)
    assert_same(again, state, 0)
    _, other = generated(MODEL, PARAMS, PROMPT, jax.random.key(4), STEPS)
    assert np.any(other != ids)
    alike = np.repeat(PROMPT[:1], 6, axis=0)
    _, ids = generated(MODEL, PARAMS, alike, KEY, STEPS)
    assert len(np.unique(ids, axis=0)) > 3, "equal prompts have streams of their own"


# In pieces, and alone ---------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [(5, 7), (7, 5), (0, 12), (1,) * 12])
def test_pieces_make_the_whole(pieces):
    expected_state, expected = generated(MODEL, PARAMS, PROMPT, KEY, STEPS, mask=MASK)
    state, got = started(MODEL, PARAMS, PROMPT, KEY, mask=MASK), []
    for steps in pieces:
        state, ids = advanced(MODEL, PARAMS, state, steps)
        assert ids.shape == (6, steps) and ids.dtype == np.int32
        got.append(ids)
    np.testing.assert_array_equal(np.concatenate(got, axis=1), expected)
    assert_same(state, expected_state)
    assert np.any(state.done) and not np.all(state.done), "rows should end early and late"


def test_a_row_does_not_know_its_batch():
    """Ragged prompts, empty ones among them, against each prompt alone and without padding."""
    state, ids = generated(MODEL, PARAMS, PROMPT, KEY, STEPS, mask=MASK)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(KEY, np.arange(6))
    for row in range(6):
        alone = PROMPT[row : row + 1, : LENGTHS[row]]
        one, symbols = generated(MODEL, PARAMS, alone, keys[row : row + 1], STEPS)
        np.testing.assert_array_equal(symbols[0], ids[row])
        of_row = jax.tree.map(lambda leaf, row=row: leaf[row : row + 1], state)
        assert_same(one, of_row)
    order = np.array([3, 0, 5, 1, 4, 2])
    permuted, shuffled = generated(
        MODEL, PARAMS, PROMPT[order], keys[order], STEPS, mask=MASK[order]
    )
    np.testing.assert_array_equal(shuffled, ids[order])
    assert_same(permuted, jax.tree.map(lambda leaf: leaf[order], state))
    # Row b has fold_in(key, b) in a batch of any size.
    _, few = generated(MODEL, PARAMS, PROMPT[:2], KEY, STEPS, mask=MASK[:2])
    np.testing.assert_array_equal(few, ids[:2])


def test_prompts_are_read_as_their_mask_says():
    expected = started(MODEL, PARAMS, PROMPT, KEY, mask=MASK)
    assert_same(started(MODEL, PARAMS, PROMPT, KEY, lengths=LENGTHS), expected)
    # Padding on the left, holes, and ids in the padding that no vocabulary has.
    spread = np.full((6, 7), 10**6, np.int32)
    places = [[1, 2, 4, 6], [6], [], [0, 1, 2], [3, 5], []]
    for row, at in enumerate(places):
        spread[row, at] = PROMPT[row, : len(at)]
    assert_same(started(MODEL, PARAMS, spread, KEY, mask=spread < V), expected)
    # A row without a real step reads the border alone.
    border = np.full((6, 1), BORDER, np.int32)
    empty = started(MODEL, PARAMS, PROMPT[:, :0], KEY)
    assert_same(empty, started(MODEL, PARAMS, border, KEY))
    assert_close(empty.logits[2], expected.logits[2], 1e-5)
    other = started(MODEL, PARAMS, PROMPT[:, :0], KEY, begin=5)
    assert_same(other, started(MODEL, PARAMS, np.full_like(border, 5), KEY))
    # id 0 within the length is a step.
    zero = np.pad(PROMPT, [(0, 0), (0, 1)])
    assert np.max(np.abs(started(MODEL, PARAMS, zero, KEY).logits - expected.logits)[0]) > 1e-3
    # Inside jit lengths are clipped, as everywhere.
    wild = np.int32([99, 1, -5, 3, 2, 0])
    assert_same(started(MODEL, PARAMS, PROMPT, KEY, lengths=wild), expected)


# The end ----------------------------------------------------------------------------------------


def test_M05_after_the_end_symbol():
    prompt = np.int32([[5], [9], [7]])
    state, ids = generated(Countdown(), {}, prompt, KEY, 20)
    np.testing.assert_array_equal(ids[0], [4, 3, 2] + [PAD] * 17)
    np.testing.assert_array_equal(ids[1], [8, 7, 6, 5, 4, 3, 2] + [PAD] * 13)
    np.testing.assert_array_equal(state.lengths, [3, 7, 5])
    assert np.all(state.done)
    # The end is emitted and never read; an ended row keeps its carry; the loop stops early.
    np.testing.assert_array_equal(state.carry["read"], [3, 7, 5])
    np.testing.assert_array_equal(state.carry["calls"], [8, 8, 8])
    # Nothing moves any more, and each row is as if it were alone.
    later, nothing = advanced(Countdown(), {}, state, 4)
    assert_same(later, state, 0)
    assert not np.any(nothing)
    for row in range(3):
        alone, symbols = generated(Countdown(), {}, prompt[row : row + 1], KEY, 20)
        np.testing.assert_array_equal(symbols[0], ids[row])
        np.testing.assert_allclose(alone.log_prob[0], state.log_prob[row], rtol=1e-6)


def test_which_symbol_ends_is_a_choice():
    prompt = np.int32([[5], [9]])
    _, ids = generated(Countdown(), {}, prompt, KEY, 4, end=6)
    np.testing.assert_array_equal(ids, [[4, 3, 2, ids[0, 3]], [8, 7, 6, PAD]])
    assert ids[0, 3] != PAD
    # A forbidden border: text that does not end.
    _, ids = generated(MODEL, PARAMS, PROMPT, KEY, STEPS, forbidden=(PAD, UNKNOWN, BORDER))
    assert np.all(np.asarray(ids) > BORDER)


def test_a_row_that_turns_nan_ends_and_says_so():
    prompt = PROMPT.copy()
    expected, symbols = generated(MODEL, PARAMS, prompt, KEY, STEPS)
    prompt[1, 2] = V  # no such id: the embedding reads NaN
    state, ids = generated(MODEL, PARAMS, prompt, KEY, STEPS)
    assert not np.any(ids[1]) and state.lengths[1] == 0 and state.done[1]
    assert np.isnan(state.log_prob[1])
    others = np.arange(6) != 1
    np.testing.assert_array_equal(ids[others], symbols[others])
    np.testing.assert_array_equal(state.log_prob[others], expected.log_prob[others])
    # One NaN among the logits is enough; so is a model that allows none but forbidden symbols.
    for bad in ({5: np.nan}, dict.fromkeys(range(BORDER, V), -np.inf)):
        params = jax.tree.map(np.copy, PARAMS)
        for symbol, value in bad.items():
            params["head"]["bias"][symbol] = value
        state, ids = generated(MODEL, params, PROMPT, KEY, STEPS)
        assert not np.any(ids) and np.all(state.done) and np.all(np.isnan(state.log_prob))


# Models and dtypes ------------------------------------------------------------------------------


class Low(nn.Module):
    """A model whose logits and carry are bfloat16."""

    @nn.compact
    def __call__(self, ids, carry=None, *, mask=None, reset=None):
        params = jax.tree.map(np.asarray, PARAMS)
        if carry is not None:
            carry = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), carry)
        out = MODEL.clone(parent=None).apply({"params": params}, ids, carry, mask=mask)
        return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), out)


def test_logits_and_carries_of_bfloat16():
    state, ids = generated(Low(), {}, PROMPT, KEY, STEPS)
    assert {leaf.dtype for leaf in jax.tree.leaves(state.carry)} == {jnp.dtype(jnp.bfloat16)}
    assert state.logits.dtype == state.log_prob.dtype == np.float32
    whole = np.concatenate([PROMPT, ids], axis=1)
    logits, _ = apply(MODEL)({"params": PARAMS}, whole[:, :-1])
    log_p = np.asarray(jax.nn.log_softmax(logits))[:, 3:]
    log_p = np.take_along_axis(log_p, np.asarray(ids)[..., None], axis=2)[..., 0]
    emitted = np.arange(STEPS) < np.asarray(state.lengths)[:, None]
    np.testing.assert_allclose(state.log_prob, np.sum(log_p * emitted, axis=1), rtol=0.05)


# Use --------------------------------------------------------------------------------------------


def test_settings_compile_once():
    """Temperature and filters are data: an interactive user changes them for nothing."""
    sequences._advance.clear_cache()
    state = start(MODEL, PARAMS, PROMPT, KEY)
    for heat, k, p in ((1.0, 5, 0.9), (0, 1, 1.0), (0.5, 3, 0.2)):
        _, ids = advance(MODEL, PARAMS, state, 2, temperature=heat, top_k=k, top_p=p)
    assert sequences._advance._cache_size() == 1
    _, greedy = advance(MODEL, PARAMS, state, 2, temperature=1.0, top_k=1, top_p=1.0)
    _, zero = advance(MODEL, PARAMS, state, 2, temperature=0.0, top_k=5, top_p=1.0)
    np.testing.assert_array_equal(greedy, zero)
