"""Tests over the grid of cells; random data for them; compiled runs to share."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import reference
from grid import ALL, ALONE, PROBES, SAMPLE, TABLE, WIDTH  # noqa: F401 (tests have all from here)

from seqmodels import recurrence

IMPLEMENTATIONS = ("fused", "reference")  # those that serve every cell
STEPS = BATCH = WIDTH  # B = H = T: a flag that selects columns instead of rows would show
INPUTS = 3


def entries(table=TABLE, costly=False):
    """Parametrizes a test by `entry`."""
    return _parametrized("entry", table, lambda one: [("", (one,), True)], costly)


def cells(table=TABLE, costly=False):
    """Parametrizes a test by `cell`."""
    return _parametrized("cell", table, lambda one: [("", (one.cell,), True)], costly)


def runs(table=TABLE, costly=False):
    """Parametrizes a test by `entry` and `key`: with noise where a cell has it, which is the same
    code and more; without it too among the slow, if it is not costly."""

    def rows(one):
        if not one.cell.stochastic:
            return [("", (one, None), True)]
        return [("", (one, None), False)] * (not costly) + [(", noise", (one, 0), True)]

    return _parametrized("entry, key", table, rows, costly)


def _parametrized(names, table, rows, costly):
    """Slow entries are marked. A costly test has no ALONE; its fast part is SAMPLE."""
    return pytest.mark.parametrize(
        names,
        [
            pytest.param(
                *values, id=name + suffix,
                marks=()
                if fast and not one.slow and (name in SAMPLE or not costly)
                else pytest.mark.slow,
            )
            for name, one in table.items() if not (costly and name in ALONE)
            for suffix, values, fast in rows(one)
        ],
    )  # fmt: skip


def changed(cell, **settings):
    """The same cell with other settings; of a wrapped cell, of what it is around."""
    if hasattr(cell, "cell"):
        return dataclasses.replace(cell, cell=changed(cell.cell, **settings))
    return dataclasses.replace(cell, **settings)


def normal(seed, like, dtype, scale=1.0):
    """A tree of random numbers in the shapes of `like`, which may be shapes only."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: (scale * rng.normal(size=leaf.shape)).astype(dtype), like)


def params_of(cell, inputs=INPUTS, dtype=np.float64, seed=0, scale=0.4):
    """Random everywhere, biases too: a bias left at its start of 0 hides mistakes (case F05)."""
    shapes = jax.eval_shape(lambda key: cell.init(key, inputs), jax.random.key(0))
    return normal(seed, shapes, dtype, scale)


def module_params(module, *args, seed=0, dtype=np.float32, scale=0.4, **kwargs):
    """The same for a Flax module called with these arguments; nothing is computed."""
    make = functools.partial(module.init, **kwargs)
    variables = jax.eval_shape(make, jax.random.key(0), *args)
    return {"params": normal(seed, variables["params"], dtype, scale)}


@functools.cache
def apply(module):
    """`module.apply`, compiled once for all tests with an equal module."""
    return jit(module.apply, static_argnames=("train", "method"))


def carry_of(cell, params, batch=BATCH, dtype=np.float64, seed=1):
    return normal(seed, jax.eval_shape(lambda: cell.initial_carry(params, batch)), dtype)


def inputs_of(cell):
    """Features that the cell's inputs need: a cell without an input matrix takes its own width."""
    shapes = jax.eval_shape(lambda key: cell.init(key, INPUTS), jax.random.key(0))
    return INPUTS if shapes else cell.features


class Data(NamedTuple):
    params: Any
    x: np.ndarray
    carry: Any
    mask: np.ndarray
    reset: np.ndarray


@functools.cache
def data_of(cell, dtype=np.float64, steps=STEPS, seed=0):
    """Parameters, inputs, a given carry and the hardest flags (`flags`)."""
    inputs = inputs_of(cell)
    params = params_of(cell, inputs, dtype, seed)
    x = np.random.default_rng(seed + 2).normal(size=(BATCH, steps, inputs)).astype(dtype)
    mask, reset = flags()
    carry = carry_of(cell, params, dtype=dtype, seed=seed + 1)
    return Data(params, x, carry, mask[:, :steps], reset[:, :steps])


def flags():
    """(mask, reset), [8, 8]; each row is one difficulty."""
    mask, reset = np.ones((BATCH, STEPS), bool), np.zeros((BATCH, STEPS), bool)
    # Row 0: every step real, one sequence.
    mask[1, [0, 3, 7]], reset[1, 2] = False, True  # holes, the ends among them; a reset between
    mask[2] = False  # no real step, no reset: returns the carry it was given
    mask[3], reset[3, 3] = False, True  # no real step, but a reset
    mask[4, 2:4], reset[4, [0, 3]] = False, True  # resets at the first step and at a masked one
    mask[5, 4:], reset[5, 6] = False, True  # a prefix, and a reset inside its padding
    reset[6, [2, 3]] = True  # a sequence of one step
    mask[7, :3], reset[7, 2] = False, True  # padding in front, the reset inside it
    return mask, reset


# Small programs that run a few times: compiling them well takes longer than running them.
QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
jit = functools.partial(jax.jit, compiler_options=QUICK)
# Keys of JAX's default kind take seconds to compile.
KEY = jax.random.key(0, impl="unsafe_rbg")


def noise_key(seed):
    return jax.random.fold_in(KEY, seed)


def noise_of(cell, key, shape):
    """What the cell draws from `noise_key(key)` in a run of `shape` [B, T], for the oracle."""
    return None if key is None else _drawn(cell, key, shape, jax.config.jax_enable_x64)


@functools.cache
def _drawn(cell, key, shape, x64):
    noise = jit(lambda: cell.noise(noise_key(key), *shape))()
    return jax.tree.map(np.asarray, (noise.sequence, noise.step))


def oracle_run(entry, data, noise=None, reverse=False):
    """The NumPy walk on the same data: (y, final carry)."""
    y, final = reference.run(
        entry.oracle, data.params, data.x, data.carry._asdict(), mask=data.mask, reset=data.reset,
        reverse=reverse, noise=noise,
    )  # fmt: skip
    return y, type(data.carry)(**final)


@functools.cache
def compiled(cell, implementation="fused", key=None, **options):
    """A jitted run with its gradients, one for all tests that ask for the same settings.

    (params, x, carry, mask, reset, cotangents of (y, final)) ->
    ((y, final), gradients for (params, x, carry))
    """
    key = None if key is None else noise_key(key)

    @jit
    def run(params, x, carry, mask, reset, cotangents):
        def forward(params, x, carry):
            flags = {"mask": mask, "reset": reset, "key": key}
            return recurrence.run(
                cell, params, x, carry, implementation=implementation, **flags, **options
            )

        out, pullback = jax.vjp(forward, params, x, carry)
        return out, pullback(cotangents)

    return run


def run_with_gradients(cell, data, implementation="fused", key=None, **options):
    """`compiled` on `data` with random cotangents, non-zero at masked steps too."""
    run = compiled(cell, implementation, key, **options)
    return jax.device_get(run(*data, cotangents_of(cell, data)))


def cotangents_of(cell, data, seed=9):
    """Random cotangents of (y, final carry) in their shapes and dtypes."""
    batch, steps = data.x.shape[:2]
    carry = data.carry
    if carry is None:
        carry = jax.eval_shape(lambda: cell.initial_carry(data.params, batch))
    y = jax.eval_shape(cell.output, carry)
    y = jax.ShapeDtypeStruct((batch, steps, *y.shape[1:]), y.dtype)
    return normal(seed, (y, carry), y.dtype)


def assert_close(actual, expected, tolerance):
    """Leafwise, relative to each leaf's largest number."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    leaves = jax.tree_util.tree_leaves_with_path(actual)
    for (path, got), wanted in zip(leaves, jax.tree.leaves(expected), strict=True):
        got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
        scale = max(1.0, np.max(np.abs(wanted), initial=0.0))
        np.testing.assert_allclose(
            got, wanted, rtol=0, atol=tolerance * scale, err_msg=jax.tree_util.keystr(path)
        )
