"""The cells under contract, each with its oracle; random data for them; compiled runs to share.

A new cell or option joins the contract suite by one line of FAST, RICH or ALONE.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import numpy as np
import probes
import pytest
import reference

from seqmodels import recurrence
from seqmodels.cells import GRU, LRU, LSTM, MGU, RNN, Cell, LearnedCarry, MinGRU, MinLSTM, Zoneout

IMPLEMENTATIONS = ("fused", "reference")  # those that serve every cell
WIDTH = STEPS = BATCH = 8  # B = H = T: a flag that selects columns instead of rows would show
INPUTS = 3


class Entry(NamedTuple):
    cell: Cell
    oracle: Any = None  # None: only the plain scan to compare with
    slow: bool = False


ORACLES = {
    RNN: reference.rnn,
    LSTM: reference.lstm,
    GRU: reference.gru,
    MGU: reference.mgu,
    MinGRU: reference.min_gru,
    MinLSTM: reference.min_lstm,
    LRU: reference.lru,
    LearnedCarry: reference.learned_carry,
    Zoneout: reference.zoneout,
}


def entry(kind, inner=None, **options):
    """A cell and its oracle with the same options; `inner` is the entry of a wrapped cell."""
    if inner is None:
        return Entry(kind(WIDTH, **options), ORACLES[kind](**options))
    return Entry(kind(inner.cell, **options), ORACLES[kind](inner.oracle, **options))


# Every base cell, and options where they meet.
FAST = {
    "rnn tanh": entry(RNN),
    "rnn relu": entry(RNN, activation="relu"),
    "lstm": entry(LSTM),
    "gru reset after": entry(GRU),
    "gru reset before": entry(GRU, reset_after=False),
    "mgu": entry(MGU),
    "min gru": entry(MinGRU),
    "min lstm": entry(MinLSTM),
    "lru": entry(LRU),
    "rnn, rich": entry(RNN, activation="relu", heads=2, layer_norm=True, clip=1.5),
    "lstm, rich": entry(
        LSTM, heads=2, layer_norm=True, clip=0.8, hidden_dropout=0.3, candidate_dropout=0.4,
        peepholes=True, projection=4, cell_clip=0.7,
    ),
    "gru reset before, rich": entry(
        GRU, reset_after=False, heads=2, layer_norm=True, clip=1.2, hidden_dropout=0.3,
        candidate_dropout=0.4, dropout_per_step=True,
    ),
    "zoneout, learned, lstm": entry(
        Zoneout, entry(LearnedCarry, entry(LSTM, peepholes=True, projection=6)), h=0.2, c=0.4
    ),
}  # fmt: skip
# More combinations.
RICH = {
    "lstm, projection, heads": entry(LSTM, projection=12, heads=4),
    "lstm, coupled, rich": entry(
        LSTM, heads=4, layer_norm=True, clip=0.8, hidden_dropout=0.3, candidate_dropout=0.4,
        dropout_per_step=True, coupled=True, peepholes=True, projection=12, cell_clip=0.7,
    ),
    "gru reset after, rich": entry(
        GRU, heads=4, layer_norm=True, clip=1.2, hidden_dropout=0.3, candidate_dropout=0.4,
        z_keeps=False,
    ),
    "mgu, rich": entry(
        MGU, heads=2, layer_norm=True, clip=1.2, hidden_dropout=0.3, candidate_dropout=0.4,
        dropout_per_step=True,
    ),
    "zoneout gru, norm": entry(Zoneout, entry(GRU, layer_norm=True), h=0.3),
    "learned zoneout lstm": entry(LearnedCarry, entry(Zoneout, entry(LSTM), h=0.2, c=0.4)),
    "zoneout, dropout": entry(
        Zoneout, entry(GRU, reset_after=False, hidden_dropout=0.3, candidate_dropout=0.4), h=0.2
    ),
    "zoneout, dropout per step": entry(
        Zoneout, entry(LSTM, hidden_dropout=0.3, dropout_per_step=True), h=0.2, c=0.4
    ),
}  # fmt: skip
# Every option alone.
ALONE = {
    "rnn, no bias": entry(RNN, bias=False),
    "rnn, heads": entry(RNN, heads=4),
    "rnn, norm": entry(RNN, layer_norm=True),
    "rnn, norm, no bias": entry(RNN, layer_norm=True, bias=False),
    "rnn, clip": entry(RNN, clip=0.8),
    "rnn, hidden dropout": entry(RNN, hidden_dropout=0.3),
    "rnn, candidate dropout": entry(RNN, candidate_dropout=0.3),
    "rnn, dropout per step": entry(
        RNN, hidden_dropout=0.3, candidate_dropout=0.4, dropout_per_step=True
    ),
    "lstm, no bias": entry(LSTM, bias=False),
    "lstm, heads": entry(LSTM, heads=2),
    "lstm, norm": entry(LSTM, layer_norm=True),
    "lstm, norm, no bias": entry(LSTM, layer_norm=True, bias=False),
    "lstm, clip": entry(LSTM, clip=0.8),
    "lstm, hidden dropout": entry(LSTM, hidden_dropout=0.3),
    "lstm, candidate dropout": entry(LSTM, candidate_dropout=0.3),
    "lstm, coupled": entry(LSTM, coupled=True),
    "lstm, peepholes": entry(LSTM, peepholes=True),
    "lstm, coupled, peepholes": entry(LSTM, coupled=True, peepholes=True),
    "lstm, projection": entry(LSTM, projection=5),
    "lstm, cell clip": entry(LSTM, cell_clip=0.7),
    "gru, no bias": entry(GRU, bias=False),
    "gru, heads": entry(GRU, heads=2),
    "gru, norm": entry(GRU, layer_norm=True),
    "gru, norm, no bias": entry(GRU, layer_norm=True, bias=False),
    "gru, clip": entry(GRU, clip=0.8),
    "gru, hidden dropout": entry(GRU, hidden_dropout=0.3),
    "gru, candidate dropout": entry(GRU, candidate_dropout=0.3),
    "gru, z writes": entry(GRU, z_keeps=False),
    "gru before, no bias": entry(GRU, reset_after=False, bias=False),
    "gru before, heads": entry(GRU, reset_after=False, heads=4),
    "gru before, norm": entry(GRU, reset_after=False, layer_norm=True),
    "gru before, hidden dropout": entry(GRU, reset_after=False, hidden_dropout=0.3),
    "gru before, z writes": entry(GRU, reset_after=False, z_keeps=False),
    "mgu as flax, no bias": entry(MGU, reset_after=True, z_keeps=True, bias=False),
    "min gru, no bias": entry(MinGRU, bias=False),
    "min lstm, no bias": entry(MinLSTM, bias=False),
    "lru, ring": entry(LRU, least=0.5, most=0.9, phase=1.0),
    "learned lru": entry(LearnedCarry, entry(LRU)),
    "learned rnn": entry(LearnedCarry, entry(RNN)),
    "learned lstm": entry(LearnedCarry, entry(LSTM)),
    "zoneout rnn": entry(Zoneout, entry(RNN), h=0.3),
    "zoneout lstm, h": entry(Zoneout, entry(LSTM), h=0.3),
    "zoneout lstm, c": entry(Zoneout, entry(LSTM), c=0.3),
}  # fmt: skip
TABLE = FAST | {name: one._replace(slow=True) for name, one in (RICH | ALONE).items()}
PROBES = {
    "running sum": Entry(probes.RunningSum(WIDTH), reference.running_sum),
    "awkward": Entry(probes.Awkward(WIDTH)),
}
ALL = TABLE | PROBES
# Stand for the rest in fast tests of what costs more than it tells apart.
SAMPLE = {"gru reset before", "awkward"}


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
