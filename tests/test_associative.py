"""Cells that are linear in their carry, all steps at once: the same numbers as one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import table
from table import assert_close, data_of, run_with_gradients

from seqmodels import recurrence
from seqmodels.cells import LRU, LSTM, LearnedCarry, MinGRU, MinLSTM
from seqmodels.cells.linear import LinearCarry
from seqmodels.recurrence.associative import linear_scan

WIDTH = table.WIDTH
LINEAR = [MinGRU(WIDTH), MinLSTM(WIDTH), LRU(WIDTH), LearnedCarry(LRU(WIDTH))]
every_cell = pytest.mark.parametrize("cell", LINEAR, ids=lambda cell: type(cell).__name__)


@every_cell
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("remat", [None, 3])
def test_values_and_gradients_are_those_of_the_plain_scan(x64, cell, reverse, remat):
    """With holes, resets, empty rows and a given carry."""
    data = data_of(cell)
    expected = run_with_gradients(cell, data, "reference", reverse=reverse)
    found = run_with_gradients(cell, data, "associative", reverse=reverse, remat=remat)
    assert_close(found, expected, 1e-12)


@every_cell
@pytest.mark.parametrize("steps", [0, 1, 7])
def test_any_number_of_steps(x64, cell, steps):
    data = data_of(cell, steps=steps)
    expected = run_with_gradients(cell, data, "reference")
    assert_close(run_with_gradients(cell, data, "associative"), expected, 1e-12)


@every_cell
def test_carries_keep_their_dtype(cell):
    params = cell.init(jax.random.key(0), 3)
    x = np.ones((2, 5, 3), np.float32)
    for dtype in (jnp.bfloat16, jnp.float32):
        given = cell.initial_carry(params, 2, dtype)
        y, carry = recurrence.run(cell, params, x, given, implementation="associative")
        assert {leaf.dtype for leaf in jax.tree.leaves((y, carry))} == {jnp.dtype(dtype)}


def test_gradients_of_gradients(x64):
    a, b, h = (np.random.default_rng(n).normal(size=s) for n, s in enumerate([(5, 3), (5, 3), 3]))

    def walk(a, b, h):
        out = []
        for step in range(5):
            h = a[step] * h + b[step]
            out.append(h)
        return jnp.stack(out)

    def curvature(run):
        def slope(a, b, h):
            return jax.grad(lambda a: jnp.sum(jnp.sin(run(a, b, h))))(a)

        return jax.grad(lambda *at: jnp.sum(jnp.cos(slope(*at))), (0, 1, 2))(a, b, h)

    assert_close(curvature(lambda *at: linear_scan(False, *at)), curvature(walk), 1e-10)
    forward = jax.hessian(lambda a, b, h: jnp.sum(jnp.sin(linear_scan(False, a, b, h))), (0, 2))
    assert_close(
        forward(a, b, h),
        jax.hessian(lambda *at: jnp.sum(jnp.sin(walk(*at))), (0, 2))(a, b, h),
        1e-10,
    )


@every_cell
@pytest.mark.parametrize("reverse", [False, True])
def test_nothing_crosses_a_reset(x64, cell, reverse):
    """NaN and infinity neither: a row of them before its reset, and its carry."""
    data = data_of(cell)._replace(mask=None)
    reset = np.zeros_like(data.reset)
    reset[:, 4] = True
    x = np.array(data.x)
    before = slice(4, None) if reverse else slice(None, 4)
    x[0, before], x[1, before] = np.nan, np.inf
    data = data._replace(reset=reset, x=x)
    expected, _ = run_with_gradients(cell, data, "reference", reverse=reverse)
    found, _ = run_with_gradients(cell, data, "associative", reverse=reverse)
    after = slice(None, 4) if reverse else slice(4, None)
    assert np.all(np.isfinite(found[0][:, after])) and np.all(np.isnan(found[0][0, before]))
    assert_close((found[0][:, after], found[1]), (expected[0][:, after], expected[1]), 1e-12)


def test_rows_without_a_step_keep_every_digit_of_their_carry(x64):
    cell = MinGRU(WIDTH)
    params = cell.init(jax.random.key(0), 3)
    given = LinearCarry(h=np.full((2, WIDTH), 1 / 3))
    options = {"lengths": np.array([0, 5]), "implementation": "associative"}
    _, carry = recurrence.run(cell, params, np.ones((2, 5, 3), np.float32), given, **options)
    np.testing.assert_array_equal(carry.h[0], given.h[0])


def test_an_update_or_noise_of_its_own_takes_one_step_after_another():
    class Other(MinGRU):
        def update(self, params, carry, z, u, noise=None):
            return super().update(params, carry, -z, u)

    class Noisy(MinGRU):
        def noise(self, key, batch, steps):
            return None

    for cell in (Other(4), Noisy(4), LearnedCarry(Other(4))):
        with pytest.raises(ValueError, match="is not: take 'auto'"):
            recurrence.choose(cell, "associative")


def test_other_cells_are_refused():
    with pytest.raises(
        ValueError, match="serves cells that are linear in their carry; LSTM is not"
    ):
        recurrence.choose(LSTM(4), "associative")


@pytest.mark.parametrize("cell, kept", [(MinGRU(2000), 0.731), (MinLSTM(2000), 0.594)])
def test_gates_start_by_keeping(cell, kept):
    """sigmoid(1) of the old value; for MinLSTM 1 / (1 + sigmoid(0) / sigmoid(1))."""
    params = cell.init(jax.random.key(0), 3)
    a, _ = cell.linear(params, cell.project(params, np.zeros((1, 3), np.float32)))
    assert float(a.mean()) == pytest.approx(kept, abs=1e-3)


def test_the_ring_of_an_lru():
    cell = LRU(4000, least=0.5, most=0.9, phase=1.0)
    params = cell.init(jax.random.key(0), 3)
    a, _ = cell.linear(params, jnp.zeros((1, 8000)))
    radius, angle = np.abs(a), np.angle(a)
    assert 0.5 <= radius.min() < 0.51 and 0.89 < radius.max() <= 0.9
    assert np.mean(radius < np.sqrt((0.25 + 0.81) / 2)) == pytest.approx(0.5, abs=0.03)  # by area
    assert 0 <= angle.min() < 0.01 and 0.99 < angle.max() <= 1.0


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"least": 0.9, "most": 0.5}, "least=0.9 and most=0.5"),
        ({"most": 1.5}, "most=1.5"),
        ({"phase": 0.0}, "phase=0.0"),
    ],
)
def test_rings_that_cannot_be_are_refused(settings, says):
    with pytest.raises(ValueError, match=says):
        LRU(4, **settings)
