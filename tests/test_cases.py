"""Situations met in practice, with their right numbers; each test is named after its case.

Most use F1, a tanh cell of one unit small enough to check with a pocket calculator:
h' = tanh(1.0 x + 0.5 h + 0.1) on x = 1, -1, 0.5.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
import table
from table import INPUTS, KEY, assert_close, jit, params_of

from seqmodels import recurrence
from seqmodels.cells import GRU, LSTM, RNN, GRUCarry, LearnedCarry, LSTMCarry, RNNCarry

both = pytest.mark.parametrize("implementation", table.IMPLEMENTATIONS)

F1 = RNN(1)
X = [1.0, -1.0, 0.5]
THREE = np.array([3])


def matrix(*rows):
    return np.array(rows, np.float32)


F1_PARAMS = {
    "input": {"kernel": matrix([1.0]), "bias": np.float32([0.1])},
    "recurrent": {"kernel": matrix([0.5])},
}


@functools.cache
def runner(cell, implementation="fused", reverse=False):
    """One compiled run for all flags and contents of one shape."""

    def run(params, x, carry=None, mask=None, lengths=None, reset=None):
        flags = {"mask": mask, "lengths": lengths, "reset": reset, "reverse": reverse}
        return recurrence.run(cell, params, x, carry, implementation=implementation, **flags)

    return jit(run)


def results(cell, *arguments, reverse=False, **flags):
    """What a compiled run gives, as NumPy arrays: slices of others are programs of their own."""
    return jax.device_get(runner(cell, reverse=reverse)(*arguments, **flags))


def f1(x, h0=None, params=F1_PARAMS, run=None, implementation="fused", reverse=False, **flags):
    """(y [T], final h) of one row."""
    x = jnp.asarray(x, jnp.float32)[None, :, None]
    carry = None if h0 is None else RNNCarry(jnp.full((1, 1), h0, jnp.float32))
    run = run or runner(F1, implementation, reverse)
    y, final = run(params, x, carry, **flags)
    return y[0, :, 0], final.h[0, 0]


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-6)


@both
def test_F1_values(implementation):
    y, final = f1(X, implementation=implementation)
    close(y, [0.800499, -0.461921, 0.353151])
    close(final, 0.353151)
    y, final = f1(X, h0=0.2, implementation=implementation)
    close(y, [0.833655, -0.448781, 0.358889])
    close(final, 0.358889)


@both
@pytest.mark.parametrize("pad", [0.0, 1.0, 1e6, np.nan])
def test_A01_padding_does_not_move_the_state(implementation, pad):
    for steps in (3, 4, 5, 64):
        padded = X + [pad] * (steps - 3)
        y, final = f1(padded, lengths=THREE, implementation=implementation)
        close(y, [0.800499, -0.461921, 0.353151] + [0] * (steps - 3))
        close(final, 0.353151)
    left = [pad, pad, *X]
    mask = np.array([[False, False, True, True, True]])
    close(f1(left, mask=mask, implementation=implementation)[1], 0.353151)


def test_A01_unmasked_padding_would_move_it():
    """The fixture can tell: these are the wrong answers."""
    close(f1([*X, 0.0, 0.0])[1], 0.230641)
    close(f1([0.0, 0.0, *X])[1], 0.357501)


@table.cells(costly=True)
def test_A01_for_every_cell(cell):
    params, x = params_of(cell, dtype=np.float32), random_inputs(2, 3)
    y, final = results(cell, params, x)
    for steps, pad in ((5, 1.0), (64, 1e6)):
        padded = np.full((2, steps, INPUTS), pad, np.float32)
        padded[:, :3] = x
        y_padded, final_padded = results(cell, params, padded, lengths=np.array([3, 3]))
        assert_close((y_padded[:, :3], final_padded), (y, final), 1e-6)
        assert not np.any(y_padded[:, 3:])


def test_A04_a_zero_step_is_not_padding():
    y, _ = f1([1.0, 0.0, 0.5], lengths=THREE)
    close(y, [0.800499, 0.462313, 0.681097])


@table.cells()
@pytest.mark.parametrize("reverse", [False, True])
def test_A05_A07_padded_outputs_are_zero_and_keep_their_place(cell, reverse):
    params = params_of(cell, dtype=np.float32)
    x = np.full((3, 5, INPUTS), 1e6, np.float32)
    x[0, :2], x[1, :4] = random_inputs(2), random_inputs(4)
    y, _ = results(cell, params, x, lengths=np.array([2, 4, 0]), reverse=reverse)
    assert y.shape == (3, 5, cell.out_features), "T stays, though no row reaches it"
    assert not np.any(y[0, 2:]) and not np.any(y[1, 4:])
    assert np.all(np.any(np.asarray(y[0, :2]) != 0, axis=-1)) and not np.any(y[2])
    np.testing.assert_array_equal(y.sum(axis=1), y[:, :4].sum(axis=1))


@table.cells()
def test_A06_order_of_the_rows(cell):
    """No sorting by length is needed; bit for bit the same."""
    params, x = params_of(cell, dtype=np.float32), random_inputs(3, 5)
    lengths = np.array([2, 5, 3])
    expected = results(cell, params, x, lengths=lengths)
    for order in itertools.permutations(range(3)):
        order = np.array(order)
        moved = results(cell, params, x[order], lengths=lengths[order])
        jax.tree.map(
            lambda a, b, order=order: np.testing.assert_array_equal(a, b[order]), moved, expected
        )


@table.cells()
def test_A11_every_length_counts(cell):
    params, x = params_of(cell, dtype=np.float32), random_inputs(3, 5)

    def last(lengths):
        carry = results(cell, params, x, lengths=np.array(lengths))[1]
        return np.asarray(cell.output(carry))

    final = last([3, 1, 5])
    for row, lengths in enumerate(([2, 1, 5], [3, 2, 5], [3, 1, 4])):
        changed = np.abs(last(lengths) - final).max(axis=1) > 1e-4
        assert list(np.flatnonzero(changed)) == [row]


@both
def test_B01_backwards_starts_at_the_last_real_step(implementation):
    options = {"reverse": True, "implementation": implementation}
    for pads in ([], [0.0, 0.0], [1e6]):
        y, final = f1(X + pads, lengths=THREE, **options)
        close(y, [0.675324, -0.559067, 0.537050] + [0] * len(pads))
        close(final, 0.675324)
    wrong, _ = f1([*X, 0.0, 0.0], **options)
    close(wrong[:3], [0.680110, -0.541361, 0.587841])


@both
def test_B01_running_sum_both_ways(implementation):
    """F4."""
    cell, pad = probes.RunningSum(1), 99.0
    x = matrix([1, 2, 3, pad, pad], [1, 2, 3, 4, 5])[:, :, None]
    _, final = runner(cell, implementation)({}, x, lengths=np.array([3, 5]))
    np.testing.assert_array_equal(final.h[:, 0], [6, 15])
    y, final = runner(cell, implementation, reverse=True)({}, x, lengths=np.array([3, 5]))
    np.testing.assert_array_equal(y[:, :, 0], [[6, 5, 3, 0, 0], [15, 14, 12, 9, 5]])
    np.testing.assert_array_equal(final.h[:, 0], [6, 15])


@table.cells(costly=True)
def test_B01_each_row_backwards_as_if_alone(cell):
    params, x = params_of(cell, dtype=np.float32), random_inputs(2, 5)
    y, final = results(cell, params, x, lengths=np.array([3, 5]), reverse=True)
    alone, last = results(cell, params, x[:1, :3], reverse=True)
    flipped, _ = results(cell, params, x[:1, :3][:, ::-1])
    assert_close(y[:1, :3], alone, 1e-6)
    assert_close(y[:1, :3], flipped[:, ::-1], 1e-6)
    assert_close(jax.tree.map(lambda leaf: leaf[:1], final), last, 1e-6)


@both
def test_reset_at_F1(implementation):
    reset = np.array([[False, True, False]])

    @jit
    @functools.partial(jax.grad, argnums=(0, 1), has_aux=True)
    def slopes(x, h0):
        y, final = f1(x, h0, reset=reset, run=runner(F1, implementation).__wrapped__)
        return final, y

    (to_inputs, to_start), y = slopes(jnp.array(X), 0.2)
    close(y, [0.833655, -0.716298, 0.237243])
    assert to_inputs[0] == 0 and np.all(to_inputs[1:] != 0) and to_start == 0


def loss_in_chunks(sizes, summed):
    """A loss on F1 where the carry crosses chunk borders as data, without a gradient."""

    def loss(w_h, h0):
        params = {**F1_PARAMS, "recurrent": {"kernel": w_h}}
        start, total, h = 0, 0.0, h0
        for size in sizes:
            run = runner(F1).__wrapped__
            y, h = f1(X[start : start + size], h, params, run)
            total, start = total + jnp.sum(y), start + size
            h, last = jax.lax.stop_gradient(h), h
        return total if summed else last

    return jit(jax.grad(lambda w, h0: loss(w[None, None], h0), argnums=(0, 1)))(0.5, 0.2)


def test_gradients_at_F1():
    for sizes, expected in (([3], -0.0903652), ([1, 2], -0.1009758), ([2, 1], -0.3909775)):
        close(loss_in_chunks(sizes, False)[0], expected)
    close(loss_in_chunks([3], False)[1], 0.0265267)
    for sizes, expected in (([3], 0.6607506), ([2, 1], 0.3601382), ([1, 1, 1], 0.3357795)):
        close(loss_in_chunks(sizes, True)[0], expected)


def test_C05_learned_start():
    cell = LearnedCarry(F1)

    def last(start, rows=1, reset=None, carry=None):
        params = {**F1_PARAMS, "start": {"h": start[None]}}
        x = jnp.broadcast_to(jnp.array(X)[None, :, None], (rows, 3, 1))
        run = runner(cell).__wrapped__
        y, final = run(params, x, carry, reset=reset)
        return jnp.sum(final.h), y[:, :, 0]

    slope = jit(jax.grad(last, has_aux=True), static_argnames="rows")
    start = jnp.float32(0.2)
    gradient, y = slope(start)
    close(gradient, 0.0265267)
    close(y[0], [0.833655, -0.448781, 0.358889])
    close(slope(start, rows=2)[0], 2 * 0.0265267)

    # A reset in mid-sequence starts again from the learned vector and adds to its gradient.
    reset = np.array([[False, True, False]])
    gradient, y = slope(start, reset=reset)
    close(y[0], [0.833655, -0.664037, 0.261746])
    by_hand = np.prod([0.5 * (1 - h**2) for h in (-0.664037, 0.261746)])
    close(gradient, by_hand)
    both_rows = np.concatenate([reset, np.zeros_like(reset)])
    close(slope(start, rows=2, reset=both_rows)[0], by_hand + 0.0265267)

    # A carry that is handed in, as to the later chunks of a stream, is no start; a reset is one.
    given = RNNCarry(jnp.full((1, 1), 0.2))
    assert slope(start, carry=given)[0] == 0
    close(slope(start, carry=given, reset=reset)[0], by_hand)
    first = np.array([[True, False, False]])
    close(slope(start, carry=RNNCarry(jnp.full((1, 1), 9.0)), reset=first)[0], 0.0265267)


def one_step(cell, params, carry, x=0.0):
    return jit(cell.step)(params, carry, np.full((1, 1), x, np.float32))[0]


def gru_case(reset_after, h, z_bias=0.0):
    """F2: r = 0.5 (all its weights 0), W_n = 0.3, b_n = 0.1, U_n = 0.8, d = 0.5, x = 1."""
    params = {
        "input": {"kernel": matrix([0, 0, 0.3]), "bias": np.float32([0, z_bias, 0.1])},
        "recurrent": {"kernel": matrix([0, 0, 0.8]), "bias": np.float32([0.5])},
    }
    return one_step(GRU(1, reset_after=reset_after), params, GRUCarry(matrix([h])), 1.0).h[0, 0]


def test_F01_gru_reset_after_or_before_the_product():
    close(gru_case(True, h=1.0), 0.890903)
    close(gru_case(False, h=1.0), 0.930862)
    close(gru_case(True, h=0.0), 0.285835)
    close(gru_case(False, h=0.0), 0.358149)
    assert GRU(1, reset_after=True) != GRU(1, reset_after=False)


@pytest.mark.parametrize("reset_after, candidate", [(True, [0, 0]), (False, [0, 1])])
def test_F01_differs_without_biases_too(reset_after, candidate):
    """F2-2u: U_n swaps the units, h = [1, 0], and a bias of +-40 makes r = [1, 0]."""
    swap = matrix([0, 1], [1, 0])
    params = {
        "input": {
            "kernel": np.zeros((1, 6), np.float32),
            "bias": np.float32([40, -40, 0, 0, 0, 0]),
        },
        "recurrent": {
            "kernel": np.concatenate([np.zeros((2, 4), np.float32), swap], axis=1),
            "bias": np.zeros(2, np.float32),
        },
    }
    h = matrix([1, 0])
    new = one_step(GRU(2, reset_after=reset_after), params, GRUCarry(h)).h
    close(np.arctanh(2 * new[0] - h[0]), candidate)  # z = 0.5, so h' = (n + h) / 2


def test_F02_the_update_gate_keeps():
    """h' = (1 - z) n + z h, as documented; the other convention gives 0.807816."""
    close(gru_case(True, h=1.0, z_bias=2.0), 0.973991)


def lstm_case(i=1.0, f=2.0, g=0.5, o=-1.0, carry=None):
    """F3: gates from their biases alone, c0 = 1."""
    params = {
        "input": {"kernel": np.zeros((1, 4), np.float32), "bias": np.float32([i, f, g, o])},
        "recurrent": {"kernel": np.zeros((1, 4), np.float32)},
    }
    carry = LSTMCarry(h=matrix([0]), c=matrix([1])) if carry is None else carry
    new = one_step(LSTM(1), params, carry)
    return new.c[0, 0], new.h[0, 0]


def test_F03_gate_order_of_the_lstm():
    close(lstm_case(), [1.218632, 0.225709])
    close(lstm_case(i=2.0, f=1.0), [1.138090, 0.218856])  # what swapped gates would give
    close(lstm_case(g=-1.0, o=0.5), [0.324027, 0.194919])


def test_C02_swapped_h_and_c_show():
    swapped = LSTMCarry(h=matrix([1]), c=matrix([0]))
    assert abs(lstm_case(carry=swapped)[0] - 1.218632) > 0.5


def test_F04_the_forget_bias_is_counted_once():
    close(lstm_case(f=3.0), [1.290409, 0.231083])
    bias = jit(LSTM(1).init, static_argnums=1)(KEY, 1)["input"]["bias"]
    close(jax.nn.sigmoid(bias[1]), 0.731059)


def random_inputs(*shape):
    return np.random.default_rng(3).normal(size=(*shape, INPUTS)).astype(np.float32)
