"""`fused` against `reference`: values and gradients of parameters, inputs and carry.

Masks with holes, empty rows, resets at real and masked steps and given carries are data in one
compiled call (`table.flags`); B = H = T throughout.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import table
from table import (
    ALL,
    BATCH,
    STEPS,
    Data,
    assert_close,
    compiled,
    cotangents_of,
    data_of,
    jit,
    noise_key,
    normal,
    run_with_gradients,
)

from seqmodels import recurrence
from seqmodels.types import Noise

CELLS = {name: entry.cell for name, entry in ALL.items()}
both = pytest.mark.parametrize("implementation", table.IMPLEMENTATIONS)
both_ways = pytest.mark.parametrize("reverse", [False, True])

EXACT, SINGLE = 1e-10, 1e-5


def reference_run(cell, key=None, **options):
    return run_with_gradients(cell, data_of(cell), "reference", key, **options)


@table.runs(ALL)
@both_ways
def test_fused_equals_reference(x64, entry, key, reverse):
    cell = entry.cell
    result = run_with_gradients(cell, data_of(cell), "fused", key, reverse=reverse)
    assert_close(result, reference_run(cell, key, reverse=reverse), EXACT)


@table.cells(ALL, costly=True)
def test_fused_in_float32_equals_reference(x64, cell):
    data = data_of(cell, np.float32)
    result = run_with_gradients(cell, data, "fused", reverse=True)
    assert {leaf.dtype for leaf in jax.tree.leaves(result)} == {np.dtype(np.float32)}
    assert_close(result, reference_run(cell, reverse=True), SINGLE)


@table.runs(ALL, costly=True)
@pytest.mark.parametrize("implementation, reverse", [("fused", False), ("reference", True)])
def test_remat_changes_no_number(x64, entry, key, implementation, reverse):
    """Chunks of 3 steps in T = 8: the last one starts at step 5, which the one before had."""
    cell, options = entry.cell, {"reverse": reverse, "remat": 3}
    result = run_with_gradients(cell, data_of(cell), implementation, key, **options)
    assert_close(result, reference_run(cell, key, reverse=reverse), EXACT)


def test_remat_and_reverse_without_a_mask(x64):
    cell = CELLS["rnn tanh"]
    data = data_of(cell)._replace(mask=None)
    for remat in (3, 100):
        result = run_with_gradients(cell, data, "fused", reverse=True, remat=remat)
        assert_close(result, run_with_gradients(cell, data, "fused", reverse=True), EXACT)


@both
def test_N02_unroll_changes_no_number(x64, implementation):
    cell = CELLS["rnn tanh"]
    for unroll in (1, 3, 8, 9):
        result = run_with_gradients(cell, data_of(cell), implementation, unroll=unroll)
        assert_close(result, reference_run(cell), EXACT)


@table.runs(ALL)
def test_A09_no_steps_return_the_carry(entry, key):
    check_no_steps(entry.cell, key, "fused", None)


@table.runs(ALL, costly=True)
@pytest.mark.parametrize("implementation, remat", [("reference", None), ("fused", 3)])
def test_A09_no_steps_in_any_way(entry, key, implementation, remat):
    check_no_steps(entry.cell, key, implementation, remat)


def check_no_steps(cell, key, implementation, remat):
    data = data_of(cell, np.float32, steps=0)
    (y, final), gradients = run_with_gradients(cell, data, implementation, key, remat=remat)
    assert y.shape == (BATCH, 0, cell.out_features)
    assert_close(final, data.carry, 0)
    _, expected = cotangents_of(cell, data)
    nothing = jax.tree.map(np.zeros_like, (data.params, data.x))
    assert_close(gradients, (*nothing, expected), 0)


@both
def test_A09_no_steps_without_jit_and_for_streaming(implementation):
    cell = CELLS["lstm"]
    data = data_of(cell, np.float32, steps=0)
    y, final = recurrence.run(cell, data.params, data.x, implementation=implementation)
    assert y.shape == (BATCH, 0, cell.features)
    assert_close(final, cell.initial_carry(data.params, BATCH), 0)


@table.runs(ALL, costly=True)
@both
def test_no_rows(entry, key, implementation):
    cell = entry.cell
    params, *rows = data_of(cell, np.float32)
    data = Data(params, *jax.tree.map(lambda leaf: leaf[:0], rows))
    for remat in (None, 3):
        (y, _), slopes = run_with_gradients(cell, data, implementation, key, remat=remat)
        assert y.shape == (0, STEPS, cell.out_features)
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(slopes))


@table.cells(ALL, costly=True)
def test_no_carry_means_the_initial_carry(cell):
    """In value and gradient; recurrent biases act at the first step too."""
    data = data_of(cell, np.float32)
    weights = cotangents_of(cell, data._replace(carry=None))

    def loss(params, explicit):
        carry = cell.initial_carry(params, BATCH) if explicit else None
        flags = {"reset": data.reset, "implementation": "fused"}
        out = recurrence.run(cell, params, data.x, carry, **flags)
        terms = jax.tree.map(lambda a, w: jnp.sum(a * w), out, weights)
        return sum(jax.tree.leaves(terms)), out

    loss = jit(jax.value_and_grad(loss, has_aux=True), static_argnums=1)
    assert_close(loss(data.params, False), loss(data.params, True), 1e-6)


@both_ways
def test_noise_reaches_its_own_step(x64, reverse):
    """A loop by hand: `sequence` is the same at every step, `step` belongs to input time."""
    cell = CELLS["awkward"]
    data = data_of(cell)
    noise, carry = cell.noise(noise_key(0), BATCH, STEPS), data.carry
    expected = np.zeros((BATCH, STEPS, cell.features))

    @jit
    def step(carry, x, now):
        z, u = cell.project(data.params, x), cell.recur(data.params, carry, now)
        carry = cell.update(data.params, carry, z, u, now)
        return carry, cell.output(carry)

    for t in reversed(range(STEPS)) if reverse else range(STEPS):
        now = Noise(noise.sequence, noise.step[t])
        carry, expected[:, t] = step(carry, data.x[:, t], now)
    everything = data._replace(mask=None, reset=None)
    result, _ = run_with_gradients(cell, everything, "fused", 0, reverse=reverse)
    assert_close(result, (expected, carry), EXACT)


@table.runs(ALL, costly=True)
def test_gradients_of_gradients(x64, entry, key):
    """Hessian-vector products, forward over reverse and reverse over reverse, against
    differences of the plain scan's gradient."""
    cell = entry.cell
    data = data_of(cell)
    weights, at = cotangents_of(cell, data), (data.params, data.x, data.carry)
    direction = normal(20, at, np.float64)
    run = compiled(cell, "fused", key).__wrapped__  # as it was before `jit`

    def gradient(*at):
        return run(*at, data.mask, data.reset, weights)[1]

    def dot(a, b):
        return sum(jax.tree.leaves(jax.tree.map(lambda a, b: jnp.sum(a * b), a, b)))

    plain = compiled(cell, "reference", key)

    def difference(size):
        ends = [
            plain(*jax.tree.map(lambda a, d, s=s: a + s * d, at, direction), *data[3:], weights)[1]
            for s in (size, -size)
        ]
        return jax.tree.map(lambda a, b: (a - b) / (2 * size), *ends)

    # Two sizes, whose errors of second order cancel: under norms they are above 1e-6.
    expected = jax.tree.map(lambda a, b: (4 * a - b) / 3, difference(5e-6), difference(1e-5))
    forward = jit(lambda *at: jax.jvp(gradient, at, direction)[1])(*at)
    backward = jit(jax.grad(lambda *at: dot(gradient(*at), direction), (0, 1, 2)))(*at)
    assert_close(forward, expected, 1e-8)
    assert_close(backward, forward, EXACT)


@pytest.mark.parametrize("remat", [None, 3])
def test_forward_mode_needs_the_reference(x64, remat):
    cell = CELLS["lstm"]
    data = data_of(cell)
    weights, at = cotangents_of(cell, data), (data.params, data.x, data.carry)
    direction = normal(20, at, np.float64)

    def loss(implementation, *at):
        flags = {"mask": data.mask, "reset": data.reset, "remat": remat}
        out = recurrence.run(cell, *at, implementation=implementation, **flags)
        return sum(jax.tree.leaves(jax.tree.map(lambda a, w: jnp.sum(a * w), out, weights)))

    _, slope = jit(lambda *at: jax.jvp(lambda *at: loss("reference", *at), at, direction))(*at)
    _, gradients = reference_run(cell)
    expected = jax.tree.map(lambda g, d: np.sum(g * d), gradients, direction)
    np.testing.assert_allclose(slope, sum(jax.tree.leaves(expected)), rtol=1e-10)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda *at: loss("fused", *at), at, direction)
