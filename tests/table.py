"""The cells under contract, each with its oracle; random data for them; compiled runs to share.

A new cell joins the contract suite by one line of TABLE.
"""

import functools
from typing import Any, NamedTuple

import jax
import numpy as np
import probes
import reference

from seqmodels import recurrence
from seqmodels.cells import GRU, LSTM, RNN, Cell

WIDTH = STEPS = BATCH = 7  # B = H = T: a flag that selects columns instead of rows would show
INPUTS = 3


class Entry(NamedTuple):
    cell: Cell
    oracle: Any = None  # None: only the plain scan to compare with


TABLE = {
    "rnn tanh": Entry(RNN(WIDTH), reference.rnn(np.tanh)),
    "rnn relu": Entry(RNN(WIDTH, activation="relu"), reference.rnn(reference.relu)),
    "lstm": Entry(LSTM(WIDTH), reference.lstm),
    "gru reset after": Entry(GRU(WIDTH), reference.gru(reset_after=True)),
    "gru reset before": Entry(GRU(WIDTH, reset_after=False), reference.gru(reset_after=False)),
}
PROBES = {
    "running sum": Entry(probes.RunningSum(WIDTH), reference.running_sum),
    "learned start": Entry(probes.LearnedStart(WIDTH), reference.rnn(np.tanh)),
    "awkward": Entry(probes.Awkward(WIDTH)),
}


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
    """(mask, reset), [7, 7]; each row is one difficulty."""
    mask, reset = np.ones((BATCH, STEPS), bool), np.zeros((BATCH, STEPS), bool)
    # Row 0: every step real, one sequence.
    mask[1, [0, 3, 6]], reset[1, 2] = False, True  # holes, the ends among them; a reset between
    mask[2] = False  # no real step, no reset: returns the carry it was given
    mask[3], reset[3, 3] = False, True  # no real step, but a reset
    mask[4, 2:4], reset[4, [0, 3]] = False, True  # resets at the first step and at a masked one
    mask[5, 4:], reset[5, 6] = False, True  # a prefix, and a reset inside its padding
    reset[6, [2, 3]] = True  # a sequence of one step
    return mask, reset


# Small programs that run a few times: compiling them well takes longer than running them.
QUICK = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
jit = functools.partial(jax.jit, compiler_options=QUICK)
# Keys of JAX's default kind take seconds to compile.
KEY = jax.random.key(0, impl="unsafe_rbg")


@functools.cache
def compiled(cell, implementation="fused", key=None, **options):
    """A jitted run with its gradients, one for all tests that ask for the same settings.

    (params, x, carry, mask, reset, cotangents of (y, final)) ->
    ((y, final), gradients for (params, x, carry))
    """
    key = None if key is None else jax.random.key(key)

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
    return run(*data, cotangents_of(cell, data))


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
