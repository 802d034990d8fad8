"""Masks, lengths, resets, direction and chunks, drawn at random; against the NumPy walk and
against each other. By `fused`, which has gradients of its own, unless said otherwise."""

import functools

import jax
import numpy as np
import pytest
import table
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from table import (
    BATCH,
    STEPS,
    TABLE,
    assert_close,
    compiled,
    cotangents_of,
    data_of,
    flags,
    jit,
    noise_of,
    oracle_run,
    run_with_gradients,
)

from seqmodels import recurrence

a_flag = arrays.arrays(bool, (BATCH, STEPS))
some_lengths = arrays.arrays(np.int32, BATCH, elements=st.integers(0, STEPS))


def run(cell, data, **options):
    return run_with_gradients(cell, data, **options)[0]


@table.runs()
@given(
    mask=a_flag,
    reset=a_flag,
    reverse=st.booleans(),
    implementation=st.sampled_from(table.IMPLEMENTATIONS),
)
def test_any_flags_equal_the_numpy_walk(entry, key, mask, reset, reverse, implementation):
    options = {"implementation": implementation, "reverse": reverse, "key": key}
    with jax.enable_x64(True):
        data = data_of(entry.cell)._replace(mask=mask, reset=reset)
        result, noise = (
            run(entry.cell, data, **options),
            noise_of(entry.cell, key, data.x.shape[:2]),
        )
    assert_close(result, oracle_run(entry, data, noise, reverse), 1e-10)


@table.cells()
@settings(max_examples=10)
@given(mask=a_flag, reset=a_flag, reverse=st.booleans(), bad=st.sampled_from([np.nan, np.inf, 1e6]))
def test_what_stands_in_masked_inputs_reaches_nothing(cell, mask, reset, reverse, bad):
    """Neither value nor gradient, bit for bit."""
    with jax.enable_x64(True):
        data = data_of(cell)._replace(mask=mask, reset=reset)
        clean = data._replace(x=np.where(mask[:, :, None], data.x, 0.0))
        dirty = data._replace(x=np.where(mask[:, :, None], data.x, bad))
        result = run_with_gradients(cell, dirty, reverse=reverse)
        jax.tree.map(
            np.testing.assert_array_equal, result, run_with_gradients(cell, clean, reverse=reverse)
        )
    (y, _), (_, dx, _) = result
    assert not np.any(y[~mask]) and not np.any(dx[~mask])


@table.runs(table.ALL)
@pytest.mark.parametrize("implementation", table.IMPLEMENTATIONS)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_carry_that_is_never_read_reaches_nothing(x64, entry, key, implementation, reverse):
    """A row without a real step before its first reset: NaN in its carry reaches no gradient and
    no other row; it is returned where no reset replaced it."""
    data = data_of(entry.cell)
    steps = np.argsort(np.where(data.mask, 0, 1), axis=1, kind="stable")[:, 0]
    unread = ~data.mask.any(axis=1)
    if not reverse:
        unread |= np.array([r[: t + 1].any() for r, t in zip(data.reset, steps, strict=True)])
    else:
        last = STEPS - 1 - np.argmax(data.mask[:, ::-1], axis=1)
        unread |= np.array([r[t + 1 :].any() for r, t in zip(data.reset, last, strict=True)])
    assert 2 < unread.sum() < BATCH

    def result(bad):
        carry = jax.tree.map(lambda leaf: rows_where(~unread, leaf, bad), data.carry)
        dirty = data._replace(carry=carry)
        return run_with_gradients(entry.cell, dirty, implementation, key, reverse=reverse)

    (y, final), slopes = result(np.nan)
    (clean_y, clean), clean_slopes = result(0.0)
    jax.tree.map(np.testing.assert_array_equal, (y, slopes), (clean_y, clean_slopes))
    returned = unread & ~data.reset.any(axis=1)
    for leaf, other in zip(final, clean, strict=True):
        assert np.all(np.isnan(np.asarray(leaf)[returned]))
        np.testing.assert_array_equal(np.asarray(leaf)[~returned], np.asarray(other)[~returned])


@table.cells()
@given(lengths=some_lengths, reset=a_flag)
def test_a_row_depends_on_its_own_real_steps_only(cell, lengths, reset):
    """Each row alone, cut to its length, gives what it gives in the batch, forward and back."""
    mask = np.arange(STEPS) < lengths[:, None]
    row = int(lengths.sum()) % BATCH
    with jax.enable_x64(True):
        data = data_of(cell)._replace(mask=mask, reset=reset & mask)
        cut = lengths[row]
        # Cut: the same steps, then T - cut steps of another row that the mask takes out.
        other = np.roll(data.x, 1, axis=0)
        alone = np.where((np.arange(STEPS) < cut)[None, :, None], data.x[[row]], other[[row]])
        one = data._replace(x=np.repeat(alone, BATCH, 0), mask=np.repeat(mask[[row]], BATCH, 0))
        one = one._replace(
            reset=np.repeat(data.reset[[row]], BATCH, 0),
            carry=jax.tree.map(lambda leaf: np.repeat(leaf[[row]], BATCH, 0), data.carry),
        )
        for reverse in (False, True):
            everyone, single = (run(cell, d, reverse=reverse) for d in (data, one))
            picked = jax.tree.map(lambda leaf: np.asarray(leaf)[row], everyone)
            assert_close(jax.tree.map(lambda leaf: np.asarray(leaf)[row], single), picked, 1e-12)
            assert not np.any(everyone[0][row, cut:])


@table.cells()
@given(mask=a_flag, reset=a_flag, order=st.permutations(range(BATCH)))
def test_permuted_rows_give_permuted_results(cell, mask, reset, order):
    order = np.array(order)

    def permuted(tree):
        return jax.tree.map(lambda leaf: np.asarray(leaf)[order], tree)

    with jax.enable_x64(True):
        data = data_of(cell)._replace(mask=mask, reset=reset)
        moved = jax.tree.map(lambda leaf: leaf[order], data._replace(params=None))
        result = run(cell, moved._replace(params=data.params))
        assert_close(result, permuted(run(cell, data)), 1e-12)


@table.cells()
@pytest.mark.parametrize("reverse", [False, True])
def test_B02_an_output_sees_its_past_and_nothing_else(x64, cell, reverse):
    """Backwards, the past is what follows; y stays aligned with x. Resets cut it off."""
    plain = np.ones((BATCH, STEPS), bool), np.zeros((BATCH, STEPS), bool)
    for mask, reset in (plain, flags()):
        data = data_of(cell)._replace(mask=mask, reset=reset)
        d_y, d_final = cotangents_of(cell, data)
        nothing = jax.tree.map(np.zeros_like, d_final)
        sequence = np.cumsum(reset, axis=1)  # numbers the sequences of a row
        for t in range(STEPS):
            here = np.where((np.arange(STEPS) == t)[None, :, None], d_y, 0.0)
            run = compiled(cell, "fused", None, reverse=reverse)
            _, (_, dx, d_carry) = jax.device_get(run(*data, (here, nothing)))
            seen = np.any(dx != 0, axis=-1)
            past = np.arange(STEPS) >= t if reverse else np.arange(STEPS) <= t
            may_see = past & mask & mask[:, [t]] & (sequence == sequence[:, [t]])
            assert not np.any(seen & ~may_see)
            first = sequence[:, -1] if reverse else 0
            cut_off = ~mask[:, t] | (sequence[:, t] != first)
            assert not any(np.any(leaf[cut_off]) for leaf in d_carry)
            if not reset.any():
                assert list(seen.any(axis=0)) == list(past)


@table.cells()
def test_F06_rows_do_not_speak_to_each_other(x64, cell):
    """What comes out of one row has no gradient for another row's input or carry."""
    data = data_of(cell)
    weights, row = cotangents_of(cell, data), np.arange(BATCH)
    run = compiled(cell, "fused", None, reverse=False)
    for one in (0, 1, 4):
        alone = jax.tree.map(lambda leaf, one=one: rows_where(row == one, leaf, 0.0), weights)
        _, (_, dx, d_carry) = jax.device_get(run(*data, alone))
        for leaf in (dx, *d_carry):
            assert not np.any(np.delete(leaf, one, axis=0))
        assert np.any(dx[one])


def rows_where(rows, leaf, other):
    """Leaf [B, ...] in those rows and `other` elsewhere."""
    return np.where(rows.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, other)


@functools.cache
def chunk_runner(cell):
    """A jitted run without gradients; each chunk length is one more compilation."""
    return jit(lambda data: recurrence.run(cell, **data._asdict(), implementation="fused"))


@table.cells()
@given(mask=a_flag, reset=a_flag)
def test_chunks_with_the_carry_equal_the_whole(cell, mask, reset):
    """A row may end inside a chunk or before it, and a sequence may start anywhere."""
    with jax.enable_x64(True):
        whole = data_of(cell)._replace(mask=mask, reset=reset)
        carry, outputs = whole.carry, []
        for start, stop in ((0, 3), (3, 6), (6, 8)):
            steps = {name: getattr(whole, name)[:, start:stop] for name in ("x", "mask", "reset")}
            y, carry = chunk_runner(cell)(whole._replace(carry=carry, **steps))
            outputs.append(y)
        assert_close((np.concatenate(outputs, 1), carry), run(cell, whole), 1e-12)


@given(lengths=some_lengths)
def test_lengths_are_a_prefix_mask(lengths):
    cell = TABLE["lstm"].cell
    with jax.enable_x64(True):
        data = data_of(cell)._replace(mask=None, reset=None)
        result = length_runner(cell)(data.params, data.x, data.carry, lengths)
        expected = chunk_runner(cell)(data._replace(mask=np.arange(STEPS) < lengths[:, None]))
        jax.tree.map(np.testing.assert_array_equal, result, expected)


@functools.cache
def length_runner(cell):
    options = {"implementation": "fused"}
    return jit(
        lambda p, x, carry, lengths: recurrence.run(cell, p, x, carry, lengths=lengths, **options)
    )
